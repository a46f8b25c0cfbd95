"""The tables of ``docs/reference/hardware.md``, from the table of the code.

``scripts/generate assumptions`` writes them into the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dra_driver.operations.verification.assumptions import TABLE

_MARK = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH: Final = 120


def states() -> Iterator[str]:
    """What is known of each row."""
    yield "| Line | Code | Known from | Confirmed on hardware |"
    yield "|---|---|---|---|"
    for number, row in enumerate(TABLE, 1):
        yield f"| {number} | `{row.code}` | {row.source.basis} | {row.confirmed or 'nobody yet'} |"


def assumptions() -> Iterator[str]:
    """Each row in full."""
    for number, row in enumerate(TABLE, 1):
        yield from _item(f"{number}. ", f"**{row.text[0].upper()}{row.text[1:]}.**")
        for name, text in (
            ("Seen in", _paths(row.check.where)),
            ("Source", row.source.text),
            ("If it is wrong", row.consequence),
            ("Features", ", ".join(row.features)),
        ):
            yield from _item("    - ", f"{name}: {text}.")


def _item(mark: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _paths(where: str) -> str:
    """With file names as code."""
    return re.sub(r"(?<!\S)((?:[^ ,{]|\{[^}]*\})*/(?:[^ ,{]|\{[^}]*\})*)", r"`\1`", where)


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {"states": states, "assumptions": assumptions}


def page(text: str) -> str:
    """The page with its tables as they should be. KeyError for a mark of no table."""
    return _MARK.sub(lambda mark: f"{mark[1]}\n" + "\n".join(TABLES[mark[2]]()) + f"\n\n{mark[3]}", text)
