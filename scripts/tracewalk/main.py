"""The command `scripts/trace-walk`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracewalk.walks import listing, traced

WALKS = ("publish", "prepare", "repair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/trace-walk",
        description="Trace real calls through the node's driver, and print the files that each enters: in the order of "
        "the first entry, with the number of entries; the page has the files alone.",
        epilog="example: scripts/trace-walk --write docs/architecture.md",
    )
    parser.add_argument("walk", nargs="*", help="publish, prepare or repair (default: all)")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the walks between their markers in this page")
    options = parser.parse_args(arguments)
    if unknown := set(options.walk).difference(WALKS):
        parser.error(f"there is no walk {min(unknown)!r}; there are {', '.join(WALKS)}")
    walks = traced()
    if options.write:
        options.write.write_text(with_walks(options.write.read_text(), walks))
        return 0
    print("\n\n".join(listing(name, walks[name]) for name in options.walk or WALKS))
    return 0


def with_walks(page: str, walks: Mapping[str, Mapping[str, int]]) -> str:
    """The page with the walks between their markers.

    Raises:
        ValueError: a marker is missing.
    """
    for name, entries in walks.items():
        begin, end = f"<!-- trace-walk {name} -->\n", "<!-- trace-walk end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no {begin.strip()} with {end} after it")
        files = "\n".join(entries)
        page = f"{before}{begin}\n```text\n{name}: {len(entries)} files\n{files}\n```\n\n{end}{after}"
    return page


if __name__ == "__main__":
    sys.exit(main())
