"""``scripts/generate``: what is made from tables is as they say, and a table that has changed is carried through."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from generating import assumptions, faults, features, instancetypes, memory
from generating import main as program
from generating.blocks import MARK
from generating.main import ROOT, TARGETS

from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.manifests.pages import PAGES

ELSEWHERE = {"metrics", "deploy"}
"""Need a running driver (tests/plugin/driver/test_metrics_page.py), and helm (tests/manifests/test_deploy.py)."""
ALONE = sorted(TARGETS.keys() - ELSEWHERE)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files that are made."""
    for name in ALONE:
        for path in TARGETS[name].make():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    monkeypatch.setattr(program, "ROOT", tmp_path)
    return tmp_path


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["generate", *arguments])
    return program.main()


@pytest.mark.parametrize("name", ALONE)
def test_files_are_as_their_tables_say(name: str) -> None:
    for path, text in TARGETS[name].make().items():
        assert (ROOT / path).read_text() == text, f"run scripts/generate {name}"


def test_each_block_of_a_page_is_made_by_something() -> None:
    made = {name for module in (assumptions, faults, features, instancetypes, memory) for name in module.TABLES}
    assert {mark[2] for page in PAGES for mark in MARK.finditer(page.read_text())} == made


def test_a_new_row_is_named_by_a_check_and_then_written_to_all_that_follows(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = INSTANCE_TYPES["trn2.48xlarge"]
    monkeypatch.setattr(program, "INSTANCE_TYPES", {**INSTANCE_TYPES, "trn4.48xlarge": row})
    files = [tree / path for path in TARGETS["chart-types"].make()]
    before = [file.read_text() for file in files]
    assert generate(monkeypatch, "--check", "chart-types", "faults") == 1
    told = capsys.readouterr().out
    assert '+  "trn4.48xlarge"' in told
    assert "-- chart-types: not as dra_driver/neuron/topology/instance_types.py says" in told
    assert [file.read_text() for file in files] == before
    assert generate(monkeypatch, "chart-types") == 0
    assert [text.count("trn4.48xlarge") for text in (file.read_text() for file in files)] == [1]
    assert generate(monkeypatch, "--check", "chart-types") == 0


def test_what_cannot_be_made_here_is_said_and_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELM", "/nowhere/helm")
    assert generate(monkeypatch, "deploy") == 0
    assert capsys.readouterr().out == "-- deploy: left as it is, since there is no helm here, or $HELM names none\n"


def test_a_name_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        generate(monkeypatch, "pages")
    assert "nothing is made under the name pages; --list prints the names" in capsys.readouterr().err
