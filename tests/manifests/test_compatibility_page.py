"""What the page on compatibility and the README call tested is what the tests run; the types are the code's."""

from __future__ import annotations

import re

import pytest
from lab import components

from dra_driver.driver.resourceslices.devices import devices, effective_partitions
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.topology.fabric import Chain, Ring, Single, Switched, Torus2D, Unknown
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.partitions import CHIPS
from tests.paths import DOCS, ROOT

PAGE = (DOCS / "reference/compatibility.md").read_text()
FABRICS = {Single: "", Chain: "chain", Ring: "ring", Torus2D: "torus", Switched: "switch", Unknown: "unknown"}


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


def test_each_type_whose_number_of_chips_is_known_has_its_row() -> None:
    assert set(TYPES) == {name for name, kind in INSTANCE_TYPES.items() if kind.devices}


@pytest.mark.parametrize("name", TYPES)
def test_a_types_chips_and_links_are_those_of_the_code(name: str) -> None:
    kind = INSTANCE_TYPES[name]
    chips, links, *_ = TYPES[name]
    assert chips == f"{kind.devices}{' (inferred)' if 'devices' in kind.inferred else ''}"
    assert links == f"{FABRICS[type(kind.fabric)]}{' (inferred)' if 'fabric' in kind.inferred else ''}"


@pytest.mark.parametrize("name", TYPES)
def test_a_type_offers_what_the_page_says_with_those_attributes(name: str) -> None:
    inventory = emulated_inventory(INSTANCE_TYPES[name])
    _, _, offered, attributes = TYPES[name]
    by_default = {device.name for device in devices(inventory, effective_partitions(inventory, None))}
    assert ("neuron-node" in by_default, "neuron-device-0" in by_default) == (offered == "node", offered == "chips")
    chips = devices(inventory, CHIPS)
    found = {attribute.partition("/")[2] or attribute for device in chips for attribute in device.attributes}
    shared = {attribute for attribute in found if re.fullmatch(r"(devicegroup|segment)\d+_id", attribute)}
    assert shared - {"devicegroup1_id"} == set(re.findall(r"`(\S+)`", attributes))
