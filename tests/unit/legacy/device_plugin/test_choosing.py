"""The pure part of the device plugin: what is offered, which container is meant, what it gets, what is written down."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.devicecheckpoint import AllocatedContainer
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.legacy.annotations import (
    ALLOC_TIME,
    ALLOCATED,
    ALLOCATION,
    CORES,
    DEVICES,
    IDS,
    OF,
    POD_KEYS,
    RESOURCE_TYPE,
    UNUSABLE,
    ContainerShare,
    PodAnnotations,
    from_mapping,
    read,
    write,
)
from dra_driver.legacy.device_plugin.allocator import _several
from dra_driver.legacy.device_plugin.choosing import AllocateError, WaitingContainer, choose, find, prefer
from dra_driver.legacy.device_plugin.devices import (
    AnswerSettings,
    PluginOffer,
    answer,
    cdi_spec,
    ids_in,
    offer,
    plugin_devices,
    unhealthy,
)
from dra_driver.legacy.device_plugin.recording import FAILED, records, unusable_annotations
from dra_driver.legacy.device_plugin.snapshot import (
    CHOSEN_BY,
    DEVICE_PLUGIN,
    PODS,
    BoundPod,
    NodeSnapshot,
    StoredPod,
    learn,
    share_of,
    taken_by,
    waits,
    withheld,
)
from dra_driver.legacy.placement import DoesNotFit, place, union
from dra_driver.legacy.resource_requests import ContainerRequest, PodRequest, Role
from dra_driver.legacy.rules import NeuronResource, candidates, counts
from dra_driver.legacy.usage import holding, usage
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth
from dra_driver.neuron.host.inventory import Finding, NeuronDevice, NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, resolve
from dra_driver.util.text import ranges
from tests.builders.claims import of_type
from tests.golden import golden, golden_error

DEVICE, CORE = NeuronResource.DEVICE, NeuronResource.CORE


def inventory(kind: str | None, indexes: range | list[int], **changes: Any) -> NodeInventory:
    row = resolve(kind) if kind else None
    devices = tuple(
        NeuronDevice(
            index=index,
            major=240,
            minor=index,
            node_present=None,
            core_count=row.cores_per_device if row else 2,
            connected=None,
            serial_number=None,
            architecture=None,
            pci_bus_id=None,
            numa_node=index % 2,
        )
        for index in indexes
    )
    found = NodeInventory(kind, "2.30.2.0", devices, **of_type(kind, devices))
    return replace(found, **changes)


def offered(kind: str = "trn1.32xlarge") -> PluginOffer:
    found = offer(inventory(kind, range(resolve(kind).devices or 0)), None)
    assert found is not None
    return found


def pod(name: str, requests: PodRequest, annotations: Mapping[str, str] | None = None, **changes: Any) -> BoundPod:
    told = dict(annotations or {})
    if OF in told:
        told[OF] = f"uid-{name} {told[ALLOC_TIME]}"
    found = BoundPod("default", name, f"uid-{name}", "2026-01-01T00:00:00Z", False, requests, "", from_mapping(told))
    return replace(found, **changes)


def one(resource: NeuronResource, count: int, container: str = "main", role: Role = Role.MAIN) -> ContainerRequest:
    return ContainerRequest(container, role, resource, count)


def listed(*pods: BoundPod, **devices: Mapping[str, Mapping[str, frozenset[str]]]) -> dict[tuple[str, str], PodDevices]:
    """What kubelet tells: all main containers, with the devices given."""
    return {
        item.key: PodDevices(
            item.namespace,
            item.name,
            {
                request.container: devices.get(item.name, {}).get(request.container, {})
                for request in item.requests or ()
                if request.role is not Role.INIT
            },
        )
        for item in pods
    }


# -- offer


@pytest.mark.parametrize("kind", [row.name for row in INSTANCE_TYPES.values() if row.devices])
def test_every_type_with_known_devices_is_offered_whole(kind: str) -> None:
    found = offered(kind)
    row = resolve(kind)
    assert len(plugin_devices(found, DEVICE)) == row.devices
    cores = plugin_devices(found, CORE)
    assert len(cores) == (row.devices or 0) * row.cores_per_device // row.default_lnc
    assert all(device.healthy and len(device.id) <= 63 for device in cores)


def test_the_logical_core_size_of_the_node_counts() -> None:
    found = offer(inventory("trn2.48xlarge", range(16), default_lnc=1), None)
    assert found is not None
    assert found.hardware.cores == 128
    assert found.env["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert offered("trn1.32xlarge").env == {}


@pytest.mark.parametrize(
    "change", [{"major": None}, {"minor": None}, {"node_present": False}], ids=["no major", "no minor", "no node"]
)
def test_a_chip_that_no_container_could_open_is_unhealthy(change: dict[str, Any]) -> None:
    known = inventory("trn1.32xlarge", range(16))
    broken = replace(known, devices=(*known.devices[:5], replace(known.devices[5], **change), *known.devices[6:]))
    found = offer(broken, None)
    assert found is not None
    assert [device.id for device in plugin_devices(found, CORE) if not device.healthy] == ["10", "11"]


def test_a_chip_that_the_kernel_driver_calls_invalid_is_unhealthy() -> None:
    findings = (Finding("device-invalid", "neuron3, neuron12", ""), Finding("device-resetting", "neuron4", ""))
    found = offer(inventory("trn1.32xlarge", range(16), findings=findings), None)
    assert found is not None
    assert found.unusable == (3, 12)


def test_only_unhealthy_chips_are_taken_out_and_their_containers_find_them_in_the_cdi_spec() -> None:
    health = NodeHealth(
        (
            ChipHealth(1, (ActiveFault("hbm-corrected-rising", 1),)),
            ChipHealth(2, (ActiveFault("unreadable", 1),)),
            ChipHealth(3, (ActiveFault("hbm-uncorrectable", 1, "2 errors"),)),
            ChipHealth(70, (ActiveFault("device-lost", 1),)),
        ),
        1,
    )
    found = offer(inventory("trn1.32xlarge", range(16)), None, unhealthy(health))
    assert found is not None
    assert (found.unusable, set(found.sick)) == ((3,), {3})
    golden(found.sick[3])
    assert [device.id for device in plugin_devices(found, CORE) if not device.healthy] == ["6", "7"]
    assert "neuron3" in [device.name for device in cdi_spec(found, AnswerSettings("cdi")).devices]


def test_lost_chips_count_on_and_surplus_ones_do_not() -> None:
    found = offer(inventory("inf2.24xlarge", [0, 1, 2, 4, 5, 6, 70]), None)
    assert found is not None
    assert (found.hardware.devices, found.unusable) == (6, (3,))


def test_an_unknown_type_offers_what_was_seen() -> None:
    first = offer(inventory(None, range(4)), None)
    assert first is not None
    assert (first.hardware.devices, first.hardware.cores) == (4, 8)
    second = offer(inventory(None, range(3)), first)
    assert second is not None
    assert (second.hardware.devices, second.unusable) == (4, (3,))


def test_without_a_driver_nothing_is_offered_or_everything_unhealthy() -> None:
    empty = inventory("trn1.32xlarge", [])
    assert offer(empty, None) is None
    later = offer(empty, offered())
    assert later is not None
    assert {device.healthy for device in plugin_devices(later, DEVICE)} == {False}


# -- matching


def test_the_next_container_of_a_pod_is_the_first_without_devices() -> None:
    requests = (one(CORE, 2, "i", Role.INIT), one(DEVICE, 1, "a"), one(CORE, 2, "b"), one(CORE, 2, "c"))
    item = pod("p", requests)
    fresh = NodeSnapshot(offered(), [item], listed(item))
    match = find(fresh, CORE, 2)
    assert match is not None
    assert match.request.container == "i"
    assert find(fresh, DEVICE, 1) is None, "its turn is later"
    handed = {item.uid: {"i": ContainerShare("i", CORE, (0, 1))}}
    match = find(NodeSnapshot(offered(), [item], listed(item), handed), DEVICE, 1)
    assert match is not None
    assert match.request.container == "a"
    given = {"a": {DEVICE.value: frozenset("1")}, "b": {CORE.value: frozenset(("4", "5"))}}
    match = find(NodeSnapshot(offered(), [item], listed(item, p=given)), CORE, 2)
    assert match is not None
    assert match.request.container == "c", "after a restart kubelet's count tells"


def test_listed_pods_come_before_others_and_refused_ones_last() -> None:
    old, new = (pod(n, (one(DEVICE, 4),), write(offered().hardware, "", (ContainerShare("main", DEVICE, ids),), time))
                for n, ids, time in (("old", (0, 1, 2, 3), 1), ("new", (4, 5, 6, 7), 2)))  # fmt: skip
    both = NodeSnapshot(offered(), [new, old], listed(old, new))
    match = find(both, DEVICE, 4)
    assert match is not None
    assert match.pod is old
    match = find(both, DEVICE, 4, {old.uid})
    assert match is not None
    assert match.pod is new
    match = find(NodeSnapshot(offered(), [new, old], listed(new)), DEVICE, 4)
    assert match is not None
    assert match.pod is new
    match = find(NodeSnapshot(offered(), [new, old], None), DEVICE, 4)
    assert match is not None
    assert match.pod is old


def test_pods_that_kubelet_lists_alike_are_rivals_and_age_decides_only_where_it_lists_none() -> None:
    first, second, third = (pod(name, (one(DEVICE, 4),)) for name in ("a", "b", "c"))
    pods = [first, second, third]

    def rivals(world: NodeSnapshot, refused: tuple[str, ...] = ()) -> set[str]:
        match = find(world, DEVICE, 4, refused)
        assert match is not None
        return {str(item) for item in (match.pod, *match.rivals)}

    assert rivals(NodeSnapshot(offered(), pods, listed(*pods))) == {"default/a", "default/b", "default/c"}
    assert rivals(NodeSnapshot(offered(), pods, listed(second, third))) == {"default/b", "default/c"}
    assert rivals(NodeSnapshot(offered(), pods, listed(second, third)), (second.uid,)) == {"default/c"}
    handed = {third.uid: {"main": ContainerShare("main", DEVICE, (0, 1, 2, 3))}}
    assert rivals(NodeSnapshot(offered(), pods, listed(second, third), handed)) == {"default/b"}
    assert (
        rivals(NodeSnapshot(offered(), pods, listed())) == rivals(NodeSnapshot(offered(), pods, None)) == {"default/a"}
    )


def test_pods_that_run_or_were_served_are_not_meant() -> None:
    requests = (one(DEVICE, 1),)
    running, served = pod("r", requests, running=True), pod("s", requests)
    world = NodeSnapshot(
        offered(), [running, served], None, {served.uid: {"main": ContainerShare("main", DEVICE, (0,))}}
    )
    assert find(world, DEVICE, 1) is None
    match = find(world, DEVICE, 1, again=True)
    assert match is not None
    assert match.pod is served


# -- choosing

NOTED = write(offered().hardware, "", (ContainerShare("main", DEVICE, (0, 1, 2, 3)),), 1)
TYPES = ("inf1.6xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn1.2xlarge")


@given(st.sampled_from(TYPES), st.sampled_from(list(NeuronResource)), st.data())
def test_what_an_extender_may_choose_is_given_and_nothing_else(
    kind: str, resource: NeuronResource, data: st.DataObject
) -> None:
    found = offered(kind)
    machine = found.hardware
    count = data.draw(st.sampled_from(counts(machine, resource)))
    ids = tuple(sorted(data.draw(st.sets(st.integers(0, machine.units(resource) - 1), min_size=count, max_size=count))))
    item = pod("p", (one(resource, count),), write(machine, "", (ContainerShare("main", resource, ids),), 1))
    world = NodeSnapshot(found, [item], listed(item))
    match = find(world, resource, count)
    assert match is not None
    if machine.mask(resource, ids) in candidates(machine, resource, count):
        assert choose(world, match, frozenset()).share.ids == ids
    else:
        with pytest.raises(AllocateError, match="connected set"):
            choose(world, match, frozenset())


@given(st.sampled_from(TYPES), st.sampled_from(list(NeuronResource)), st.data())
def test_preferences_are_sets_by_topology_of_what_is_available(
    kind: str, resource: NeuronResource, data: st.DataObject
) -> None:
    found = offered(kind)
    machine = found.hardware
    available = data.draw(st.frozensets(st.integers(0, machine.units(resource) - 1), min_size=1))
    needed = data.draw(st.frozensets(st.sampled_from(sorted(available)), max_size=2))
    size = data.draw(st.integers(max(len(needed), 1), len(available)))
    ids = prefer(NodeSnapshot(found, [], {}), None, resource, available, needed, size)
    if ids:
        assert needed <= set(ids) <= available
        assert machine.mask(resource, ids) in candidates(machine, resource, size)
    else:
        usable = [machine.ids(resource, mask) for mask in candidates(machine, resource, size)]
        assert not any(needed <= set(members) <= available for members in usable)


def test_what_a_pod_asks_for_without_any_note_blocks_choices_until_it_is_known() -> None:
    unknown = pod("unknown", (one(DEVICE, 1),), running=True)
    item = pod("p", (one(CORE, 1),))
    world = NodeSnapshot(offered(), [unknown, item], None)
    match = find(world, CORE, 1)
    assert match is not None
    with golden_error(AllocateError):
        choose(world, match, frozenset({0}))
    told = listed(unknown, item, unknown={"main": {DEVICE.value: frozenset({"0"})}})
    assert choose(NodeSnapshot(offered(), [unknown, item], told), match, frozenset({0})).share.ids != (0,)


def test_a_note_on_a_pod_that_has_nothing_yet_fails_no_other_pod() -> None:
    first, second = pod("first", (one(DEVICE, 4),), NOTED), pod("second", (one(DEVICE, 4),), NOTED)
    world = NodeSnapshot(offered(), [first, second], listed(first, second))
    assert waits(world, second)
    match = find(world, DEVICE, 4)
    assert match is not None
    assert choose(world, match, frozenset()).annotated
    world = replace(world, handed={match.pod.uid: {"main": ContainerShare("main", DEVICE, (0, 1, 2, 3))}})
    other = find(world, DEVICE, 4)
    assert other is not None
    assert other.pod is not match.pod
    with golden_error(AllocateError):
        choose(world, other, frozenset())


def test_a_pod_that_runs_keeps_what_was_chosen_for_it_although_kubelet_does_not_list_it() -> None:
    first, second = pod("first", (one(DEVICE, 4),), NOTED, running=True), pod("second", (one(DEVICE, 4),), NOTED)
    world = NodeSnapshot(offered(), [first, second], listed(second))
    match = find(world, DEVICE, 4)
    assert match is not None
    with pytest.raises(AllocateError, match="pod default/first has some of them"):
        choose(world, match, frozenset())


def test_a_pod_is_not_told_which_pod_of_another_namespace_is_in_its_way() -> None:
    first = replace(pod("secret", (one(DEVICE, 4),), NOTED, running=True), namespace="team")
    unknown = PodDevices("team", "secret-2", {"c": {DEVICE.value: frozenset({"0"})}})
    second = pod("second", (one(DEVICE, 4),), NOTED)
    for world in (
        NodeSnapshot(offered(), [first, second], listed(second)),
        NodeSnapshot(offered(), [second], listed(second), unknown_pods=(unknown,)),
    ):
        match = find(world, DEVICE, 4)
        assert match is not None
        with pytest.raises(AllocateError) as caught:
            choose(world, match, frozenset())
        assert "secret" not in str(caught.value)
        golden(str(caught.value))


def test_pods_of_several_namespaces_that_kubelet_may_mean_are_not_named_to_each_other() -> None:
    first, second = (pod(name, (one(DEVICE, 4),)) for name in ("a", "secret"))
    pods = [first, replace(second, namespace="team")]
    match = find(NodeSnapshot(offered(), pods, listed(*pods)), DEVICE, 4)
    assert match is not None
    assert match.rivals
    said = str(_several(match, DEVICE, 4))
    assert "secret" not in said
    golden(said)


def test_what_kubelet_counts_for_pods_that_are_not_known_yet_is_taken() -> None:
    stranger = PodDevices("default", "stranger", {"c": {CORE.value: frozenset({"0", "1"})}})
    plain, chosen = pod("plain", (one(DEVICE, 1),)), pod("chosen", (one(DEVICE, 4),), NOTED)
    for item in (plain, chosen):
        world = NodeSnapshot(offered(), [item], listed(item), unknown_pods=(stranger,))
        (request,) = item.requests or ()
        match = find(world, DEVICE, request.count)
        assert match is not None
        if item is plain:
            assert choose(world, match, frozenset({0})).share.ids != (0,)
        else:
            with golden_error(AllocateError):
                choose(world, match, frozenset())


# -- snapshot


def test_what_kubelet_counts_is_taken_unless_it_is_known_what_was_handed_out() -> None:
    item = pod("p", (one(DEVICE, 4),), NOTED)
    counted = {"main": {DEVICE.value: frozenset(("8", "9", "10", "11"))}}
    world = NodeSnapshot(offered(), [item], listed(item, p=counted))
    machine = world.offer.hardware
    assert machine.ids(DEVICE, taken_by(world, item).mask) == (0, 1, 2, 3, 8, 9, 10, 11)
    known = replace(world, handed={item.uid: {"main": ContainerShare("main", DEVICE, (0, 1, 2, 3))}})
    assert machine.ids(DEVICE, taken_by(known, item).mask) == (0, 1, 2, 3), "kubelet did not follow the preference"


def test_ids_without_names_of_containers_are_dealt_out_in_order() -> None:
    inits = (one(CORE, 4, "i", Role.INIT), one(CORE, 1, "s", Role.SIDECAR), one(CORE, 3, "j", Role.INIT))
    requests = (*inits, one(CORE, 2, "a"), one(CORE, 3, "b"))
    item = pod("p", requests, {IDS: "2,3,4,5,6,7", RESOURCE_TYPE: CORE.value})
    said = read(item.annotations)
    assert said is not None
    dealt = {request.container: share.ids for request in requests if (share := share_of(item, said, request.container))}
    assert dealt == {"i": (2, 3, 4, 5), "s": (2,), "j": (3, 4, 5), "a": (3, 4), "b": (5, 6, 7)}


def test_an_init_container_gets_nothing_of_a_sidecar_that_runs_beside_it() -> None:
    requests = (one(DEVICE, 1, "s", Role.SIDECAR), one(DEVICE, 1, "i", Role.INIT), one(DEVICE, 1))
    item = pod("p", requests)
    handed = {"s": ContainerShare("s", DEVICE, (0,))}
    world = NodeSnapshot(offered(), [item], listed(item), {item.uid: handed})
    given = choose(world, WaitingContainer(item, requests[1], listed=True), frozenset({0}))
    assert given.share.ids != (0,)
    handed["i"] = given.share
    main = choose(world, WaitingContainer(item, requests[2], listed=True), frozenset(given.share.ids))
    assert main.share.ids == given.share.ids, "what an init container has is free when it has ended"


def test_only_pods_without_an_extender_withhold_the_other_resource() -> None:
    machine = offered().hardware
    by_extender = pod("e", (one(DEVICE, 1),), write(machine, "", (ContainerShare("main", DEVICE, (0,)),), 1))
    by_plugin = pod(
        "d", (one(DEVICE, 1),), write(machine, "", (ContainerShare("main", DEVICE, (1,)),), 1), by_plugin=True
    )
    counted = listed(by_extender, by_plugin, e={"main": {DEVICE.value: frozenset("0")}})
    world = NodeSnapshot(offered(), [by_extender, by_plugin], counted)
    assert withheld(world, CORE) == {2, 3}
    assert withheld(world, DEVICE) == frozenset()


def test_who_chose_is_not_copied_with_a_pods_annotations() -> None:
    """Else an extender's choice for the copy would be taken for the plugin's, and withheld from the other resource."""
    item = pod("p", (one(DEVICE, 1),))
    handed = {item.uid: {"main": ContainerShare("main", DEVICE, (1,))}}
    (record,) = records(NodeSnapshot(offered(), [item], None, handed), 1)

    def by_plugin(uid: str, annotations: Mapping[str, str]) -> bool:
        limits = {"limits": {DEVICE.value: "1"}}
        meta = {"namespace": "a", "name": uid, "uid": uid, "annotations": dict(annotations)}
        spec = {"containers": [{"name": "main", "resources": limits}]}
        assert PODS.from_version is not None
        found = PODS.from_version(msgspec.convert({"metadata": meta, "spec": spec}, StoredPod), "v1").bound
        assert found is not None
        return found.by_plugin

    assert by_plugin(item.uid, record.annotations)
    assert not by_plugin("copy", record.annotations)
    extenders = write(offered().hardware, "copy", (ContainerShare("main", DEVICE, (0,)),), 2)
    assert not by_plugin("copy", {**record.annotations, **extenders})
    assert by_plugin("older", {CHOSEN_BY: DEVICE_PLUGIN})
    assert not by_plugin("copy", {CHOSEN_BY: DEVICE_PLUGIN} | extenders)


def test_ids_that_kubelet_counts_for_a_pod_are_never_withheld() -> None:
    """It would take them for failed devices of a running pod."""
    machine = offered().hardware
    chip = pod(
        "chip", (one(DEVICE, 1),), write(machine, "", (ContainerShare("main", DEVICE, (1,)),), 1), by_plugin=True
    )
    core = pod("core", (one(CORE, 1),))
    counted = listed(
        chip, core, chip={"main": {DEVICE.value: frozenset("1")}}, core={"main": {CORE.value: frozenset("2")}}
    )
    world = NodeSnapshot(offered(), [chip, core], counted)
    assert withheld(world, CORE) == {3}
    assert withheld(world, DEVICE) == frozenset()


def test_an_extenders_choice_is_handed_out_when_all_containers_have_theirs() -> None:
    machine = offered().hardware
    shares = (ContainerShare("a", CORE, (0,)), ContainerShare("b", CORE, (1,)))
    item = pod("p", (one(CORE, 1, "a"), one(CORE, 1, "b")), write(machine, "", shares, 1))

    def recorded(*containers: str) -> list[Mapping[str, str]]:
        handed = {item.uid: {share.container: share for share in shares if share.container in containers}}
        return [record.annotations for record in records(NodeSnapshot(offered(), [item], None, handed), 2)]

    assert recorded() == recorded("a") == []
    assert recorded("a", "b") == [{ALLOCATED: "true"}]


def allocation(*shares: tuple[str, NeuronResource, str], width: int = 2) -> dict[str, str]:
    containers = [{"name": name, "resource": kind.value, "ids": ids} for name, kind, ids in shares]
    return {ALLOCATION: msgspec.json.encode({"coresPerDevice": width, "containers": containers}).decode()}


def recorded(world: NodeSnapshot, item: BoundPod) -> tuple[BoundPod, list[dict[str, str]]]:
    """A pod after a pass of the plugin, and what that wrote."""
    written = [dict(record.annotations) for record in records(replace(world, pods=[item]), 2)]
    texts = msgspec.to_builtins(item.annotations)
    for changes in written:
        texts |= changes
    return replace(item, annotations=from_mapping(texts)), written


def held(item: BoundPod, requests: PodRequest) -> tuple[tuple[int, ...], str]:
    """The cores that the extender takes for the pod's."""
    known = holding(str(item), item.annotations, requests)
    assert known is not None
    found = usage(offered().hardware, [known])
    return offered().hardware.ids(CORE, found.taken), found.trouble


