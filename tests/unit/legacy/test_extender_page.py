"""docs/operate/without-dra.md: its table of core counts is what the rules allow."""

from __future__ import annotations

import re

import pytest

from dra_driver.legacy.rules import NeuronResource, NodeHardware, counts
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.paths import DOCS

SIXTEEN = tuple(
    name
    for name, kind in INSTANCE_TYPES.items()
    if kind.family in ("trn2", "trn3") and kind.devices == 16  # with a choice of logical core sizes
)
FOUR = ("trn2en.24xlarge", "trn3e.24xlarge", "trn3e-dev0.24xlarge")
ROWS = {
    "inf1.6xlarge": (("inf1.6xlarge",), 1),
    "inf1.24xlarge": (("inf1.24xlarge",), 1),
    "inf2.24xlarge": (("inf2.24xlarge",), 1),
    "inf2.48xlarge": (("inf2.48xlarge",), 1),
    "trn1.32xlarge, trn1n.32xlarge": (("trn1.32xlarge", "trn1n.32xlarge"), 1),
    "Trn2 and Trn3 with 16 devices, LNC 2": (SIXTEEN, 2),
    "Trn2 and Trn3 with 16 devices, LNC 1": (SIXTEEN, 1),
    "Trn2 and Trn3 with 4 devices, LNC 2": (FOUR, 2),
    "Trn2 and Trn3 with 4 devices, LNC 1": (FOUR, 1),
}
PAGE = (DOCS / "operate/without-dra.md").read_text()


def numbers(text: str) -> list[int]:
    """``1, 6 to 8`` as a list."""
    found: list[int] = []
    for part in re.sub(r"^all: ", "", text).split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_the_numbers_of_cores_on_the_page_are_those_of_the_rules(row: str) -> None:
    names, lnc = ROWS[row]
    (line,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE, re.MULTILINE)
    cores, shown = line.split(" | ")
    for name in names:
        kind = INSTANCE_TYPES[name]
        hardware = NodeHardware(name, kind.fabric, kind.cores_per_device // lnc)
        assert (name, int(cores)) == (name, hardware.cores)
        assert (name, numbers(shown)) == (name, list(counts(hardware, NeuronResource.CORE)))


def test_each_type_with_several_devices_has_its_row_for_each_size_of_its_logical_cores() -> None:
    told = {(name, lnc) for names, lnc in ROWS.values() for name in names}
    several = [kind for kind in INSTANCE_TYPES.values() if (kind.devices or 1) > 1]
    assert told == {(kind.name, lnc) for kind in several for lnc in kind.lnc_values}


def test_a_type_with_one_device_gives_any_number_of_its_cores() -> None:
    for kind in INSTANCE_TYPES.values():
        for lnc in kind.lnc_values if kind.devices == 1 else ():
            hardware = NodeHardware(kind.name, kind.fabric, kind.cores_per_device // lnc)
            assert counts(hardware, NeuronResource.CORE) == tuple(range(1, hardware.cores + 1))
            assert 2 <= hardware.cores <= 8, "what the page says"


def test_the_sets_of_a_torus_and_of_a_switch_on_the_page_are_those_of_the_rules() -> None:
    part = PAGE.partition("### Torus and switch\n")[2].partition("\n\nOf all")[0]
    told = {
        int(count): tuple(
            tuple(range(int(first), int(last) + 1)) for first, last in re.findall(r"{(\d+) to (\d+)}", sets)
        )
        for count, sets in re.findall(r"^\| (\d+) devices \| (.*) \|$", part, re.MULTILINE)
    }
    for name in ("trn1.32xlarge", "trn2.48xlarge", "trn3.48xlarge"):
        fabric = INSTANCE_TYPES[name].fabric
        assert told == {count: fabric.usable_sets(count) for count in (4, 8, 16)}


def test_the_sets_of_a_ring_on_the_page_are_those_of_the_rules() -> None:
    part = PAGE.partition("### Rings and chains\n")[2].partition("\n\nThe set {11,0}")[0]
    told = re.findall(r"^\| (\d+) devices \| (.*) \|$", part, re.MULTILINE)
    assert [count for count, _ in told] == ["2", "3", "11"]
    for count, shown in told:
        sets = INSTANCE_TYPES["inf2.48xlarge"].fabric.usable_sets(int(count))
        names = [f"{{{ids[0]} to {ids[-1]}}}" if len(ids) > 3 else f"{{{','.join(map(str, ids))}}}" for ids in sets]
        first, dots, last = shown.rpartition("... ")
        if dots:
            names = [*names[: first.count("{")], "...", *names[-last.count("{") :]]
        assert shown == ", ".join(names).replace("..., ", "... ")


def test_a_set_across_the_end_of_a_ring_is_never_given() -> None:
    fabric = INSTANCE_TYPES["inf2.48xlarge"].fabric
    assert (0, 11) in fabric.connected_sets(2)
    assert (0, 11) not in fabric.usable_sets(2)
