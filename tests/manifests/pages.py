"""The commands of the pages: where they are, and which of them run where.

What a reader is told to type stands in a fenced block of ``console``. A comment on the line above says what a block is:

``<!-- not run: REASON -->``
    nobody runs it here, for that reason;
``<!-- on a cluster -->``, ``<!-- on a cluster: install -->``
    ``tests/cluster/test_pages.py`` runs it on a cluster with the driver; ``install``: it changes the installation;
``<!-- with Prometheus -->``
    ``tests/cluster/test_monitoring.py`` runs it, on a cluster whose driver has metrics;
``<!-- file: NAME -->``
    above a listing: the commands of the pages find it under this name;
without a comment
    ``tests/manifests/test_pages.py`` runs it, with nothing but the project's Python environment and its files.

In a block with ``$ ``, the other lines are what a command prints: ``...`` stands for any number of lines, and at the
end of a line for the rest of it. Otherwise every line is a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*/*.md", "examples/*.md", "charts/*/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)

_BLOCK = re.compile(
    r"^(?P<note>(?P<indent> *)<!-- (?P<key>not run|on a cluster|with Prometheus|file)(?:: (?P<value>[^\n]*?))? -->\n+)?"
    r"^(?P<margin> *)```(?P<language>\S*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Command:
    """A command, which may have several lines, and the lines that it is shown to print (without a line end)."""

    text: str
    printed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, what the comment above it says, and its text without its margin.

    ``key`` is ``not run``, ``on a cluster``, ``with Prometheus``, ``file`` or "" without a comment, ``value`` what
    follows the colon there.
    """

    page: Path
    line: int
    language: str
    key: str
    value: str
    text: str

    @property
    def name(self) -> str:
        """Page and line, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[Command]:
        """The commands of a block of ``console``."""
        found: list[tuple[list[str], list[str]]] = []
        transcript = re.search(r"^\$ ", self.text, re.MULTILINE) is not None
        for line in self.text.splitlines():
            if found and _is_open("\n".join(found[-1][0])):
                found[-1][0].append(line)
            elif not transcript or line.startswith("$ "):
                found.append(([line.removeprefix("$ ")], []))
            else:
                found[-1][1].append(line)
        return [Command("\n".join(typed), tuple(printed)) for typed, printed in found if "".join(typed).strip()]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        margin = len(match["margin"])
        lines = [line[margin:] for line in match["text"].splitlines()]
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("margin")) + 1,
            language=match["language"],
            key=match["key"] or "",
            value=match["value"] or "",
            text="".join(f"{line}\n" for line in lines),
        )


def listings() -> dict[str, str]:
    """The files that pages show, by name."""
    return {block.value: block.text for page in PAGES for block in blocks(page) if block.key == "file"}


def commands_of(page: Path) -> list[Block]:
    """The blocks of a page that show commands."""
    return [block for block in blocks(page) if block.language == "console"]


def is_shown(printed: tuple[str, ...], output: str) -> bool:
    """Whether what a page shows is what a command printed; see the module for ``...``."""
    pattern = ""
    for line in printed:
        text = line.rstrip()
        if text.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        elif text.endswith("..."):
            pattern += re.escape(text.removesuffix("...")) + r"[^\n]*\n"
        else:
            pattern += re.escape(text) + r"[ ]*\n"
    return re.fullmatch(pattern, output if output.endswith("\n") or not output else f"{output}\n") is not None


def _is_open(text: str) -> bool:
    """Whether a shell would want another line."""
    if text.endswith("\\"):
        return True
    if "<<" in text:
        word = text.split("<<", 1)[1].split(maxsplit=1)[0].strip("'\"")
        return word not in text.splitlines()[1:]
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False
