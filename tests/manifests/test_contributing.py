"""What contributors are given works with what ``scripts/setup-venv --dev`` installs, and asks no other host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paths import ROOT

HOOKS: list[dict[str, Any]] = [
    hook for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for hook in repo["hooks"]
]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_hooks_take_their_tools_from_the_projects_own_environment() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
    assert {hook["language"] for hook in HOOKS} == {"system"}
    for hook in HOOKS:
        program = hook["entry"].split()[0]
        assert os.access(ROOT / program, os.X_OK) or (
            program.startswith(".venv/bin/")
            and f"\n{Path(program).name}" in (ROOT / "requirements/dev.txt").read_text()
        ), program


@pytest.mark.parametrize(
    ("files", "rooms"),
    [
        (["dra_driver/kube/cdi.py", "dra_driver/kube/api/client.py"], ["dra_driver/kube"]),
        (["tests/unit/test_rooms.py", "dra_driver/neuron/names.py"], ["dra_driver/neuron", "tests/unit"]),
        (["dra_driver/version.py", "README.md"], []),
    ],
)
def test_the_hook_for_types_checks_the_rooms_that_are_changed(
    files: list[str], rooms: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/changed-rooms", tmp_path / "tools")
    mypy = tmp_path / ".venv/bin/mypy"
    mypy.parent.mkdir(parents=True)
    mypy.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    mypy.chmod(0o755)
    done = subprocess.run([tmp_path / "tools/changed-rooms", *files], capture_output=True, text=True, check=True)
    assert done.stdout.split() == rooms


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_what_the_hosting_site_requires(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    for part in form["body"]:
        assert part["type"] in {"markdown", "textarea", "input", "dropdown"}
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]
    named = re.findall(r"\b(?:docs/\S+\.md|[A-Z]+\.md)\b", path.read_text())
    assert all((ROOT / name).is_file() for name in named), named
