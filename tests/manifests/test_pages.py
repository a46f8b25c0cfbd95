"""What the pages tell readers to type works, and prints what they show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.manifests.pages import PAGES, Block, blocks, commands_of, is_shown, listings
from tests.manifests.support import name_of
from tests.paths import DATA, ROOT

RUNS = [block for page in PAGES for block in commands_of(page) if not block.key]
NEEDED = re.compile(
    r"(?:^|[|;&(] *)(?:sudo +)?(kubectl|helm|docker|nerdctl|aws|eksctl|kops|git|scripts/(?!demo$)\S+)\b", re.MULTILINE
)
"""Programs that need more than the project's Python environment."""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with the files of the repository that pages name, and the stand-ins for the reader's own files."""
    for name in ("examples", "charts"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in (DATA / "pages").iterdir():
        shutil.copy(path, tmp_path)
    for name, text in listings().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader does, with the project's programs on the PATH; both streams in one."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=directory,
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(directory), "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)  # each command has less, see ``run``
@pytest.mark.parametrize("block", RUNS, ids=lambda block: block.name)
def test_the_commands_of_a_page_run_and_print_what_it_shows(block: Block, desk: Path) -> None:
    # A machine may have the programs that are not for this test, and a cluster that they would change.
    for command in block.commands() if NEEDED.search(block.text) is None else ():
        result = run(command.text, desk)
        said = f"{block.name}: {command.text}\n{result.stdout}"
        # A page may show how a command refuses; one that shows nothing promises success.
        assert result.returncode in ((0, 1) if command.printed else (0,)), said
        if command.printed:
            assert is_shown(command.printed, result.stdout), said


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_need_more_than_python_say_why_they_are_not_run_here(page: Path) -> None:
    for block in commands_of(page):
        if block.key == "not run":
            assert len(block.value.split()) > 1, f"{block.name}: no reason"
        elif not block.key:
            for command in block.commands():
                needed = NEEDED.search(command.text)
                assert needed is None, f"{block.name}: write <!-- not run: REASON --> above {command.text}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_stand_in_blocks_of_console(page: Path) -> None:
    """Not in indented ones, which nothing can be said about."""
    text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\n {4}((?:dra-driver|kubectl|helm|scripts/\S+|kops) .*)$", text, flags=re.MULTILINE)
    assert found == []
    other = [block for block in blocks(page) if block.language in ("", "sh", "bash", "shell")]
    assert [block.name for block in other if re.search(r"^\$ ", block.text, re.MULTILINE)] == []


def test_a_transcript_is_compared_line_by_line_with_room_for_what_is_left_out() -> None:
    assert is_shown(("a", "...", "c", "d ..."), "a\nb\nb\nc \nd and so on\n")
    assert not is_shown(("a", "c"), "a\nb\nc\n")
    assert not is_shown(("a",), "")


def test_a_command_may_have_several_lines() -> None:
    text = "$ one \\\n    more\nprinted\n$ two 'a\nb'\n$ three <<END\n$ x\nEND\n"
    block = Block(ROOT / "README.md", 1, "console", "", "", text)
    assert [(command.text, command.printed) for command in block.commands()] == [
        ("one \\\n    more", ("printed",)),
        ("two 'a\nb'", ()),
        ("three <<END\n$ x\nEND", ()),
    ]
