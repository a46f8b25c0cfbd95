"""Blocks of pages that are made from tables: each stands between ``<!-- table: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Final

MARK: Final = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH: Final = 120


def filled(text: str, tables: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """The page with these tables as they should be; other blocks stay."""

    def block(mark: re.Match[str]) -> str:
        make = tables.get(mark[2])
        return mark[0] if make is None else f"{mark[1]}\n" + "\n".join(make()).rstrip() + f"\n\n{mark[3]}"

    return MARK.sub(block, text)


def item(mark: str, text: str) -> list[str]:
    """The lines of a list's item."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
