"""Which fields of objects may go into a report, and what their values may look like.

The shared structs (``kube.objects``) are the list: a field that the driver's programs know may be in a report, unless
it is ``PRIVATE``. Of a text, only what looks like a name is kept, unless a rule says that it is a message; of a mapping
with names of any kind (labels, annotations, opaque parameters), only what a rule names. The tables below add what the
report alone reads. Everything else stays out, whatever it is called, and so does a value of another kind; the golden
file of ``tests/unit/operations/report/test_allowed.py`` has all fields that follow.

Nothing is taken out of what is allowed but what looks like a credential (``archive.scrubbed``): free texts are the
messages of the scheduler, kubelet and the driver, and CEL expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import inspect, structs

from dra_driver.driver.resourceslices.attributes import ATTRIBUTES
from dra_driver.kube.objects import core, resource
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.legacy.annotations import CORE_USAGE, DEVICE_USAGE, POD_KEYS, UNUSABLE, from_mapping, said
from dra_driver.legacy.rules import RETIRED_DEVICE, NeuronResource
from dra_driver.neuron.device_status import DeviceStatus
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.health.condition import written_here
from dra_driver.neuron.names import API_VERSIONS, DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN, NODES_OF, is_uid
from dra_driver.neuron.opaque_config import KINDS, rules

Rule = Callable[[Any], Any] | Mapping[str, "Rule"] | list["Rule"]
"""Fields of an object by name, what each item of a list is, or a function that keeps a value or gives ``OUT``."""
OUT: Final = object()
"""Stands for a value that is left out."""
WITHHELD: Final = "(withheld)"

MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 4096
"""Of a list inside of an object."""
_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/+@=-]{0,251}[A-Za-z0-9])?", re.ASCII)
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._-]{1,255}){1,32}|/")


def keep(value: object, rule: Rule) -> Any:
    """The parts of a value that the rule names; ``OUT`` if the value is of another kind."""
    if callable(rule):
        return rule(value)
    if isinstance(rule, Mapping):
        if not isinstance(value, dict):
            return OUT
        found = ((name, keep(value[name], below)) for name, below in rule.items() if name in value)
        return {name: kept for name, kept in found if kept is not OUT}
    if not isinstance(value, list):
        return OUT
    return [kept for item in value[:MAX_ITEMS] if (kept := keep(item, rule[0])) is not OUT]


# What values may look like


def word(value: object) -> object:
    """A name, a version, a quantity, a time or another identifier, without spaces."""
    return value if isinstance(value, str) and (not value or _WORD.fullmatch(value)) else OUT


def number(value: object) -> object:
    """A number or a truth value."""
    return value if isinstance(value, (bool, int, float)) else OUT


def text(value: object) -> object:
    """A message."""
    return value[:MAX_TEXT] if isinstance(value, str) else OUT


def either(value: object) -> object:
    """A ``word`` or a ``number``: IntOrString, quantities."""
    kept = word(value)
    return number(value) if kept is OUT else kept


def path(value: object) -> object:
    """An absolute path."""
    return value if isinstance(value, str) and _PATH.fullmatch(value) else OUT


def only(names: frozenset[str]) -> Rule:
    """Of a mapping, such as labels, the words under these names."""
    return dict.fromkeys(sorted(names), either)


def each(rule: Rule, named: Callable[[str], bool] = lambda name: word(name) is not OUT) -> Rule:
    """Of a mapping, what the rule keeps under each of these names."""

    def by_name(value: object) -> object:
        if not isinstance(value, dict):
            return OUT
        found = {name: keep(item, rule) for name, item in sorted(value.items()) if named(name)}
        return {name: item for name, item in found.items() if item is not OUT}

    return by_name


# What the structs say

PRIVATE: Final[Mapping[type, frozenset[str]]] = {
    ObjectMeta: frozenset({"generateName"}),
    core.NodeMeta: frozenset({"managedFields"}),
    core.NodeSpec: frozenset({"providerID"}),
    core.NodeStatus: frozenset({"images"}),
    core.Taint: frozenset({"value"}),
    core.Toleration: frozenset({"value"}),
    core.Container: frozenset({"image"}),
    core.PodSpec: frozenset({"affinity", "topologySpreadConstraints"}),
    core.NodeSelector: frozenset({"nodeSelectorTerms"}),
    resource.DeviceTaint: frozenset({"value"}),
    resource.DeviceToleration: frozenset({"value"}),
    Condition: frozenset({"message"}),
}
"""Fields that look harmless and are not: they have what users call or configure, or texts of unknown origin."""


def fields(struct: type) -> Rule:
    """The fields of a struct and of those below it by their names on the wire, and what their values may be."""
    rules = {entry.encode_name: _rule(inspect.type_info(entry.type)) for entry in structs.fields(struct)}
    private = {name for base in struct.__mro__ for name in PRIVATE.get(base, ())}
    known = {name: rule for name, rule in rules.items() if rule is not None and name not in private}
    return merged(known, _SHARED.get(struct, {}))


def _rule(kind: inspect.Type) -> Rule | None:
    """None for what may have any content."""
    if isinstance(kind, inspect.StrType):
        return word
    if isinstance(kind, (inspect.BoolType, inspect.IntType, inspect.FloatType)):
        return number
    if isinstance(kind, inspect.StructType):
        return fields(kind.cls) or None
    if isinstance(kind, (inspect.VarTupleType, inspect.ListType)):
        below = _rule(kind.item_type)
        return None if below is None else [below]
    if isinstance(kind, inspect.DictType) and isinstance(kind.value_type, inspect.StructType):
        below = _rule(kind.value_type)
        return None if below is None else each(below)
    if isinstance(kind, inspect.UnionType):
        rules = [rule for rule in map(_rule, kind.types) if rule is not None]
        return either if len(rules) > 1 else rules[0] if rules else None
    return None


def merged(rule: Rule, own: Rule) -> Rule:
    """The rule with the fields of its own added, or in the place of those of the same name."""
    if isinstance(rule, Mapping) and isinstance(own, Mapping):
        return {**rule, **{name: merged(rule[name], below) if name in rule else below for name, below in own.items()}}
    return [merged(rule[0], own[0])] if isinstance(rule, list) and isinstance(own, list) else own


NEURON_RESOURCES: Final = only(frozenset({*(kind.value for kind in NeuronResource), RETIRED_DEVICE}))
_PARAMETERS: Final = {name: rule for fields in rules().values() for name, rule in fields.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _is_uid(value: object) -> bool:
    return isinstance(value, str) and is_uid(value)


def _opaque(value: object) -> object:
    """Opaque parameters: whose they are; of this driver's, their known fields, and how many others there are."""
    kept = keep(value, {"driver": word})
    if kept is OUT or kept.get("driver") != DRIVER_NAME or not isinstance(value, dict):
        return kept
    given = value.get("parameters")
    if not isinstance(given, dict):
        return kept | {"parameters": WITHHELD}
    legal: Mapping[str, Callable[[object], bool]] = {
        "apiVersion": lambda said: said in API_VERSIONS,
        "kind": lambda said: said in KINDS,
        **{name: _is_number if rule.legal else _is_uid for name, rule in _PARAMETERS.items()},
    }
    found = {
        name: given[name] if isinstance(given[name], (str, int)) and fits(given[name]) else WITHHELD
        for name, fits in legal.items()
        if name in given
    }
    others = len(given.keys() - legal.keys())
    return kept | {"parameters": found | ({"otherFields": others} if others else {})}


