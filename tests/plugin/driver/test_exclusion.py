"""The driver and a device plugin on one node: the chips of each stay its own, whichever comes first, later, or goes.

The other direction is in ``tests/plugin/legacy/device_plugin/test_faults.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.driver import device_use
from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.device_use import REST, ContainerWatch
from dra_driver.driver.resourceslices import kept
from dra_driver.kube.kubelet.api import podresources_v1_pb2 as api
from dra_driver.neuron.health.condition import DEVICE_PLUGIN
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import device_name
from dra_driver.util import runtime
from tests.builders.agent import NODE, START_SECONDS, World, agent_here
from tests.doubles.device_manager import Allocation, Container, DeviceManager, KnownPod
from tests.doubles.kubelet import KubeletError
from tests.doubles.pod_resources import answering
from tests.eventually import eventually
from tests.golden import golden, golden_error, logged

CHIPS = [device_name(index) for index in range(16)]
TAINTS = "spec.devices[].taints"
NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
SECONDS = START_SECONDS
"""Timeout of what takes less than one."""


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(kept, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(kept, "HELD_SECONDS", 0.3)
    monkeypatch.setattr(kept, "MAX_HELD_SECONDS", 0.3)  # however long the test takes between two steps
    monkeypatch.setattr(device_use, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(device_use, "PLUGIN_SECONDS", 0.1)
    monkeypatch.setattr(device_use, "LINGER_SECONDS", 0.3)
    return world


@pytest.fixture
def kubelet(world: World) -> Iterator[DeviceManager]:
    with DeviceManager(world.root / "kubelet") as made:
        yield made


@contextmanager
def running(world: World) -> Iterator[NodeAgent]:
    made = agent_here(world, "trn2.48xlarge", faster=50)
    made.start()
    try:
        eventually(lambda: world.kubelet.instances.get(DRIVER_NAME), SECONDS, "registration")
        yield made
    finally:
        made.stop()


def plugin_offers(world: World, count: int, resource: str = NEURON) -> None:
    """The Node's status as kubelet writes it."""
    found = world.server.store.get("nodes", NODE)
    status = {**found["status"], "allocatable": {"cpu": "8", resource: str(count)}}
    world.server.store.update("nodes", NODE, {**found, "status": status})


def plugin_pod(kubelet: DeviceManager, name: str, *ids: str, resource: str = NEURON) -> str:
    """A pod to which a device plugin gave devices; returns its UID."""
    kubelet.pods[name] = KnownPod("team", name, name, (Container("main"),))
    kubelet.allocations[name, "main", resource] = Allocation(frozenset(ids), None)
    return name


def offers(world: World, *chips: int) -> None:
    wanted = [CHIPS[index] for index in chips]
    eventually(lambda: world.server.slices() and world.offered() == wanted, SECONDS, f"{wanted}")


def conditions(world: World) -> list[dict[str, Any]]:
    found = world.server.store.get("nodes", NODE)["status"].get("conditions", [])
    return [item for item in found if item["type"] == DEVICE_PLUGIN.type]


def events(world: World) -> list[dict[str, Any]]:
    return [item for item in world.server.store.list("events")[0] if item["reason"] == DEVICE_PLUGIN.reason]


def held_back(agent: NodeAgent) -> float:
    return next(sample.value for sample in agent.samples() if sample.name == "held_back_chips")


@pytest.mark.parametrize("server", [("v1.36.3", ()), ("v1.34.4", (TAINTS,))], ids=["taints", "without taints"])
def test_a_plugin_that_comes_while_the_driver_runs_gets_the_free_chips_and_gives_them_back_when_it_goes(
    world: World, kubelet: DeviceManager, server: tuple[str, tuple[str, ...]]
) -> None:
    world.server.git_version, world.server.dropped_fields = server
    with running(world) as agent:
        offers(world, *range(16))
        prepared = world.add_claim("default", "prepared", devices=[("r", CHIPS[2])])
        allocated = world.add_claim("default", "allocated", devices=[("r", CHIPS[5])])
        world.kubelet.prepare("pod", [prepared])
        plugin_offers(world, 16)
        offers(world, 2, 5)
        world.kubelet.restart()
        world.kubelet.wait_registered(DRIVER_NAME)
        assert world.kubelet.prepare("pod", [prepared]), "what it has is never taken from a claim"
        with golden_error(KubeletError):
            world.kubelet.prepare("late", [allocated])
        world.kubelet.unprepare("pod")
        world.server.delete_claim("default", "prepared")
        offers(world, 5)
        assert held_back(agent) == 16
        plugin_offers(world, 0)
        offers(world, *range(16))
        assert world.kubelet.prepare("late", [allocated])
        assert held_back(agent) == 0


