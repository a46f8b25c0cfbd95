"""mkdocs builds the site from the pages where they are, under the paths that they have in the repository.

So a relative link leads to the same page or file as on a hosting site. Files that pages link to, such as examples, are
part of the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/*/*.md", "examples/*.md", "charts/*/*.md")

_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s#]+)")
_MARKER = re.compile(r"^ *<!-- (?:not run|on a cluster)[^\n]*-->\n", re.MULTILINE)
_FILE = re.compile(r"^ *<!-- file: (\S+) -->\n( *```\w+)$", re.MULTILINE)
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")


def on_files(files: Files, *, config: Any) -> Files:
    """The pages, and what they link to, in place of the files of ``docs_dir``."""
    from mkdocs.structure.files import File

    for file in list(files.documentation_pages()) + list(files.media_files()):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in sorted(_sources()):
        files.append(File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls))
    files.append(File("site.css", str(Path(__file__).parent), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The page in the form that Python-Markdown wants."""
    del page, config, files
    markdown = _FILE.sub(r'\2 title="\1"', markdown)
    return four_spaces(_MARKER.sub("", markdown))


def _sources() -> Iterator[Path]:
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    yield from pages
    linked = {
        (page.parent / target).resolve() for page in pages for target in _LINK.findall(page.read_text(encoding="utf-8"))
    }
    yield from (path for path in linked - pages if path.is_file() and path.is_relative_to(ROOT))


def four_spaces(markdown: str) -> str:
    """What belongs to a list's items, indented by four spaces a level.

    CommonMark, which hosting sites use, wants it below the item's text, which is two or three; Python-Markdown wants
    four.
    """
    columns: list[int] = []  # where the text of the open items begins, from the outermost on
    fence = 0  # how far the lines of an open fence move
    inside = False
    lines = []
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if inside or not text:
            lines.append(" " * max(indent + fence, 0) + text if text else "")
            inside = inside and not text.startswith("```")
            continue
        while columns and indent < columns[-1]:
            columns.pop()
        moved = 4 * len(columns) + indent - (columns[-1] if columns else 0)
        lines.append(" " * moved + text)
        if text.startswith("```"):
            inside, fence = True, moved - indent
        elif item := _ITEM.match(text):
            columns.append(indent + item.end())
    return "\n".join(lines)
