"""How long tests took, of the files that ``scripts/test`` leaves in build/timings: one for each part of a run.

.venv/bin/python tools/timings.py slowest RUN
.venv/bin/python tools/timings.py compare OLD NEW
"""

from __future__ import annotations

import sys
from pathlib import Path

MOST = 25

Seconds = dict[str, float]
"""How long each test took."""


def read(run: Path) -> dict[str, Seconds]:
    """Return the times of each part of the run; a line of a part's file has seconds, a tab, and the test."""
    return {path.stem: _times(path) for path in sorted(run.glob("*.tsv"))}


def slowest(run: Path) -> list[str]:
    """Return a line for each of the tests that took longest."""
    tests = [(seconds, name) for part in read(run).values() for name, seconds in part.items()]
    return [f"{seconds:8.1f} s  {name}" for seconds, name in sorted(tests, reverse=True)[:MOST]]


def compare(old: Path, new: Path) -> list[str]:
    """Return a line for each part, and for each of the tests whose times differ most, also if one run lacks it."""
    before, after = read(old), read(new)
    lines: list[str] = []
    changes: Seconds = {}
    for part in sorted(before.keys() | after.keys()):
        was, now = before.get(part, {}), after.get(part, {})
        lines.append(
            f"{part}: {sum(was.values()):.0f} s in {len(was)} tests, now {sum(now.values()):.0f} s in {len(now)}"
        )
        changes |= {name: now.get(name, 0) - was.get(name, 0) for name in was.keys() | now.keys()}
    most = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:MOST]
    return lines + [f"{changes[name]:+8.1f} s  {name}" for name in most]


def _times(path: Path) -> Seconds:
    rows = (line.partition("\t") for line in path.read_text().splitlines())
    return {name: float(seconds) for seconds, _, name in rows}


def main(arguments: list[str]) -> int:
    """Print what was asked for; 2 if that cannot be told."""
    match arguments:
        case ["slowest", run] if Path(run).is_dir():
            print(f"\n== the {MOST} slowest tests (all times: {run})")
            lines = slowest(Path(run))
        case ["compare", old, new] if Path(old).is_dir() and Path(new).is_dir():
            lines = compare(Path(old), Path(new))
        case _:
            print(f"{__doc__}\nRUN, OLD and NEW are directories in build/timings.", file=sys.stderr)
            return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
