"""Every text that the driver has for people stands in a golden file, or in the list of those that do not yet.

The list, ``tests/data/texts-without-golden.txt``, can only become shorter: a new text needs a test that shows it
(``golden()``), and a text that is shown leaves the list with ``scripts/test golden tests/unit/test_texts.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.golden import DIRECTORY, normalized
from tests.paths import ROOT

LIST = ROOT / "tests/data/texts-without-golden.txt"
WORDS = 4
"""Fewer are a name, a key or a part of a sentence."""
# Expressions of CEL, grammars, programs, drawings, addresses and columns of tables are written with the same quotation
# marks.
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-0-9.]*[a-z]|%%|\{\w*\}")
NO_PROSE = re.compile(r"&&|\|\||==|\$\{|^<|/><|\\[dws]|\[\^|\[-?a-z|^import |://\S*$|[0-9a-f]{2}:[0-9a-f]{2}\.\d")
# Written by commands and compared by tests, as golden files are.
GENERATED = (
    "docs/reference/faults.md",
    "docs/reference/attributes.md",
    "docs/reference/commands.md",
    "docs/reference/hardware.md",
    "docs/reference/metrics.md",
    "docs/reference/settings.md",
    "deploy/deviceclasses.yaml",
    "charts/neuron-helm-chart/files/ultraserver-definitions.yaml",
)
DEFECTS = ("AssertionError", "RuntimeError")
THREADS = ("threading.Thread", "runtime.spawn", "Job")
# Marks of Markdown around names.
MARKS = str.maketrans("", "", "`")


def texts(tree: ast.Module) -> Iterator[str]:
    """Give the longest constant piece of each string with a sentence.

    Docstrings, names of threads, values of enumerations and errors that no input can cause are for readers of the
    code.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
        elif isinstance(node, ast.ClassDef) and "Enum" in map(ast.unparse, node.bases):
            node.body = [part for part in node.body if not isinstance(part, ast.Assign)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DEFECTS:
            node.args = []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in THREADS:
            node.keywords = []
    for node in ast.walk(tree):
        parts: list[ast.expr] = node.values if isinstance(node, ast.JoinedStr) else []
        constants = [part.value for part in (*parts, node) if isinstance(part, ast.Constant)]
        pieces = [piece for text in constants if isinstance(text, str) for piece in PLACEHOLDER.split(text)]
        longest = " ".join(max(pieces, key=lambda piece: len(piece.split()), default="").split())
        words = [word for word in longest.split() if word[0].isalpha()]
        # Names of fields and kinds have capitals.
        prose = sum(word.islower() for word in words) * 2 > len(words)
        if len(words) >= WORDS and prose and not NO_PROSE.search(longest):
            yield longest.translate(MARKS)


def all_texts() -> set[str]:
    modules = [path for path in sorted((ROOT / "dra_driver").rglob("*.py")) if "_pb2" not in path.name]
    return {text for path in modules for text in texts(ast.parse(path.read_text()))}


def shown() -> str:
    """Give what golden files and generated ones have, line breaks apart: those are of the terminal's width."""
    files = [*(ROOT / DIRECTORY).rglob("*.txt"), *(path for pattern in GENERATED for path in ROOT.glob(pattern))]
    return " ".join(" ".join(path.read_text().split()).translate(MARKS) for path in files)


def test_each_text_for_people_is_in_a_golden_file_or_in_the_list_that_can_only_shrink(
    pytestconfig: pytest.Config,
) -> None:
    everything = shown()
    without = {text for text in all_texts() if normalized(text) not in everything}
    listed = set(LIST.read_text().splitlines())
    if pytestconfig.getoption("renew_golden"):
        LIST.write_text("".join(f"{text}\n" for text in sorted(listed & without)))
        return
    assert sorted(without - listed) == [], "no golden file has these texts: let a test show them with golden()"
    assert sorted(listed - without) == [], (
        "golden files have these texts now, or the driver no longer does: scripts/test golden tests/unit/test_texts.py "
        f"takes them from {LIST.relative_to(ROOT)}"
    )


def test_the_longest_constant_piece_of_a_sentence_is_looked_for() -> None:
    source = '''
"""A docstring of more than four words."""
NAME = "three words only"
log.warning("claim %s is in the way of %s, which is not known", a, b)
raise DriverError(f"chip {index} is gone; replace the instance and its {name}")
CEL = "device.driver == 'x' && a in b or c"
threading.Thread(target=run, name="reading what nobody reads")
class Step(Enum):
    WAIT = "another one holds the lease"
raise AssertionError("the last try always returns")
'''
    assert sorted(set(texts(ast.parse(source)))) == ["is gone; replace the instance and its", "is in the way of"]
