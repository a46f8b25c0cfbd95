"""The workflows of the hosting site: no runner is here, so what can be known of them without one is checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from releasing import by_hand

from tests.golden import golden
from tests.paths import ROOT

DIRECTORY = ROOT / ".github/workflows"
WORKFLOWS = {path.stem: yaml.load(path.read_text(), yaml.BaseLoader) for path in sorted(DIRECTORY.glob("*.yaml"))}
JOBS = [(name, job, content) for name, workflow in WORKFLOWS.items() for job, content in workflow["jobs"].items()]
STEPS = [(name, step) for name, _, job in JOBS for step in job["steps"]]

needs_actionlint = pytest.mark.skipif(
    "ACTIONLINT" not in os.environ, reason="set ACTIONLINT; scripts/cluster build --actionlint builds it"
)


def zizmor(directory: Path) -> subprocess.CompletedProcess[str]:
    """What zizmor finds, with no question to anybody."""
    program = str(Path(sys.executable).parent / "zizmor")
    command = [program, "--offline", "--no-progress", "--color=never", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def actionlint(directory: Path) -> subprocess.CompletedProcess[str]:
    """What actionlint finds; shell scripts are looked at by the pinned shellcheck."""
    shellcheck = str(Path(sys.executable).parent / "shellcheck")
    command = [os.environ["ACTIONLINT"], "-no-color", "-shellcheck", shellcheck, "-pyflakes", ""]
    files = [str(path) for path in sorted(directory.glob("*.yaml"))]
    return subprocess.run([*command, *files], capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the workflows, in a repository's place for them."""
    return shutil.copytree(DIRECTORY, tmp_path / ".github/workflows")


def broken(directory: Path, old: str, new: str) -> None:
    """Put a fault into the workflow of changes."""
    path = directory / "ci.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BY_TAG = ("actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "actions/checkout@v7")
INJECTION = ('run: scripts/test "$PART"', 'run: scripts/test "${{ github.event.pull_request.title }}"')
RIGHTS = ("    permissions:\n      contents: read\n", "    permissions: write-all\n")
UNKNOWN = ("${{ matrix.python }}", "${{ matrix.pyhton }}")


def test_no_workflow_has_a_fault_that_zizmor_knows() -> None:
    done = zizmor(DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "rule"),
    [(BY_TAG, "unpinned-uses"), (INJECTION, "template-injection"), (RIGHTS, "excessive-permissions")],
    ids=["action by tag", "script injection", "all rights"],
)
def test_zizmor_refuses_a_workflow_with_a_fault(copy: Path, fault: tuple[str, str], rule: str) -> None:
    broken(copy, *fault)
    done = zizmor(copy)
    assert done.returncode != 0
    assert rule in done.stdout


