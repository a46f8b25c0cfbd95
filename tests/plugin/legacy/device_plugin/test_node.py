"""The device plugin of a node, between a test kubelet and a test API server: what containers get."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest

from dra_driver.kube.api.client import Response, RestConfig, Transport
from dra_driver.legacy.annotations import (
    ALLOC_TIME,
    ALLOCATED,
    ALLOCATION,
    DEVICES,
    IDS,
    OF,
    RESOURCE_TYPE,
    UNUSABLE,
    ContainerShare,
)
from dra_driver.legacy.device_plugin.agent import NodeSources
from dra_driver.legacy.device_plugin.choosing import NEEDS_EXTENDER
from dra_driver.legacy.rules import RETIRED_DEVICE, NeuronResource
from dra_driver.neuron.health.condition import HEALTHY_REASON, KERNEL_DRIVER, STOPPED_REASON
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.watch import HostWatch
from dra_driver.neuron.names import PRESENT
from tests.builders.device_plugin import CORE, NEURON, NODE, MakeNode, PluginNode, admit, chips, cores
from tests.builders.extender import annotate
from tests.builders.host import renumber
from tests.doubles.device_manager import Container
from tests.doubles.kubelet_connection import KubeletError
from tests.eventually import eventually
from tests.golden import golden, golden_error
from tests.oracles.cdi_schema import SCHEMA

pytestmark = pytest.mark.slow

OTHER_RESOURCE = json.dumps(
    {"coresPerDevice": 2, "containers": [{"name": "main", "resource": CORE, "ids": "0-3"}]}, separators=(",", ":")
)


# -- what is offered


@pytest.mark.parametrize(
    ("kind", "chip_count", "core_count"),
    [("inf1.6xlarge", 4, 16), ("inf2.48xlarge", 12, 24), ("trn1.32xlarge", 16, 32), ("trn2.48xlarge", 16, 64)],
)
def test_offers_all_chips_and_logical_cores(make: MakeNode, kind: str, chip_count: int, core_count: int) -> None:
    node = make(kind)
    with node.plugin() as agent:
        node.manager.wait_for(NEURON, chip_count)
        node.manager.wait_for(CORE, core_count)
        assert node.manager.healthy(NEURON) == {str(n) for n in range(chip_count)}
        eventually(lambda: agent.readiness() == [], what="readiness")
        assert agent.liveness() == []


def test_core_counts_follow_the_nodes_logical_core_size(make: MakeNode) -> None:
    node = make("trn2.48xlarge", emulated=False)
    node.emulate(logical_nc_config=1)
    with node.plugin():
        node.manager.wait_for(CORE, 128)
        answer = admit(node, node.plain("one", CORE, 1))
        assert answer.envs["NEURON_LOGICAL_NC_CONFIG"] == "1"
        node.emulate()
        node.manager.wait_for(CORE, 64)


def test_numa_nodes_are_those_of_the_chips(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        numa, core_numa = (node.manager.connections[name].numa for name in (NEURON, CORE))
        assert [numa[str(chip)] for chip in range(4)] == [(0,), (0,), (1,), (1,)]
        assert all(core_numa[str(core)] == numa[str(core // 2)] for core in range(32))


def test_the_resources_appear_when_the_kernel_driver_loads_and_stay_when_it_goes(make: MakeNode) -> None:
    node = make("trn1.32xlarge", emulated=False)
    with node.plugin(ready=False) as agent:
        time.sleep(0.5)
        assert node.manager.registrations == []
        assert agent.liveness() == []
        node.emulate()
        node.manager.wait_for(NEURON, 16)
        version = node.host / "sys/module/neuron/version"
        text = version.read_text()
        version.unlink()
        node.manager.wait_for(NEURON, 0)
        eventually(lambda: reasons(node) == {KERNEL_DRIVER.reason}, what="what the Node says")
        assert node.manager.capacity(CORE) == 32
        version.write_text(text)
        node.manager.wait_for(CORE, 32)
        eventually(lambda: reasons(node) == {HEALTHY_REASON}, what="its end")
        with node.plugin():  # a successor, as during an update
            pass
        eventually(lambda: reasons(node) == {HEALTHY_REASON}, what="what the one that serves says")
    assert reasons(node) == {STOPPED_REASON}
    assert [item["reason"] for item in node.server.store.list("events")[0]] == [KERNEL_DRIVER.reason]


def reasons(node: PluginNode) -> set[str]:
    """Of the conditions that the plugin keeps on the Node."""
    found = node.server.store.get("nodes", NODE)["status"].get("conditions", [])
    return {item["reason"] for item in found if item["type"].startswith("Neuron")}


def test_a_lost_chip_counts_on_as_unhealthy_and_the_node_tells_of_it(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        node.manager.wait_for(NEURON, 16)
        node.emulate(missing=frozenset({5}))
        node.manager.wait_for(NEURON, 15)
        node.manager.wait_for(CORE, 30)
        assert node.manager.capacity(NEURON) == 16
        assert "5" not in node.manager.healthy(NEURON)
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "5", what="the annotation")
        node.emulate()
        node.manager.wait_for(NEURON, 16)
        eventually(lambda: UNUSABLE not in node.node_annotations(), what="its removal")


def test_a_sick_chip_is_unhealthy_with_its_cores_until_it_is_well(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin() as agent:
        node.manager.wait_for(NEURON, 16)
        holder = node.chosen("holder", NEURON, (5,))
        assert chips(admit(node, holder)) == [5]
        node.set_errors(5, 2)
        node.manager.wait_for(CORE, 30)
        node.manager.wait_for(NEURON, 15)
        assert node.manager.capacity(NEURON) == 16
        assert {"10", "11"}.isdisjoint(node.manager.healthy(CORE))
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "5", what="the annotation")
        sick = node.chosen("sick", CORE, (10, 11))
        with golden_error(KubeletError):
            admit(node, sick)
        with golden_error(KubeletError):
            admit(node, node.plain("everything", NEURON, 16))
        assert agent.readiness() == [], "the plugin works, the chip does not"
        node.set_errors(5, 0)
        node.manager.wait_for(NEURON, 16)
        node.manager.wait_for(CORE, 32)
        eventually(lambda: UNUSABLE not in node.node_annotations(), what="its removal")


def test_an_annotation_that_somebody_removed_comes_back_while_the_chip_is_sick(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        node.set_errors(5, 1)
        for _ in range(2):
            eventually(lambda: node.node_annotations().get(UNUSABLE) == "5", what="the annotation")
            with node.server.store.changed:
                found = node.server.store.get("nodes", NODE)
                found["metadata"]["annotations"] = {}
                node.server.store.update("nodes", NODE, found)
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "5", what="the annotation")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (0, ("False", "NeuronHasNoError")),
        (1, ("True", "NeuronHasError_HBM_UNCORRECTABLE_ERROR", "neuron5: hbm-uncorrectable")),
    ],
)
def test_the_node_says_that_it_has_chips_and_which_of_them_is_sick(
    make: MakeNode, errors: int, expected: tuple[str, ...]
) -> None:
    node = make("trn1.32xlarge")
    node.set_errors(5, errors)

    def condition() -> tuple[str, ...]:
        conditions = node.server.store.get("nodes", NODE).get("status", {}).get("conditions", ())
        (found,) = [c for c in conditions if c["type"] == "NeuronHealth"] or [{}]
        return tuple(found.get(key, "") for key in ("status", "reason", "message"))[: len(expected)]

    with node.plugin(ready=False):
        eventually(lambda: condition() == expected, what="the condition")
        eventually(
            lambda: node.server.store.get("nodes", NODE)["metadata"].get("labels", {}).get(PRESENT) == "true",
            what="the label",
        )


def test_a_restart_hands_out_no_chip_that_was_sick_before_it(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        node.set_errors(3, 1)
        node.manager.wait_for(NEURON, 15)
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "3", what="the annotation")
    seen: list[int] = []
    with node.plugin(ready=False):
        eventually(lambda: node.manager.capacity(NEURON) == 16, what="registration")
        for _ in range(40):
            seen.append(node.manager.allocatable(NEURON))
            time.sleep(0.01)
        assert set(seen) <= {0, 15}
        assert node.node_annotations().get(UNUSABLE) == "3"


def test_chips_that_were_listed_by_hand_stay_listed(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    store = node.server.store
    item = store.get("nodes", NODE)
    store.update("nodes", NODE, {**item, "metadata": {**item["metadata"], "annotations": {UNUSABLE: "9"}}})
    with node.plugin():
        node.emulate(missing=frozenset({5}))
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "5,9", what="both")
    with node.plugin():  # a restart knows which of them were its own
        node.emulate()
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "9", what="the one by hand")


def test_a_chip_that_is_listed_by_hand_while_the_plugin_writes_stays_listed(make: MakeNode) -> None:
    class Interrupted(Transport):
        """An administrator is quicker than the first write that follows a read of the Node."""

        def request(self, method: str, path: str, **more: Any) -> Response:
            answer = super().request(method, path, **more)
            if method == "GET" and path.endswith(f"/nodes/{NODE}") and UNUSABLE not in node.node_annotations():
                annotate(node.server, "nodes", NODE, **{UNUSABLE: "9"})
            return answer

    node = make("trn1.32xlarge")
    transport = Interrupted(RestConfig(server=node.server.url))
    assert NodeSources(node.settings(), transport, lambda: None, lambda: 0, lambda: None).write_unusable((3,))
    assert node.node_annotations()[UNUSABLE] == "3,9"
    transport.close()


# -- with an extender


def test_nine_cores_on_an_inf1_6xlarge_are_given_as_the_documented_log_says(make: MakeNode) -> None:
    node = make("inf1.6xlarge")
    with node.plugin():
        pod = node.chosen("nrt-test-5038", CORE, range(9))
        answer = admit(node, pod)
        assert (cores(answer), chips(answer)) == (list(range(9)), [0, 1, 2])
        assert [d.container_path for d in answer.devices] == ["/dev/neuron0", "/dev/neuron1", "/dev/neuron2"]
        assert node.manager.counted(pod.uid, CORE) == {str(n) for n in range(9)}, "kubelet counts the same"
        eventually(lambda: node.annotations("nrt-test-5038")[ALLOCATED] == "true", what="step 10")


def test_cores_two_and_three_are_the_second_chip_as_in_the_flow_diagram(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        answer = admit(node, node.chosen("p", CORE, (2, 3)))
        assert answer.envs["NEURON_RT_VISIBLE_CORES"] == "2,3"
        assert [d.container_path for d in answer.devices] == ["/dev/neuron1"]


def test_pods_get_what_was_chosen_whatever_the_order_of_admission(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        rows = [tuple(range(first, first + 4)) for first in (0, 4, 8, 12)]
        pods = [node.chosen(f"p{n}", NEURON, row, at=1000 + n) for n, row in enumerate(rows)]
        for number in (2, 0, 3, 1):
            assert chips(admit(node, pods[number])) == list(rows[number])
            assert node.manager.counted(pods[number].uid, NEURON) == set(map(str, rows[number]))


def test_without_the_list_of_kubelet_the_oldest_choice_comes_first(make: MakeNode) -> None:
    node = make("trn1.32xlarge", pod_resources=False)
    with node.plugin() as agent:
        late = node.chosen("late", NEURON, range(4), at=2000)
        early = node.chosen("early", NEURON, range(4, 8), at=1000)
        assert chips(admit(node, early)) == [4, 5, 6, 7]
        eventually(lambda: node.annotations("early").get(ALLOCATED) == "true", what="the record")
        assert chips(admit(node, late)) == [0, 1, 2, 3]
        golden(agent.readiness())


def test_a_pod_that_the_watch_has_not_told_of_yet_is_read(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        node.chosen("waits", NEURON, range(4), at=1000)
        eventually(lambda: node.server.count("GET", "pods", watch=True), what="the watch")
        node.server.store.version += 1  # what follows is stored, and the watch is cut
        node.server.close_watches()
        blocked = node.server.delay(3, times=50, watch=True)
        pod = node.chosen("new", NEURON, range(8, 12))
        assert chips(admit(node, pod)) == [8, 9, 10, 11]
        blocked.times = 0


def test_a_pod_of_the_same_name_does_not_get_what_the_former_had(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        first = node.chosen("web-0", NEURON, range(4))
        admit(node, first)
        node.set_phase("web-0", "Running")
        time.sleep(0.2)
        blocked = node.server.delay(3, times=50, watch=True)
        node.server.close_watches()
        node.delete(first)
        second = node.chosen("web-0", NEURON, range(12, 16))
        assert chips(admit(node, second)) == [12, 13, 14, 15]
        blocked.times = 0


def test_containers_and_init_containers_get_their_own_shares(make: MakeNode) -> None:
    node = make("inf2.24xlarge")
    shares = (
        ContainerShare("prepare", NeuronResource.CORE, (7, 8, 9, 10)),
        ContainerShare("a", NeuronResource.CORE, (8, 9)),
        ContainerShare("b", NeuronResource.DEVICE, (0, 1)),
        ContainerShare("c", NeuronResource.CORE, (10, 11)),
    )
    containers = (
        Container("prepare", {CORE: 4}, init=True),
        Container("a", {CORE: 2}),
        Container("b", {NEURON: 2}),
        Container("c", {CORE: 2}),
    )
    with node.plugin():
        answers = node.manager.admit(node.pod("p", *containers, shares=shares))
        assert cores(answers["prepare", CORE]) == [7, 8, 9, 10]
        assert cores(answers["a", CORE]) == [8, 9]
        assert cores(answers["c", CORE]) == [10, 11]
        assert chips(answers["b", NEURON]) == [0, 1]
        assert "NEURON_RT_VISIBLE_CORES" not in answers["b", NEURON].envs
        eventually(lambda: node.annotations("p")[ALLOCATED] == "true", what="the record")


def test_kubelet_counts_nothing_but_the_pods_own_where_an_init_container_leaves_some(make: MakeNode) -> None:
    node = make("inf2.24xlarge")
    shares = (
        ContainerShare("i", NeuronResource.CORE, (8, 9)),
        ContainerShare("a", NeuronResource.CORE, (8,)),
        ContainerShare("b", NeuronResource.CORE, (10, 11)),
    )
    containers = (Container("i", {CORE: 2}, init=True), Container("a", {CORE: 1}), Container("b", {CORE: 2}))
    with node.plugin():
        pod = node.pod("p", *containers, shares=shares)
        node.manager.admit(pod)
        assert node.manager.counted(pod.uid, CORE) <= {"8", "9", "10", "11"}


@pytest.mark.parametrize(
    "annotations",
    [
        {IDS: "4,5,6,7", ALLOCATED: "false", ALLOC_TIME: str(time.time_ns())},
        {IDS: "4,5,6,7", RESOURCE_TYPE: NEURON},
        {IDS: "4,5,6,7", RESOURCE_TYPE: RETIRED_DEVICE},
        {DEVICES: "4,5,6,7"},
    ],
)
def test_annotations_of_other_extenders_are_understood(make: MakeNode, annotations: dict[str, str]) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        pod = node.pod("p", Container("main", {NEURON: 4}), annotations=annotations)
        assert chips(admit(node, pod)) == [4, 5, 6, 7]
        eventually(lambda: node.annotations("p").get(ALLOCATED) == "true", what="the record")


@pytest.mark.parametrize("by", ["this project", "AWS's extender"])
def test_annotations_that_were_copied_from_another_pod_choose_nothing(make: MakeNode, by: str) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        given = chips(admit(node, node.pod("first", Container("main", {NEURON: 1}))))
        eventually(lambda: ALLOCATED in node.annotations("first"), what="the record")
        copied = node.annotations("first")
        node.set_phase("first", "Running")
        if by != "this project":
            copied = {key: copied[key] for key in (IDS, RESOURCE_TYPE)} | {ALLOC_TIME: "1743574052764891534"}  # in 2025
        for name in ("second", "third"):
            given += chips(admit(node, node.pod(name, Container("main", {NEURON: 1}), annotations=copied)))
            node.set_phase(name, "Running")
        assert len(given) == len(set(given)) == 3
        eventually(
            lambda: all(node.annotations(name).get(OF) not in (None, copied.get(OF)) for name in ("second", "third")),
            what="records of their own",
        )


def test_annotations_of_others_are_never_touched(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        others = {"k8s.ovn.org/pod-networks": '{"default":{}}', "a": "b"}
        pod = node.pod("p", Container("main", {NEURON: 1}), annotations=others)
        admit(node, pod)
        eventually(lambda: ALLOCATED in node.annotations("p"), what="the record")
        assert others.items() <= node.annotations("p").items()
        patches = [r.body for r in node.server.requests if r.method == "PATCH" and "pods" in r.path]
        assert all(set(body["metadata"]) == {"uid", "annotations"} and len(body) == 1 for body in patches)
        assert all(not set(body["metadata"]["annotations"]) & set(others) for body in patches)


@pytest.mark.parametrize(
    "annotations",
    [
        {IDS: "0,1,2"},
        {IDS: "0,1,2,4"},
        {IDS: "2,3,4,5"},
        {IDS: "13,14,15,16"},
        {IDS: "0,1,2,3\n\x1b[31m"},
        {IDS: "0-99999999999"},
        {IDS: "0,1,2,3", RESOURCE_TYPE: "cpu"},
        {ALLOCATION: "{"},
        {ALLOCATION: '{"coresPerDevice":2,"containers":[]}'},
        {ALLOCATION: OTHER_RESOURCE},
    ],
)
def test_edited_annotations_are_refused_with_the_reason(make: MakeNode, annotations: dict[str, str]) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        pod = node.pod("p", Container("main", {NEURON: 4}), annotations=annotations)
        with pytest.raises(KubeletError) as refusal:
            admit(node, pod)
        golden(str(refusal.value))
        assert "FAILED_PRECONDITION" in str(refusal.value)
        assert str(refusal.value).isprintable()
        node.set_phase("p", "Failed")
        assert chips(admit(node, node.chosen("next", NEURON, range(4)))) == [0, 1, 2, 3]


def test_a_choice_made_under_another_core_size_is_refused(make: MakeNode) -> None:
    node = make("trn2.48xlarge", emulated=False)
    node.emulate(logical_nc_config=1)
    with node.plugin(), golden_error(KubeletError):
        admit(node, node.chosen("p", CORE, range(4)))  # written for four cores a device


def test_what_a_running_pod_has_is_not_given_again_whoever_chose_it(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        admit(node, node.chosen("first", NEURON, range(4)))
        with golden_error(KubeletError):
            admit(node, node.chosen("second", NEURON, range(4)))
        node.set_phase("second", "Failed")
        time.sleep(0.3)
        assert node.manager.allocatable(CORE) == 32, "an extender keeps its pods apart by itself"
        with golden_error(KubeletError):
            admit(node, node.chosen("third", CORE, (6, 7)))


@pytest.mark.parametrize(
    "edit",
    [
        dict.fromkeys((ALLOCATION, IDS, DEVICES, RESOURCE_TYPE)),
        {ALLOCATION: "nonsense"},
    ],
    ids=["erased", "spoiled"],
)
def test_an_edit_of_a_running_pod_takes_nothing_from_those_that_follow_it(
    make: MakeNode, edit: dict[str, str | None]
) -> None:
    """What it leaves, an extender gives to others at once, before kubelet could learn that it is healthy again."""
    node = make("trn1.32xlarge")
    with node.plugin():
        pod = node.chosen("p", NEURON, range(16))
        admit(node, pod)
        node.set_phase("p", "Running")
        eventually(lambda: node.annotations("p").get(ALLOCATED) == "true", what="the record")
        node.annotate("p", edit)
        time.sleep(0.3)
        assert node.manager.allocatable(CORE) == 32
        node.end(pod)
        assert cores(admit(node, node.chosen("next", CORE, range(8)))) == list(range(8))


def test_annotations_that_were_erased_are_written_as_they_were(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        admit(node, node.chosen("p", NEURON, range(4)))
        eventually(lambda: node.annotations("p").get(ALLOCATED) == "true", what="the record")
        before = node.annotations("p")
        node.annotate("p", dict.fromkeys(before))
        eventually(lambda: ALLOCATED in node.annotations("p"), what="the record")
        changing = {ALLOC_TIME, OF}
        assert node.annotations("p").keys() == before.keys()
        assert {key: text for key, text in node.annotations("p").items() if key not in changing} == {
            key: text for key, text in before.items() if key not in changing
        }


def test_an_edited_pod_that_waits_does_not_harm_the_one_it_copies(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        copy = node.chosen("copy", NEURON, range(4), at=1)
        assert chips(admit(node, node.chosen("honest", NEURON, range(4), at=2))) == [0, 1, 2, 3]
        with golden_error(KubeletError):
            admit(node, copy)


def test_a_failed_chip_is_not_given(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        pod = node.chosen("p", NEURON, range(4, 8))
        node.emulate(missing=frozenset({5}))
        node.manager.wait_for(NEURON, 15)
        with pytest.raises(KubeletError, match="neuron5 cannot be"):
            admit(node, pod)


# -- without an extender


@pytest.mark.parametrize(("resource", "everything"), [(NEURON, 16), (CORE, 32)])
def test_one_and_all_work_without_an_extender(make: MakeNode, resource: str, everything: int) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        one = node.plain("one", resource, 1)
        assert len(chips(admit(node, one))) == 1
        eventually(lambda: IDS in node.annotations("one"), what="the record")
        assert node.annotations("one")[ALLOCATED] == "true"
        assert node.annotations("one")[RESOURCE_TYPE] == resource
        assert {node.annotations("one")[IDS]} == node.manager.counted(one.uid, resource)
        node.end(one)
        node.manager.wait_for(NEURON, 16)
        node.manager.wait_for(CORE, 32)
        whole = admit(node, node.plain("all", resource, everything))
        assert chips(whole) == list(range(16))
        if resource == CORE:
            assert cores(whole) == list(range(32))


@pytest.mark.parametrize(("resource", "count"), [(NEURON, 2), (NEURON, 4), (NEURON, 15), (CORE, 2), (CORE, 31)])
def test_other_counts_are_refused_with_the_documented_text(make: MakeNode, resource: str, count: int) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        with pytest.raises(KubeletError, match=NEEDS_EXTENDER):
            admit(node, node.plain("p", resource, count))
        assert IDS not in node.annotations("p")


def test_chips_and_cores_are_never_double_booked_without_an_extender(make: MakeNode) -> None:
    node = make("trn1.2xlarge")
    with node.plugin():
        node.manager.wait_for(NEURON, 1)
        first = node.plain("first", NEURON, 1)
        admit(node, first)
        node.manager.wait_for(CORE, 0)  # so the scheduler waits instead of the pod failing
        assert node.manager.allocatable(NEURON) == 1, "the pod's own device has not failed"
        with pytest.raises(KubeletError, match="Available: 0"):
            admit(node, node.plain("second", CORE, 1))
        node.set_phase("second", "Failed")
        node.end(first)
        node.manager.wait_for(CORE, 2)
        admit(node, node.plain("third", CORE, 1))
        node.manager.wait_for(NEURON, 0)


def test_single_devices_avoid_chips_of_which_cores_are_in_use(make: MakeNode) -> None:
    node = make("inf2.24xlarge")
    with node.plugin():
        used = {chips(admit(node, node.plain(f"core{n}", CORE, 1)))[0] for n in range(4)}
        assert len(used) == 2, "single cores are packed"
        given = [chips(admit(node, node.plain(f"chip{n}", NEURON, 1)))[0] for n in range(4)]
        assert len(set(given)) == 4
        assert not set(given) & used


def test_one_device_beside_an_extenders_choices_leaves_those_alone(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin() as agent:
        waiting = [node.chosen(f"w{n}", NEURON, range(4 * n, 4 * n + 4)) for n in range(3)]
        node.wait_for_news(agent, "w0", "w1", "w2")
        (chip,) = chips(admit(node, node.plain("one", NEURON, 1)))
        assert chip >= 12
        for number, pod in enumerate(waiting):
            assert chips(admit(node, pod)) == list(range(4 * number, 4 * number + 4))


def test_several_containers_without_an_extender_get_one_each_and_the_record_is_whole(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin():
        pod = node.pod(
            "p", Container("i", {NEURON: 1}, init=True), Container("a", {NEURON: 1}), Container("b", {NEURON: 1})
        )
        answers = node.manager.admit(pod)
        assert chips(answers["i", NEURON]) == chips(answers["a", NEURON])
        assert chips(answers["a", NEURON]) != chips(answers["b", NEURON])
        eventually(lambda: len(node.annotations("p").get(IDS, "").split(",")) == 2, what="the record")


def test_a_pod_that_asks_for_both_in_one_container_is_explained(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin(), golden_error(KubeletError):
        node.manager.admit(node.pod("p", Container("main", {NEURON: 1, CORE: 1})))


# -- how it is told


def test_the_oci_hook_gets_its_variable_by_setting(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin(visible_cores_variable="AWS_NEURON_VISIBLE_DEVICES"):
        answer = admit(node, node.chosen("p", NEURON, range(4, 8)))
        assert dict(answer.envs) == {"AWS_NEURON_VISIBLE_DEVICES": "4,5,6,7"}
        answer = admit(node, node.chosen("q", CORE, (2, 3)))
        assert dict(answer.envs) == {"AWS_NEURON_VISIBLE_DEVICES": "1", "NEURON_RT_VISIBLE_CORES": "2,3"}


def test_renumbered_containers_count_from_zero(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin(device_numbering="renumber", node_directory="/emulated/dev"):
        answer = admit(node, node.chosen("p", CORE, range(8, 16)))
        assert [(d.container_path, d.host_path) for d in answer.devices] == [
            (f"/dev/neuron{n}", f"/emulated/dev/neuron{n + 4}") for n in range(4)
        ]
        assert cores(answer) == list(range(8))


@pytest.mark.parametrize("numbering", ["host", "renumber"])
def test_cdi_names_are_those_of_the_spec(make: MakeNode, numbering: str) -> None:
    node = make("trn1.32xlarge")
    with node.plugin(device_injection="cdi", device_numbering=numbering):
        answer = admit(node, node.chosen("p", NEURON, range(4, 8)))
        assert not answer.devices
        (path,) = node.cdi.glob("*.json")
        spec = json.loads(path.read_text())
        jsonschema.validate(spec, SCHEMA)
        nodes = {f"{spec['kind']}={d['name']}": d["containerEdits"]["deviceNodes"][0] for d in spec["devices"]}
        shown = [nodes[device.name] for device in answer.cdi_devices]
        first = 0 if numbering == "renumber" else 4
        assert [found["path"] for found in shown] == [f"/dev/neuron{n}" for n in range(first, first + 4)]
        assert all((found["type"], found["fileMode"]) == ("c", 0o666) for found in shown)


def test_an_allocation_does_not_undo_what_a_scan_finds_meanwhile(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def majors() -> set[int]:
        (path,) = node.cdi.glob("*.json")
        devices = json.loads(path.read_text())["devices"]
        return {found["major"] for device in devices for found in device["containerEdits"]["deviceNodes"]}

    def late(host: HostWatch) -> NodeInventory:
        found = now(host)
        if majors() != {251}:
            for chip in range(16):  # the kernel module is loaded anew and gets another major
                renumber(node.host, chip, 251)
            eventually(lambda: majors() == {251}, what="the scan")
        return found

    node, now = make("trn1.32xlarge"), HostWatch.now
    monkeypatch.setattr(HostWatch, "now", late)
    with node.plugin(device_injection="cdi"):
        admit(node, node.chosen("p", NEURON, range(4, 8)))
        assert majors() == {251}


def test_a_container_gets_the_device_numbers_of_its_allocation_not_those_of_the_last_scan(make: MakeNode) -> None:
    node = make("trn1.32xlarge")
    with node.plugin(device_injection="cdi", device_numbering="host", rescan_seconds=3600.0):
        for chip in range(16):  # the kernel module is loaded anew and gets another major
            renumber(node.host, chip, 251)
        answer = admit(node, node.chosen("p", NEURON, range(4, 8)))
        (path,) = node.cdi.glob("*.json")
        shown = {device["name"]: device for device in json.loads(path.read_text())["devices"]}
        nodes = [
            shown[device.name.partition("=")[2]]["containerEdits"]["deviceNodes"][0] for device in answer.cdi_devices
        ]
        assert [(found["major"], found["minor"]) for found in nodes] == [(251, n) for n in range(4, 8)]
