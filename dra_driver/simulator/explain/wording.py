"""How lists, numbers and names are written in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dra_driver.util.text import shorten

MOST_NAMES = 6
"""Names in one list; of more the rest is counted."""

LONGEST_VALUE = 80
"""Characters; Kubernetes allows texts of 64 bytes."""

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)


def listed(items: Sequence[str], word: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:  # nothing to join
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"


def shortened(items: Sequence[str], most: int = MOST_NAMES) -> str:
    """A list of at most ``most`` names, and how many more there are."""
    if len(items) <= most:
        return listed(items)
    return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"


def named(names: Iterable[str]) -> str:
    """Names in natural order, each prefix written once: ``chip-0, 4 and 8 to 11``."""
    by_prefix: dict[str, list[str]] = {}
    for name in natural(names):
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], match[2]) if match is not None else (name, "")
        by_prefix.setdefault(prefix, []).append(number)
    return listed([prefix + shortened(_runs(numbers)) for prefix, numbers in by_prefix.items()])


def _runs(numbers: Sequence[str]) -> list[str]:
    """Three and more in a row become one part."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number and runs[-1][-1] and int(runs[-1][-1]) + 1 == int(number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
    ]  # a pair is no range


def natural(names: Iterable[str]) -> list[str]:
    """Sorted so that numbers count as numbers."""
    return sorted(names, key=lambda name: [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _pieces(name)])


def _pieces(name: str) -> list[str]:
    return [piece for piece in re.split(r"([0-9]{1,18})", name) if piece]


def counted(count: int, word: str, plural: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {word if count == 1 else plural or word + 's'}"


def of_all(count: int, total: int, word: str = "device") -> str:
    """``3 of 16 devices``, ``all 16 devices``, ``the only device``."""
    if count == total:
        return f"the only {word}" if total == 1 else f"all {total} {word}s"
    return f"{count} of {total} {word}s"


def printable(line: str) -> str:
    """The line with escapes for what could drive a terminal: names, values and expressions are others' texts."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in line
    )


def choice(values: Sequence[str]) -> str:
    """The different values of something: all of few, else some."""
    if len(values) > 2 and all(re.fullmatch(r"[0-9]{1,18}", value) for value in values):
        numbers = sorted(map(int, values))
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]} to {numbers[-1]}"
    shown = [shorten(value, LONGEST_VALUE, keep=LONGEST_VALUE) for value in natural(values)]
    if len(values) <= 3:  # short enough to be read
        return listed(shown, "or")
    return f"{len(values)} values such as {listed(shown[:2])}"


def are(count: int, singular: str = "is", plural: str = "are") -> str:
    """The verb of so many."""
    return singular if count == 1 else plural
