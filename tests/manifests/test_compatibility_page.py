"""What the page on compatibility and the README call tested is what the tests run; the types are the code's."""

from __future__ import annotations

import re

import pytest
from lab import components

from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.paths import DOCS, ROOT

PAGE = (DOCS / "reference/compatibility.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its own first row."""
    lines = PAGE.partition(f"{heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    table = lines[start + 1 : next(number for number in range(start, len(lines)) if not lines[number])]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


COMPONENTS = {name: tested for name, _, tested, _ in rows("# Compatibility")}
TYPES = {name: cells for names, *cells in rows("## Instance types") for name in names.split(", ")}


def built(kind: str) -> set[str]:
    """The versions of a program that the lab can build."""
    return {path.name.rpartition("-")[2] for path in (ROOT / "tools/lab/gomodules").glob(f"{kind}-[0-9]*")}


def test_the_versions_that_the_page_calls_tested_are_those_of_the_clusters_for_tests() -> None:
    def told(component: str) -> set[str]:
        return set(re.findall(r"\d+\.\d+\.\d+", COMPONENTS[component]))

    assert told("API server, scheduler") == built("kubernetes")
    assert told("kubelet") == built("kubernetes") | built("kubelet")
    assert told("containerd") == {components.CONTAINERD_VERSION}
    assert told("helm") == {components.HELM_VERSION, components.HELM3_VERSION}


def test_the_box_at_the_top_of_the_readme_has_the_versions_that_were_tested() -> None:
    top = (ROOT / "README.md").read_text().partition("\n```")[0]
    box = " ".join(line.removeprefix("> ") for line in top.splitlines() if line.startswith("> "))
    minors = sorted({version.rpartition(".")[0] for version in built("kubernetes") | built("kubelet")})
    assert f"Kubernetes {', '.join(minors[:-1])} and {minors[-1]}" in box


def test_each_type_has_its_row() -> None:
    assert TYPES.keys() == INSTANCE_TYPES.keys()


GROUPS = "`devicegroup4_id`, `devicegroup8_id`, `devicegroup16_id`"


@pytest.mark.parametrize(
    ("name", "cells"),
    {
        "inf2.48xlarge": ["12", "ring", "chips", "`segment2_id`, `segment3_id`, `segment4_id`, `segment6_id`"],
        "trn2.3xlarge": ["1", "", "chips", ""],
        "trn2.48xlarge": ["16", "torus", "chips", GROUPS],
        "trn2u.48xlarge": ["16", "torus", "node", GROUPS],
        "trn3.48xlarge": ["16", "switch (inferred)", "node", GROUPS],
        "trn2p.48xlarge": ["not public", "", "", ""],
    }.items(),
)
def test_the_row_of_a_type_is_as_documented(name: str, cells: list[str]) -> None:
    assert TYPES[name] == cells


def test_a_release_has_what_its_feature_gates_give_it() -> None:
    """By default and behind gates, as kubernetes.io has them."""
    shown = {row[0]: row[1:6] for row in rows("## Features by Kubernetes release")}
    assert shown["taints of unhealthy chips"] == ["gate", "gate", "gate", "yes", "yes"]
    assert shown["several kinds of devices on one node, such as chips and cores"] == ["no", "no", "no", "gate", "yes"]
    assert shown["tested, on emulated devices"] == ["kubelet", "yes", "no", "yes", "yes"]
