"""``golden()``: what a run reports, and what a run writes with ``--renew-golden``; each in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests import golden
from tests.paths import ROOT

pytestmark = pytest.mark.slow

UIDS = (uuid.uuid4(), uuid.uuid4())

TESTS = """
import pytest
from tests.golden import golden

@pytest.mark.parametrize("what", ["apples", "nuts | pears"])
def test_wares(what):
    golden(f"There are {what}.\\n--- none\\n\\n  but these")
    golden(["No shop", "No ware"], "refusals")
    golden("again")

def test_greeting():
    golden("Welcome")
"""
KEPT = """\
--- test_greeting
    Welcome

--- test_wares[apples]
    There are apples.
    --- none

      but these

--- test_wares[apples] | 2
    again

--- test_wares[apples] | refusals
    No shop
    No ware

--- test_wares[nuts | pears]
    There are nuts | pears.
    --- none

      but these

--- test_wares[nuts | pears] | 2
    again

--- test_wares[nuts | pears] | refusals
    No shop
    No ware
"""


class Project:
    """A project with one module of tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "tests").mkdir()
        self.tests = root / "tests" / "test_shop.py"
        self.tests.write_text(TESTS)
        self.file = root / "tests" / "golden" / "test_shop.txt"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir=.", "--import-mode=importlib"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(arguments or ["tests"])],
            cwd=self._root,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def replace(self, old: str, new: str) -> None:
        assert old in self.tests.read_text()
        self.tests.write_text(self.tests.read_text().replace(old, new))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.file.parent.mkdir()
    made.file.write_text(KEPT)
    return made


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_renewal_writes_what_a_run_then_compares(tmp_path: Path, workers: list[str]) -> None:
    project = Project(tmp_path)
    assert project.run("tests", "--renew-golden", *workers).returncode == 0
    assert project.file.read_text() == KEPT
    assert project.run("tests", *workers).returncode == 0


def test_another_text_fails_with_the_difference_and_the_remedy(project: Project) -> None:
    project.replace("Welcome", "Hello")
    run = project.run()
    assert run.returncode == 1
    assert "-Welcome\n+Hello\n" in run.stdout
    assert "scripts/test golden tests/test_shop.py" in run.stdout
    assert project.file.read_text() == KEPT
    assert project.run("tests", "--renew-golden").returncode == 0
    assert project.file.read_text() == KEPT.replace("Welcome", "Hello")


def test_a_text_without_entry_fails_and_is_not_written(project: Project) -> None:
    project.replace('golden("Welcome")', 'golden("Welcome"); golden("Bye")')
    assert project.run().returncode == 1
    assert project.file.read_text() == KEPT


def test_an_entry_that_its_test_no_longer_asks_for_fails_until_it_is_renewed(project: Project) -> None:
    project.replace('    golden("again")\n', "")
    assert "2 failed, 1 passed" in project.run().stdout
    assert project.run("tests", "--renew-golden", "-n", "2").returncode == 0
    assert project.file.read_text() == "".join(
        f"--- {entry}" for entry in KEPT.split("--- ") if "again" not in entry
    ).removeprefix("--- ").replace("--- --- none", "--- none")


def test_an_entry_whose_test_is_gone_fails_where_the_module_was_collected_whole(project: Project) -> None:
    project.replace('\ndef test_greeting():\n    golden("Welcome")\n', "")
    run = project.run()
    assert "no test asks for 'test_greeting'" in run.stdout
    assert project.run("tests", "-k", "apples").returncode == 0
    assert project.run("tests/test_shop.py::test_wares").returncode == 0


def test_a_renewal_of_some_tests_keeps_the_entries_of_others(project: Project) -> None:
    project.replace("Welcome", "Hello")
    project.replace("There are", "We have")
    assert project.run("tests", "-k", "apples", "--renew-golden", "-n", "2").returncode == 0
    assert project.file.read_text() == KEPT.replace("There are apples", "We have apples")


def test_a_renewal_keeps_what_a_failed_test_had_not_asked_for_yet(project: Project) -> None:
    project.replace('    golden("again")', '    assert what == "apples"\n    golden("again")')
    assert project.run("tests", "--renew-golden").returncode == 1
    assert project.file.read_text() == KEPT


def test_a_renewal_removes_the_file_of_a_module_that_is_gone(project: Project) -> None:
    other = project.file.with_name("test_market.txt")
    other.write_text("--- test_x\n    x\n")
    assert project.run("tests", "--renew-golden").returncode == 0
    assert not other.exists()


def test_each_golden_file_has_its_module() -> None:
    assert golden.files_without_module(ROOT) == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{tempfile.gettempdir()}/pytest-of-me/pytest-3/popen-gw0/test_x0/a/b: no", "TMP/a/b: no"),
        (f"{tempfile.gettempdir()}/k_x1y2z3/registry: no", "TMP/registry: no"),
        ("http://127.0.0.1:41235/api", "http://127.0.0.1:PORT/api"),
        ("done in 0.3 ms (next try in 1.2 s)", "done in N ms (next try in N s)"),
        (f"claims {UIDS[0]}, {UIDS[1]} and {UIDS[0]}", "claims UID1, UID2 and UID1"),
        ("claim 00000000-0000-0000-0000-000000000001", "claim 00000000-0000-0000-0000-000000000001"),
        (f"at {datetime.now(UTC).isoformat()}", "at NOW"),
        (f"at {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "at NOW"),
        ("at 2026-01-02T03:04:05Z", "at 2026-01-02T03:04:05Z"),
        ("\x1b[1mbold\r", r"\x1b[1mbold\r"),
    ],
    ids=[
        "file",
        "other file",
        "port",
        "durations",
        "random UIDs",
        "UID given",
        "now",
        "now to the second",
        "time given",
        "control characters",
    ],
)
def test_what_differs_between_runs_is_replaced(text: str, kept: str) -> None:
    assert golden.normalized(text) == kept
