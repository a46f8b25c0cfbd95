"""The CustomResourceDefinitions of UltraServers and of the workloads that get them, and how others differ from them.

Fields and bounds are those of AWS's definitions: people's files mean the same with either operator. In addition, the
version that AWS's documents write is served with the same schema, and kubectl shows the columns that matter.

``scripts/generate definitions`` makes ``charts/neuron-helm-chart/files/ultraserver-definitions.yaml`` from this
table, and ``scripts/generate deploy`` from that what installer and kustomize apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dra_driver.kube.objects.apiextensions import CustomResourceDefinition, CustomResourceDefinitionVersion
from dra_driver.kube.objects.meta import JsonObject
from dra_driver.neuron.ultraserver_objects import GROUP, ULTRASERVER_WORKLOADS, ULTRASERVERS, VERSIONS

# Schemas


def _text(about: str, **bounds: object) -> JsonObject:
    return {"type": "string", "description": about, **bounds}


def _number(about: str, **bounds: object) -> JsonObject:
    return {"type": "integer", "description": about, **bounds}


def _object(about: str, fields: Mapping[str, JsonObject], required: Sequence[str] = ()) -> JsonObject:
    needed = {"required": [*required]} if required else {}
    return {"type": "object", "description": about, **needed, "properties": dict(fields)}


def _list(about: str, items: JsonObject) -> JsonObject:
    """A list that is written as a whole."""
    return {"type": "array", "description": about, "x-kubernetes-list-type": "atomic", "items": items}


_WORD: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_PREFIX: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_CONDITION: Final = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "type": {"type": "string", "maxLength": 316, "pattern": rf"^({_PREFIX}(\.{_PREFIX})*/)?({_WORD})$"},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "message": {"type": "string", "maxLength": 32768},
    },
}
"""``metav1.Condition``, as controller-gen writes it (k8s.io/apimachinery ``pkg/apis/meta/v1/types.go``)."""


def _reported(states: JsonObject, conditions: str, fields: Mapping[str, JsonObject]) -> JsonObject:
    common: dict[str, JsonObject] = {
        "state": states,
        "observedGeneration": _number("The generation of spec that this status is about.", format="int64"),
        "conditions": {"type": "array", "description": conditions, "items": _CONDITION},
    }
    return _object("What the operator says.", common | dict(fields))


def _kind(about: str, spec: JsonObject, status: JsonObject, rules: Sequence[JsonObject] = ()) -> JsonObject:
    return {
        "type": "object",
        "description": about,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        **({"x-kubernetes-validations": [*rules]} if rules else {}),
    }


_SERVER: Final = _kind(
    "An UltraServer: nodes whose chips are linked. The operator makes it; people read it.",
    _object(
        "What nodes publish of it.",
        {
            "instanceType": _text(
                "The type of its nodes, which never changes.",
                minLength=1,
                maxLength=253,
                pattern=r"^[a-zA-Z0-9][a-zA-Z0-9.\-]*$",
            ),
            "topology": _list(
                "Its nodes.",
                _object(
                    "A node.",
                    {
                        "nodeName": _text("Name of the Node."),
                        "nodeId": _number("Its position in the mesh."),
                        "linkStatusHorizontal": _text("Whether its horizontal links are up or down."),
                        "linkStatusVertical": _text("Whether its vertical links are up or down."),
                    },
                    ("nodeName", "nodeId", "linkStatusHorizontal", "linkStatusVertical"),
                ),
            ),
        },
        ("instanceType", "topology"),
    ),
    _reported(
        _text("Ready or Degraded."),
        "Ready, Degraded and Allocated.",
        {
            "allocations": _list(
                "Which workloads have which of its nodes; without any, it is free.",
                _object(
                    "Nodes of a workload.",
                    {
                        "workloadRef": _text("The workload, as namespace/name."),
                        "allocatedNodes": _list("Names of the nodes.", {"type": "string"}),
                        "nodeCount": _number("How many these are."),
                        "leaderNodeName": _text("The node of rank 0."),
                        "ultraserverIndex": _number("Which one of the workload's servers this is, from 0."),
                        "phase": _text("Pending, while it is reserved, or Bound."),
                        "allocatedAt": _text("When it was allocated.", format="date-time"),
                    },
                    (
                        *("workloadRef", "allocatedNodes", "nodeCount", "leaderNodeName", "ultraserverIndex"),
                        *("phase", "allocatedAt"),
                    ),
                ),
            )
        },
    ),
    ({"rule": "self.spec.instanceType == oldSelf.spec.instanceType", "message": "spec.instanceType never changes"},),
)
_WORKLOAD: Final = _kind(
    "Asks for UltraServers, before there is any pod.",
    _object(
        "What the workload needs.",
        {
            "instanceType": _text("The type of the nodes, such as trn2u.48xlarge."),
            "serverCount": _number("How many UltraServers.", minimum=1),
            "topologySize": _number("How many nodes of each: 1, 2 or 4.", minimum=1, maximum=4),
            "allocationPolicy": _object(
                "What becomes of the allocation.",
                {
                    "failureStrategy": _text(
                        "When a node becomes unavailable: NoOp, RestartAll or MigrateAffected.", default="NoOp"
                    )
                },
            ),
            "config": _object(
                "How containers see the chips.",
                {"logicalNeuronCore": _number("Physical cores of a logical one.", minimum=1, maximum=2, default=2)},
            ),
            "resourceClaimTemplate": _object(
                "The ResourceClaimTemplate that is made for its pods.",
                {"name": _text("Its name; without this, that of the workload.")},
                ("name",),
            ),
        },
        ("instanceType", "serverCount", "topologySize"),
    ),
    _reported(
        _text(
            "How far it is.",
            enum=["Pending", "Allocating", "Allocated", "PartiallyAllocated", "Failed", "Deallocating"],
        ),
        "Ready, Progressing and Degraded.",
        {
            "allocatedUltraServers": _list("Names of the NeuronUltraServers that it has.", {"type": "string"}),
            "allocatedAt": _text("When these were allocated.", format="date-time"),
        },
    ),
)

# Definitions

Column = tuple[str, str, str]
"""Name, type and path of what kubectl shows. Of the values that a path gives, the API server takes the first."""

_AGE: Final[Column] = ("Age", "date", ".metadata.creationTimestamp")
_ROWS: Final[Mapping[str, tuple[JsonObject, str, Sequence[Column]]]] = {
    ULTRASERVERS.plural: (
        _SERVER,
        "nus",
        (
            ("State", "string", ".status.state"),
            ("Type", "string", ".spec.instanceType"),
            ("First node", "string", ".spec.topology[0].nodeName"),
            ("Allocated", "string", '.status.conditions[?(@.type=="Allocated")].message'),
            _AGE,
        ),
    ),
    ULTRASERVER_WORKLOADS.plural: (
        _WORKLOAD,
        "nusw",
        (
            ("State", "string", ".status.state"),
            ("Type", "string", ".spec.instanceType"),
            ("Servers", "integer", ".spec.serverCount"),
            ("Size", "integer", ".spec.topologySize"),
            ("Allocated", "string", ".status.allocatedUltraServers"),
            _AGE,
        ),
    ),
}
"""By plural: schema, short name, columns."""


def _definition(plural: str, kind: str) -> JsonObject:
    schema, short, columns = _ROWS[plural]
    shown = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == VERSIONS[0],
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": shown,
                    "schema": {"openAPIV3Schema": schema},
                }
                for version in VERSIONS
            ],
        },
    }


DEFINITIONS: Final[Sequence[JsonObject]] = tuple(
    _definition(resource.plural, resource.kind) for resource in (ULTRASERVERS, ULTRASERVER_WORKLOADS)
)
"""As one applies them."""
NAMES: Final = tuple(str(item["metadata"]["name"]) for item in DEFINITIONS)
"""Of the definitions."""

# How others differ

_RULES: Final = "x-kubernetes-validations"
_BOUNDS: Final = (
    *("type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("required", "default", "nullable", "x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", _RULES),
)
"""Words of a schema that say which objects there can be, or how they are merged."""


def compare(stored: CustomResourceDefinition) -> list[str]:
    """In what a definition that a cluster has differs from the one here of its name: a sentence each.

    Columns, short names, descriptions and messages may differ: they mean nothing to programs.
    """
    name = stored.metadata.name
    own = {item.metadata.name: item for item in msgspec.convert(DEFINITIONS, list[CustomResourceDefinition])}[name]
    differences = [
        f"spec.{field} is {theirs or 'missing'}, not {ours}"
        for field, theirs, ours in (
            ("group", stored.spec.group, own.spec.group),
            ("scope", stored.spec.scope, own.spec.scope),
            ("names.kind", stored.spec.names.kind, own.spec.names.kind),
        )
        if theirs != ours
    ]
    served = {version.name: version for version in stored.spec.versions if version.served}
    for ours in own.spec.versions:
        if (theirs := served.get(ours.name)) is None:
            differences.append(f"{ours.name} is not served")
        else:
            differences += [f"{ours.name}: {text}" for text in _of_version(theirs, ours)]
    return list(dict.fromkeys(differences))


def _of_version(theirs: CustomResourceDefinitionVersion, ours: CustomResourceDefinitionVersion) -> Iterator[str]:
    if theirs.subresources.status is None:
        yield "status is not a subresource, so whoever may write an object may write what is allocated to it"
    fields = [version.schema.open_api_v3_schema.get("properties") for version in (theirs, ours)]
    for name in ("spec", "status"):
        schemas = [_part(part, name) for part in fields]
        yield from _of_schema(name, schemas[0], schemas[1])
    yield from _of_bounds("the object", theirs.schema.open_api_v3_schema, ours.schema.open_api_v3_schema)


def _part(schema: object, name: str) -> Any:
    return schema.get(name) if isinstance(schema, dict) else None


def _of_schema(path: str, theirs: object, ours: JsonObject) -> Iterator[str]:
    """The differences of a field, and of what is within it."""
    if not isinstance(theirs, dict):
        yield f"{path} is missing"
        return
    yield from _of_bounds(path, theirs, ours)
    fields, own = _part(theirs, "properties") or {}, ours.get("properties", {})
    for name, schema in own.items():
        yield from _of_schema(f"{path}.{name}", _part(fields, name), schema)
    for name in sorted(fields.keys() - own):
        yield f"{path}.{name} has no meaning here"
    if "items" in ours:
        yield from _of_schema(f"{path}[]", theirs.get("items"), ours["items"])


def _of_bounds(path: str, theirs: JsonObject, ours: JsonObject) -> Iterator[str]:
    for word in _BOUNDS:
        there, here = _bound(theirs, word), _bound(ours, word)
        if there != here:
            label = word.removeprefix("x-kubernetes-")
            yield f"{path}: {label} is {_shown(there)}, not {_shown(here)}"


def _bound(schema: JsonObject, word: str) -> object:
    value = schema.get(word)
    if word == _RULES:
        return sorted(str(_part(rule, "rule")) for rule in value or ()) or None
    return sorted(map(str, value)) if isinstance(value, list) else value


def _shown(value: object) -> str:
    return "missing" if value is None else ", ".join(value) if isinstance(value, list) else str(value)
