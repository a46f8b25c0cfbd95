"""The device plugin of a node where something around it fails, or where the DRA driver has the chips."""

from __future__ import annotations

import logging
import threading
import time

import grpc
import pytest

from dra_driver.kube.kubelet.devicecheckpoint import FILE, MAX_BYTES
from dra_driver.legacy.annotations import ALLOCATED, IDS, RESOURCE_TYPE, UNUSABLE, ContainerShare, write
from dra_driver.legacy.device_plugin import agent as device_plugin
from dra_driver.legacy.device_plugin import allocator
from dra_driver.legacy.rules import NeuronResource
from dra_driver.neuron.exclusion import Excluded
from dra_driver.neuron.host import sysfs, watch
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.worker import STOP_SECONDS
from tests.builders.device_plugin import CORE, NEURON, NODE, MakeNode, PluginNode, admit, chips
from tests.doubles.device_manager import Container, KnownPod, sockets
from tests.doubles.kubelet_connection import KubeletError
from tests.eventually import PATIENCE, eventually
from tests.golden import golden, golden_error

pytestmark = pytest.mark.slow


def publish(node: PluginNode, devices: int = 2) -> None:
    """What the DRA driver publishes."""
    spec = {
        "driver": DRIVER_NAME,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"neuron-device-{n}"} for n in range(devices)],
    }
    node.server.store.create("resourceslices", {"metadata": {"name": "slice"}, "spec": spec})


# -- restarts


@pytest.mark.parametrize("release", [33, 37])
def test_pods_keep_what_they_have_over_restarts_of_kubelet_and_plugin(make: MakeNode, release: int) -> None:
    node = make(release=release)
    with node.plugin():
        first = node.chosen("first", NEURON, range(4))
        admit(node, first)
        single = node.plain("single", CORE, 1)
        (chip,) = chips(admit(node, single))
        node.manager.restart()
        node.wait_registered()
        assert node.manager.admit(first)["main", NEURON], "from the checkpoint, without a call"
        eventually(lambda: IDS in node.annotations("single"), what="the record")
    node.manager.restart()
    with node.plugin():
        for name in ("first", "single"):
            node.set_phase(name, "Running")
        with golden_error(KubeletError):
            admit(node, node.chosen("again", NEURON, range(4)))
        row = chip // 4 * 4
        with golden_error(KubeletError):
            admit(node, node.chosen("over", NEURON, range(row, row + 4)))


