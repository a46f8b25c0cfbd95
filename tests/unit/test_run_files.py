"""What a run of tests leaves: the names of failed tests, with which they can be repeated, and how long each took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import timings

from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

TESTS = """
import pytest

@pytest.mark.parametrize("text", ["a b", "c::d", "well"])
def test_a_text(text):
    assert text == "well"

@pytest.fixture
def broken():
    raise AssertionError

def test_whose_fixture_fails(broken):
    pass
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        *arguments,
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}

    def finished() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    try:
        return finished()
    except subprocess.TimeoutExpired:
        # Two seconds are usual. xdist came to no end once in CI, in none of 180 runs elsewhere.
        return finished()


def test_failed_tests_are_kept_with_names_that_repeat_just_them(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(TESTS)
    first = run(tmp_path, "test_example.py", "-n", "2", "--failed-to=failed")
    assert first.returncode == 1, first.stderr
    assert sorted((tmp_path / "failed").read_text().splitlines()) == [
        "test_example.py::test_a_text[a b]",
        "test_example.py::test_a_text[c::d]",
        "test_example.py::test_whose_fixture_fails",
    ]
    again = run(tmp_path, "@failed")
    assert "2 failed, 1 error in" in again.stdout


def test_where_nothing_failed_none_is_kept(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text("def test_well():\n    pass\n")
    assert run(tmp_path, "test_example.py", "--failed-to=failed").returncode == 0
    assert (tmp_path / "failed").read_text() == ""


def test_times_of_a_run_are_kept_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_example.py").write_text(
        "import time\n\ndef test_long():\n    time.sleep(0.2)\n\ndef test_short(): ...\n"
    )
    run(tmp_path, "test_example.py", "-n", "2", "--timings=unit.tsv")
    kept = (line.split("\t") for line in (tmp_path / "unit.tsv").read_text().splitlines())
    measured = {name: float(seconds) for seconds, name in kept}
    assert measured.keys() == {"test_example.py::test_long", "test_example.py::test_short"}
    assert measured["test_example.py::test_long"] >= 0.2

    for name, rows in {"old": "9.00\ta\n1.00\tb\n", "new": "2.00\ta\n1.50\tb\n4.00\tc\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "unit.tsv").write_text(rows)
    assert timings.main(["slowest", str(tmp_path / "new")]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["4.0", "s", "c"],
        ["2.0", "s", "a"],
        ["1.5", "s", "b"],
    ]
    assert timings.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "unit: 10 s in 2 tests, now 8 s in 3"
    assert [line.split() for line in rest] == [["-7.0", "s", "a"], ["+4.0", "s", "c"], ["+0.5", "s", "b"]]
    assert timings.main(["compare", str(tmp_path / "old"), str(tmp_path / "missing")]) == 2
