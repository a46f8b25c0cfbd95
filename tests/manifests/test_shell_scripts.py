"""Shell scripts can be started, and stop at the first failure (``scripts/test lint`` has their linters)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifests.support import name_of
from tests.paths import ROOT


def shell_scripts() -> list[Path]:
    """Files with a shell's name in their first line."""
    first_lines = {b"#!/usr/bin/env bash", b"#!/bin/sh"}
    folders = (ROOT / "scripts", ROOT / "examples/scripts", ROOT / "deploy/kubectl", ROOT / ".ci")
    files = sorted(path for folder in folders for path in folder.iterdir() if path.is_file())
    return [path for path in files if path.read_bytes().split(b"\n", 1)[0] in first_lines]


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_stop_at_the_first_failure_and_can_be_started(path: Path) -> None:
    text = path.read_text()
    assert "set -euo pipefail" in text or len(text.splitlines()) <= 3
    assert path.stat().st_mode & 0o111
