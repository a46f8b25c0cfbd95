"""Which fields of objects may go into a report: tables of names, and what their values may look like.

A field that no table names stays out, whatever it is called, and so does a value of another kind than the table says.
Nothing is taken out of what is allowed but what looks like a credential (``archive.scrubbed``): free texts are the
messages of the scheduler, kubelet and the driver, and CEL expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.driver.resourceslices.attributes import ATTRIBUTES
from dra_driver.kube.objects.meta import Condition
from dra_driver.legacy.annotations import CORE_USAGE, DEVICE_USAGE, POD_KEYS, UNUSABLE, from_mapping, said
from dra_driver.legacy.rules import RETIRED_DEVICE, Resource
from dra_driver.neuron.health.condition import HEALTHY_MESSAGE, told_by
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN, NODES_OF
from dra_driver.neuron.opaque_config import API_VERSIONS, KINDS

Rule = Callable[[Any], Any] | Mapping[str, "Rule"] | list["Rule"]
"""Fields of an object by name, what each item of a list is, or a function that keeps a value or gives ``OUT``."""
OUT: Final = object()
"""Stands for a value that is left out."""
WITHHELD: Final = "(withheld)"

MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 4096
"""Of a list inside of an object."""
_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/+@=-]{0,251}[A-Za-z0-9])?", re.ASCII)


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


def only(names: frozenset[str]) -> Rule:
    """Of a mapping, such as labels, the words under these names."""
    return dict.fromkeys(sorted(names), either)


# Shared parts

NEURON_RESOURCES: Final = frozenset({*(resource.value for resource in Resource), RETIRED_DEVICE})
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
        "neuron.aws.com/devices",
        *NODES_OF,
    }
)

_META: Final[Mapping[str, Rule]] = {
    "name": word,
    "namespace": word,
    "uid": word,
    "generation": number,
    "creationTimestamp": word,
    "deletionTimestamp": word,
    "ownerReferences": [{"kind": word, "name": word}],
}
_TAINT: Final[Mapping[str, Rule]] = {"key": word, "effect": word, "timeAdded": word}
_TOLERATION: Final[Mapping[str, Rule]] = {"key": word, "operator": word, "effect": word}
_CONDITION: Final[Mapping[str, Rule]] = {
    "type": word,
    "status": word,
    "reason": word,
    "lastTransitionTime": word,
    "lastHeartbeatTime": word,
}


def _own_parameters(value: object) -> object:
    """Opaque parameters of this driver: their known fields, and how many others there are."""
    if not isinstance(value, dict):
        return WITHHELD
    legal: Mapping[str, Callable[[object], bool]] = {
        "apiVersion": lambda given: given in API_VERSIONS,
        "kind": lambda given: given in KINDS,
        "logicalNeuronCore": lambda given: isinstance(given, int),
        "ultraserverMode": lambda given: isinstance(given, int),
    }
    found: dict[str, object] = {
        name: value[name] if isinstance(value[name], (str, int)) and fits(value[name]) else WITHHELD
        for name, fits in legal.items()
        if name in value
    }
    others = len(value.keys() - legal.keys())
    return found | ({"otherFields": others} if others else {})


def _configuration(value: object) -> object:
    """An entry of ``config``: of other drivers, only that there is one."""
    opaque = value.get("opaque") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(opaque, dict):
        return OUT
    kept = keep(value, {"source": word, "requests": [word], "opaque": {"driver": word}})
    if opaque.get("driver") == DRIVER_NAME:
        kept["opaque"]["parameters"] = _own_parameters(opaque.get("parameters"))
    return kept


_SELECTORS: Final[Rule] = [{"cel": {"expression": text}}]
_EXACTLY: Final[Mapping[str, Rule]] = {
    "name": word,
    "deviceClassName": word,
    "allocationMode": word,
    "count": number,
    "adminAccess": number,
    "selectors": _SELECTORS,
    "tolerations": [_TOLERATION],
}
_REQUEST: Final[Mapping[str, Rule]] = {**_EXACTLY, "exactly": _EXACTLY, "firstAvailable": [_EXACTLY]}
_CLAIM_SPEC: Final[Mapping[str, Rule]] = {
    "devices": {
        "requests": [_REQUEST],
        "constraints": [{"requests": [word], "matchAttribute": word, "distinctAttribute": word}],
        "config": [_configuration],
    }
}


# Slices, classes, claims


def _attributes(value: object) -> object:
    if not isinstance(value, dict):
        return OUT
    names = {row.name for row in ATTRIBUTES}
    own = {
        name: item
        for name, item in value.items()
        if isinstance(name, str)
        and (name.removeprefix(f"{DRIVER_NAME}/") in names or name.startswith(f"{GROUP_ATTRIBUTE_DOMAIN}/"))
    }
    shape: Rule = {"int": number, "bool": number, "string": text, "version": word}
    return {name: keep(item, shape) for name, item in sorted(own.items())}


def _counts(value: object) -> object:
    """Capacities and counters by name."""
    if not isinstance(value, dict):
        return OUT
    kept = ((name, keep(item, {"value": either})) for name, item in sorted(value.items()) if word(name) is not OUT)
    return {name: item for name, item in kept if item is not OUT}


_DEVICE: Final[Mapping[str, Rule]] = {
    "name": word,
    "attributes": _attributes,
    "capacity": _counts,
    "consumesCounters": [{"counterSet": word, "counters": _counts}],
    "taints": [{**_TAINT, "value": word}],
}
SLICE: Final[Mapping[str, Rule]] = {
    "metadata": _META,
    "spec": {
        "driver": word,
        "nodeName": word,
        "pool": {"name": word, "generation": number, "resourceSliceCount": number},
        "devices": [{**_DEVICE, "basic": _DEVICE}],
        "sharedCounters": [{"name": word, "counters": _counts}],
    },
}
DEVICE_CLASS: Final[Mapping[str, Rule]] = {
    "metadata": _META,
    "spec": {"selectors": _SELECTORS, "config": [_configuration], "extendedResourceName": word},
}
TAINT_RULE: Final[Mapping[str, Rule]] = {
    "metadata": _META,
    "spec": {"deviceSelector": {"driver": word, "pool": word, "device": word}, "taint": _TAINT},
}
CLAIM: Final[Mapping[str, Rule]] = {
    "metadata": _META,
    "spec": _CLAIM_SPEC,
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": word, "driver": word, "pool": word, "device": word, "adminAccess": number}],
                "config": [_configuration],
            },
            "allocationTimestamp": word,
        },
        "reservedFor": [{"resource": word, "name": word, "uid": word, "apiGroup": word}],
    },
}
TEMPLATE: Final[Mapping[str, Rule]] = {"metadata": _META, "spec": {"spec": _CLAIM_SPEC}}


# Nodes and pods


def _node_condition(value: object) -> object:
    kept = keep(value, _CONDITION)
    if kept is not OUT and kept.get("type") == HEALTH_CONDITION and isinstance(value, dict):
        message, reason = value.get("message"), value.get("reason")
        # Any other message than one that the driver writes is of unknown origin.
        if isinstance(message, str) and isinstance(reason, str):
            named = told_by(Condition(HEALTH_CONDITION, reason=reason, message=message))
            if message == HEALTHY_MESSAGE or (named and None not in named):
                kept["message"] = message
    return kept


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
    structured = {name: item for name, item in own.items() if item.startswith("{")}
    return {
        name: item if legible.fullmatch(item) or (readable and name in structured) else WITHHELD
        for name, item in sorted(own.items())
    }


NODE: Final[Mapping[str, Rule]] = {
    "metadata": {
        **_META,
        "labels": only(NODE_LABELS),
        "annotations": {DEVICE_USAGE: _ids, CORE_USAGE: _ids, UNUSABLE: _ids},
    },
    "spec": {"unschedulable": number, "taints": [_TAINT]},
    "status": {
        "capacity": only(NEURON_RESOURCES),
        "allocatable": only(NEURON_RESOURCES),
        "conditions": [_node_condition],
        "nodeInfo": {
            "kubeletVersion": word,
            "containerRuntimeVersion": word,
            "kernelVersion": word,
            "osImage": text,
            "architecture": word,
        },
    },
}


def _pod_condition(value: object) -> object:
    kept = keep(value, _CONDITION)
    if kept is not OUT and kept.get("type") == "PodScheduled" and isinstance(value, dict):
        message = text(value.get("message"))
        kept |= {"message": message} if message is not OUT else {}
    return kept


_ENDED: Final[Mapping[str, Rule]] = {
    "reason": word,
    "exitCode": number,
    "signal": number,
    "startedAt": word,
    "finishedAt": word,
}
_STATE: Final[Mapping[str, Rule]] = {"waiting": {"reason": word}, "running": {"startedAt": word}, "terminated": _ENDED}
_CONTAINER: Final[Mapping[str, Rule]] = {
    "name": word,
    "restartPolicy": word,
    "resources": {
        "claims": [{"name": word, "request": word}],
        "limits": only(NEURON_RESOURCES),
        "requests": only(NEURON_RESOURCES),
    },
}
_CONTAINER_STATUS: Final[Mapping[str, Rule]] = {
    "name": word,
    "ready": number,
    "restartCount": number,
    "state": _STATE,
    "lastState": _STATE,
    "allocatedResourcesStatus": [{"name": word, "resources": [{"resourceID": word, "health": word}]}],
}
POD: Final[Mapping[str, Rule]] = {
    "metadata": {**_META, "annotations": _pod_annotations},
    "spec": {
        "nodeName": word,
        "schedulerName": word,
        "priority": number,
        "schedulingGates": [{"name": word}],
        "resourceClaims": [{"name": word, "resourceClaimName": word, "resourceClaimTemplateName": word}],
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "tolerations": [_TOLERATION],
    },
    "status": {
        "phase": word,
        "reason": word,
        "startTime": word,
        "nominatedNodeName": word,
        "conditions": [_pod_condition],
        "containerStatuses": [_CONTAINER_STATUS],
        "initContainerStatuses": [_CONTAINER_STATUS],
        "resourceClaimStatuses": [{"name": word, "resourceClaimName": word}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": word,
            "requestMappings": [{"containerName": word, "requestName": word, "resourceName": word}],
        },
    },
}


# The driver's own programs


def workload(variables: frozenset[str], options: frozenset[str]) -> Rule:
    """A DaemonSet or Deployment of the driver.

    Args:
        variables: names of environment variables that are settings of its programs.
        options: words of its programs' command lines, such as ``--v``; of others, only that there is one.
    """
    amounts: Rule = {"cpu": either, "memory": either}
    container: Rule = {
        "name": word,
        "image": word,
        "imagePullPolicy": word,
        "args": [_argument(options)],
        "env": [_variable(variables)],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"privileged": number, "readOnlyRootFilesystem": number},
        "volumeMounts": [{"name": word, "mountPath": path, "readOnly": number, "mountPropagation": word}],
    }
    strategy: Rule = {"type": word, "rollingUpdate": {"maxSurge": either, "maxUnavailable": either}}
    return {
        "metadata": {**_META, "labels": only(WORKLOAD_LABELS)},
        "spec": {
            "replicas": number,
            "updateStrategy": strategy,
            "strategy": strategy,
            "template": {
                "spec": {
                    "priorityClassName": word,
                    "serviceAccountName": word,
                    "hostNetwork": number,
                    "tolerations": [_TOLERATION],
                    "containers": [container],
                    "initContainers": [container],
                    "volumes": [{"name": word, "hostPath": {"path": path, "type": word}}],
                }
            },
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


def path(value: object) -> object:
    """An absolute path."""
    return value if isinstance(value, str) and re.fullmatch(r"(?:/[A-Za-z0-9._-]{1,255}){1,32}|/", value) else OUT


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

EVENT: Final[Mapping[str, Rule]] = {
    "involvedObject": {"kind": word, "namespace": word, "name": word, "uid": word},
    "type": word,
    "reason": word,
    "message": text,
    "source": {"component": word, "host": word},
    "reportingComponent": word,
    "firstTimestamp": word,
    "lastTimestamp": word,
    "eventTime": word,
    "count": number,
}
