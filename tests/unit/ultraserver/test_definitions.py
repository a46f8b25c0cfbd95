"""The definitions of UltraServers: those of AWS, and what is said of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects.apiextensions import CustomResourceDefinition
from dra_driver.neuron.ultraserver_objects import ULTRASERVER_WORKLOADS, ULTRASERVERS
from dra_driver.ultraserver.definitions import DEFINITIONS, NAMES, compare
from tests.golden import golden
from tests.paths import DATA

OF_AWS: dict[str, Any] = yaml.safe_load((DATA / "ultraserver-crds.yaml").read_text())
"""By plural: fields and bounds in a notation of its own, which the file explains."""
LISTS = {"topology", "allocations"}
"""Of objects; the file says so in comments."""
MARKS = {"description", "x-kubernetes-list-type"}


def schema_of(node: Any, name: str = "") -> dict[str, Any]:
    """The schema that a field of AWS's file stands for."""
    if name == "conditions":
        return {"type": "array"}
    if isinstance(node.get("type"), str):
        return {"type": "array", "items": {"type": "string"}} if node["type"] == "array of string" else node
    fields = {key: schema_of(item, key) for key, item in node.items() if key not in ("required", "rule")}
    schema: dict[str, Any] = {"type": "object", "properties": fields}
    if "required" in node:
        schema["required"] = node["required"]
    if "rule" in node:
        schema["x-kubernetes-validations"] = [{"rule": node["rule"]}]
    return {"type": "array", "items": schema} if name in LISTS else schema


def comparable(schema: Any, name: str = "") -> Any:
    """A schema of ours without what people read, and without the fields that every object has."""
    if name == "conditions":
        return {"type": "array"}
    kept = {key: value for key, value in schema.items() if key not in MARKS}
    if "properties" in kept:
        fields = {key: comparable(item, key) for key, item in kept["properties"].items()}
        kept["properties"] = {
            key: item for key, item in fields.items() if key not in ("apiVersion", "kind", "metadata")
        }
    if "items" in kept:
        kept["items"] = comparable(kept["items"])
    if "x-kubernetes-validations" in kept:
        kept["x-kubernetes-validations"] = [{"rule": item["rule"]} for item in kept["x-kubernetes-validations"]]
    return kept


def copies() -> list[dict[str, Any]]:
    """The definitions, with nothing that two of their parts share."""
    found: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(DEFINITIONS))
    return found


def of_kind(plural: str) -> dict[str, Any]:
    return next(item for item in copies() if item["spec"]["names"]["plural"] == plural)


def received(definition: Any) -> CustomResourceDefinition:
    """As a program has it from the API server."""
    return msgspec.json.decode(msgspec.json.encode(definition), type=CustomResourceDefinition)


@pytest.mark.parametrize("plural", [ULTRASERVERS.plural, ULTRASERVER_WORKLOADS.plural])
def test_fields_and_bounds_are_those_of_aws(plural: str) -> None:
    for version in of_kind(plural)["spec"]["versions"]:
        ours = comparable(version["schema"]["openAPIV3Schema"])
        assert ours == schema_of(OF_AWS[plural])


def test_both_versions_are_served_and_the_one_of_aws_is_stored() -> None:
    assert set(OF_AWS) == {item["spec"]["names"]["plural"] for item in DEFINITIONS}
    kinds: tuple[Resource[Any], ...] = (ULTRASERVERS, ULTRASERVER_WORKLOADS)
    for item, resource in zip(DEFINITIONS, kinds, strict=True):
        spec = item["spec"]
        assert (spec["names"]["kind"], spec["scope"]) == (resource.kind, "Namespaced")
        assert [version["name"] for version in spec["versions"]] == [
            version.partition("/")[2] for version in resource.versions
        ]
        assert [version["storage"] for version in spec["versions"]] == [True, False]
        assert all(version["served"] and version["subresources"] == {"status": {}} for version in spec["versions"])
    assert [item["spec"]["names"]["shortNames"] for item in DEFINITIONS] == [["nus"], ["nusw"]]