MORE: list[dict[str, str]] = [
    {IDS: "5-31", RESOURCE_TYPE: CORE.value},
    {IDS: "5", RESOURCE_TYPE: CORE.value, DEVICES: "0-15"},
    {CORES: "5-31", DEVICES: "0-15"},
    {CORES: "200"},
    {CORES: "5", DEVICES: "nonsense"},
    {RESOURCE_TYPE: CORE.value, IDS: "nonsense"},
    {ALLOCATION: "nonsense"},
    allocation(("main", CORE, "5"), ("invented", CORE, "6-31")),
    allocation(("main", CORE, "5"), ("invented", CORE, "6-31"), width=1),
    allocation(("main", DEVICE, "2")),
    allocation(("main", CORE, "6")) | {OF: f"another {2**60}", ALLOC_TIME: str(2**60), DEVICES: "3"},
]
OTHERS: list[dict[str, str]] = [
    {IDS: "6-31", RESOURCE_TYPE: CORE.value},
    {CORES: "6"},
    allocation(("main", CORE, "6")),
    allocation(("main", CORE, "5")) | {IDS: "7", RESOURCE_TYPE: CORE.value, CORES: "9"},
    {IDS: "6", RESOURCE_TYPE: CORE.value, ALLOCATION: "nonsense", DEVICES: "0-15"},
]


