"""The list of ``docs/reference/hardware.md``, from the table of the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dra_driver.operations.verification.assumptions import TABLE
from generating.blocks import filled, item


def assumptions() -> Iterator[str]:
    """Each row in full."""
    for number, row in enumerate(TABLE, 1):
        confirmed = f"; confirmed: {row.confirmed}" if row.confirmed else ""
        yield from item(
            f"{number}. ",
            f"**{row.text[0].upper()}{row.text[1:]}** (`{row.code}`). Seen in {_paths(row.check.where)}. "
            f"Known from: {row.source.basis}, {row.source.text}{confirmed}. If it is wrong: {row.consequence}. "
            f"Features: {', '.join(row.features)}.",
        )


def _paths(where: str) -> str:
    """With file names as code."""
    return re.sub(r"(?<!\S)((?:[^ ,{]|\{[^}]*\})*/(?:[^ ,{]|\{[^}]*\})*)", r"`\1`", where)


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {"assumptions": assumptions}


def page(text: str) -> str:
    """The page with its list as it should be."""
    return filled(text, TABLES)
