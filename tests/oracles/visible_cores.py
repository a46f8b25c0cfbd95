"""Which physical NeuronCores the Neuron runtime would use in a container, by the container's devices and variables.

As documented: without ``NEURON_RT_VISIBLE_CORES`` all cores of all devices; else the logical cores that it names, which
are counted by the numbers of the devices: with ``/dev/neuron12`` as the first one, they begin at 12 times the cores of
a device (aws-neuron-sdk, ``nrt-configurable-parameters``, ``logical-neuroncore-config``, the example for docker).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.oracles.core_ledger import CHIPS_AND_CORES

VISIBLE = "NEURON_RT_VISIBLE_CORES"
SIZE = "NEURON_LOGICAL_NC_CONFIG"

_DEVICE = re.compile(r"/dev/neuron(0|[1-9][0-9]*)")
_RANGES = re.compile(r"(0|[1-9][0-9]*)(-[1-9][0-9]*)?(,[1-9][0-9]*(-[1-9][0-9]*)?)*")


@dataclass
class View:
    """What a container has of the driver's."""

    env: dict[str, str] = field(default_factory=dict)
    chips: dict[int, int] = field(default_factory=dict)
    """Chip of the host by its number in the container."""

    def cores(self, instance_type: str) -> frozenset[tuple[int, int]]:
        """Chip of the host and physical core of each core that the runtime uses. AssertionError for nonsense."""
        _, cores = CHIPS_AND_CORES[instance_type]
        first, end = min(self.chips, default=0), max(self.chips, default=-1) + 1
        assert sorted(self.chips) == list(range(first, end)), f"numbers in the container: {self.chips}"
        size = int(self.env.get(SIZE, "1"))
        each = cores // size
        logical = range(each * first, each * end) if VISIBLE not in self.env else _numbers(self.env[VISIBLE])
        return frozenset(
            (self.chips[number // each], number % each * size + core) for number in logical for core in range(size)
        )


def injected(cdi: Path, ids: Sequence[str]) -> View:
    """What a runtime makes of these CDI devices, in this order, by the specs in a directory."""
    edits: dict[str, Any] = {}
    for path in sorted(cdi.glob("*.json")):
        spec = json.loads(path.read_text())
        edits |= {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
    found = View()
    for name in ids:
        for entry in edits[name].get("env", ()):
            variable, _, value = entry.partition("=")
            found.env[variable] = value
        for node in edits[name].get("deviceNodes", ()):
            found.chips[_number(node["path"])] = _number(node.get("hostPath", node["path"]))
    return found


def _number(path: str) -> int:
    match = _DEVICE.fullmatch(path)
    assert match, path
    return int(match[1])


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as ``0-1,4``: ascending, each once."""
    assert _RANGES.fullmatch(text), f"{VISIBLE}={text}"
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(set(found)), f"{VISIBLE}={text}"
    return found