@needs_actionlint
@pytest.mark.slow
def test_no_workflow_has_a_fault_that_actionlint_knows() -> None:
    done = actionlint(DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_actionlint
@pytest.mark.slow
@pytest.mark.parametrize("fault", [INJECTION, UNKNOWN], ids=["script injection", "unknown name"])
def test_actionlint_refuses_a_workflow_with_a_fault(copy: Path, fault: tuple[str, str]) -> None:
    broken(copy, *fault)
    assert actionlint(copy).returncode == 1


def test_every_action_is_named_by_its_commit_and_says_of_which_version_that_is() -> None:
    lines = [line.strip(" -") for path in DIRECTORY.iterdir() for line in path.read_text().splitlines()]
    uses = [line for line in lines if line.startswith("uses:")]
    assert uses
    for line in uses:
        assert re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    # One version of each: what was looked at is what runs.
    actions = {re.sub(r"^uses: ([\w-]+/[\w-]+).*@(\w+).*", r"\1 \2", line) for line in uses}
    assert len(actions) == len({action.split()[0] for action in actions})


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_no_right_of_its_own_and_no_second_run_beside_it(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {}
    assert "github.workflow" in workflow["concurrency"]["group"]


@pytest.mark.parametrize(("name", "job", "content"), JOBS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_job_has_its_rights_an_end_and_no_credentials_that_it_leaves(
    name: str, job: str, content: dict[str, Any]
) -> None:
    assert content["permissions"], f"{name}: {job}"
    assert 0 < int(content["timeout-minutes"]) <= 360
    checkouts = [step for step in content["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


def test_commands_are_the_projects_own_and_take_what_they_need_by_environment() -> None:
    """Each can be called by hand, and what it calls is there."""
    for name, step in STEPS:
        command = step.get("run", "")
        assert "${{" not in command, f"{name}: {command}"
        for program in re.findall(r"(?<![\w/])(?:scripts|\.ci)/[\w.-]+", command):
            assert os.access(ROOT / program, os.X_OK), program


def test_nothing_names_an_owner_a_project_or_an_address_of_this_repository() -> None:
    """A fork publishes under its own name, without an edit."""
    text = "".join(re.sub(r"uses: \S+|#.*", "", path.read_text()) for path in DIRECTORY.iterdir())
    assert not re.findall(r"https?://\S+|neuron-dra-driver/|\b[\w-]+/neuron-dra-driver", text.replace("~/.cache/", ""))
    hosts = set(re.findall(r"\b[\w-]+(?:\.[\w-]+)*\.(?:io|com|org|dev)\b", text))
    assert hosts == {"ghcr.io"}


def test_changes_are_tested_on_every_python_that_the_package_says_it_supports() -> None:
    matrix = WORKFLOWS["ci"]["jobs"]["python"]["strategy"]["matrix"]
    listed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == listed
    script = (ROOT / "scripts/test").read_text()
    assert matrix["part"] == re.findall(r"^save\)\n +all=\((.*)\)$", script, re.MULTILINE)[0].split()


def test_the_nightly_parts_are_all_that_the_nightly_tests_have() -> None:
    script = (ROOT / "scripts/test").read_text()
    nightly = script[script.index("\nnightly)") :]
    parts = re.findall(r"all=\((.*)\)", nightly)[0].split()
    versions = re.findall(r"default_versions=\((.*)\)", nightly)[0].split()
    matrix = WORKFLOWS["nightly"]["jobs"]["nightly"]["strategy"]["matrix"]["parts"]
    shown = [word for words in matrix for word in words.split()]
    assert [word for word in dict.fromkeys(shown) if not word[0].isdigit()] == parts
    assert [word for word in shown if word[0].isdigit()] == versions


RELEASE = yaml.safe_load((DIRECTORY / "release.yaml").read_text())


def test_a_release_by_hand_does_what_the_workflow_does() -> None:
    """For an adopter who sets nothing, and for one who sets everything."""
    alone = by_hand.steps(RELEASE, {"token": "T"})
    own = {"REGISTRY": "registry.example/team", "REGISTRY_USERNAME": "me", "REGISTRY_PASSWORD": "P"}
    everything = by_hand.steps(RELEASE, own | {"BASE_IMAGE": "b@sha256:1", "ARTIFACTHUB_ID": "id"})
    golden("\n\n".join(f"{step.command}\n{dict(step.environment)}" for step in (*alone, *everything)))


def test_an_expression_that_only_the_site_can_evaluate_is_said() -> None:
    workflow = {"jobs": {"publish": {"env": {}, "steps": [{"run": "x", "env": {"A": "${{ github.event.action }}"}}]}}}
    with pytest.raises(by_hand.StepError, match="only the hosting site"):
        by_hand.steps(workflow, {})


@pytest.mark.parametrize(
    ("repository", "settings", "arguments"),
    [
        ("Team/Fork", [], ["ghcr.io/team/fork", "https://github.com/Team/Fork"]),
        ("a/b", ["REGISTRY=127.0.0.1:5000/x"], ["127.0.0.1:5000/x", "https://github.com/a/b"]),
    ],
)
def test_a_tag_is_released_from_a_new_clone_with_an_empty_home(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    repository: str,
    settings: list[str],
    arguments: list[str],
) -> None:
    monkeypatch.setattr(by_hand, "ROOT", _tagged(tmp_path / "source"))
    sets = [word for setting in settings for word in ("--set", setting)]
    made = tmp_path / "made"
    assert by_hand.main(["v1.2.3", "--repository", repository, "--skip-login", "--directory", str(made), *sets]) == 0, (
        capfd.readouterr()
    )
    called = (made / "clone/called").read_text().split()
    assert called == ["--publish", arguments[0], "--repository-url", arguments[1], "--output", "dist"]
    assert (made / "clone/home").read_text() == ""


def test_files_of_a_release_by_hand_are_kept_only_in_a_directory_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(by_hand, "ROOT", _tagged(tmp_path / "source"))
    command = ["v1.2.3", "--repository", "a/b", "--skip-login"]
    assert by_hand.main(command) == 0
    said = capfd.readouterr()
    assert "--directory DIR keeps them" in said.out
    assert "command not found" not in said.err
    kept = ["--directory", str(tmp_path / "made")]
    assert by_hand.main([*command, *kept]) == 0
    assert f"stay: {tmp_path}/made/clone" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        by_hand.main([*command, *kept])
    assert "which holds something" in capfd.readouterr().err


def test_wrong_arguments_of_a_release_by_hand_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(by_hand, "ROOT", _tagged(tmp_path / "source"))
    assert by_hand.main(["v9.9.9", "--repository", "a/b"]) == 2
    assert "has no tag v9.9.9" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        by_hand.main(["v1.2.3", "--repository", "a/b", "--set", "REGISTRY"])
    assert "give NAME=VALUE" in capfd.readouterr().err


def _tagged(source: Path) -> Path:
    """A repository with the tag v1.2.3, the workflows and a stand-in for scripts/release."""
    shutil.copytree(DIRECTORY, source / ".github/workflows")
    script = source / "scripts/release"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >called; ls -A "$HOME" >home; cat .git/HEAD >head\n')
    script.chmod(0o755)
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"], ["tag", "v1.2.3"]):
        subprocess.run([*git, *command], check=True)
    return source


def test_rules_of_updates_know_every_file_with_pins() -> None:
    text = re.sub(r"(?m)(^| )//.*", "", (ROOT / ".github/renovate.json5").read_text())
    rules = yaml.safe_load(text)
    (pattern,) = rules["pip_requirements"]["managerFilePatterns"]
    with_hashes = [path for path in (ROOT / "requirements").iterdir() if "--hash=" in path.read_text()]
    assert with_hashes
    for path in with_hashes:
        assert re.search(pattern.strip("/"), f"requirements/{path.name}"), path
    modules = rules["packageRules"][-1]["matchFileNames"]
    assert modules == ["tools/lab/gomodules/*-[0-9]*/**"]
    assert any(path.is_file() for path in ROOT.glob(f"{modules[0]}/*"))