def test_what_was_not_written_down_before_a_crash_is_written_after_it(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        refused = node.server.fail(503, times=1000, method="PATCH")
        pod = node.plain("single", NEURON, 1)
        (chip,) = chips(admit(node, pod))
        time.sleep(0.2)
        assert IDS not in node.annotations("single")
    refused.times = 0
    with node.plugin():
        eventually(lambda: node.annotations("single").get(IDS) == str(chip), what="the record")


def test_an_answer_that_kubelet_lost_in_a_crash_is_given_again(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        pod = node.chosen("p", NEURON, range(4, 8))
        assert chips(admit(node, pod)) == [4, 5, 6, 7]
        eventually(lambda: node.annotations("p")[ALLOCATED] == "true", what="the record")
        node.manager.allocations.clear()  # the checkpoint was not written
        node.manager.restart()
        node.wait_registered()
        assert chips(admit(node, pod)) == [4, 5, 6, 7]


def connected_to_present_sockets(node: PluginNode) -> bool:
    present = set(sockets(node.manager.directory))
    return len(present) == 2 and {found.path for found in list(node.manager.connections.values())} == present


def test_the_socket_directory_wiped_under_way_is_no_end(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        for round_ in range(3):
            for path in sockets(node.manager.directory):
                path.unlink()
            eventually(
                lambda: connected_to_present_sockets(node), what="new sockets, and kubelet's connections to them"
            )
            eventually(lambda: node.manager.allocatable(NEURON) and node.manager.allocatable(CORE), what="devices")
            pod = node.chosen(f"p{round_}", NEURON, (round_,))
            assert chips(admit(node, pod)) == [round_]


def test_the_plugin_ends_and_leaves_neither_sockets_nor_devices(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        started = time.monotonic()
    assert time.monotonic() - started < STOP_SECONDS
    assert sockets(node.manager.directory) == []
    eventually(lambda: node.manager.allocatable(NEURON) == 0, what="no device")


# -- the API server


def test_without_the_api_server_what_the_watch_told_is_enough(make: MakeNode) -> None:
    node = make()
    with node.plugin() as agent:
        pod = node.chosen("p", NEURON, range(4, 8))
        eventually(lambda: agent.readiness() == [], what="readiness")
        node.wait_for_news(agent, "p")
        node.server.stop()
        assert chips(admit(node, pod)) == [4, 5, 6, 7]
        unknown = node.pod("unknown", Container("main", {NEURON: 1}), stored=False)
        with golden_error(KubeletError):
            admit(node, unknown)
        node.server.start()
        eventually(lambda: node.annotations("p")[ALLOCATED] == "true", what="the record")
        eventually(lambda: agent.readiness() == [], what="readiness")


def test_a_chip_that_fails_is_told_while_the_api_server_is_away(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        node.manager.wait_for(NEURON, 16)
        node.server.stop()
        node.emulate(missing=frozenset({3}))
        node.manager.wait_for(NEURON, 15)


def test_nothing_is_offered_before_pods_and_exclusion_are_known(make: MakeNode) -> None:
    node = make()
    node.server.stop()
    with node.plugin(ready=False) as agent:
        time.sleep(0.5)
        assert node.manager.registrations == []
        golden(agent.readiness())
        node.server.start()
        node.manager.wait_for(NEURON, 16)


def test_a_record_that_is_refused_is_tried_again_and_said_once(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node = make()
    with node.plugin():
        fault = node.server.fail(403, times=1000, method="PATCH", path="pods", message="not allowed to patch pods")
        pods = [node.chosen(f"p{n}", NEURON, (n,)) for n in range(3)]
        for pod in pods:
            admit(node, pod)
            time.sleep(0.2)
        said = "annotations of pod default/p0 cannot be written"
        eventually(lambda: said in caplog.text, what="the warning")
        assert caplog.text.count(said) == 1
        fault.times = 0
        admit(node, node.chosen("p3", NEURON, (3,)))
        told = [f"p{number}" for number in range(4)]
        eventually(lambda: {node.annotations(n)[ALLOCATED] for n in told} == {"true"}, what="the records")


def test_a_list_of_unusable_chips_that_is_refused_is_tried_again_and_said_once(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node = make()
    with node.plugin():
        fault = node.server.fail(403, times=1000, method="PATCH", path="/nodes/", message="not allowed to patch nodes")
        with caplog.at_level(logging.WARNING, device_plugin.__name__):
            node.emulate(missing=frozenset({3}))
            eventually(lambda: fault.times < 1000 - 4, what="more tries")
        texts = [text for text in caplog.messages if text.startswith("annotations of the node")]
        golden(texts)
        fault.times = 0
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "3", what="the list")


def test_a_pod_that_is_gone_before_the_record_is_no_trouble(make: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    node = make()
    with node.plugin():
        node.server.delay(0.3, times=1, method="PATCH")
        pod = node.chosen("p", NEURON, range(4))
        admit(node, pod)
        node.delete(pod)
        time.sleep(0.6)
        assert "cannot be written" not in caplog.text
        assert chips(admit(node, node.chosen("q", NEURON, range(4)))) == [0, 1, 2, 3]


def test_a_chip_that_fails_is_told_while_a_webhook_lets_the_record_of_a_pod_hang(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugin, "REQUEST_SECONDS", 2 * PATIENCE)
    node = make()
    with node.plugin():
        node.manager.wait_for(NEURON, 16)
        with node.server.hold(method="PATCH", path="/namespaces/default/pods/") as is_under_way:
            (chip,) = chips(admit(node, node.plain("p", NEURON, 1)))
            eventually(is_under_way, what="the record's request")
            node.emulate(missing=frozenset({15 - chip}))
            node.manager.wait_for(NEURON, 15)
            assert IDS not in node.annotations("p")
        eventually(lambda: node.annotations("p").get(IDS) == str(chip), what="the record")


# -- kubelet


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED])
def test_a_kubelet_that_does_not_list_its_pods_gets_answers_by_age(make: MakeNode, code: grpc.StatusCode) -> None:
    node = make()
    with node.plugin() as agent:
        node.manager.resources_fault = code
        later = node.chosen("later", CORE, range(8), at=2)
        sooner = node.chosen("sooner", CORE, range(8, 16), at=1)
        assert chips(admit(node, sooner)) == [4, 5, 6, 7]
        assert chips(admit(node, later)) == [0, 1, 2, 3]
        assert any("failed on purpose" in text for text in agent.readiness())
        node.manager.resources_fault = None
        eventually(lambda: agent.readiness() == [], what="readiness")


def test_a_pod_that_kubelet_does_not_list_is_found_by_age(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        pod = node.chosen("p", NEURON, range(4))
        node.manager.hide.add(pod.uid)
        assert chips(admit(node, pod)) == [0, 1, 2, 3]


def test_a_pod_that_kubelet_has_just_rejected_and_still_lists_is_not_taken_for_the_one_it_admits(
    make: MakeNode,
) -> None:
    node = make(release=33)
    with node.plugin():
        node.manager.reject(node.chosen("rejected", NEURON, range(4), at=1))
        told = threading.Timer(0.3, node.set_phase, ("rejected", "Failed"))
        told.start()
        admitted = node.chosen("admitted", NEURON, range(4, 8), at=2)
        assert chips(admit(node, admitted)) == [4, 5, 6, 7]
        assert node.manager.counted(admitted.uid, NEURON) == set("4567")
        told.join()


def test_where_several_pods_may_be_meant_none_is_given_devices(make: MakeNode) -> None:
    node = make(release=33)
    with node.plugin():
        # kubelet cannot tell the API server that it has rejected the pod.
        node.manager.reject(node.chosen("rejected", NEURON, range(4), at=1))
        with golden_error(KubeletError):
            admit(node, node.chosen("admitted", NEURON, range(4, 8), at=2))
        assert chips(admit(node, node.chosen("other", NEURON, (9,)))) == [9], "only one waits for this number"
        for name in ("rejected", "admitted"):
            node.set_phase(name, "Failed")
        assert chips(admit(node, node.chosen("next", NEURON, range(4)))) == [0, 1, 2, 3]


def test_what_kubelet_counts_for_a_pod_is_not_given_again_whatever_its_annotations_say(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        first = node.chosen("first", NEURON, range(4))
        admit(node, first)
        node.set_phase("first", "Running")
        eventually(lambda: node.annotations("first")[ALLOCATED] == "true", what="the record")
    node.annotate(
        "first", write(node.hardware, first.uid, (ContainerShare("main", NeuronResource.DEVICE, (4, 5, 6, 7)),), 1)
    )
    with node.plugin(), golden_error(KubeletError):
        admit(node, node.chosen("second", NEURON, range(4)))


def test_a_pod_whose_init_container_has_devices_is_not_meant_again_after_a_restart(make: MakeNode) -> None:
    """PodResources does not tell what init containers have."""
    node = make()
    with node.plugin():
        share = ContainerShare("i", NeuronResource.DEVICE, (0, 1, 2, 3))
        containers = Container("i", {NEURON: 4}, init=True), Container("main")
        node.manager.admit(node.pod("first", *containers, shares=(share,)))
        eventually(lambda: node.annotations("first")[ALLOCATED] == "true", what="the record")
    with node.plugin():
        assert chips(admit(node, node.chosen("second", NEURON, range(4, 8)))) == [4, 5, 6, 7]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("release", [33, 37])
def test_what_an_init_container_has_is_given_to_nobody_after_a_restart(
    make: MakeNode, release: int, recorded: bool
) -> None:
    """Nor to a pod that says that it has it, nor where a webhook of its namespace refuses what is recorded of it."""
    node = make(release=release)
    if not recorded:
        node.server.fail(403, 1_000_000, method="PATCH", path="pods/first")
    with node.plugin():
        share = ContainerShare("i", NeuronResource.DEVICE, (0,))
        containers = Container("i", {NEURON: 1}, init=True), Container("main")
        node.manager.admit(node.pod("first", *containers, shares=(share,)))
        if recorded:
            eventually(lambda: node.annotations("first")[ALLOCATED] == "true", what="the record")
    with node.plugin():
        forged = node.pod("forged", Container("main", {NEURON: 1}), annotations={IDS: "0", RESOURCE_TYPE: NEURON})
        with pytest.raises(KubeletError, match="default/first has some of them"):
            admit(node, forged)
        assert 0 not in chips(admit(node, node.plain("core", CORE, 1)))
        assert 0 not in chips(admit(node, node.plain("device", NEURON, 1)))


def test_what_an_init_container_has_stays_its_own_while_the_watch_is_away(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "REMEMBER_SECONDS", 0.3)
    node = make()
    with node.plugin() as agent:
        away = node.server.fail(503, 1_000_000, path="pods$", watch=True)
        node.server.cut()
        share = ContainerShare("i", NeuronResource.DEVICE, (0,))
        containers = Container("i", {NEURON: 1}, init=True), Container("main")
        node.manager.admit(node.pod("first", *containers, shares=(share,)))
        time.sleep(0.5)
        agent._allocator.world()
        away.times = 0
        node.wait_for_news(agent, "first")
        with pytest.raises(KubeletError, match="default/first has some of them"):
            admit(node, node.chosen("core", CORE, (0,)))


def test_no_device_is_given_while_what_kubelet_remembers_is_too_long_to_be_read(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        admit(node, node.chosen("first", NEURON, (0,)))
    path = node.manager.directory / FILE
    text = path.read_bytes()
    path.write_bytes(text + b" " * MAX_BYTES)
    with node.plugin() as agent:
        eventually(lambda: any("more than" in problem for problem in agent.readiness()), what="the reason")
        with pytest.raises(KubeletError, match="it is not known which devices containers have"):
            admit(node, node.chosen("second", NEURON, (1,)))
        path.write_bytes(text)
        assert chips(admit(node, node.chosen("third", NEURON, (1,)))) == [1]


def test_pods_that_were_taken_for_each_other_keep_what_they_have(make: MakeNode) -> None:
    """Without a list of kubelet, pods are found by age, which they may say of themselves."""
    node = make()
    with node.plugin() as agent:
        node.manager.resources_fault = grpc.StatusCode.UNAVAILABLE
        meant = node.chosen("meant", NEURON, range(4))
        forged = node.chosen("forged", NEURON, range(4, 8), at=time.time_ns() - 250 * 10**9)
        node.wait_for_news(agent, "meant", "forged")
        assert chips(admit(node, meant)) == [4, 5, 6, 7]
        with pytest.raises(KubeletError, match="default/meant has some of them"):
            admit(node, forged)
        node.manager.resources_fault = None
        node.delete(forged)
        with pytest.raises(KubeletError, match="default/meant has some of them"):
            admit(node, node.chosen("third", NEURON, range(4, 8)))


def test_a_pod_that_was_rejected_and_says_for_ever_that_it_waits_fails_one_other_at_most(make: MakeNode) -> None:
    node = make(release=33)
    with node.plugin():
        node.manager.reject(node.chosen("rejected", NEURON, range(4), at=1))
        with pytest.raises(KubeletError, match="kubelet lists them all"):
            admit(node, node.chosen("unlucky", NEURON, range(4, 8), at=2))
        for name in ("next", "last"):
            pod = node.chosen(name, NEURON, range(4, 8))
            assert chips(admit(node, pod)) == [4, 5, 6, 7]
            node.end(pod)


def test_a_pod_that_waits_keeps_nobody_from_a_device_though_its_annotations_cannot_be_read(make: MakeNode) -> None:
    node = make()
    with node.plugin():
        node.pod("waits", Container("main", {NEURON: 4}), annotations={IDS: "nonsense"})
        assert len(chips(admit(node, node.plain("plain", NEURON, 1)))) == 1


def test_many_pods_at_a_time_from_several_threads_never_share_a_device(make: MakeNode) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
    from tests.doubles.device_manager import plugin_call

    node = make()
    with node.plugin():
        for number in range(16):
            node.chosen(f"p{number:02}", NEURON, (number,), at=number + 1)
        path = next(p for p in sockets(node.manager.directory) if "neuroncore" not in p.name)
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=["0"])])
        with ThreadPoolExecutor(8) as pool:
            # Not how kubelet asks; none of these pods is listed by it either.
            answers = list(
                pool.map(lambda _: plugin_call(path, "Allocate", request, api.AllocateResponse, 30), range(16))
            )
        given = [chips(answer.container_responses[0])[0] for answer in answers]
        assert sorted(given) == list(range(16))


# -- either the DRA driver or the device plugin


def test_refuses_to_start_where_the_dra_driver_publishes(make: MakeNode) -> None:
    node = make()
    publish(node)
    with golden_error(Excluded), node.plugin(ready=False):
        pass
    assert node.manager.registrations == []
    assert sockets(node.manager.directory) == []


def test_ends_when_the_dra_driver_comes(make: MakeNode) -> None:
    node = make()
    with node.plugin() as agent:
        publish(node)
        eventually(lambda: node.fatal, what="its end")
        assert "publishes 2 devices" in agent.fatal
        assert any("publishes 2 devices" in text for text in agent.liveness())


def test_ends_where_pods_have_chips_by_claims(make: MakeNode) -> None:
    node = make()
    pod = KnownPod("default", "with-claim", "u", (Container("main"),), claims=((DRIVER_NAME, "neuron-device-0"),))
    node.manager.admit(pod)
    with node.plugin(ready=False) as agent:
        eventually(lambda: node.fatal, what="its end")
        golden(agent.fatal)
        assert node.manager.registrations == []


@pytest.mark.parametrize("other", ["slices without devices", "no such API", "another driver's claim"])
def test_runs_where_the_dra_driver_has_nothing(make: MakeNode, other: str) -> None:
    node = make()
    if other == "slices without devices":
        publish(node, devices=0)
    elif other == "no such API":
        node.server.versions = ()
    else:
        pod = KnownPod("default", "p", "u", (Container("main"),), claims=(("gpu.example.com", "gpu-0"),))
        node.manager.admit(pod)
    with node.plugin():
        node.manager.wait_for(NEURON, 16)
        time.sleep(0.5)
        assert node.fatal == []


def test_refuses_to_start_where_it_may_not_ask(make: MakeNode) -> None:
    node = make()
    node.server.fail(403, times=1000, path="resourceslices", message="cannot list resourceslices")
    with golden_error(Excluded), node.plugin(ready=False):
        pass
    assert node.manager.registrations == []


# -- what never answers


def test_a_host_that_hangs_is_told_and_the_stop_keeps_to_its_time(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    go_on, read = threading.Event(), sysfs._read_all

    def hang(path: str) -> bytes:
        go_on.wait(120)
        return read(path)

    monkeypatch.setattr(watch, "MAX_ROUND_SECONDS", 0.5)
    with node.plugin() as agent:
        assert agent.readiness() == []
        monkeypatch.setattr(sysfs, "_read_all", hang)
        node.server.delay(120.0, times=100_000)
        node.server.close_watches()
        try:
            eventually(lambda: any("reading the host has made no progress" in text for text in agent.readiness()))
            assert agent.liveness() == []
            stopped = time.monotonic()
            agent.stop()
            assert time.monotonic() - stopped < STOP_SECONDS + 15
        finally:
            go_on.set()
    assert sockets(node.manager.directory) == []