def with_core_5(annotations: Mapping[str, str], *, remembers: bool) -> tuple[NodeSnapshot, BoundPod]:
    """A pod that asked for one core and was created with annotations; whether the plugin has not restarted since."""
    item = replace(pod("p", (one(CORE, 1),), running=True), annotations=from_mapping(annotations))
    handed = {item.uid: {"main": ContainerShare("main", CORE, (5,))}} if remembers else {}
    return NodeSnapshot(offered(), [item], listed(item, p={"main": {CORE.value: frozenset("5")}}), handed), item


@pytest.mark.parametrize(
    ("annotations", "remembers"),
    [(more, remembers) for more in MORE for remembers in (True, False)] + [(other, True) for other in OTHERS],
)
def test_annotations_that_are_not_true_are_replaced_by_those_that_are(
    annotations: dict[str, str], remembers: bool
) -> None:
    world, item = with_core_5(annotations, remembers=remembers)
    later, written = recorded(world, item)
    assert len(written) == 1
    assert written[0][ALLOCATED] == "true"
    assert written[0][CHOSEN_BY] == f"{DEVICE_PLUGIN} {item.uid}"
    assert held(later, (one(CORE, 1),)) == ((5,), "")
    assert recorded(world, later)[1] == []


@pytest.mark.parametrize("annotations", OTHERS)
def test_what_an_edit_names_is_not_freed_where_only_kubelet_tells_otherwise(annotations: dict[str, str]) -> None:
    """It may count other cores than those that were handed out before the plugin restarted."""
    world, item = with_core_5(annotations, remembers=False)
    before = held(item, (one(CORE, 1),))
    assert held(recorded(world, item)[0], (one(CORE, 1),)) == before


