"""How a driver that knows format 1 of the checkpoint, and no cores, reads a file: the rules of that format by hand."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

_KNOWN_DEVICE = re.compile(r"neuron-node|neuron-device-(?:0|[1-9][0-9]{0,4})")


@dataclass(frozen=True)
class Read:
    """Chips by container number of an entry; or why the file is set aside."""

    chips: dict[int, int]
    held: frozenset[int] = frozenset()
    problem: str = ""


def read(data: bytes) -> Read:
    """Raises KeyError or TypeError when a field that format 1 needs is missing."""
    file = json.loads(data)
    if file["minimumReader"] > 1:
        return Read({}, problem=f"format {file['version']}, for readers of format {file['minimumReader']} and later")
    # The checksum is over the bytes of the entry as they stand in the file.
    raw = data[data.index(b'"entry":') + len(b'"entry":') : data.rindex(b"}")]
    if hashlib.sha256(raw).hexdigest() != file["checksum"]:
        return Read({}, problem="checksum")
    devices: list[dict[str, Any]] = file["entry"]["plan"]["devices"]
    nodes = [node for device in devices for node in device["nodes"]]
    held = {node["chip"] for device in devices if not device.get("admin") for node in device["nodes"]}
    assert all({"chip", "number", "major", "minor"} == set(node) for node in nodes)
    assert all(isinstance(value, str) for value in file["entry"]["plan"].get("env", {}).values())
    return Read({node["number"]: node["chip"] for node in nodes}, frozenset(held))


def knows(device: str) -> bool:
    """Whether that driver can tell from the name in a CDI spec which chips a claim has."""
    return _KNOWN_DEVICE.fullmatch(device) is not None