def fields_of(schema: Any, path: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from fields_of(part, f"{path}.{name}")
    if "items" in schema:
        yield from fields_of(schema["items"], f"{path}[]")


def fields_of_struct(kind: Any, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        yield f"{path}.{field.encode_name}"
        inner = msgspec.inspect.type_info(field.type)
        if isinstance(inner, msgspec.inspect.StructType):
            yield from fields_of_struct(inner.cls, f"{path}.{field.encode_name}")
        elif isinstance(inner, msgspec.inspect.VarTupleType) and isinstance(
            item := inner.item_type, msgspec.inspect.StructType
        ):
            yield from fields_of_struct(item.cls, f"{path}.{field.encode_name}[]")


@pytest.mark.parametrize("resource", [ULTRASERVERS, ULTRASERVER_WORKLOADS], ids=lambda resource: resource.kind)
def test_programs_read_and_write_every_field_of_the_definition(resource: Any) -> None:
    schema = of_kind(resource.plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    defined = {path for path in fields_of(schema) if path.startswith((".spec", ".status"))}
    assert {path for path in fields_of_struct(resource.struct) if path.startswith((".spec", ".status"))} == defined


# Others


@pytest.mark.parametrize("name", NAMES)
def test_the_own_definition_differs_in_nothing(name: str) -> None:
    other = next(item for item in copies() if item["metadata"]["name"] == name)
    assert compare(received(other)) == []
    for version in other["spec"]["versions"]:
        version["additionalPrinterColumns"] = []
        version["schema"]["openAPIV3Schema"]["description"] = "of somebody else"
    other["spec"]["names"]["shortNames"] = ["us"]
    assert compare(received(other)) == [], "what only people read may differ"


@pytest.mark.parametrize("plural", OF_AWS)
def test_awss_definition_serves_one_version_only(plural: str) -> None:
    definition = of_kind(plural)
    first = definition["spec"]["versions"][0]
    definition["spec"]["versions"] = [first]
    golden(compare(received(definition)))


def test_each_difference_is_named() -> None:
    definition = of_kind(ULTRASERVER_WORKLOADS.plural)
    definition["spec"]["scope"] = "Cluster"
    first, second = definition["spec"]["versions"]
    second["served"] = False
    del first["subresources"]["status"]
    schema = first["schema"]["openAPIV3Schema"]
    spec, status = (schema["properties"][name]["properties"] for name in ("spec", "status"))
    schema["x-kubernetes-validations"] = [{"rule": "self.spec == oldSelf.spec"}]
    spec["topologySize"] |= {"maximum": 8}
    spec["serverCount"] = {"type": "string"}
    spec["queue"] = {"type": "string"}
    spec["config"]["properties"]["logicalNeuronCore"].pop("default")
    schema["properties"]["spec"]["required"].remove("serverCount")
    del spec["allocationPolicy"]
    status["state"]["enum"].append("Waiting")
    status["conditions"]["items"]["properties"]["reason"].pop("maxLength")
    golden(compare(received(definition)))


def test_a_definition_without_a_schema_lacks_everything() -> None:
    definition = of_kind(ULTRASERVERS.plural)
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    golden(compare(received(definition)))


def places(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Each word of a schema that says what an object can be."""
    for word in schema.keys() - {"description", "properties", "items"}:
        yield schema, word
    for part in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from places(part)


@given(st.data())
def test_whatever_is_left_out_of_a_schema_is_noticed(data: st.DataObject) -> None:
    definition = data.draw(st.sampled_from(copies()))
    version = data.draw(st.sampled_from(definition["spec"]["versions"]))
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    schema, word = data.draw(st.sampled_from([*places(parts["spec"]), *places(parts["status"])]))
    del schema[word]
    assert len(compare(received(definition))) == 1
