"""Objects that the API server refuses, each for one reason, and unusual ones that it accepts.

Checked with the simulator in ``tests/unit`` and with a real API server in ``tests/cluster``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
Change = Callable[[Object], object]

DRA = "resource.k8s.io/v1"
CLAIM: Object = {
    "apiVersion": DRA,
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "any", "tolerations": [{"operator": "Exists"}]}}],
            "constraints": [{"matchAttribute": "a.example/n", "requests": ["r"]}],
            "config": [{"opaque": {"driver": "a.example", "parameters": {}}, "requests": ["r"]}],
        }
    },
}
TEMPLATE: Object = {
    "apiVersion": DRA,
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t", "namespace": "default"},
    "spec": {"spec": CLAIM["spec"]},
}
CLASS: Object = {
    "apiVersion": DRA,
    "kind": "DeviceClass",
    "metadata": {"name": "any"},
    "spec": {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "example.com/gadget"},
}
RULE: Object = {
    "apiVersion": DRA,
    "kind": "DeviceTaintRule",
    "metadata": {"name": "r"},
    "spec": {
        "deviceSelector": {"driver": "a.example", "pool": "p/q", "device": "d0"},
        "taint": {"key": "example.com/k", "value": "v", "effect": "NoExecute"},
    },
}
DEVICE: Object = {
    "name": "d0",
    "attributes": {"n": {"int": 1}, "b.example/s": {"string": "a"}, "v": {"version": "1.2.3-rc.1+b"}},
    "capacity": {
        "memory": {
            "value": "8Gi",
            "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "1Gi"}},
        },
        "slots": {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1", "2"]}},
    },
    "allowMultipleAllocations": True,
    "taints": [{"key": "k", "effect": "None"}],
    "consumesCounters": [{"counterSet": "set", "counters": {"cores": {"value": "1"}}}],
    "bindingConditions": ["attached"],
    "bindingFailureConditions": ["broken"],
}
SLICE: Object = {
    "apiVersion": DRA,
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "a.example",
        "pool": {"name": "p/q", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n0",
        "devices": [DEVICE],
    },
}
COUNTERS: Object = {
    "apiVersion": DRA,
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "a.example",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        },
        "sharedCounters": [{"name": "set", "counters": {"cores": {"value": "8"}}}],
    },
}
NODE: Object = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n0", "labels": {"example.com/zone": "a"}, "annotations": {"Example.com/x": "any text"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
}
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {
                    "requests": {"cpu": "500m"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                    "claims": [{"name": "mine"}],
                },
            }
        ],
        "initContainers": [{"name": "first", "image": "none"}],
        "resourceClaims": [{"name": "mine", "resourceClaimName": "c"}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "rack", "operator": "Gt", "values": ["1"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}],
                        }
                    ]
                }
            }
        },
    },
}
DEPLOYMENT: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "default"},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "a"}},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        },
    },
}
ALL = (CLAIM, TEMPLATE, CLASS, RULE, SLICE, COUNTERS, NODE, POD, DEPLOYMENT)

_FIRST = ("spec", "devices", "requests", 0, "exactly")
_DEVICE = ("spec", "devices", 0)
_POLICY = (*_DEVICE, "capacity", "memory", "requestPolicy")
_TERM = (
    *("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"),
    0,
)
_CONTAINER = ("spec", "containers", 0)
_GONE = object()

# Object, path in it, replacement at that path.
_REFUSED: tuple[tuple[Object, tuple[str | int, ...], object], ...] = (
    *((item, ("metadata", "name"), name) for item in ALL for name in ("BAD_Name", "ä", "a b", "a..b", "-a", "a" * 254)),
    *((item, ("metadata", "labels"), {"a b": "c"}) for item in ALL),
    (CLAIM, ("metadata", "labels"), {"a": "c d"}),
    (CLAIM, ("metadata", "annotations"), {"a b": "c"}),
    (CLAIM, ("metadata", "annotations"), {"a": "c" * (257 << 10)}),
    (CLAIM, (*_FIRST, "count"), 1 << 63),
    (CLAIM, (*_FIRST, "count"), -1),
    (CLAIM, (*_FIRST, "allocationMode"), "Some"),
    (CLAIM, _FIRST, {"deviceClassName": "any", "allocationMode": "All", "count": 1}),
    (CLAIM, (*_FIRST, "deviceClassName"), "Any"),
    (CLAIM, (*_FIRST, "tolerations", 0, "key"), "a b"),
    (CLAIM, (*_FIRST, "tolerations", 0), {"key": "k", "operator": "Equal", "value": "a b"}),
    (CLAIM, (*_FIRST, "tolerations", 0, "effect"), "PreferNoSchedule"),
    (CLAIM, (*_FIRST, "tolerations", 0, "tolerationSeconds"), 1 << 63),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"memory": "1 Gi"}}),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"memory": "Ei"}}),
    (CLAIM, ("spec", "devices", "requests", 0, "name"), "R"),
    (CLAIM, ("spec", "devices", "constraints", 0, "requests"), ["r", "r"]),
    (CLAIM, ("spec", "devices", "constraints", 0, "requests"), ["other"]),
    (CLAIM, ("spec", "devices", "constraints", 0, "matchAttribute"), "n"),
    (CLAIM, ("spec", "devices", "constraints", 0, "matchAttribute"), "A.Example/n"),
    (CLAIM, ("spec", "devices", "constraints", 0, "matchAttribute"), "a..b/n"),
    (CLAIM, ("spec", "devices", "config", 0, "requests"), ["r", "r"]),
    (CLAIM, ("spec", "devices", "config", 0, "opaque", "driver"), "a b"),
    (CLAIM, ("spec", "devices", "config", 0, "opaque", "driver"), "a." * 32 + "a"),
    (TEMPLATE, ("spec", *_FIRST, "count"), 1 << 63),
    (CLASS, ("spec", "extendedResourceName"), "gadget"),
    (CLASS, ("spec", "extendedResourceName"), "kubernetes.io/gadget"),
    (CLASS, ("spec", "extendedResourceName"), "example.com/a b"),
    (CLASS, ("spec", "config"), [CLAIM["spec"]["devices"]["config"][0] | {"requests": _GONE}] * 33),
    (RULE, ("spec", "deviceSelector", "driver"), "a b"),
    (RULE, ("spec", "deviceSelector", "pool"), "P"),
    (RULE, ("spec", "deviceSelector", "device"), "d.0"),
    (RULE, ("spec", "taint", "key"), "a b"),
    (RULE, ("spec", "taint", "value"), "a b"),
    (RULE, ("spec", "taint", "effect"), "PreferNoSchedule"),
    (RULE, ("spec", "taint", "effect"), _GONE),
    (SLICE, ("spec", "driver"), "a b"),
    (SLICE, ("spec", "pool", "name"), "p//q"),
    (SLICE, ("spec", "pool", "resourceSliceCount"), 0),
    (SLICE, ("spec", "pool", "generation"), -1),
    (SLICE, ("spec", "pool", "generation"), 1 << 63),
    (SLICE, ("spec", "nodeName"), "n 0"),
    (SLICE, ("spec", "nodeName"), _GONE),
    (SLICE, ("spec", "allNodes"), True),
    (SLICE, ("spec", "perDeviceNodeSelection"), False),
    (SLICE, ("spec", "sharedCounters"), COUNTERS["spec"]["sharedCounters"]),
    (SLICE, ("spec", "devices"), [DEVICE, DEVICE]),
    (SLICE, ("spec", "devices"), [{**DEVICE, "name": f"d{number}"} for number in range(65)]),
    (SLICE, ("spec", "devices"), [{"name": f"d{number}"} for number in range(129)]),
    (SLICE, (*_DEVICE, "name"), "D0"),
    (SLICE, (*_DEVICE, "nodeName"), "n0"),
    (SLICE, (*_DEVICE, "attributes"), {f"a{number}": {"int": 1} for number in range(33)}),
    (SLICE, (*_DEVICE, "attributes"), {"a-b": {"int": 1}}),
    (SLICE, (*_DEVICE, "attributes"), {"a b/n": {"int": 1}}),
    (SLICE, (*_DEVICE, "attributes", "n"), {}),
    (SLICE, (*_DEVICE, "attributes", "n"), {"int": 1, "bool": True}),
    (SLICE, (*_DEVICE, "attributes", "n", "int"), 1 << 63),
    (SLICE, (*_DEVICE, "attributes", "n"), {"string": "é" * 33}),
    (SLICE, (*_DEVICE, "attributes", "v", "version"), "1.2"),
    (SLICE, (*_DEVICE, "attributes", "v", "version"), "01.2.3"),
    (SLICE, (*_DEVICE, "capacity", "memory", "value"), "1 Gi"),
    (SLICE, (*_DEVICE, "allowMultipleAllocations"), False),
    (SLICE, (*_POLICY, "default"), _GONE),
    (SLICE, (*_POLICY, "default"), "5Gi"),
    (SLICE, (*_POLICY, "default"), "1.5Gi"),
    (SLICE, (*_POLICY, "validRange", "min"), _GONE),
    (SLICE, (*_POLICY, "validRange", "min"), "5Gi"),
    (SLICE, (*_POLICY, "validRange", "max"), "16Gi"),
    (SLICE, (*_POLICY, "validRange", "step"), "0"),
    (SLICE, (*_POLICY, "validRange", "step"), "8Gi"),
    (SLICE, (*_POLICY, "validValues"), ["1Gi"]),
    (SLICE, (*_DEVICE, "capacity", "slots", "requestPolicy", "default"), "3"),
    (SLICE, (*_DEVICE, "capacity", "slots", "requestPolicy", "validValues"), ["2", "1"]),
    (SLICE, (*_DEVICE, "capacity", "slots", "requestPolicy", "validValues"), ["1", "1"]),
    (SLICE, (*_DEVICE, "capacity", "slots", "requestPolicy", "validValues"), ["1", "9"]),
    (SLICE, (*_DEVICE, "taints", 0, "effect"), _GONE),
    (SLICE, (*_DEVICE, "taints"), [{"key": f"k{number}", "effect": "None"} for number in range(17)]),
    (SLICE, (*_DEVICE, "consumesCounters"), DEVICE["consumesCounters"] * 2),
    (SLICE, (*_DEVICE, "consumesCounters", 0, "counterSet"), "S"),
    (SLICE, (*_DEVICE, "consumesCounters", 0, "counters"), {}),
    (SLICE, (*_DEVICE, "consumesCounters", 0, "counters"), {"c_d": {"value": "1"}}),
    (SLICE, (*_DEVICE, "bindingConditions"), _GONE),
    (SLICE, (*_DEVICE, "bindingFailureConditions"), ["attached"]),
    (SLICE, (*_DEVICE, "bindingConditions"), ["a", "b", "c", "d", "e"]),
    (COUNTERS, ("spec", "sharedCounters", 0, "counters"), {}),
    (COUNTERS, ("spec", "sharedCounters", 0, "counters", "cores", "value"), "x"),
    (COUNTERS, ("spec", "sharedCounters"), COUNTERS["spec"]["sharedCounters"] * 2),
    (COUNTERS, ("spec", "nodeSelector", "nodeSelectorTerms"), []),
    (COUNTERS, ("spec", "nodeSelector", "nodeSelectorTerms"), [{}, {}]),
    (NODE, ("spec", "taints", 0, "key"), "a b"),
    (NODE, ("spec", "taints", 0, "effect"), "None"),
    (NODE, ("spec", "taints"), NODE["spec"]["taints"] * 2),
    (POD, ("metadata", "namespace"), "Default"),
    (POD, ("spec", "containers"), []),
    (POD, ("spec", "containers"), _GONE),
    (POD, (*_CONTAINER, "name"), "Main"),
    (POD, ("spec", "initContainers", 0, "name"), "main"),
    (POD, (*_CONTAINER, "resources", "claims"), [{"name": "mine"}] * 2),
    (POD, (*_CONTAINER, "resources", "limits"), {"cpu": "1 core"}),
    (POD, (*_CONTAINER, "resources", "limits"), {"cpu": "-1"}),
    (POD, (*_CONTAINER, "resources", "limits"), {"cpu": "100m"}),
    (POD, ("spec", "resourceClaims", 0, "name"), "Mine"),
    (POD, ("spec", "resourceClaims", 0, "resourceClaimName"), "C"),
    (POD, ("spec", "nodeName"), "n 0"),
    (POD, ("spec", "nodeSelector"), {"zone": "a b"}),
    (POD, ("spec", "tolerations", 0, "value"), "v"),
    (POD, ("spec", "tolerations", 0), {"operator": "Equal"}),
    (POD, ("spec", "tolerations", 0, "effect"), "None"),
    (POD, (*_TERM[:-1],), []),
    (POD, (*_TERM, "matchExpressions", 0, "operator"), "Is"),
    (POD, (*_TERM, "matchExpressions", 0, "values"), ["1", "2"]),
    (POD, (*_TERM, "matchExpressions", 0, "operator"), "Exists"),
    (POD, (*_TERM, "matchExpressions", 0, "values"), ["-1"]),
    (POD, (*_TERM, "matchFields", 0, "key"), "metadata.labels"),
    (POD, (*_TERM, "matchFields", 0, "values"), ["n0", "n1"]),
    (DEPLOYMENT, ("spec", "template", "spec", "containers"), []),
    (DEPLOYMENT, ("spec", "template", "spec", "containers", 0, "name"), "Main"),
    (DEPLOYMENT, ("spec", "replicas"), -1),
)
_TAKEN: tuple[tuple[Object, tuple[str | int, ...], object], ...] = (
    *((item, ("metadata", "name"), "a" * 63 + ".b-9") for item in ALL),
    (CLAIM, (*_FIRST, "count"), 0),
    (CLAIM, (*_FIRST, "count"), (1 << 63) - 1),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"B.Example/memory": " 1Gi "}}),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"memory": "m"}}),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"memory": "20E"}}),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"memory": 5}}),
    (CLAIM, (*_FIRST, "capacity"), {"requests": {"a-b": "1"}}),
    (CLAIM, ("spec", "devices", "config", 0, "opaque", "driver"), "A.Example"),
    (CLAIM, ("metadata", "annotations"), {"A.B/c": "ä"}),
    (SLICE, ("spec", "driver"), "A.Example"),
    (SLICE, (*_DEVICE, "attributes", "n", "int"), -(1 << 63)),
    (SLICE, (*_DEVICE, "attributes"), {"A.Example/n": {"int": 1}}),
    (SLICE, (*_DEVICE, "attributes", "n"), {"string": "é" * 32}),
    (SLICE, (*_POLICY, "validRange", "max"), _GONE),
    (RULE, ("spec", "deviceSelector"), {}),
    (RULE, ("spec", "deviceSelector"), _GONE),
    (POD, (*_TERM, "matchExpressions", 0, "values"), ["a"]),
    (POD, ("spec", "resourceClaims"), [*POD["spec"]["resourceClaims"], {"name": "b", "resourceClaimName": "c"}]),
    (POD, (*_CONTAINER, "resources", "claims"), [{"name": "mine", "request": "r"}, {"name": "mine", "request": "s"}]),
)


def refused() -> Iterator[tuple[str, Object]]:
    """A unique label, and the object."""
    return map(_changed, _REFUSED)


def taken() -> Iterator[tuple[str, Object]]:
    """A unique label, and the object."""
    yield from ((item["kind"], copy.deepcopy(item)) for item in ALL)
    yield from map(_changed, _TAKEN)


def _changed(row: tuple[Object, tuple[str | int, ...], object]) -> tuple[str, Object]:
    original, path, value = row
    made = copy.deepcopy(original)
    parent: Any = made
    for step in path[:-1]:
        parent = parent[step]
    if value is _GONE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = _without_gone(value)
    told = "left out" if value is _GONE else repr(value)[:40]
    return f"{made['kind']} {'.'.join(map(str, path))} {told}", made


def _without_gone(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_gone(item) for key, item in value.items() if item is not _GONE}
    return [_without_gone(item) for item in value] if isinstance(value, list) else copy.deepcopy(value)
