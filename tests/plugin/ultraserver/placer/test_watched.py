"""What the placer keeps of what tenants make: what its decisions rest on, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.core import NodeSelectorRequirement, NodeSelectorTerm, Toleration
from dra_driver.neuron.names import SERVER_4
from dra_driver.ultraserver.placer.controller import Placer
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    LWS_SIZE,
    LWS_TOPOLOGY,
    LWS_WORKER_INDEX,
    MAX_DEMANDS,
    NODES_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
    GroupPod,
    Rules,
)
from dra_driver.ultraserver.placer.watched import MEMBERS, OFFERS
from tests.builders.placer import demands
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually

LONG = "x" * 100_000


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


def add_pod(server: ApiServer, name: str, spec: Object, labels: Object, **metadata: Any) -> None:
    meta = {"namespace": "a", "name": name, "labels": labels, **metadata}
    server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


@pytest.mark.parametrize("devices", [None, ["neuron-device-0"], ["neuron-device-0", "neuron-node"]])
def test_of_a_slice_little_is_kept_and_one_without_devices_is_read(
    server: ApiServer, devices: list[str] | None
) -> None:
    listed = None if devices is None else [{"name": name, "attributes": {LONG: {"string": LONG}}} for name in devices]
    pool = {"name": "n", "generation": 7, "resourceSliceCount": 1}
    spec = {"driver": "neuron.aws.com", "nodeName": "n", "pool": pool, "devices": listed}
    meta = {"name": "s", "annotations": {"a": LONG}, "labels": {"l": LONG}, "finalizers": [LONG]}
    server.store.create("resourceslices", {"metadata": meta, "spec": spec})
    kept, _ = Collection(server.transport(), OFFERS).list_all()
    assert [(one.node, one.pool, one.generation) for one in kept] == [("n", "n", 7)]
    assert kept[0].of_whole_node == ("neuron-node" in (devices or ()))
    assert len(repr(kept)) < 1000


@pytest.mark.parametrize("of_lws", [True, False])
def test_decisions_rest_on_no_more_of_a_pod_than_what_is_kept(server: ApiServer, of_lws: bool) -> None:
    times = {SINCE_ANNOTATION: "2026-01-01T00:00:00Z", STUCK_ANNOTATION: "2026-01-02T00:00:00Z"}
    group = {LWS_GROUP_LABEL: "g", LWS_WORKER_INDEX: "0"} if of_lws else {GROUP_LABEL: "g"}
    size = {LWS_SIZE: "4", LWS_TOPOLOGY: SERVER_4} if of_lws else {NODES_ANNOTATION: "4"}
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1"]}]}
    spec = {
        "schedulingGates": [{"name": GATE}, {"name": "other"}],
        "nodeSelector": {SERVER_4: "s"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": LONG}]},
        },
        "resourceClaims": [{"name": "node", "resourceClaimName": "c"}],
        "containers": [{"name": "c", "image": LONG, "ports": [{"name": LONG}]}],
        "volumes": [{"name": LONG}],
    }
    annotations = {**times, **size, "other": LONG}
    add_pod(server, "p", spec, {**group, "other": LONG}, annotations=annotations, finalizers=[LONG])
    kept = Collection(server.transport(), MEMBERS).get("a", "p")
    assert kept.pod == GroupPod(
        "a",
        "p",
        kept.metadata.uid,
        kept.metadata.resource_version,
        created=kept.pod.created,
        group="g",
        size="4",
        topology=SERVER_4 if of_lws else "",
        of_lws=of_lws,
        leader=of_lws,
        gated=True,
        servers=(f"{SERVER_4}=s",),
        since=1767225600.0,
        stuck=1767312000.0,
        written_demands=demands(
            selector={SERVER_4: "s"},
            terms=(NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("1",)),)),),
            tolerations=(Toleration(operator="Exists"),),
            other_gates=("other",),
        ),
    )
    assert len(repr(kept)) < 4000


EXISTS = {"operator": "Exists", "key": "k", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {f"key-{number:03}": "x" * 60 for number in range(100)}},
        {"tolerations": [EXISTS] * 1000},
        {"schedulingGates": [{"name": GATE}, *({"name": f"example.com/gate-{number}"} for number in range(1000))]},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "k", "operator": "In", "values": ["x" * 60] * 100}]}
                        ]
                    }
                }
            }
        },
    ],
    ids=lambda spec: next(iter(spec)),
)
@pytest.mark.parametrize("gated", [True, False])
def test_of_a_pod_that_demands_much_little_is_kept(server: ApiServer, spec: Object, gated: bool) -> None:
    spec = {"schedulingGates": [{"name": GATE}], **spec} if gated else spec
    owners = [{"apiVersion": "v1", "kind": LONG, "name": LONG, "uid": LONG, "controller": True}]
    add_pod(server, "p", spec, {GROUP_LABEL: "g"}, ownerReferences=owners)
    kept = Collection(server.transport(), MEMBERS).get("a", "p")
    assert kept.pod.gated == (gated or "schedulingGates" in spec)
    assert (kept.pod.written_demands is None) == kept.pod.gated
    assert len(repr(kept)) < 4000


def test_the_longest_demands_that_count_are_kept(server: ApiServer) -> None:
    for name, length in (("fits", 0), ("exceeds", 1)):
        rest = MAX_DEMANDS - len(demands(selector={"k": ""})) + length
        spec = {"schedulingGates": [{"name": GATE}], "nodeSelector": {"k": "x" * rest}}
        add_pod(server, name, spec, {GROUP_LABEL: "g"})
    fits, exceeds = (Collection(server.transport(), MEMBERS).get("a", name).pod for name in ("fits", "exceeds"))
    assert len(fits.demands.selector["k"]) > MAX_DEMANDS - 50
    assert exceeds.written_demands is None


def test_a_long_annotation_means_as_little_as_its_beginning(server: ApiServer) -> None:
    add_pod(server, "p", {}, {GROUP_LABEL: "g"}, annotations={NODES_ANNOTATION: "4" * 100_000})
    kept = Collection(server.transport(), MEMBERS).get("a", "p")
    assert not 0 < int(kept.pod.size) < 10**200


def test_only_what_has_to_do_with_groups_is_kept(server: ApiServer) -> None:
    server.add_node("of-a-server", labels={SERVER_4: "s"})
    server.add_node("other")
    server.add_claim("a", "ours", devices=[("r", "neuron-node")])
    server.add_claim("a", "of-another-driver", devices=[("r", "gpu-0")], driver="gpu.example.com")
    server.add_claim("a", "pending")
    add_pod(server, "grouped", {}, {GROUP_LABEL: "g"})
    add_pod(server, "of-lws", {}, {LWS_GROUP_LABEL: "g"})
    add_pod(server, "gated", {"schedulingGates": [{"name": GATE}]}, {})
    add_pod(server, "pending", {}, {})
    placer = Placer(server.transport(), "system", Rules(), lambda: False, lambda _: None)
    for informer in placer.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in placer.informers()))
        server.add_claim("a", "pending-too")
        server.add_claim("a", "ours-too", devices=[("r", "neuron-node")])
        wanted = {"of-a-server", "ours", "ours-too", "grouped", "of-lws", "gated"}
        eventually(lambda: {one.metadata.name for each in placer.informers() for one in each.objects()} == wanted)
    finally:
        for informer in placer.informers():
            informer.stop()
