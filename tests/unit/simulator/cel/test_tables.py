"""The parser's tables in the user's cache: kept there, made again when they cannot be used, never read from others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

ASK = "from dra_driver.simulator.cel import compile; print(compile('device.driver == \"a\"').cost)"


def cost(cache: Path | str, *options: str) -> str:
    """What a process with this cache, and these options of Python, says of an expression."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *options, "-c", ASK]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_tables_are_kept_for_the_user_alone(tmp_path: Path) -> None:
    first = cost(tmp_path)
    kept = tmp_path / "dra-driver" / "cel-parser"
    assert kept.stat().st_size > 0
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    written = kept.stat().st_mtime_ns
    assert cost(tmp_path) == first
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize("content", [b"nonsense\n", None])
def test_tables_that_cannot_be_read_are_made_again(tmp_path: Path, content: bytes | None) -> None:
    first = cost(tmp_path)
    kept = tmp_path / "dra-driver" / "cel-parser"
    good = kept.read_bytes()
    kept.write_bytes(good[: len(good) // 2] if content is None else content)
    assert cost(tmp_path) == first
    assert len(kept.read_bytes()) > 0.9 * len(good)


def test_a_folder_into_which_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "dra-driver"
    folder.mkdir()
    folder.chmod(0o777)
    cost(tmp_path)
    assert list(folder.iterdir()) == []


def test_nothing_is_written_where_python_is_to_write_no_caches(tmp_path: Path) -> None:
    assert cost(tmp_path, "-B") == cost("/dev/null/nowhere")
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_to_write_to_expressions_are_read_all_the_same() -> None:
    assert cost("/proc/nowhere") == cost("/dev/null/nowhere")
