"""docs/extender.md: its table of core counts is what the rules allow."""

from __future__ import annotations

import re

import pytest

from dra_driver.legacy.rules import Hardware, Resource, counts
from dra_driver.topology.instance_types import INSTANCE_TYPES
from tests.paths import DOCS

ROWS = {
    "inf1.6xlarge": ("inf1.6xlarge", 1),
    "inf1.24xlarge": ("inf1.24xlarge", 1),
    "inf2.24xlarge": ("inf2.24xlarge", 1),
    "inf2.48xlarge": ("inf2.48xlarge", 1),
    "trn1.32xlarge, trn1n.32xlarge": ("trn1.32xlarge", 1),
    "trn2.48xlarge, Trn3 with 16 devices, LNC 2": ("trn2.48xlarge", 2),
    "trn2.48xlarge, Trn3 with 16 devices, LNC 1": ("trn2.48xlarge", 1),
}


def numbers(text: str) -> list[int]:
    """``1, 6 to 8`` as a list."""
    found: list[int] = []
    for part in re.sub(r"^all: ", "", text).split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_the_numbers_of_cores_on_the_page_are_those_of_the_rules(row: str) -> None:
    name, lnc = ROWS[row]
    kind = INSTANCE_TYPES[name]
    hardware = Hardware(name, kind.fabric, kind.cores_per_device // lnc)
    (line,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", (DOCS / "extender.md").read_text(), re.MULTILINE)
    cores, shown = line.split(" | ")
    assert int(cores) == hardware.cores
    assert numbers(shown) == list(counts(hardware, Resource.CORE))


def test_a_set_across_the_end_of_a_ring_is_never_given() -> None:
    fabric = INSTANCE_TYPES["inf2.48xlarge"].fabric
    assert (0, 11) in fabric.connected_sets(2)
    assert (0, 11) not in fabric.usable_sets(2)
