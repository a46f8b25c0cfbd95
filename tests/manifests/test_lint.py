"""YAML, shell scripts and the Dockerfile pass their linters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.manifests.support import EXAMPLES, LIMIT_EXAMPLES, MANIFESTS, OLD_EXAMPLES, name_of
from tests.paths import ROOT

TOOLS = str(Path(sys.executable).parent)


def shell_scripts() -> list[Path]:
    """Files with a shell's name in their first line."""
    first_lines = {b"#!/usr/bin/env bash", b"#!/bin/sh"}
    folders = (ROOT / "scripts", ROOT / "examples/scripts", ROOT / "deploy/kubectl", ROOT / ".ci")
    files = sorted(path for folder in folders for path in folder.iterdir() if path.is_file())
    return [path for path in files if path.read_bytes().split(b"\n", 1)[0] in first_lines]


def run(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = shutil.which(tool, path=TOOLS)
    if command is None:
        pytest.skip(f"{tool} has no wheel for this platform; scripts/test lint on another one runs it")
    return subprocess.run(
        [command, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


def assert_clean(result: subprocess.CompletedProcess[str]) -> None:
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_yaml_is_tidy() -> None:
    examples = (*EXAMPLES, *OLD_EXAMPLES, *LIMIT_EXAMPLES)
    assert_clean(run("yamllint", "--strict", ".yamllint", ".hadolint.yaml", *MANIFESTS, *examples))


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_have_no_known_mistakes(path: Path) -> None:
    assert_clean(run("shellcheck", path))


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_are_formatted(path: Path) -> None:
    assert_clean(run("shfmt", "--diff", "--indent", "4", path))


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_stop_at_the_first_failure_and_can_be_started(path: Path) -> None:
    text = path.read_text()
    assert "set -euo pipefail" in text or len(text.splitlines()) <= 3
    assert path.stat().st_mode & 0o111


def test_the_dockerfile_has_no_known_mistakes() -> None:
    assert_clean(run("hadolint", "--config", ".hadolint.yaml", "Dockerfile"))


def test_linters_find_mistakes(tmp_path: Path) -> None:
    """Guards the guards: a linter that is called wrongly finds nothing in anything."""
    (tmp_path / "bad.sh").write_text("#!/usr/bin/env bash\nrm $1\n")
    (tmp_path / "bad.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nRUN cd /tmp && ls\nMAINTAINER nobody\n")
    assert "SC2086" in run("shellcheck", tmp_path / "bad.sh").stdout
    assert "duplication" in run("yamllint", "--strict", tmp_path / "bad.yaml").stdout
    assert "DL4000" in run("hadolint", "--config", ".hadolint.yaml", tmp_path / "Dockerfile").stdout
