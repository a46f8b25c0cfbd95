"""How texts and lists are shortened for messages. Whoever reads a message sees that something was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MAX_LINE_BYTES: Final = 1024
"""An event of a pod holds that much; kubelet cuts off the rest."""


def shorten(text: str, max_length: int, keep: int | None = None) -> str:
    """``text`` if it has at most ``max_length`` characters, else its first ``keep`` and ``...``.

    Without ``keep`` the result has ``max_length`` characters at most.
    """
    if len(text) <= max_length:
        return text
    return text[: max_length - 3 if keep is None else keep] + "..."


def quoted(text: str, max_length: int = 64) -> str:
    """A text from outside in quotes, shortened and without control characters."""
    return repr(shorten(text, max_length))


def quoted_ascii(text: str, max_length: int = 80) -> str:
    """The same in ASCII; a text that is shortened is followed by its length."""
    start = ascii(text[:max_length])
    return start if len(text) <= max_length else f"{start}... ({len(text)} characters)"


def one_line(text: str, max_bytes: int = MAX_LINE_BYTES) -> str:
    """``text`` as one printable line of at most ``max_bytes`` bytes of UTF-8, which ends with ``...`` if shortened."""
    # Cut first, so that a megabyte is not processed to show a kilobyte of it.
    head = "".join(c if c.isprintable() else " " for c in text[: max_bytes + 1])
    line = " ".join(head.split()).encode("utf-8", "replace")
    if len(line) <= max_bytes and len(text) <= max_bytes + 1:
        return line.decode()
    return line[: max_bytes - 3].decode("utf-8", "ignore") + "..."


def first_of(items: Sequence[object], limit: int) -> str:
    """The first ``limit`` items separated by commas, and how many more there are: ``a, b, c and 4 more``."""
    more = len(items) - limit
    return ", ".join(map(str, items[:limit])) + (f" and {more} more" if more > 0 else "")


def printable(text: str) -> str:
    """Text of somebody else, with ``?`` for whatever could drive a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def escaped(text: str, keep: str = "") -> str:
    """Text of somebody else, with escapes for whatever could drive a terminal, but for the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )


def lines_to_print(text: str) -> str:
    """Lines with text of somebody else, which drive no terminal."""
    return escaped(text, keep="\n\t")


def ranges(ids: Iterable[int]) -> str:
    """Ascending ids with runs as ranges: ``0-8,12``."""
    parts: list[list[int]] = []
    for number in ids:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
