"""Random objects of every kind that concerns devices, valid or not: legal ones in which a few fields are changed.

What is not about devices (images, probes, volumes) is left as it is: nothing here looks at it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.builders.refused_objects import CLAIM, CLASS, COUNTERS, DEPLOYMENT, POD, RULE, SLICE, TEMPLATE, Object

Path = tuple[str | int, ...]

_CHIPS = {"name": "chips", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4, "allocationMode": "ExactCount"}}
_CHOICE = {
    "name": "any",
    "firstAvailable": [
        {"name": "large", "deviceClassName": "neuron.aws.com", "count": 2},
        {"name": "all", "deviceClassName": "any", "allocationMode": "All", "tolerations": [{"operator": "Exists"}]},
    ],
}
_TWO: Object = {
    **CLAIM,
    "spec": {
        "devices": {
            "requests": [
                {
                    **_CHIPS,
                    "exactly": {
                        **_CHIPS["exactly"],  # type: ignore[dict-item]
                        "selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}],
                        "capacity": {"requests": {"memory": "8Gi", "neuron.aws.com/cores": 2}},
                        "tolerations": [
                            {"key": "a.example/k", "operator": "Equal", "value": "v", "effect": "NoExecute"},
                            {"key": "b", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 30},
                        ],
                    },
                },
                _CHOICE,
            ],
            "constraints": [
                {"requests": ["chips", "any/large"], "matchAttribute": "resource.aws.com/devicegroup4_id"},
                {"requests": ["any"], "distinctAttribute": "a.example/n"},
            ],
            "config": [
                {
                    "requests": ["any/all"],
                    "opaque": {
                        "driver": "neuron.aws.com",
                        "parameters": {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"},
                    },
                }
            ],
        }
    },
}
_CLASS: Object = {
    **CLASS,
    "spec": {
        **CLASS["spec"],
        "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": {"logicalNeuronCore": 1}}}],
    },
}
_PER_DEVICE: Object = {
    **SLICE,
    "spec": {
        "driver": "a.example",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "perDeviceNodeSelection": True,
        "devices": [
            {"name": "d0", "nodeName": "n0", "attributes": {"a.example/b": {"bool": True}}},
            {"name": "d1", "allNodes": True, "capacity": {"memory": {"value": "8Gi"}}},
        ],
    },
}
_LIMITS: Object = {
    **POD,
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {
                    "requests": {"aws.amazon.com/neuron": 4, "cpu": "1"},
                    "limits": {"aws.amazon.com/neuron": 4, "cpu": 2},
                },
            },
            {
                "name": "beside",
                "image": "none",
                "resources": {"limits": {"deviceclass.resource.kubernetes.io/neuron.aws.com": "1"}},
            },
        ],
        "initContainers": [
            {
                "name": "first",
                "image": "none",
                "restartPolicy": "Always",
                "resources": {"limits": {"aws.amazon.com/neuroncore": "2"}},
            }
        ],
    },
}
_CLAIMS: Object = {
    **POD,
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {"claims": [{"name": "mine", "request": "chips"}, {"name": "other"}]},
            }
        ],
        "resourceClaims": [
            {"name": "mine", "resourceClaimTemplateName": "t"},
            {"name": "other", "resourceClaimName": "c"},
        ],
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4"}},
    },
}
_REPLICAS: Object = {
    **DEPLOYMENT,
    "spec": {
        **DEPLOYMENT["spec"],
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {**_CLAIMS["spec"]}},
    },
}
BASES: tuple[Object, ...] = (
    *(CLAIM, _TWO, _TWO, _TWO, {**TEMPLATE, "spec": {"spec": _TWO["spec"]}}),
    {**TEMPLATE, "spec": {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM["spec"]}},
    *(CLASS, _CLASS, RULE, SLICE, SLICE, COUNTERS, _PER_DEVICE, POD, _LIMITS, _LIMITS, _CLAIMS, _CLAIMS, _REPLICAS),
)
"""What is changed; what is often written by hand stands here more than once."""

_TEXTS = (
    *(
        "",
        "a",
        "A",
        "a b",
        "a.b",
        "a_b",
        "a/b",
        "a.b/c",
        "a.b/c-d",
        "A.B/c",
        "a/b/c",
        "a.b/",
        "/c",
        "-",
        "ä",
        "1",
        "a" * 64,
    ),
    *("b" * 253, "c" * 254, "a.b/" + "c" * 33, "a." * 31 + "a", "a." * 32 + "a"),
    *("Exists", "Equal", "In", "NoSchedule", "NoExecute", "None", "PreferNoSchedule", "All", "ExactCount", "all"),
    *("chips", "any", "any/large", "chips/large", "any/large/x", "r", "mine", "other", "main", "true", "1.2.3", "v1"),
    *("neuron.aws.com", "aws.amazon.com/neuron", "requests.aws.amazon.com/neuron", "kubernetes.io/x", "cpu"),
    *("deviceclass.resource.kubernetes.io/x", "hugepages-2Mi", "device.driver", "1 == 1", "Always", "Never"),
    *("10Gi", "1", "500m", "-1", "0", "1.5", "1 Gi", "1e3", "1E", "1Ki", "0.5Gi", " 1"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 4.0, 1.5, 32, 33, 1 << 31, 1 << 63, {}, [], [None], [""], ["a"], {"a": "b"}),
    {"a": {"int": 1}},
)
_REPEATED = (2, 5, 9, 16, 17, 32, 33, 65)
_NOT_ABOUT_DEVICES = frozenset(
    {"apiVersion", "kind", "image", "selector", "replicas", "template", "metadata", "containers", "initContainers"}
)
"""Neither removed nor replaced: what is refused then has nothing to do with devices."""
_NOT_CHANGED = frozenset({("metadata",), ("spec", "selector"), ("spec", "template", "metadata")})


def random_object(random: Random) -> Object:
    """A legal object with none to three changes, in one of the versions in which its kind is read."""
    made = copy.deepcopy(random.choice(BASES))
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        _change(random, made)
    return in_version(made, random.choice(VERSIONS.get(made["kind"], ("v1",))))


VERSIONS = {
    **dict.fromkeys(
        ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"), ("v1", "v1", "v1beta2", "v1beta1")
    ),
    "DeviceTaintRule": ("v1", "v1", "v1beta2", "v1alpha3"),
}


def in_version(item: Object, version: str) -> Object:
    """The object as it is written in a version of its group."""
    group = str(item["apiVersion"]).rpartition("/")[0]
    made = {**item, "apiVersion": f"{group}/{version}" if group else version}
    if version == "v1beta1" and item["kind"] == "ResourceSlice" and isinstance(item.get("spec"), dict):
        made["spec"] = _each(item["spec"], "devices", _wrapped)
    if version == "v1beta1" and item["kind"] == "ResourceClaim":
        made["spec"] = _flat(item.get("spec"))
    if version == "v1beta1" and item["kind"] == "ResourceClaimTemplate" and isinstance(item.get("spec"), dict):
        made["spec"] = {**item["spec"], "spec": _flat(item["spec"].get("spec"))}
    return made


def _each(holder: Object, name: str, change: Any) -> Object:
    items = holder.get(name)
    if not isinstance(items, list):
        return holder
    return {**holder, name: [change(item) if isinstance(item, dict) else item for item in items]}


def _wrapped(device: Object) -> Object:
    return {"name": device.get("name"), "basic": {key: item for key, item in device.items() if key != "name"}}


def _flat(spec: Any) -> Any:
    if not isinstance(spec, dict) or not isinstance(spec.get("devices"), dict):
        return spec
    return {**spec, "devices": _each(spec["devices"], "requests", _request)}


def _request(request: Object) -> Object:
    exactly = request.get("exactly")
    if not isinstance(exactly, dict):
        return request
    return {**{key: item for key, item in request.items() if key != "exactly"}, **exactly}


def _change(random: Random, item: Object) -> None:
    places = list(_places(item, ()))
    if not places:
        return
    path = random.choice(places)
    holder = item
    for step in path[:-1]:
        holder = holder[step]  # type: ignore[index]
    key: Any = path[-1]
    value = holder[key]
    way = random.randrange(10)
    if way < 2:
        del holder[key]
    elif way < 4 and isinstance(value, list) and value:
        count = random.choice(_REPEATED)
        holder[key] = [_numbered(value[place % len(value)], place, random) for place in range(count)]
    elif way < 5 and isinstance(value, dict):
        _put_elsewhere(random, value)
    elif way < 6 and isinstance(holder, dict):
        # The name of a label, a resource or an attribute, or a field that is unknown then.
        holder[random.choice(_TEXTS)] = holder.pop(key)
    elif isinstance(value, str) or random.randrange(4):
        holder[key] = random.choice(_TEXTS)
    else:
        holder[key] = copy.deepcopy(random.choice(_VALUES))


def _numbered(value: Any, place: int, random: Random) -> Any:
    """A copy, under a name of its own but now and then."""
    made = copy.deepcopy(value)
    if isinstance(made, dict) and isinstance(made.get("name"), str) and random.randrange(10):
        made["name"] = f"{made['name'][:50]}-{place}"
    return made


def _put_elsewhere(random: Random, holder: Object) -> None:
    """Give an object a field that belongs to another one."""
    other: Any = copy.deepcopy(random.choice(BASES))
    path = random.choice([path for path in _places(other, ()) if isinstance(path[-1], str)])
    for step in path[:-1]:
        other = other[step]
    holder[str(path[-1])] = other[path[-1]]


def _places(value: Any, path: Path) -> Iterator[Path]:
    steps: Sequence[Any] = (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for step in steps:
        if step not in _NOT_ABOUT_DEVICES:
            yield (*path, step)
        if (*path, step) not in _NOT_CHANGED:
            yield from _places(value[step], (*path, step))