_SHARED: Final[Mapping[type, Rule]] = {
    ObjectMeta: {"generation": number},
    core.NodeMeta: {"generation": number},
    core.ResourceRequirements: {"limits": NEURON_RESOURCES, "requests": NEURON_RESOURCES},
    resource.CELDeviceSelector: {"expression": text},
    resource.OpaqueDeviceConfiguration: _opaque,
}
"""What structs have besides, and rules of their own, wherever they are."""


# Slices, classes, claims

_DEVICE_ATTRIBUTES: Final = {row.name for row in ATTRIBUTES}


def _own_attribute(name: str) -> bool:
    """Whether an attribute is of this driver, or of a group of devices."""
    group = name.startswith(f"{GROUP_ATTRIBUTE_DOMAIN}/")
    return group or name.removeprefix(f"{DRIVER_NAME}/") in _DEVICE_ATTRIBUTES


_ATTRIBUTE: Final = merged(fields(resource.DeviceAttribute), {"string": text})
SLICE: Final = merged(
    fields(resource.ResourceSlice),
    {"spec": {"devices": [{"attributes": each(_ATTRIBUTE, _own_attribute), "taints": [{"value": word}]}]}},
)
DEVICE_CLASS: Final = fields(resource.DeviceClass)
TAINT_RULE: Final = fields(resource.DeviceTaintRule)
_FOREIGN_STATUS: Final = fields(resource.AllocatedDeviceStatus)
DEVICE_STATUS: Final = merged(
    _FOREIGN_STATUS,
    {"conditions": [{"message": text}], "data": merged(fields(DeviceStatus), {"chips": [{"path": path}]})},
)


