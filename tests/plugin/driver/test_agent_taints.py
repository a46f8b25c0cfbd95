"""The whole agent as a process on a host with sick chips: what the scheduler sees of them, and what kubelet is told."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection
from typing import Any

import pytest

from dra_driver.driver.write_budget import SPACING_SECONDS
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from tests.builders.agent import (
    NODE,
    START_SECONDS,
    World,
    agent,
    agent_on_host,
    free_port,
    scraped,
    third_of_four,
)
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually
from tests.golden import golden, lines

pytestmark = pytest.mark.timeout(120)
UNHEALTHY = {"hbm-uncorrectable": "NoSchedule"}
SICK_SECONDS = START_SECONDS + SPACING_SECONDS
"""For several chips, which break one after the other: those that a reading of the host misses wait for the spacing."""


def break_memory(world: World, chips: Collection[int], errors: int = 3) -> None:
    """Uncorrectable memory errors of the chips; 0: none any more."""
    for index in chips:
        counter = "stats/hardware/mem_ecc_uncorrected"
        path = world.host / f"sys/devices/virtual/neuron_device/neuron{index}" / counter
        path.write_text(f"{errors}\n")


def claim(world: World, *devices: str, name: str = "", **result: Any) -> Claim:
    results = [
        {"request": "neurons", "driver": DRIVER_NAME, "pool": NODE, "device": device, **result} for device in devices
    ]
    stored = world.server.add_claim("default", name or f"claim-{'-'.join(devices)}", results=results)
    return Claim("default", stored["metadata"]["name"], stored["metadata"]["uid"], (DRIVER_NAME,))


def slice_writes(world: World) -> int:
    """Writes of slices that were stored."""
    return sum(
        request.method in ("POST", "PUT", "DELETE")
        and "resourceslices" in request.path
        and "dryRun" not in request.query
        for request in list(world.server.requests)
    )


def has(world: World, taints: dict[str, dict[str, str]]) -> None:
    within = SICK_SECONDS if len(taints) > 1 else START_SECONDS
    eventually(lambda: world.taints() == taints, within=within, what=f"{taints}")


def sick(*chips: int) -> dict[str, dict[str, str]]:
    return {f"neuron-device-{index}": UNHEALTHY for index in chips}


def policy(world: World, text: str) -> tuple[str, str]:
    path = world.root / "policy.yaml"
    path.write_text(text)
    return "--health-policy", str(path)


def test_a_storm_is_one_write_and_a_restart_writes_nothing(world: World) -> None:
    with agent(world) as running:
        running.ready()
        assert slice_writes(world) == 1
        break_memory(world, range(16))
        has(world, sick(*range(16)))
        # A reading may fall between the chips that break, one after the other: the others wait for the spacing.
        writes = slice_writes(world)
        assert writes in (2, 3)
        (item,) = world.server.slices()
        assert item["spec"]["pool"]["generation"] == 1
        for device in item["spec"]["devices"]:
            (taint,) = device["taints"]
            assert taint["key"] == "health.neuron.aws.com/hbm-uncorrectable"
            assert taint["value"] == "unhealthy"
            assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", taint["timeAdded"])
        running.kill()
    time.sleep(1.1)  # so that a new time would be another
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: "kubelet has registered" in running.log, within=START_SECONDS, what="the second instance")
        time.sleep(1.0)
        assert slice_writes(world) == writes
        assert world.server.slices() == [item]


def test_a_chip_that_is_sick_at_the_start_is_never_offered_without_its_taint(world: World) -> None:
    with agent(world) as running:
        running.ready()
        running.kill()
    world.server.wipe_slices(NODE)
    break_memory(world, [3])
    writes = slice_writes(world)
    with agent_on_host(world) as running:
        running.ready()
        assert world.taints() == sick(3)
        assert slice_writes(world) == writes + 1


def test_pods_are_evicted_where_the_administrator_says_so_and_after_the_time_of_grace(world: World) -> None:
    table = policy(world, "rules: [{fault: hbm-uncorrectable, effect: NoExecute, graceSeconds: 3}]")
    with agent(world, *table) as running:
        running.ready()
        break_memory(world, [3])
        has(world, sick(3))
        # Earlier than the next write of health is allowed only if the first one has told it, so a restart shows it.
        running.kill()
    time.sleep(3)
    with agent_on_host(world, *table) as running:
        running.ready()
        has(world, {"neuron-device-3": {"hbm-uncorrectable": "NoExecute"}})


def test_a_whole_node_has_the_taints_of_its_chips_and_metrics_count_them() -> None:
    port = free_port()
    with third_of_four() as world, agent_on_host(world, "--metrics-port", str(port)) as running:
        running.ready()
        break_memory(world, [2, 9])
        has(world, {NODE_DEVICE: UNHEALTHY})
        labels = '{effect="NoSchedule",key="health.neuron.aws.com/hbm-uncorrectable"}'
        eventually(lambda: f"neuron_dra_driver_tainted_devices{labels} 1.0" in scraped(port), what="the metric")


def test_a_table_that_is_not_understood_ends_the_start(world: World) -> None:
    command = world.command(*policy(world, "rules: [{fault: hbm, effect: NoSchedule}]"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    golden(done.stderr)
    assert "sram-uncorrectable" in done.stderr
    assert "Traceback" not in done.stderr


# Servers that do not keep taints


def test_a_server_that_drops_taints_is_offered_the_healthy_chips_and_those_that_are_held(world: World) -> None:
    world.server.dropped_fields = ("spec.devices[].taints",)
    world.server.git_version = "v1.34.4"
    port = free_port()
    claim(world, "neuron-device-5")
    with agent(world, "--metrics-port", str(port)) as running:
        running.ready()
        prepared = claim(world, "neuron-device-7")
        world.kubelet.prepare("pod", [prepared])
        world.server.delete_claim("default", prepared.name)  # held all the same: it is prepared here
        break_memory(world, [3, 5, 7])
        eventually(lambda: len(world.offered()) == 15, within=SICK_SECONDS, what="15 devices")
        assert "neuron-device-3" not in world.offered()
        eventually(lambda: "neuron_dra_driver_slices_taints_dropped 1.0" in scraped(port), what="the metric")
        assert "neuron_dra_driver_slices_withdrawn_devices 1.0" in scraped(port)
        assert running.log.count("does not keep device taints") == 1
        assert slice_writes(world) == 2, "the sick chip was not offered as if it were well before that"


def test_a_node_whose_chips_were_all_withdrawn_offers_them_again_when_they_are_well(world: World) -> None:
    world.server.dropped_fields = ("spec.devices[].taints",)
    world.server.git_version = "v1.34.4"
    with agent(world) as running:
        running.ready()
        break_memory(world, range(16))
        eventually(lambda: not world.offered(), within=SICK_SECONDS, what="no device")
        running.kill()
    break_memory(world, range(16), errors=0)
    world.kubelet.restart()
    with agent(world) as running:
        running.ready()
        eventually(lambda: len(world.offered()) == 16, within=START_SECONDS, what="all devices")


def test_when_the_server_cannot_tell_what_is_held_nothing_is_withdrawn(world: World) -> None:
    world.server.dropped_fields = ("spec.devices[].taints",)
    with agent(world) as running:
        running.ready()
        world.server.fail(500, times=1000, method="GET", path="resourceclaims$")
        break_memory(world, [3])
        eventually(lambda: "all devices stay" in running.log, within=START_SECONDS, what="the look at the claims")
        assert len(world.offered()) == 16


# Preparation


def test_a_claim_with_a_sick_chip_is_prepared_with_a_warning_unless_it_is_to_be_refused(world: World) -> None:
    with agent(world) as running:
        running.ready()
        before = claim(world, "neuron-device-4")
        world.kubelet.prepare("before", [before])
        break_memory(world, [3, 4])
        has(world, sick(3, 4))
        world.kubelet.prepare("pod", [claim(world, "neuron-device-3")])
        golden(lines(running.log, "prepared anyway"))
        world.kubelet.unprepare("pod")
        running.kill()
    world.kubelet.restart()
    with agent_on_host(world, *policy(world, "prepare: refuse")) as running:
        running.ready()
        second = claim(world, "neuron-device-3", name="second")
        with pytest.raises(KubeletError) as no:
            world.kubelet.prepare("pod", [second])
        golden(str(no.value))
        golden(str(no.value))
        world.kubelet.prepare("before", [before])  # a retry of what is prepared is never refused
        tolerant = claim(
            world, "neuron-device-3", name="tolerant", tolerations=[{"operator": "Exists", "effect": "NoSchedule"}]
        )
        world.kubelet.prepare("other", [tolerant])
