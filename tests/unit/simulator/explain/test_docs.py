"""docs/explain.md shows what the command really prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from dra_driver.cli.main import main
from dra_driver.simulator.explain.traps import TRAPS
from dra_driver.simulator.explain.values import Step
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "explain.md").read_text()
RUNS = re.findall(r"```console\n\$ dra-driver explain ([^\n]*)\n((?!\$)[^`](?:.|\n)*?)```", PAGE)


def listings(page: str) -> list[str]:
    """The YAML on a page."""
    return re.findall(r"```yaml\n((?:.|\n)*?)```", page)


@pytest.mark.parametrize(("arguments", "shown"), RUNS, ids=[arguments for arguments, _ in RUNS])
def test_the_output_on_the_page_is_what_is_printed(
    arguments: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in zip(("threes.yaml", "whole.yaml"), listings(PAGE), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "pair.yaml").write_text(listings((ROOT / "docs" / "simulator.md").read_text())[0])
    monkeypatch.chdir(tmp_path)
    main(["explain", *shlex.split(arguments)])
    assert capsys.readouterr().out.endswith(shown.removeprefix("...\n"))


def test_the_page_has_all_its_runs() -> None:
    assert len(RUNS) == 4


def rows(title: str) -> list[str]:
    """The names in the first column of the table below a heading."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([a-z-]+)` \|", section, flags=re.MULTILINE)


def test_every_step_and_every_trap_is_on_the_page() -> None:
    assert rows("Which step excludes a node") == list(get_args(Step))
    assert sorted(rows("Known traps")) == sorted(TRAPS)
