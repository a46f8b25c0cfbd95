"""How lists and numbers are written in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_NAMES: Final = 6
"""Maximum number of names in one list; the rest is only counted."""

_NUMBERED: Final = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)


def listed(items: Sequence[str], word: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:  # nothing to join
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"


def shortened(items: Sequence[str], most: int = MAX_NAMES) -> str:
    """A list of at most ``most`` names, and the number of the others."""
    if len(items) <= most:
        return listed(items)
    return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"


def named(names: Iterable[str]) -> str:
    """Names in natural order, with each prefix written once: ``chip-0, 4 and 8 to 11``."""
    by_prefix: dict[str, list[str]] = {}
    for name in natural(names):
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], match[2]) if match is not None else (name, "")
        by_prefix.setdefault(prefix, []).append(number)
    shown = [prefix + shortened(_runs(numbers)) for prefix, numbers in by_prefix.items()]
    if len(shown) <= MAX_NAMES:
        return listed(shown)
    rest = sum(map(len, list(by_prefix.values())[MAX_NAMES - 1 :]))
    return f"{', '.join(shown[: MAX_NAMES - 1])} and {rest} more"


def _runs(numbers: Sequence[str]) -> list[str]:
    """Three or more consecutive numbers become one range."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number and runs[-1][-1] and int(runs[-1][-1]) + 1 == int(number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
    ]  # two numbers are listed, not written as a range


def natural(names: Iterable[str]) -> list[str]:
    """Sorted so that numbers within names compare as numbers."""
    return sorted(names, key=lambda name: [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _pieces(name)])


def _pieces(name: str) -> list[str]:
    return [piece for piece in re.split(r"([0-9]{1,18})", name) if piece]


def counted(count: int, word: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {word if count == 1 else word + 's'}"


def of_all(count: int, total: int) -> str:
    """``3 of 16 devices``, ``all 16 devices``, ``the only device``."""
    if count == total:
        return "the only device" if total == 1 else f"all {total} devices"
    return f"{count} of {total} devices"


def are(count: int, singular: str = "is", plural: str = "are") -> str:
    """The verb form for a count."""
    return singular if count == 1 else plural
