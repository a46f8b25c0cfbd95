"""``--failed-to``: the names of failed tests, with which ``scripts/test`` repeats them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

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
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=50
    )


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
