"""What the agent offers when the setting, the Node's label or the core size changes, with claims on the devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.resourceslices import kept
from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.condition import PARTITIONS
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.neuron.topology.partitions import NODE_DEVICE, core_name, device_name
from dra_driver.util.metrics import Sample
from tests.builders.agent import NODE, TOKEN, World, agent
from tests.doubles.kubelet import Claim
from tests.eventually import eventually
from tests.golden import golden, lines

CHIPS = [device_name(index) for index in range(16)]
CORES = [core_name(chip, core) for chip in range(16) for core in range(4)]
SMALL_CORES = [core_name(chip, core) for chip in range(16) for core in range(8)]
GROUPS = [*(f"neuron-group4-{number}" for number in range(4)), "neuron-group8-0", "neuron-group8-1"]
COUNTERS = ("spec.sharedCounters", "spec.devices[].consumesCounters")
RETIRED = {"retired": "NoSchedule"}
SECONDS = 30.0
"""Timeout of what takes less than one."""


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(kept, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(kept, "HELD_SECONDS", 0.3)
    monkeypatch.setattr(kept, "MAX_HELD_SECONDS", 0.3)  # however long the test takes between two steps
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
    return world


@contextmanager
def running(world: World, partitions: str = "", **options: str) -> Iterator[NodeAgent]:
    """A started agent in this process."""
    values = {
        "node_name": NODE,
        "cdi_root": str(world.cdi),
        "registrar_dir": str(world.kubelet.registry_dir),
        "plugins_dir": str(world.kubelet.plugins_dir),
        "host_root": str(world.host),
        "healthcheck_port": "-1",
        "rescan_seconds": "0.2",
        "partitions": partitions,
        **options,
    }
    settings = kubelet_plugin.read_settings(values, {})[0]
    made = NodeAgent(settings, world.server.transport(authorization=lambda: f"Bearer {TOKEN}"), lambda: None)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def offers(world: World, names: list[str], retired: list[str] | None = None) -> None:
    eventually(lambda: world.offered() == names, SECONDS, f"{names}")
    assert world.taints() == dict.fromkeys(retired or [], RETIRED)


def label(world: World, value: str | None) -> None:
    found = world.server.store.get("nodes", NODE)
    labels = {key: text for key, text in found["metadata"]["labels"].items() if key != PARTITIONS_LABEL}
    labels |= {} if value is None else {PARTITIONS_LABEL: value}
    world.server.store.update("nodes", NODE, {**found, "metadata": {**found["metadata"], "labels": labels}})


def conditions(world: World) -> list[dict[str, Any]]:
    found = world.server.store.get("nodes", NODE)["status"].get("conditions", [])
    return [item for item in found if item["type"] == PARTITIONS.type]


def events(world: World) -> list[dict[str, Any]]:
    return [item for item in world.server.store.list("events")[0] if item["reason"] == PARTITIONS.reason]


def allocate(world: World, *devices: str, name: str = "holder") -> Claim:
    return world.add_claim("default", name, devices=[("r", device) for device in devices])


def samples(running: NodeAgent) -> dict[tuple[str, str], float]:
    """Metrics by name and first label's value."""
    found: dict[tuple[str, str], float] = {}
    sample: Sample
    for sample in running.samples():
        found[sample.name, next((value for _, value in sample.labels), "")] = sample.value
    return found


def slice_writes(world: World) -> int:
    """Writes of slices that were stored: not the question whether the server keeps taints."""
    return sum(
        request.method != "GET" and "resourceslices" in request.path and "dryRun" not in request.query
        for request in list(world.server.requests)
    )


def registered(world: World) -> None:
    eventually(lambda: world.kubelet.instances.get(DRIVER_NAME), SECONDS, "registration")


def core_size(world: World, size: int) -> None:
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions(logical_nc_config=size))


def test_the_label_of_a_node_wins_over_the_setting_and_an_illegal_one_is_said_once_and_ignored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running(world) as one:
        offers(world, CHIPS)
        label(world, "chip.core")
        offers(world, [*CHIPS, *CORES])
        eventually(lambda: samples(one)["offered_devices", "neuron_core"] == 64, what="the metric")
        label(world, "chips.and.more")
        eventually(lambda: samples(one)["partitions_label_invalid", ""] == 1, SECONDS, "the metric")
        offers(world, CHIPS)
        time.sleep(0.5)
        assert caplog.text.count("'chips.and.more' is not a valid value") == 1
        label(world, None)
        eventually(lambda: samples(one)["partitions_label_invalid", ""] == 0, SECONDS, "the metric")
        assert world.offered() == CHIPS


@pytest.mark.parametrize("value", ["cores", "group3"], ids=["no such word", "nothing of it here"])
def test_a_wrong_label_is_said_on_the_node_until_it_is_right_and_a_restart_tells_no_one_anew(
    world: World, value: str
) -> None:
    label(world, value)
    for _ in range(2):
        with running(world) as one:
            eventually(lambda: conditions(world) and events(world), SECONDS, "the condition")
            registered(world)
            eventually(lambda: samples(one).get(("slices_published", "")) == 1, what="publication")
    ((condition,), (event,)) = conditions(world), events(world)
    assert (condition["status"], condition["reason"]) == ("True", PARTITIONS.reason)
    assert condition["message"] == event["message"]
    assert event["type"] == "Warning"
    golden(condition["message"])
    with running(world):
        label(world, "core")
        offers(world, CORES)
        eventually(lambda: not conditions(world), SECONDS, "the condition to go")
        label(world, value)
        eventually(lambda: conditions(world), SECONDS, "the condition to come back")