WORDS = st.sampled_from(["", "x", "0", "1-2", "0-15", "31", "5-400", CORE.value, DEVICE.value, "true", str(2**60)])
CLAIMED = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "x"]), st.sampled_from(NeuronResource), st.sampled_from(["0", "1-2", "0-15"])
    ),
    max_size=3,
)


@given(
    st.lists(st.tuples(st.sampled_from(Role), st.sampled_from(NeuronResource)), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from([*POD_KEYS]), WORDS),
    st.one_of(st.just({}), CLAIMED.map(lambda claimed: allocation(*claimed))),
    st.booleans(),
)
def test_after_one_pass_there_is_nothing_left_to_write_and_nothing_withheld(
    containers: list[tuple[Role, NeuronResource]],
    annotations: dict[str, str],
    claimed: dict[str, str],
    remembers: bool,
) -> None:
    requests = tuple(
        ContainerRequest(name, role, kind, 1) for name, (role, kind) in zip("abc", containers, strict=False)
    )
    truth = {
        request.container: ContainerShare(request.container, request.resource, (8 + 2 * number,))
        for number, request in enumerate(requests)
    }
    item = replace(pod("p", requests, running=True), annotations=from_mapping(annotations | claimed))
    counted = {name: {share.resource.value: frozenset(map(str, share.ids))} for name, share in truth.items()}
    world = NodeSnapshot(offered(), [item], listed(item, p=counted), {item.uid: truth} if remembers else {})
    later, _ = recorded(world, item)
    assert recorded(world, later)[1] == []
    if remembers:
        machine = offered().hardware
        mask = union(machine.mask(share.resource, share.ids) for share in truth.values())
        assert held(later, requests) == (machine.ids(CORE, mask), "")


