"""What scripts/benchmark connectedness measures is what it says."""

from __future__ import annotations

import random

import pytest
from bench.connectedness import LOADS, TYPE, Experiment, first_fit, main, measure, text

from dra_driver.kube.types import ObjectMeta
from dra_driver.manifests import objects
from dra_driver.names import DRIVER_NAME
from dra_driver.simulator.allocator import Allocation, World, allocate
from dra_driver.simulator.cluster import cluster_of
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.topology.cuts import device_name
from dra_driver.topology.instance_types import resolve
from tests.paths import DOCS


def allocated(size: int, free: set[int]) -> tuple[int, ...] | None:
    """The chips that the simulator's allocator, which does as kube-scheduler does, takes for a number of chips."""
    world, (node,) = cluster_of(emulated([(TYPE, 1)]), "1.37")
    taken = tuple(
        objects.AllocatedDevice("r", DRIVER_NAME, node.name, device_name(chip)) for chip in set(range(16)) - free
    )
    assert isinstance(world, World)
    world.usage.take(taken)
    request = objects.DeviceRequest("chips", objects.ExactDeviceRequest(DRIVER_NAME, count=size))
    spec = objects.ResourceClaimSpec(objects.DeviceClaim((request,)))
    found = allocate([objects.ResourceClaim(ObjectMeta(name="c", namespace="default"), spec)], node, world)
    if not isinstance(found, Allocation):
        return None
    devices = [item.device for result in found.results for item in result.devices.results]
    return tuple(sorted(int(name.rpartition("-")[2]) for name in devices))


@pytest.mark.parametrize("seed", range(8))
def test_the_first_fit_is_that_of_the_allocator(seed: int) -> None:
    source = random.Random(seed)
    free = set(source.sample(range(16), source.randint(2, 9)))
    for size in (1, 2, 4, 8):
        assert first_fit(size, free, None) == allocated(size, free)


def test_groups_are_always_connected_and_chips_on_an_empty_node_too() -> None:
    fabric = resolve(TYPE).fabric
    assert first_fit(4, set(range(16)), None) in fabric.usable_sets(4)
    groups = Experiment(fabric, groups=True)
    chips = Experiment(fabric, groups=False)
    for experiment in (groups, chips):
        experiment.run(0.7, 1)
    for tally in groups.tallies.values():
        assert 0 < tally.placed == tally.connected == tally.linked
    assert chips.tallies[4].connected < chips.tallies[4].linked < chips.tallies[4].placed <= chips.tallies[4].arrived
    assert {size: tally.arrived for size, tally in chips.tallies.items()} == {
        size: tally.arrived for size, tally in groups.tallies.items()
    }, "the same pods"


def test_pods_ask_for_the_sizes_that_nodes_have_as_groups() -> None:
    assert list(Experiment(resolve(TYPE).fabric, groups=True).tallies) == [1, 4, 8]
    assert list(Experiment(resolve("inf2.48xlarge").fabric, groups=True).tallies) == [1, 2, 4, 8]


def test_the_same_arguments_give_the_same_report() -> None:
    report = text(measure(TYPE, 2, "fullest", [1]))
    assert text(measure(TYPE, 2, "fullest", [1])) == report
    assert len(report.splitlines()) == 2 + len(LOADS) * 4


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out in (DOCS / "extended-resources.md").read_text(), (
        "docs/extended-resources.md shows another table than scripts/benchmark connectedness prints"
    )


def test_numbers_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--nodes", "0"])
    assert ended.value.code == 2
    assert "at least 1" in capsys.readouterr().err
