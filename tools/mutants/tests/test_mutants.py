"""Mutants of a small tree, tried by its own tests."""

import subprocess
from pathlib import Path

import pytest

from mutants.main import MutantsError, load, main

PRODUCT = """def price(count):
    if count > 9:
        return count * 2
    return count * 3
"""
ROOM = "from toy import price\n\ndef test_one_costs_three():\n    assert price(1) == 3\n"
TIER_0 = "from toy import price\n\ndef test_ten_are_cheaper():\n    assert price(10) == 20\n"
HEAD = """
[limits]
room = 30
"tier 0" = 60
"tier 1" = 60

[rooms.toy]
tests = ["tests/unit/test_toy.py"]
"""


def row(name: str, find: str, replace: str, more: str = "") -> str:
    text = f'[[mutant]]\nname = "{name}"\nroom = "toy"\nfile = "toy.py"\nfind = "{find}"\nreplace = "{replace}"\n'
    return text + f'breaks = "the price of {name}"\n{more}\n'


SEEN_IN_ROOM = row("one", "count * 3", "count * 4")
SEEN_ELSEWHERE = row("ten", "count * 2", "count * 1")
SEEN_NOWHERE = row("nine", "count > 9", "count > 8")


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("unit", "plugin", "manifests"):
            (root / "tests" / name).mkdir(parents=True)
        self.write("tests/manifests/test_pages.py", "def test_pages():\n    pass\n")
        self.write("toy.py", PRODUCT)
        self.write("tests/unit/test_toy.py", ROOM)
        self.write("tests/plugin/test_more.py", TIER_0)
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)

    def write(self, name: str, text: str) -> Path:
        (self.root / name).write_text(text)
        return self.root / name

    def try_(self, *arguments: str, rows: str = "", head: str = HEAD) -> int:
        if rows:
            self.write("list.toml", head + rows)
        options = ["--results", str(self.root / "answers"), "--jobs", "1", "--workers", "0", *arguments]
        return main(options, root=self.root, path=self.root / "list.toml")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_rows_that_do_not_apply_are_refused_by_name(tree: Tree) -> None:
    rows = row("gone", "count * 5", "count") + row("often", "return", "yield") + row("broken", "def price", "def")
    with pytest.raises(MutantsError) as refused:
        load(tree.write("list.toml", HEAD + rows), tree.root)
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()[1:]] == ["gone", "often", "broken"]


def test_what_lives_is_reported_unless_it_is_argued(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.try_(rows=SEEN_NOWHERE) == 1
    assert "alive after tier 0: nine (toy): the price of nine" in capsys.readouterr().out
    assert tree.try_(rows=SEEN_NOWHERE + 'equivalent = "nobody buys nine"\n') == 0


def test_each_stage_tells_what_it_kills_and_a_run_goes_on_where_the_last_one_was_stopped(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    in_room = "one: killed by room tests/unit/test_toy.py::test_one_costs_three"
    in_tier_0 = "ten: killed by tier 0 tests/plugin/test_more.py::test_ten_are_cheaper"
    tree.try_("--until", "room", rows=SEEN_IN_ROOM + SEEN_ELSEWHERE)
    assert [line for line in capsys.readouterr().out.splitlines() if "killed by" in line] == [in_room]
    assert tree.try_() == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "killed by" in line] == [in_tier_0]
    assert (tree.root / "toy.py").read_text() == PRODUCT


def test_a_mutant_that_hangs_is_killed(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    rows = row("endless", "    return count * 3", "    while True: pass")
    assert tree.try_(rows=rows, head=HEAD.replace("room = 30", "room = 4")) == 0
    assert "endless: killed by room hangs" in capsys.readouterr().out


def test_a_test_that_fails_once_by_accident_kills_nothing(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    seen = tree.root / "seen"
    at_first = (
        f"from pathlib import Path\n\ndef test_accident():\n    at = Path({str(seen)!r})\n    there = at.exists()\n"
    )
    tree.write("tests/unit/test_toy.py", at_first + "    at.touch()\n    assert there\n\ndef test_well():\n    pass\n")
    assert tree.try_("--until", "room", rows=SEEN_IN_ROOM) == 1
    assert "not counted: tests/unit/test_toy.py::test_accident passes alone" in capsys.readouterr().out


def test_a_pytest_that_names_no_failed_test_says_nothing_of_a_mutant(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where pytest is not installed: all mutants would count as killed."""
    tree.write("conftest.py", "import os\n\nos._exit(1)\n")
    assert tree.try_("--until", "room", rows=SEEN_IN_ROOM) == 2
    assert "names no test that failed" in capsys.readouterr().err
