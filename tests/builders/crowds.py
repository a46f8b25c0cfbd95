"""What tenants and growth put into a cluster: more claims and pods than fit into the memory of one container."""

from __future__ import annotations

import json

from dra_driver.legacy.annotations import ALLOCATION, ContainerShare, write
from dra_driver.legacy.rules import NeuronResource, NodeHardware
from dra_driver.neuron.names import DRIVER_NAME, SERVER_4
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    MAX_DEMANDS,
    NODES_ANNOTATION,
)
from tests.builders.extender import limits
from tests.doubles.apiserver.crowd import NUMBER, Crowd
from tests.doubles.apiserver.store import Object

CHIPS = 16
"""Of a node."""
NODES = 5_000
"""Of the largest cluster that Kubernetes supports."""
NODE = f"node-{NUMBER}"


def claims_of_a_tenant(count: int, size: int) -> list[Crowd]:
    """Claims that nobody has allocated, with ``size`` bytes of annotations.

    Half of them have one long text, with a character for which CPython keeps four bytes of each; the others have many.
    """
    text = {"a": "x" * (size - 5) + "\U0001f9e0"}
    many = {f"tenant/{number:08}": "x" * 34 for number in range(size // 49)}
    return [
        _crowd("resourceclaims", count // 2, f"{kind}-{NUMBER}", {"annotations": annotations})
        for kind, annotations in (("text", text), ("many", many))
    ]


def claims_of_a_cluster(count: int, size: int) -> list[Crowd]:
    """Claims in use, ``size`` bytes each: one for each chip of all nodes, the rest for another driver's devices."""
    devices = [(DRIVER_NAME, f"neuron-device-{chip}", NODES) for chip in range(CHIPS)]
    devices.append(("gpu.example.com", "gpu-0", count - CHIPS * NODES))
    crowds = []
    for driver, device, number in devices:
        name = f"{device}-{NUMBER}"
        pod = {"name": name, "uid": f"pod-{name}"}
        meta = {
            "generateName": f"{device}-",
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "controller": True, **pod}],
        }
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
        allocation = {
            "devices": {"results": [{"request": "r", "driver": driver, "pool": NODE, "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        }
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": driver, "count": 1}}]}}
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", **pod}]}
        crowds.append(_filled(_crowd("resourceclaims", number, name, meta, spec, status), size))
    return crowds


def slices_of_a_node(count: int, size: int) -> list[Crowd]:
    """Slices that a kubelet has written in the name of its node, with as many devices as one may have."""
    devices = [{"name": f"neuron-device-{number}"} for number in range(128)]
    pool = {"name": "evil", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": DRIVER_NAME, "nodeName": "evil", "pool": pool, "devices": devices}
    return [_filled(_crowd("resourceslices", count, f"evil-{NUMBER}", {}, spec), size)]


def workloads_of_a_tenant(count: int, with_status: int) -> list[Crowd]:
    """Workloads of UltraServers of which as much is kept as can be, and some with a status like that."""
    notes = {"neuron.aws.com/accepted-spec": "x" * 2_000}
    managers = [{"manager": f"{number:0128}", "operation": "Apply", "fieldsV1": {}} for number in range(64)]
    meta = {
        "annotations": notes,
        "finalizers": [f"example.com/{number}" for number in range(26)],
        "managedFields": managers,
        "generation": 1,
    }
    spec = {
        "instanceType": "\U0001f9e0" * 300,
        "serverCount": 9_999,
        "topologySize": 4,
        "allocationPolicy": {"failureStrategy": "\U0001f9e0" * 1_000},
        "resourceClaimTemplate": {"name": "\U0001f9e0" * 300},
    }
    conditions = [{"type": f"{number:0256}", "status": "x" * 256, "reason": "x" * 256} for number in range(30)]
    servers = [f"ultraserver-{number:016}" for number in range(1_000)]
    status = {"conditions": conditions, "allocatedUltraServers": servers}
    kind = "neuronultraserverworkloads"
    return [
        _crowd(kind, count, f"{'w' * 240}-{NUMBER}", meta, spec),
        _crowd(kind, with_status, f"status-{NUMBER}", meta, spec, status),
    ]


def templates_of_a_tenant(count: int) -> list[Crowd]:
    """Templates that have the label of workloads, and owners with names of any length."""
    owner = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "uid": "u" * 36}
    owners = [{**owner, "name": "n" * 253}] * 9 + [dict.fromkeys(("apiVersion", "kind", "name", "uid"), "x" * 254)] * 9
    meta = {"labels": {"neuron.aws.com/workload-uid": "l" * 63}, "ownerReferences": owners}
    return [_crowd("resourceclaimtemplates", count, f"{'t' * 240}-{NUMBER}", meta, {"spec": {}})]


def nodes_of_servers(count: int, size: int, evil: int) -> list[Crowd]:
    """Nodes of UltraServers, ``size`` bytes each, and some of which their kubelets write a MB.

    Of these, some have it in labels and conditions, others in annotations, the reason of a condition and their id.
    """
    meta = {"labels": {SERVER_4: f"us-{NUMBER}"} | {f"example.com/label-{number:03}": "x" * 20 for number in range(60)}}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    conditions = [ready] + [{**ready, "type": f"Pressure{number}", "status": "False"} for number in range(8)]
    labels = {"labels": {SERVER_4: f"evil-{NUMBER}"} | {f"{number:05x}": "" for number in range(40_000)}}
    many = [ready] + [{"type": f"{number:x}", "status": "", "message": "x" * 40} for number in range(6_000)]
    texts = {"labels": {SERVER_4: f"long-{NUMBER}"}, "annotations": {f"{number:05x}": "" for number in range(20_000)}}
    long = [{**ready, "status": "False", "reason": "r" * 400_000}]
    return [
        _filled(_crowd("nodes", count, f"us-{NUMBER}", meta, {}, {"conditions": conditions}), size),
        _crowd("nodes", evil, f"evil-{NUMBER}", labels, {}, {"conditions": many}),
        _crowd("nodes", evil, f"long-{NUMBER}", texts, {"providerID": "p" * 200_000}, {"conditions": long}),
    ]


def pods_of_a_node(node: str, count: int, size: int) -> list[Crowd]:
    """Pods that their owner has bound to a node, and that kubelet has refused, ``size`` bytes each."""
    return [_filled(_pods(count, f"bound-{NUMBER}", {}, {"nodeName": node}, "Failed"), size)]


def pods_with_owners(node: str, count: int, owners: int) -> list[Object]:
    """Running pods of a node that say that so many objects own them, to be stored: they can be evicted."""
    many = [{"apiVersion": "v1", "kind": "A", "name": f"{number:x}", "uid": f"{number:x}"} for number in range(owners)]
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0}
    crowd = _pods(count, f"owned-{NUMBER}", {"ownerReferences": many}, spec)
    return [json.loads(pod) for pod in crowd.objects(crowd.pattern, 0, count)]


def pods_of_groups(count: int, size: int) -> list[Crowd]:
    """Running pods of LeaderWorkerSets that have nothing to do with UltraServers, ``size`` bytes each, four a group."""
    prefix = LWS_GROUP_LABEL.partition("/")[0]
    crowds = []
    for index in range(4):
        labels = {LWS_GROUP_LABEL: f"group-{NUMBER}", f"{prefix}/worker-index": str(index)}
        meta = {"labels": labels, "annotations": {f"{prefix}/size": "4"}}
        crowds.append(_filled(_pods(count // 4, f"group-{NUMBER}-{index}", meta, {"nodeName": NODE}), size))
    return crowds


def pods_with_the_gate(count: int, size: int) -> list[Crowd]:
    """Leaders that wait for an UltraServer of a zone that there is not, with the longest demands that count."""
    prefix = LWS_GROUP_LABEL.partition("/")[0]
    labels = {LWS_GROUP_LABEL: f"gated-{NUMBER}", f"{prefix}/worker-index": "0"}
    meta = {"labels": labels, "annotations": {f"{prefix}/size": "4", f"{prefix}/exclusive-topology": SERVER_4}}
    toleration = {"key": f"key-of-{NUMBER}-", "operator": "Exists", "effect": "NoSchedule"}
    room = MAX_DEMANDS // (len(json.dumps(toleration)) + 2) - 1
    spec = {
        "schedulingGates": [{"name": GATE}],
        "nodeSelector": {"zone": f"z-{NUMBER}"},
        "tolerations": [{**toleration, "key": f"{toleration['key']}{number:02}"} for number in range(room)],
    }
    return [_filled(_pods(count, f"gated-{NUMBER}", meta, spec, "Pending"), size)]


def pods_with_tolerations(namespaces: int, groups: int, size: int) -> list[Crowd]:
    """Gated pods that wait for a server in use, whose nodes they select, each with tolerations of its own.

    They have as many short ones as count, in so many groups of each namespace, of ``size`` pods each.
    """
    many = [{"key": f"{number:x}"} for number in range(0x100, 0x100 + MAX_DEMANDS // len('{"key":"100"},') - 16)]
    crowds = [
        _gated(groups, f"t{number}", f"p{pod}", [{"key": f"t{number}-{pod}-{NUMBER}"}, *many])
        for number in range(namespaces)
        for pod in range(size)
    ]
    return [*_server_in_use(), *crowds]


def pods_that_tolerate_a_node(taints: int, groups: int, size: int) -> list[Crowd]:
    """Gated pods that tolerate everything, and wait for a server in use, one of whose kubelets has so many taints."""
    return [
        *_server_in_use(taints),
        *(_gated(groups, "tenant", f"p{pod}", [{"operator": "Exists"}]) for pod in range(size)),
    ]


def _gated(count: int, namespace: str, name: str, tolerations: list[Object]) -> Crowd:
    name = f"{namespace}-{name}-{NUMBER}"
    meta = {
        "namespace": namespace,
        "name": name,
        "uid": name,
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {GROUP_LABEL: f"g-{NUMBER}"},
        "annotations": {NODES_ANNOTATION: "4"},
    }
    neuron = {"key": _RESERVED["key"], "operator": "Exists"}
    spec = {
        "schedulingGates": [{"name": GATE}],
        "nodeSelector": {"zone": "busy"},
        "tolerations": [neuron, *tolerations],
        "containers": [],
    }
    return Crowd("pods", count, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def _server_in_use(taints: int = 0) -> list[Crowd]:
    """An UltraServer of the zone ``busy``, with a claim on its last node; the first has so many taints besides.

    The placer looks no further than at the first node that a group cannot have.
    """
    meta = {"labels": {SERVER_4: "busy", "zone": "busy"}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    many = [_RESERVED, *({"key": f"{number:x}", "effect": "NoSchedule"} for number in range(taints))]
    crowds = []
    for count, name, own in ((1, f"a-{NUMBER}", many), (3, f"b-{NUMBER}", [_RESERVED])):
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        offer = {"driver": DRIVER_NAME, "nodeName": name, "pool": pool, "devices": [{"name": "neuron-node"}]}
        crowds.append(_crowd("nodes", count, name, meta, {"taints": own}, ready))
        crowds.append(_crowd("resourceslices", count, name, {}, offer))
    held = {"request": "r", "driver": DRIVER_NAME, "pool": "b-000002", "device": "neuron-node"}
    allocation = {"allocation": {"devices": {"results": [held]}}}
    return [*crowds, _crowd("resourceclaims", 1, f"held-{NUMBER}", {}, {"devices": {}}, allocation)]


_RESERVED = {"key": "aws.amazon.com/neuron", "value": "true", "effect": "NoSchedule"}
"""The taint that keeps other pods off nodes with Neuron devices."""


def pods_with_limits(kind: str, count: int, size: int) -> list[Crowd]:
    """Running pods that have one device each of nodes of that type, as the extender has noted it, ``size`` bytes each.

    Every chip of the first nodes has one.
    """
    row = resolve_emulation(kind)
    hardware = NodeHardware(row.name, row.fabric, row.cores_per_device // row.default_lnc)
    crowds = []
    for chip in range(CHIPS):
        name = f"device-{chip}-{NUMBER}"
        share = ContainerShare("main", NeuronResource.DEVICE, (chip,))
        meta = {"annotations": write(hardware, f"pods-{name}", (share,), 1)}
        spec = {"nodeName": NODE, "containers": [{"name": "main", "resources": limits(1)}]}
        crowds.append(_filled(_pods(count // CHIPS, name, meta, spec), size))
    return crowds


def pods_with_containers(node: str, count: int, containers: int) -> list[Crowd]:
    """Pods that their owner has bound to a node, with so many containers, the last of which asks for two cores."""
    idle = [{"name": f"{number:x}"} for number in range(containers - 1)]
    spec = {"nodeName": node, "containers": [*idle, _cores(f"c-{NUMBER}", 2)]}
    return [_pods(count, f"many-{NUMBER}", {}, spec, "Pending")]


def pods_with_records(node: str, count: int) -> list[Crowd]:
    """Pods that their owner has bound to a node and created with records of devices.

    Half of them list more than they ask for. The others ask for more than any node has, in as many containers as may
    ask, and list all of it.
    """
    more = [(f"{NUMBER}-{number}", f"{number}-511") for number in range(64)]
    everything = [(f"c-{number}", "0-511") for number in range(64)]
    crowds = []
    for kind, asked, shares in (
        ("more", [_cores("main", 2)], more),
        ("all", [_cores(name, 512) for name, _ in everything], everything),
    ):
        named = [{"name": name, "resource": NeuronResource.CORE.value, "ids": ids} for name, ids in shares]
        record = json.dumps({"coresPerDevice": 8, "containers": named})
        meta = {"annotations": {ALLOCATION: record}}
        spec = {"nodeName": node, "containers": asked}
        crowds.append(_pods(count // 2, f"{kind}-{NUMBER}", meta, spec, "Pending"))
    return crowds


def _cores(name: str, count: int) -> Object:
    return {"name": name, "resources": {"limits": {NeuronResource.CORE.value: str(count)}}}


def _pods(count: int, name: str, meta: Object, spec: Object, phase: str = "Running") -> Crowd:
    return _crowd("pods", count, name, meta, {"containers": [{"name": "main"}], **spec}, {"phase": phase})


def _crowd(
    kind: str, count: int, name: str, meta: Object, spec: Object | None = None, status: Object | None = None
) -> Crowd:
    own = {"namespace": "tenant", "name": name, "uid": f"{kind}-{name}", "resourceVersion": "7"}
    meta = {**meta, **own, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return Crowd(kind, count, {"metadata": meta, "spec": spec or {}, "status": status or {}})


def _filled(crowd: Crowd, size: int) -> Crowd:
    """The same with one more annotation, so that each object has that size."""
    (made,) = crowd.objects(crowd.pattern, 0, 1)
    meta = crowd.pattern["metadata"]
    annotations = {**meta.get("annotations", {}), "note": "x" * max(0, size - len(made) - 30)}
    return Crowd(crowd.kind, crowd.count, {**crowd.pattern, "metadata": {**meta, "annotations": annotations}})
