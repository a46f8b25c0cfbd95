"""Which fields of objects may be in a report, for objects of any content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from dra_driver.kube.objects import core, resource
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.operations.report import allowed
from tests.golden import golden

SECRET = "hunter2"
"""What must not get through; it looks like any name."""
KEY = "hunter2 as a key"
RULES: dict[str, tuple[type, Any]] = {
    "node": (core.Node, allowed.NODE),
    "pod": (core.Pod, allowed.POD),
    "claim": (resource.ResourceClaim, allowed.CLAIM),
    "device": (resource.AllocatedDeviceStatus, allowed.DEVICE_STATUS),
    "template": (resource.ResourceClaimTemplate, allowed.TEMPLATE),
    "slice": (resource.ResourceSlice, allowed.SLICE),
    "class": (resource.DeviceClass, allowed.DEVICE_CLASS),
    "rule": (resource.DeviceTaintRule, allowed.TAINT_RULE),
    "event": (core.Event, allowed.EVENT),
    "workload": (core.Pod, allowed.workload(frozenset({"PARTITIONS"}), frozenset({"--v"}))),
}
KINDS = pytest.mark.parametrize(("struct", "rule"), RULES.values(), ids=RULES)


def paths(rule: Any, path: str) -> Iterator[str]:
    """A line for each object in a table: its fields, and the function that decides where that is not ``word``."""
    while isinstance(rule, list):
        rule, path = rule[0], f"{path}[]"
    if not callable(rule):
        yield f"{path}: {', '.join(filter(None, (leaf(name, below) for name, below in sorted(rule.items()))))}"
        for name, below in sorted(rule.items()):
            yield from paths(below, f"{path}.{name}")


def leaf(name: str, rule: Any) -> str:
    """A field that has no fields itself; "" for others."""
    if isinstance(rule, list):
        return leaf(f"{name}[]", rule[0])
    return "" if not callable(rule) else name if rule is allowed.word else f"{name} ({rule.__name__})"


@pytest.mark.parametrize("name", list(RULES))
def test_these_fields_may_be_in_a_report(name: str) -> None:
    """A field that a shared struct gets is a line more here: look whether it may hold a secret (``PRIVATE``)."""
    golden(paths(RULES[name][1], name))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(SECRET),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", SECRET, "x-y"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def filled(rule: Any, stray: Any) -> Any:
    """A value with all fields that the table names, none of which has a text, and a stray value beside each."""
    if isinstance(rule, list):
        return [filled(rule[0], stray), stray]
    if callable(rule):
        return {"stray": stray}
    return {name: filled(below, stray) for name, below in rule.items()} | {"stray": stray, SECRET: stray}


@KINDS
@given(stray=JSON)
def test_what_no_table_names_does_not_get_through(struct: type, rule: Any, stray: Any) -> None:
    """Fields beside the known ones, and structures where a word belongs, whatever they contain."""
    text = json.dumps(allowed.keep(filled(rule, {"nested": stray}), rule))
    assert SECRET not in text


def planted(kind: inspect.Type, rule: Any) -> Any:
    """A value of this type with the secret in each field that the table does not name, and in every free mapping."""
    if isinstance(kind, inspect.UnionType):
        return planted(next(entry for entry in kind.types if not isinstance(entry, inspect.NoneType)), rule)
    if isinstance(kind, inspect.StructType):
        # Of opaque parameters, whose they are is told; of another driver's words, those that are no text.
        foreign: Any = (
            allowed.fields(kind.cls) if kind.cls is resource.AllocatedDeviceStatus else {"driver": allowed.word}
        )
        known = rule if isinstance(rule, dict) else foreign
        own = {field.encode_name: planted(field.type, known.get(field.encode_name)) for field in kind.fields}
        return own | {"stray": SECRET, KEY: {SECRET: SECRET}}
    if isinstance(kind, inspect.VarTupleType):
        return [planted(kind.item_type, rule[0] if isinstance(rule, list) else rule)]
    if isinstance(kind, inspect.DictType):
        return {KEY: planted(kind.value_type, None)}
    if isinstance(kind, inspect.StrType):
        return SECRET if rule is None else "word"
    return 1 if isinstance(kind, (inspect.BoolType, inspect.IntType, inspect.FloatType)) else {KEY: SECRET}


def conditions(rule: Any) -> Any:
    """The table with the plain fields of conditions, in place of what decides on their messages."""
    plain = {"type": allowed.word, "status": allowed.word, "reason": allowed.word}
    plain |= {"lastTransitionTime": allowed.word, "lastHeartbeatTime": allowed.word}
    return allowed.merged(rule, {"status": {"conditions": [plain]}})


@KINDS
def test_a_secret_in_any_field_of_a_struct_that_is_not_allowed_does_not_get_through(struct: type, rule: Any) -> None:
    given_ = planted(inspect.type_info(struct), conditions(rule) if struct in (core.Node, core.Pod) else rule)
    assert SECRET in json.dumps(given_)
    assert SECRET not in json.dumps(allowed.keep(given_, rule))


FORBIDDEN = {
    "command", "envFrom", "volumes", "secret", "secretName", "imagePullSecrets", "addresses", "providerID",
    "managedFields", "data", "stringData", "nodeSelector", "hostname", "lifecycle", "livenessProbe", "configMap",
}  # fmt: skip


def names_of(rule: Any) -> set[str]:
    """All names of fields in a table."""
    if isinstance(rule, list):
        return names_of(rule[0])
    return set() if callable(rule) else {*rule, *(name for below in rule.values() for name in names_of(below))}


@pytest.mark.parametrize("name", list(RULES))
def test_no_table_names_a_field_that_may_hold_a_secret(name: str) -> None:
    found = names_of(RULES[name][1])
    # Of a workload's volumes, the paths of the host alone; of an allocated device's data, what the driver writes.
    assert not found & FORBIDDEN - {"workload": {"volumes"}, "device": {"data"}}.get(name, set())
    if name != "workload":
        assert not found & {"env", "args", "image"}
        assert ("annotations" in found) <= (name in ("node", "pod"))


@pytest.mark.parametrize(
    ("field", "value", "there"),
    [
        ("logicalNeuronCore", 2, 2),
        ("logicalNeuronCore", SECRET, allowed.WITHHELD),
        ("workload", "b2b1e5a0-0000-4000-8000-00000000000a", "b2b1e5a0-0000-4000-8000-00000000000a"),
        ("workload", SECRET, allowed.WITHHELD),
    ],
)
def test_of_opaque_parameters_what_can_be_legal_gets_through(field: str, value: object, there: object) -> None:
    opaque = {"driver": DRIVER_NAME, "parameters": {"kind": "NeuronConfig", field: value}}
    kept = allowed.keep({"spec": {"devices": {"config": [{"opaque": opaque}]}}}, allowed.CLAIM)
    assert kept["spec"]["devices"]["config"][0]["opaque"]["parameters"] == {"kind": "NeuronConfig", field: there}
