"""The metrics say which pod holds which chip, from preparation to unpreparation."""

from __future__ import annotations

import re

import grpc

from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import World, agent, free_port, scraped
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.doubles.kubelet import Claim
from tests.eventually import eventually


def claim(world: World) -> Claim:
    devices = [("neurons", f"neuron-device-{index}") for index in (4, 5)]
    return world.add_claim("team", "claim", devices=devices, pods=[("train", "u")])


def allocated(port: int) -> list[str]:
    """Labels of all series of both metrics."""
    return re.findall(r"^neuron_dra_driver_((?:chip|device)_allocation\{.*\}) 1\.0$", scraped(port), re.MULTILINE)


def series(container: str) -> list[str]:
    whose, pod = f'claim="claim",container="{container}"', 'pod="train",pod_uid="u"'
    by_device = [f'device_allocation{{{whose},device="neuron-device-{n}",namespace="team",{pod}}}' for n in (4, 5)]
    chip = 'chip_allocation{{{0},device="neuron{1}",namespace="team",neuron_device_index="{1}",{2}}}'
    return sorted([*by_device, *(chip.format(whose, n, pod) for n in (4, 5))])


def test_a_prepared_claim_names_its_pod_at_once_and_is_gone_when_it_is_unprepared(world: World) -> None:
    port = free_port()
    with agent(world, "--metrics-port", str(port)) as running:
        running.ready()
        assert allocated(port) == []
        world.kubelet.prepare("pod", [claim(world)])
        assert sorted(allocated(port)) == series("")
        world.kubelet.unprepare("pod")
        assert allocated(port) == []


def test_where_kubelets_pod_resources_are_mounted_the_container_is_named(world: World) -> None:
    port = free_port()
    held = ((DRIVER_NAME, "neuron-device-4"), (DRIVER_NAME, "neuron-device-5"))
    with (
        DeviceManager(world.root / "kubelet") as resources,
        agent(world, "--metrics-port", str(port)) as running,
    ):
        running.ready()
        world.kubelet.prepare("pod", [claim(world)])
        resources.pods["u"] = KnownPod("team", "train", "u", (Container("main"),), held)
        eventually(lambda: sorted(allocated(port)) == series("main"), what="the container")
        resources.resources_fault = grpc.StatusCode.UNAVAILABLE
        world.kubelet.unprepare("pod")
        assert allocated(port) == []


def test_a_restarted_driver_knows_what_is_prepared(world: World) -> None:
    port = free_port()
    with agent(world) as first:
        first.ready()
        world.kubelet.prepare("pod", [claim(world)])
        first.terminate()
    eventually(lambda: not world.kubelet.instances.get(DRIVER_NAME), what="deregistration")
    with agent(world, "--metrics-port", str(port)) as second:
        second.ready()
        assert sorted(allocated(port)) == series("")