def test_the_free_chips_get_a_taint_at_once_and_go_when_schedulers_have_seen_it(
    world: World, kubelet: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SETTLE_SECONDS", 3600.0)
    with running(world):
        offers(world, *range(16))
        plugin_offers(world, 16)
        eventually(lambda: world.taints() == {name: {"retired": "NoSchedule"} for name in CHIPS}, SECONDS, "taints")


def test_a_plugin_is_told_of_in_readiness_condition_event_metric_and_log_until_it_goes(
    world: World, kubelet: DeviceManager, log: pytest.LogCaptureFixture
) -> None:
    plugin_offers(world, 32, CORE)
    for _ in range(2):  # a restart of the driver repeats no Event
        with running(world) as agent:
            offers(world)
            eventually(lambda: conditions(world), SECONDS, "the condition")
            (said,) = conditions(world)
            golden(said["message"])
            assert (said["status"], said["reason"]) == ("True", DEVICE_PLUGIN.reason)
            assert said["message"] in agent.readiness()
            assert not agent.liveness(), "a restart mends nothing"
            assert held_back(agent) == 16
            eventually(lambda: events(world), SECONDS, "the Event")
            assert said["message"] in log.text
    (event,) = events(world)
    assert (event["type"], event["count"], event["message"]) == ("Warning", 1, said["message"])
    warned = [record for record in log.records if record.levelname == "WARNING" and said["message"] in record.message]
    assert len(warned) == 2, "once in each run"
    with running(world) as agent:
        offers(world)
        plugin_offers(world, 0, CORE)
        offers(world, *range(16))
        eventually(lambda: not conditions(world), SECONDS, "no condition")
        eventually(lambda: not agent.readiness(), SECONDS, "readiness")
    golden(logged(log, "offered again"))
    assert len(events(world)) == 1


def test_a_driver_that_starts_beside_a_plugin_lets_pods_with_claims_end_and_offers_nothing_new(
    world: World, kubelet: DeviceManager
) -> None:
    with running(world):
        offers(world, *range(16))
        prepared = world.add_claim("default", "prepared", devices=[("r", CHIPS[2])])
        world.kubelet.prepare("pod", [prepared])
    world.server.wipe_slices(NODE)
    plugin_offers(world, 16)
    with running(world):
        offers(world, 2)
        world.kubelet.unprepare("pod")
        world.server.delete_claim("default", "prepared")
        offers(world)
        assert world.specs() == []


def test_pods_of_a_plugin_that_is_gone_keep_their_chips_until_they_end(world: World, kubelet: DeviceManager) -> None:
    first, second = plugin_pod(kubelet, "one", "3"), plugin_pod(kubelet, "cores", "20", "21", resource=CORE)
    with running(world) as agent:
        offers(world, 0, 1, 4, *range(6, 16))  # core 20 is on chip 5, or on chip 2 if the pod has one core of two
        eventually(lambda: not agent.readiness(), SECONDS, "readiness: the other chips are offered")
        eventually(lambda: conditions(world), SECONDS, "the condition")
        golden(conditions(world)[0]["message"])
        assert held_back(agent) == 3
        claim = world.add_claim("default", "claim", devices=[("r", CHIPS[3])])
        with pytest.raises(KubeletError) as caught:
            world.kubelet.prepare("pod", [claim])
        assert "team" not in str(caught.value), "whose pods these are is not for the claim's owner to read"
        golden(str(caught.value))
        kubelet.remove(first)
        offers(world, 0, 1, 3, 4, *range(6, 16))
        assert world.kubelet.prepare("pod", [claim])
        kubelet.remove(second)
        offers(world, *range(16))
        eventually(lambda: not conditions(world), SECONDS, "no condition")


def test_pods_that_a_plugin_got_while_the_driver_ran_keep_their_chips_when_the_plugin_goes(
    world: World, kubelet: DeviceManager
) -> None:
    with running(world):
        offers(world, *range(16))
        plugin_offers(world, 16)
        offers(world)
        plugin_pod(kubelet, "pod", "7")
        plugin_offers(world, 0)
        offers(world, *(index for index in range(16) if index != 7))


def test_a_plugin_that_is_back_a_moment_after_it_went_changes_nothing(
    world: World, kubelet: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when kubelet is restarted: it knows its plugins, and its pods, a little later."""
    plugin_offers(world, 16)
    with running(world) as agent:
        offers(world)
        writes = world.slice_writes()
        monkeypatch.setattr(device_use, "LINGER_SECONDS", 3600.0)
        plugin_offers(world, 0)
        # Since it has seen the plugin at its start, it may be about to ask within seconds.
        in_an_hour = (time.monotonic() + 1800, time.monotonic() + 7200)
        eventually(lambda: in_an_hour[0] < agent._containers._due < in_an_hour[1], SECONDS, "the driver to see it")
        gone = agent._containers._due
        plugin_offers(world, 16)
        eventually(lambda: agent._containers._due > gone, SECONDS, "the driver to have seen that it is back")
        agent._containers._due = 0.0  # an hour passes
        eventually(lambda: agent._containers._due == float("inf"), SECONDS, "the question to kubelet")
        assert world.slice_writes() == writes


@pytest.mark.parametrize(
    ("resource", "device"),
    [(NEURON, "trn-3"), (NEURON, "16"), (CORE, "00001"), ("aws.amazon.com/neuronlink", "1")],
    ids=["no number", "no such chip", "a long number", "unknown resource"],
)
def test_an_id_that_names_no_chip_holds_all_back(
    world: World, kubelet: DeviceManager, resource: str, device: str
) -> None:
    pod = plugin_pod(kubelet, "pod", "1")
    kubelet.allocations[pod, "main", resource] = Allocation(frozenset({device}), None)
    with running(world) as agent:
        offers(world)
        eventually(lambda: conditions(world), SECONDS, "the condition")
        golden(conditions(world)[0]["message"])
        assert conditions(world)[0]["message"] in agent.readiness()
        kubelet.remove(pod)
        offers(world, *range(16))


def test_a_pod_that_kubelet_leaves_out_for_a_moment_keeps_its_chips(
    world: World, kubelet: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_use, "LINGER_SECONDS", 3600.0)
    pod = plugin_pod(kubelet, "pod", "0")
    with running(world):
        offers(world, *range(1, 16))
        writes = world.slice_writes()
        kubelet.hide.add(pod)
        asked = kubelet.asked
        eventually(lambda: kubelet.asked > asked + 3, SECONDS, "questions to kubelet")
        assert world.slice_writes() == writes


def test_nothing_is_offered_before_kubelet_has_told_which_pods_have_chips(world: World, kubelet: DeviceManager) -> None:
    plugin_pod(kubelet, "pod", "0")
    kubelet.resources_fault = grpc.StatusCode.UNAVAILABLE
    with running(world) as agent:
        asked = kubelet.asked
        eventually(lambda: kubelet.asked > asked + 2, SECONDS, "questions to kubelet")
        assert world.server.slices() == []
        golden(agent.readiness())
        claim = world.add_claim("default", "claim", devices=[("r", CHIPS[3])])
        with golden_error(KubeletError):
            world.kubelet.prepare("early", [claim])
        kubelet.resources_fault = None
        offers(world, *range(1, 16))


def test_there_is_no_first_slice_before_kubelet_has_registered_the_driver(world: World) -> None:
    world.kubelet.stop_watching()
    agent = agent_here(world, "trn2.48xlarge", faster=50)
    agent.start()
    try:
        eventually(world.condition, SECONDS, "the Node to be written")
        eventually(lambda: agent._slices._desired is not None, SECONDS, "an offer")
        assert world.server.slices() == []
        assert agent.readiness()
        world.kubelet.start()
        offers(world, *range(16))
    finally:
        agent.stop()


def test_slices_that_are_there_are_kept_up_before_kubelet_has_registered_the_driver(world: World) -> None:
    with running(world):
        offers(world, *range(16))
    world.kubelet.stop_watching()
    (item,) = world.server.slices()
    fewer = {**item, "spec": {**item["spec"], "devices": item["spec"]["devices"][:3]}}
    world.server.store.update("resourceslices", item["metadata"]["name"], fewer)
    agent = agent_here(world, "trn2.48xlarge", faster=50)
    agent.start()
    try:
        offers(world, *range(16))
    finally:
        agent.stop()
        world.kubelet.start()


def test_long_lists_are_rare(tmp_path: Path) -> None:
    """Else every five seconds, while pods have devices from a device plugin; and tenants choose how long it is."""
    times: list[float] = []
    clock = [0.0]
    pod = api.PodResources(name="p", namespace="team")
    pod.containers.add(name="c").devices.add(resource_name="aws.amazon.com/neuron", device_ids=["0"])
    message = api.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()

    def answer() -> bytes:
        times.append(clock[0])
        clock[0] += 2.0
        return message

    watch = ContainerWatch(tmp_path, list, lambda: None)
    with answering(tmp_path, answer), runtime.use(runtime.Runtime(monotonic=lambda: clock[0])):
        for _ in range(20):
            pause = watch._round()
            clock[0] += pause
    assert watch.plugin_pods is not None
    assert len(times) > 1
    assert all(later - before >= 2.0 * (1 + REST) for before, later in pairwise(times))
