"""What commands print as JSON or YAML, read as strictly as it is documented (``dra_driver.cli.kinds``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from dra_driver.cli.kinds import FOREIGN, KEYS, KINDS
from dra_driver.util.envelope import API_VERSION


def document(text: str) -> dict[str, Any]:
    """The one object that a command has printed; it has the documented keys and no others."""
    found: dict[str, Any] = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    assert found["apiVersion"] == (API_VERSION if found["kind"] in KINDS else "v1")
    assert isinstance(found["items"], list)
    if found["kind"] == "List":
        assert found.keys() == {"apiVersion", "kind", "items"}
        assert all(item.keys() >= {"apiVersion", "kind", "metadata"} for item in found["items"])
        return found
    beside = KINDS[found["kind"]].beside.split()
    assert [*found] == ["apiVersion", "kind", "items", *beside], "what stands beside the items is always there"
    strange = {f"{path}.{key}" for key, path, known, _ in _walk(found) if not known}
    assert not strange, f"not in the tables: {strange}"
    return found


def shapes(found: dict[str, Any]) -> set[tuple[str, str]]:
    """The keys of an object, wherever they stand, with what their values are made of; "" for null and []."""
    return {(key, _shape(value)) for key, _, _, value in _walk(found)}


def _shape(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(sorted({f"list of {_shape(item)}" for item in value}))
    return "" if value is None else type(value).__name__


def _walk(found: dict[str, Any]) -> Iterator[tuple[str, str, bool, Any]]:
    """Each key, where it stands, whether the tables have it there, and its value."""
    kind = KINDS[found["kind"]]
    yield from _inner(found["items"], kind.keys, "items")
    for key in kind.beside.split():
        yield key, "", True, found[key]
        yield from _inner(found[key], KEYS[key].keys, key)


def _inner(value: Any, keys: str, path: str) -> Iterator[tuple[str, str, bool, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _inner(item, keys, path)
    elif isinstance(value, dict) and keys != FOREIGN:
        for key, inner in value.items():
            known = key in keys.split()
            yield key, path, known, inner
            yield from _inner(inner, KEYS[key].keys if known else "", f"{path}.{key}")
