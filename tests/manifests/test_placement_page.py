"""docs/placement.md and the workloads among the examples: what they show is what the command does."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dra_driver.simulator.fragmentation import POLICIES, read_workload
from tests.manifests.support import name_of
from tests.paths import ROOT

PAGE = (ROOT / "docs/placement.md").read_text()
WORKLOADS = sorted((ROOT / "examples/workloads").glob("*.yaml"))


def block(after: str, opening: str = "```") -> str:
    """The next fenced block of the page after these words."""
    return PAGE.split(after, 1)[1].split(f"{opening}\n", 1)[1].split("```", 1)[0]


def fragmentation(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "dra_driver", "fragmentation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return result.stdout


def test_the_workload_on_the_page_is_one(tmp_path: Path) -> None:
    text = block("## The workload file", "```yaml")
    kinds = {kind.name for kind in read_workload("docs/placement.md", text).kinds}
    path = tmp_path / "workload.yaml"
    path.write_text(text.replace("length: 30d", "length: 2d"))
    assert all(name in fragmentation(str(path)) for name in kinds)


@pytest.mark.parametrize("path", WORKLOADS, ids=name_of)
def test_the_figures_on_the_page_are_of_all_policies(path: Path) -> None:
    table = block(f"fragmentation {name_of(path)} --seed 1-20 --policy all\n```\n")
    assert table.startswith(f"{name_of(path)}: ")
    assert [line.split()[0] for line in table.split("\n\n")[1].splitlines()[1:]] == list(POLICIES)
    kinds = [kind.name for kind in read_workload(path.name, path.read_text()).kinds]
    assert f"refused of kind  {' '.join(kinds)}".split() == table.split("\n\n")[2].splitlines()[0].split()


def test_the_picture_on_the_page_has_the_policies_that_the_page_names() -> None:
    root = ET.fromstring((ROOT / "docs/placement.svg").read_text())
    names = [path.attrib["data-policy"] for path in root.iter() if "data-policy" in path.attrib]
    command = next(line for line in PAGE.splitlines() if line.startswith("The picture is of"))
    assert names == [word for word in command.replace("`", "").split() if word in POLICIES] * 2


@pytest.mark.parametrize("path", WORKLOADS, ids=name_of)
def test_workloads_are_tidy_yaml(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "-c", ".yamllint", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "")