@given(
    st.lists(st.tuples(st.sampled_from(Role), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(NeuronResource),
    st.sampled_from(["extender", "vendor"]),
    st.booleans(),
)
def test_what_an_extender_recorded_stays_as_it_is(
    containers: list[tuple[Role, int]], kind: NeuronResource, by: str, remembers: bool
) -> None:
    requests, shares, start = [], [], 0
    for number, (role, count) in enumerate(containers):
        requests.append(ContainerRequest(f"c{number}", role, kind, count))
        # As the vendor's list is dealt out: init containers run alone, and from the beginning.
        first = 0 if role is Role.INIT else start
        shares.append(ContainerShare(f"c{number}", kind, tuple(range(first, first + count))))
        start += 0 if role is Role.INIT else count
    annotations = write(offered().hardware, "uid-p", tuple(shares), 1)
    if by == "vendor":
        annotations = {key: annotations[key] for key in (IDS, RESOURCE_TYPE, ALLOCATED, ALLOC_TIME)}
        annotations[ALLOC_TIME] = str(2**61)
    item = pod("p", tuple(requests), annotations, running=True)
    by_name = {share.container: share for share in shares}
    counted = {name: {kind.value: frozenset(map(str, share.ids))} for name, share in by_name.items()}
    world = NodeSnapshot(offered(), [item], listed(item, p=counted), {item.uid: by_name} if remembers else {})
    later, written = recorded(world, item)
    only_init = all(role is Role.INIT for role, _ in containers)
    assert written == ([] if only_init and not remembers else [{ALLOCATED: "true"}])
    assert recorded(world, later)[1] == []


def test_the_choice_for_an_init_container_stays_where_others_are_replaced() -> None:
    requests = (one(CORE, 3, "i", Role.INIT), one(CORE, 2, "a"))
    item = pod("p", requests, allocation(("i", CORE, "8-10"), ("a", CORE, "6-7")) | {DEVICES: "0-15"})
    world = NodeSnapshot(offered(), [item], listed(item, p={"a": {CORE.value: frozenset("67")}}))
    assert held(recorded(world, item)[0], requests) == ((6, 7, 8, 9, 10), "")


def test_cores_that_the_node_no_longer_has_are_not_written_again_and_again() -> None:
    item = pod("p", (one(CORE, 1),), {CORES: "40"}, running=True)
    world = NodeSnapshot(offered(), [item], None, {item.uid: {"main": ContainerShare("main", CORE, (40,))}})
    assert recorded(world, item)[1] == []


def test_nothing_is_replaced_where_the_logical_core_size_has_changed() -> None:
    """What was handed out has the ids of the former one."""
    annotations = allocation(("main", CORE, "5"), width=4) | {DEVICES: "1"}
    world, item = with_core_5(annotations, remembers=True)
    assert recorded(world, item)[1] == [{ALLOCATED: "true"}]


@given(st.dictionaries(st.sampled_from([IDS, CORES, ALLOCATION, RESOURCE_TYPE]), st.text()))
def test_annotations_of_any_text_never_break_the_picture(annotations: dict[str, str]) -> None:
    item = pod("p", (one(DEVICE, 1),), running=True)
    odd = replace(item, annotations=from_mapping(annotations))
    world = NodeSnapshot(offered(), [odd], listed(odd))
    taken_by(world, odd)
    withheld(world, CORE)
    records(world, 1)
    find(world, DEVICE, 1, again=True)
    assert isinstance(odd.annotations, PodAnnotations)


# -- answers and records


WAYS: tuple[Literal["nodes", "cdi"], ...] = ("nodes", "cdi")
NUMBERINGS: tuple[Literal["host", "renumber"], ...] = ("host", "renumber")


@given(st.data(), st.sampled_from(["trn1.32xlarge", "inf2.24xlarge", "trn2.48xlarge"]))
def test_what_was_answered_says_what_was_handed_out(data: st.DataObject, kind: str) -> None:
    offer_ = offered(kind)
    resource = data.draw(st.sampled_from(NeuronResource))
    units = st.integers(0, offer_.hardware.units(resource) - 1)
    ids = tuple(sorted(data.draw(st.sets(units, min_size=1))))
    settings = data.draw(st.sampled_from([AnswerSettings(*both) for both in product(WAYS, NUMBERINGS)]))
    answered = answer(offer_, ContainerShare("main", resource, ids), settings)
    assert ids_in(answered, offer_, resource) == ids


def allocated_container(pod: str, counted: Iterable[int], given_: Iterable[int] | None) -> AllocatedContainer:
    """What kubelet remembers of ``main`` of a pod; ``given_``: the chips in the plugin's answer."""
    response = api.ContainerAllocateResponse()
    for chip in given_ or ():
        response.devices.add(container_path=f"/dev/neuron{chip}", host_path=f"/dev/neuron{chip}")
    text = base64.b64encode(response.SerializeToString()).decode() if given_ is not None else "?"
    return AllocatedContainer(pod, "main", DEVICE.value, frozenset(map(str, counted)), text)


@pytest.mark.parametrize(("given_", "ids"), [((0, 1), (0, 1)), (None, (8, 9))])
def test_what_was_handed_out_counts_before_what_kubelet_counted(
    given_: tuple[int, ...] | None, ids: tuple[int, ...]
) -> None:
    handed: dict[str, dict[str, ContainerShare]] = {}
    learn(handed, offered(), [allocated_container("u", (8, 9), given_)])
    assert handed == {"u": {"main": ContainerShare("main", DEVICE, ids)}}
    learn(handed, offered(), [allocated_container("u", (10,), (10,))])
    assert handed["u"]["main"].ids == ids, "what this process knows stays"


def test_a_pod_that_was_taken_for_another_has_nothing() -> None:
    handed = {"forged": {"main": ContainerShare("main", DEVICE, (4, 5))}}
    learn(handed, offered(), [allocated_container("meant", (4, 5), (4, 5))])
    assert handed == {"forged": {}, "meant": {"main": ContainerShare("main", DEVICE, (4, 5))}}


@given(st.builds(ContainerDevices, st.dictionaries(st.just("NEURON_RT_VISIBLE_CORES"), st.text(max_size=6))))
def test_an_answer_of_another_plugin_says_nothing(answered: ContainerDevices) -> None:
    for resource in NeuronResource:
        assert ids_in(answered, offered(), resource) is None


def test_the_spec_has_every_name_that_answers_give() -> None:
    found = offered("trn1.32xlarge")
    for numbering in ("host", "renumber"):
        settings = AnswerSettings("cdi", "host" if numbering == "host" else "renumber")
        spec = cdi_spec(found, settings)
        known = {f"{spec.kind}={device.name}" for device in spec.devices}
        for count in counts(found.hardware, DEVICE):
            for mask in candidates(found.hardware, DEVICE, count):
                share = ContainerShare("main", DEVICE, found.hardware.ids(DEVICE, mask))
                assert set(answer(found, share, settings).cdi_names) <= known


CHIPS = st.sets(st.integers(0, 15)).map(lambda ids: tuple(sorted(ids)))


@given(by_hand=CHIPS, broken=st.lists(CHIPS, min_size=1, max_size=4))
def test_what_was_listed_by_hand_outlives_what_breaks_and_heals(
    by_hand: tuple[int, ...], broken: list[tuple[int, ...]]
) -> None:
    annotations = {UNUSABLE: ranges(by_hand)} if by_hand else {}
    for unusable in [*broken, ()]:
        for key, value in unusable_annotations(annotations, unusable).items():
            annotations.pop(key, None)
            if value is not None:
                annotations[key] = value
        assert unusable_annotations(annotations, unusable) == {}
        listed_now = set(_ids(annotations.get(UNUSABLE)))
        assert set(unusable) <= listed_now
        assert set(by_hand) - set().union(*broken) <= listed_now
    assert FAILED not in annotations
    assert set(_ids(annotations.get(UNUSABLE))) <= set(by_hand)


@given(sick=CHIPS, by_hand=CHIPS, resource=st.sampled_from(list(NeuronResource)), data=st.data())
def test_plugin_and_extender_agree_on_what_sick_chips_are_kept_from(
    sick: tuple[int, ...], by_hand: tuple[int, ...], resource: NeuronResource, data: st.DataObject
) -> None:
    found = offer(inventory("trn1.32xlarge", range(16)), None, dict.fromkeys(sick, "it is sick"))
    assert found is not None
    machine = found.hardware
    # kubelet's count
    ill = machine.mask(DEVICE, sick)
    told = {int(device.id): device.healthy for device in plugin_devices(found, resource)}
    assert {number for number, healthy in told.items() if not healthy} == set(machine.ids(resource, ill))
    # the extender's choice, by what the plugin has written on the Node
    annotations = {UNUSABLE: ranges(by_hand)} if by_hand else {}
    annotations |= {key: value for key, value in unusable_annotations(annotations, found.unusable).items() if value}
    taken = usage(machine, [], annotations.get(UNUSABLE)).taken
    assert taken == ill | machine.mask(DEVICE, by_hand)
    count = data.draw(st.sampled_from(counts(machine, resource)))
    placed = place(machine, taken, (one(resource, count),))
    if not isinstance(placed, DoesNotFit):
        assert not placed[0] & ill
    # Allocate, for a choice of before the fault
    chosen = data.draw(st.sampled_from(candidates(machine, resource, count)))
    item = pod(
        "p",
        (one(resource, count),),
        write(machine, "", (ContainerShare("main", resource, machine.ids(resource, chosen)),), 1),
    )
    world = NodeSnapshot(found, [item], listed(item))
    match = find(world, resource, count)
    assert match is not None
    for answers in (partial(choose, world, match, frozenset()), partial(_preferred, world, match, resource, count)):
        if chosen & ill:
            with pytest.raises(AllocateError, match=r"\(it is sick"):
                answers()
        else:
            answers()


def _preferred(world: NodeSnapshot, match: WaitingContainer, resource: NeuronResource, count: int) -> None:
    available = frozenset(int(device.id) for device in plugin_devices(world.offer, resource) if device.healthy)
    assert len(prefer(world, match, resource, available, frozenset(), count)) == count


def test_all_of_a_node_with_a_sick_chip_is_refused_and_the_text_names_the_chip() -> None:
    found = offer(inventory("trn1.32xlarge", range(16)), None, {3: "it is sick"})
    assert found is not None
    item = pod("p", (one(DEVICE, 16),))
    world = NodeSnapshot(found, [item], listed(item))
    match = find(world, DEVICE, 16)
    assert match is not None
    with golden_error(AllocateError):
        choose(world, match, frozenset())


def _ids(text: str | None) -> tuple[int, ...]:
    from dra_driver.legacy.annotations import parse_ids

    return parse_ids("", text) if text else ()


def test_what_a_container_is_refused_with() -> None:
    said = {}
    for name, asked, notes, handed in (
        ("several without an extender", (one(DEVICE, 4),), {}, {}),
        ("edited", (one(DEVICE, 2),), NOTED, {}),
        (
            "of a sibling",
            (one(DEVICE, 4), one(DEVICE, 4, "other")),
            NOTED,
            {"other": ContainerShare("other", DEVICE, (0, 1, 2, 3))},
        ),
        (
            "of a sidecar beside an init container",
            (one(DEVICE, 4, "other", Role.SIDECAR), one(DEVICE, 4, role=Role.INIT)),
            NOTED,
            {"other": ContainerShare("other", DEVICE, (0, 1, 2, 3))},
        ),
        ("no resource type", (one(DEVICE, 1), one(CORE, 1, "other")), {IDS: "0"}, {}),
    ):
        item = pod("p", asked, notes)
        world = NodeSnapshot(offered(), [item], listed(item), {item.uid: handed})
        main = next(request for request in asked if request.container == "main")
        with pytest.raises(AllocateError) as caught:
            choose(world, WaitingContainer(item, main, listed=True), frozenset())
        said[name] = str(caught.value)
    golden(f"{name}: {text}" for name, text in said.items())