def test_a_start_like_the_one_before_writes_nothing_also_with_devices_kept(world: World) -> None:
    for _ in range(2):
        with running(world, "chip.core.group.node") as one:
            offers(world, [*GROUPS, *CHIPS, NODE_DEVICE, *CORES])
            eventually(lambda: samples(one).get(("slices_published", "")) == 1, what="publication")
        assert slice_writes(world) == 3, "counters, and two slices of devices"
    assert world.server.count("GET", "resourceclaims") == 0
    allocate(world, "neuron-group4-2")
    for _ in range(2):
        with running(world, "core") as one:
            offers(world, [*CORES, "neuron-group4-2"], ["neuron-group4-2"])
            eventually(lambda: world.server.count("GET", "resourceclaims") > 0, what="the question")
            eventually(lambda: samples(one).get(("slices_published", "")) == 1, what="publication")
    writes = slice_writes(world)
    with running(world, "core") as one:
        eventually(lambda: samples(one).get(("slices_published", "")) == 1, what="publication")
        time.sleep(1.0)
        assert samples(one)["kept_devices", ""] == 1
    assert slice_writes(world) == writes


def test_what_claims_hold_stays_until_it_is_free_and_nothing_else_does(world: World) -> None:
    with running(world, "chip.core"):
        offers(world, [*CHIPS, *CORES])
    held = [device_name(2), core_name(3, 1)]
    allocate(world, *held)
    with running(world, "group"):
        offers(world, [*GROUPS, *sorted(held)], held)
        slices = world.server.slices()
        counters = slices[0]["spec"]["sharedCounters"][0]["counters"]
        assert counters["chip-2"] == {"value": "8"}
        world.server.delete_claim("default", "holder")
        offers(world, GROUPS)


def test_a_core_is_never_other_hardware_while_a_claim_holds_it(world: World) -> None:
    core_size(world, 2)
    with running(world, "core") as one:
        offers(world, CORES)
        allocate(world, core_name(3, 1))
        core_size(world, 1)
        others = [name for name in SMALL_CORES if not name.startswith("neuron-core-3-")]
        offers(world, [*others, core_name(3, 1)], [core_name(3, 1)])
        assert one._loop.wanted.facts.core_sizes == {3: 2}
        world.server.delete_claim("default", "holder")
        offers(world, SMALL_CORES)
        assert one._loop.wanted.facts.core_sizes == {}


def test_a_core_size_that_changed_while_the_driver_was_down_is_noticed(world: World) -> None:
    with running(world, "core"):
        offers(world, CORES)
    claim = allocate(world, core_name(5, 0))
    core_size(world, 1)
    others = [name for name in SMALL_CORES if not name.startswith("neuron-core-5-")]
    with running(world, "core") as one:
        offers(world, [*others, core_name(5, 0)], [core_name(5, 0)])
        registered(world)
        world.kubelet.prepare("pod", [claim])
        world.server.delete_claim("default", "holder")
        time.sleep(1.0)
        assert world.offered()[-1] == core_name(5, 0), "it is still prepared"
        world.kubelet.unprepare("pod")
        offers(world, SMALL_CORES)
        assert one._loop.wanted.facts.core_sizes == {}


def test_a_prepared_device_is_on_offer_from_the_first_slice_on_that_follows_a_wipe(world: World) -> None:
    with running(world, "group4"):
        offers(world, GROUPS[:4])
        registered(world)
        world.kubelet.prepare("pod", [allocate(world, GROUPS[1])])
    world.server.wipe_slices(NODE)
    with running(world):
        offers(world, [*CHIPS, GROUPS[1]], [GROUPS[1]])
        time.sleep(1.0)
    lists = [item for item in world.server.requests if item.method == "GET" and item.path.endswith("/resourceclaims")]
    assert lists == [], "what is prepared here needs no question"


@pytest.mark.parametrize(
    ("version", "dropped", "tainted"),
    [("v1.36.3", (), True), ("v1.37.1", COUNTERS, True), ("v1.34.4", (*COUNTERS, "spec.devices[].taints"), False)],
    ids=["1.36", "without the gate", "1.34, which keeps no taints either"],
)
def test_without_counters_what_overlaps_a_held_device_is_withheld(
    world: World, version: str, dropped: tuple[str, ...], tainted: bool
) -> None:
    world.server.git_version, world.server.dropped_fields = version, dropped
    with running(world, "core") as one:
        offers(world, CORES)
        allocate(world, core_name(0, 0))
        label(world, "chip.core")
        eventually(lambda: samples(one)["slices_fallback", ""] == 1, SECONDS, "the metric")
        offers(world, [*CHIPS[1:], core_name(0, 0)], [core_name(0, 0)] * tainted)
        world.server.delete_claim("default", "holder")
        offers(world, CHIPS)


def test_while_holders_cannot_be_found_out_everything_stays(world: World) -> None:
    with running(world, "chip"):
        offers(world, CHIPS)
    world.server.fail(403, times=1000, path="resourceclaims")
    with running(world, "group4"):
        offers(world, [*GROUPS[:4], *sorted(CHIPS)], CHIPS)
        time.sleep(1.0)
        assert len(world.offered()) == 20


def test_kubelet_is_told_of_cores_and_groups_also_when_they_are_kept(world: World) -> None:
    with running(world, "core") as one:
        offers(world, CORES)
        allocate(world, core_name(1, 1))
        label(world, "group4")
        offers(world, [*GROUPS[:4], core_name(1, 1)], [core_name(1, 1)])
        told = [item.device for item in one._devices_now()]
        assert told == [*CHIPS, *GROUPS[:4], core_name(1, 1)]


def test_an_illegal_setting_ends_the_program_with_the_words_there_are(world: World) -> None:
    with agent(world, "--partitions", "cores") as process:
        assert process.process.wait(30) == 2
        golden(lines(process.log, "--partitions"))