def _device_status(value: object) -> object:
    """What a driver says of an allocated device; of this driver's, also its texts and which chips it is made of."""
    own = isinstance(value, dict) and value.get("driver") == DRIVER_NAME
    return keep(value, DEVICE_STATUS if own else _FOREIGN_STATUS)


CLAIM: Final = merged(
    fields(resource.ResourceClaim),
    {"status": {"allocation": {"allocationTimestamp": word}, "devices": [_device_status]}},
)
TEMPLATE: Final = fields(resource.ResourceClaimTemplate)


# Nodes and pods

NODE_LABELS: Final = frozenset(
    {
        "node.kubernetes.io/instance-type",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.k8s.aws/network-node-layer-1",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-3",
        "neuron.amazonaws.com/present",
        "neuron.amazonaws.com/ultraserver-mode",
        "neuron.aws.com/partitions",
        *NODES_OF,
    }
)
_CONDITION: Final = merged(fields(Condition), {"lastHeartbeatTime": word})


def _node_condition(value: object) -> object:
    kept = keep(value, _CONDITION)
    if kept is not OUT and kept.get("type") == HEALTH_CONDITION and isinstance(value, dict):
        message, reason = value.get("message"), value.get("reason")
        # Any other message than one that the driver writes is of unknown origin.
        if isinstance(message, str) and isinstance(reason, str) and written_here(reason, message):
            kept["message"] = message
    return kept


def _pod_condition(value: object) -> object:
    scheduled = isinstance(value, dict) and value.get("type") == "PodScheduled"
    return keep(value, merged(_CONDITION, {"message": text}) if scheduled else _CONDITION)


def _ids(value: object) -> object:
    """Numbers, or a usage map of the scheduler extender."""
    fits = isinstance(value, str) and re.fullmatch(r"[0-9, -]{0,8192}|(?:true|false)(?:,(?:true|false)){0,1023}", value)
    return value if fits else WITHHELD


def _pod_annotations(value: object) -> object:
    """The allocation of the scheduler extender, if it reads as one."""
    if not isinstance(value, dict):
        return OUT
    own = {name: item for name, item in value.items() if name in POD_KEYS and isinstance(item, str)}
    readable = not said(from_mapping(own))[1]
    legible = re.compile(r"[0-9, -]{0,8192}|true|false|aws\.amazon\.com/neuron[a-z]{0,8}")
    return {
        name: item if legible.fullmatch(item) or (readable and item.startswith("{")) else WITHHELD
        for name, item in sorted(own.items())
    }


