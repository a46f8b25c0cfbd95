"""Counts words that name nothing, by room, against a budget that only falls.

    .venv/bin/python tools/words/main.py            says where a room has more of a word than its budget, and fails
    .venv/bin/python tools/words/main.py --write    lowers the budget to what there is

A name such as ``found`` or ``told`` says what happened to a value, and not what it is: a reader has to look it up. So
has he where a docstring says that something "is told" or "was asked" without a subject. Each room of ``dra_driver`` has
so many of them as ``budget.toml`` says, and no more.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

NAMES: Final = ("found", "known", "made", "told", "said", "held")
"""Of variables, parameters, functions and classes."""
PHRASE: Final = re.compile(r"\b(?:is|are|was|were) (?:asked|told|said)\b")
"""In docstrings and comments."""
ROOT: Final = Path(__file__).resolve().parents[2] / "dra_driver"
BUDGET: Final = Path(__file__).with_name("budget.toml")

Counts = dict[str, Counter[str]]
"""By room, how often it has each word; phrases count as ``is told``."""


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description="Count words that name nothing, by room, against the budget.")
    parser.add_argument("--write", action="store_true", help="lower the budget to what there is")
    arguments = parser.parse_args()
    counts, budget = counts_of(ROOT), tomllib.loads(BUDGET.read_text()) if BUDGET.exists() else None
    excess = list(overdrawn(counts, budget)) if budget is not None else []
    for line in excess:
        print(line, file=sys.stderr)
    if excess:
        return 1
    if arguments.write:
        BUDGET.write_text(text_of(counts))
    elif budget is not None and (lower := [room for room, words in counts.items() if dict(words) != budget.get(room)]):
        print(f"{', '.join(lower)}: less than the budget; run tools/words/main.py --write", file=sys.stderr)
        return 1
    return 0


def counts_of(root: Path) -> Counts:
    """What the rooms, the folders below ``root``, have of each word. Generated files do not count."""
    counts: Counts = {}
    for path in sorted(root.glob("*/**/*.py")):
        if "_pb2" not in path.name:
            counts.setdefault(path.relative_to(root).parts[0], Counter()).update(words(path.read_text("utf-8")))
    return {room: Counter(dict(sorted(own.items()))) for room, own in counts.items()}


def words(text: str) -> Iterator[str]:
    """Each word that a module has, as often as it stands there."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield from _word(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield from _word(name)
    yield from ("is told" for _ in PHRASE.finditer(text))


def overdrawn(counts: Mapping[str, Mapping[str, int]], budget: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A line for each word of which a room has more than its budget."""
    for room, own in counts.items():
        for word, count in own.items():
            if count > (most := budget.get(room, {}).get(word, 0)):
                yield f"dra_driver/{room}: {count} times {word!r}, {most} allowed; name what it is"


def text_of(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The budget as TOML."""
    tables = (
        f"[{room}]\n" + "".join(f'"{word}" = {count}\n' for word, count in own.items()) for room, own in counts.items()
    )
    return "# Written by main.py --write. It only falls.\n\n" + "\n".join(tables)


def _word(name: str) -> Iterator[str]:
    if (plain := name.lstrip("_")) in NAMES:
        yield plain


if __name__ == "__main__":
    sys.exit(main())
