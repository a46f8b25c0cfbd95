"""``tools/commit-message`` refuses what CONTRIBUTING.md does not want, and nothing of the time before it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.golden import golden
from tests.paths import ROOT

CHECK = ROOT / "tools/commit-message"
BODY = "\n\nThe API server gives a page twice if it restarts meanwhile.\n"


def check(directory: Path, message: str) -> subprocess.CompletedProcess[str]:
    """What the hook says of a message."""
    file = directory / "COMMIT_EDITMSG"
    file.write_text(message)
    return subprocess.run([CHECK, file], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message",
    [
        f"Read each page once{BODY}",
        f"Let no claim wait for another one's answer{BODY}",
        f"Say {'x' * 68}{BODY}",
        f"{'# of the editor'}\nSeed random tests{BODY}# Please enter the commit message\n",
        f"Read each page once{BODY}# ------------------------ >8 ------------------------\ndiff --git a b\n",
        "fixup! Read each page once\n",
        'Revert "Read each page once"\n\nIt hangs.\n',
    ],
)
def test_a_message_that_says_what_and_why_is_taken(tmp_path: Path, message: str) -> None:
    done = check(tmp_path, message)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Read each page once\n",
        f"Say {'x' * 69}{BODY}",
        f"Read each page once.{BODY}",
        f"Reads each page once{BODY}",
        f"added: a page{BODY}",
        f"Fixing pages{BODY}",
        f"Ran pages{BODY}",
        "Read each page once\nThe API server gives it twice.\n",
    ],
)
def test_a_message_that_does_not_is_refused_with_what_is_wrong(tmp_path: Path, message: str) -> None:
    done = check(tmp_path, message)
    assert done.returncode == 1
    golden(done.stderr)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose upstream has a message of the time before the check."""
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    origin = tmp_path / "origin"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(origin)], check=True)
    commit(origin, "Added this and that.")
    (origin / "tools").mkdir()
    shutil.copy(CHECK, origin / "tools")
    git(origin, "add", ".")
    commit(origin, "Adding the check")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(origin), str(clone)], check=True)
    return clone


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


def commit(directory: Path, message: str) -> None:
    git(directory, "commit", "--quiet", "--allow-empty", "--message", message)


def branch(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What is said of the branch's own commits."""
    command = [str(directory / "tools/commit-message"), "--branch"]
    return subprocess.run(
        command, cwd=directory, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_of_a_branch_its_own_commits_are_checked(repository: Path) -> None:
    assert branch(repository).returncode == 0
    commit(repository, f"Read each page once{BODY}")
    assert branch(repository).returncode == 0
    commit(repository, "Fixed pages")
    done = branch(repository)
    assert done.returncode == 1
    assert "Fixed" in done.stderr
    assert branch(repository, GITHUB_BASE_REF="main").stderr == done.stderr


def test_a_merge_of_the_upstream_is_not_the_branchs_own(repository: Path) -> None:
    commit(repository, f"Read each page once{BODY}")
    commit(repository.parent / "origin", "Fixed something upstream")
    git(repository, "pull", "--quiet", "--no-rebase", "--no-edit")
    assert branch(repository).returncode == 0


def test_what_was_written_before_the_check_is_left_alone(repository: Path) -> None:
    """As in a clone that has yet to be published: its upstream has none of it."""
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(repository, "remote", "set-head", "origin", "--delete")
    assert branch(repository).returncode == 0


def test_a_shallow_clone_and_one_without_upstream_have_nothing_to_check(repository: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{repository}", str(shallow)], check=True)
    assert branch(shallow).returncode == 0
    git(repository, "remote", "remove", "origin")
    commit(repository, "Fixed pages")
    assert branch(repository).returncode == 0