NODE: Final = merged(
    fields(core.Node),
    {
        "metadata": {
            "labels": only(NODE_LABELS),
            "annotations": {DEVICE_USAGE: _ids, CORE_USAGE: _ids, UNUSABLE: _ids},
        },
        "status": {
            "capacity": NEURON_RESOURCES,
            "allocatable": NEURON_RESOURCES,
            "conditions": [_node_condition],
            "nodeInfo": {
                "containerRuntimeVersion": word,
                "kernelVersion": word,
                "osImage": text,
                "architecture": word,
            },
        },
    },
)
_STATE: Final[Mapping[str, Rule]] = {
    "waiting": {"reason": word},
    "running": {"startedAt": word},
    "terminated": {"reason": word, "exitCode": number, "signal": number, "startedAt": word, "finishedAt": word},
}
_CONTAINER_STATUS: Final[Mapping[str, Rule]] = {
    "name": word,
    "ready": number,
    "restartCount": number,
    "state": _STATE,
    "lastState": _STATE,
    "allocatedResourcesStatus": [{"name": word, "resources": [{"resourceID": word, "health": word}]}],
}
POD: Final = merged(
    fields(core.Pod),
    {
        "metadata": {"annotations": _pod_annotations},
        "spec": {"priority": number},
        "status": {
            "reason": word,
            "startTime": word,
            "conditions": [_pod_condition],
            "containerStatuses": [_CONTAINER_STATUS],
            "initContainerStatuses": [_CONTAINER_STATUS],
        },
    },
)
EVENT: Final = merged(fields(core.Event), {"message": text, "eventTime": word})


# The driver's own programs

WORKLOAD_LABELS: Final = frozenset(
    {"app", "name", "app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/version"}
)
_WORKLOAD_COUNTS: Final = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "updatedNumberScheduled",
    "numberReady",
    "numberUnavailable",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "unavailableReplicas",
    "observedGeneration",
)


def workload(variables: frozenset[str], options: frozenset[str]) -> Rule:
    """A DaemonSet or Deployment of the driver.

    Args:
        variables: names of environment variables that are settings of its programs.
        options: words of its programs' command lines, such as ``--v``; of others, only that there is one.
    """
    amounts: Rule = {"cpu": either, "memory": either}
    container: Rule = {
        "image": word,
        "imagePullPolicy": word,
        "args": [_argument(options)],
        "env": [_variable(variables)],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"privileged": number, "readOnlyRootFilesystem": number},
        "volumeMounts": [{"name": word, "mountPath": path, "readOnly": number, "mountPropagation": word}],
    }
    pod: Rule = {
        "priorityClassName": word,
        "serviceAccountName": word,
        "hostNetwork": number,
        "containers": [container],
        "initContainers": [container],
        "volumes": [{"name": word, "hostPath": {"path": path, "type": word}}],
    }
    strategy: Rule = {"type": word, "rollingUpdate": {"maxSurge": either, "maxUnavailable": either}}
    return {
        "metadata": merged(fields(ObjectMeta), {"labels": only(WORKLOAD_LABELS)}),
        "spec": {
            "replicas": number,
            "updateStrategy": strategy,
            "strategy": strategy,
            "template": {"spec": merged(fields(core.PodSpec), pod)},
        },
        "status": dict.fromkeys(_WORKLOAD_COUNTS, number),
    }


def _variable(settings: frozenset[str]) -> Rule:
    """An environment variable: its name, where it comes from, and of settings the value."""

    def rule(value: object) -> object:
        if not isinstance(value, dict) or word(value.get("name")) is OUT:
            return OUT
        name = value["name"]
        source = keep(value.get("valueFrom"), {"fieldRef": {"fieldPath": word}})
        if source is not OUT and source:
            return {"name": name, "valueFrom": source}
        given = text(value.get("value"))
        return {"name": name, "value": given if name in settings and given is not OUT else WITHHELD}

    return rule


def _argument(options: frozenset[str]) -> Rule:
    """A word of a command line, as it is if it begins with one of these; of others, only that there is one."""

    def rule(value: object) -> object:
        if not isinstance(value, str):
            return OUT
        return value[:MAX_TEXT] if value.partition("=")[0] in options else WITHHELD

    return rule
