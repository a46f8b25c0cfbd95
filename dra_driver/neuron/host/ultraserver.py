"""The node's place in its UltraServer, as the kernel driver's class files show it.

Two forms of files exist. Where nodes find each other by an election over the links there is one set of ids for pairs
and one for fours; where the firmware says, there is one set of any size. Files say ``busy`` while the election runs,
and minus one or zeros for "part of no such server". Kernel drivers of 2024 show the files of the election on every
host, so the instance type decides whether there is an UltraServer, and its files only what this node is of it.

Sources: the Neuron kernel driver's sysfs documentation; aws-neuron-sdk, ``src/k8/k8s-ultraserver-init-script.sh``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dra_driver.neuron.host.devices import Scan
from dra_driver.neuron.host.findings import shown
from dra_driver.neuron.host.inventory import Membership, ServerSet
from dra_driver.neuron.host.sysfs import HostFiles, Reading
from dra_driver.neuron.topology.ultraserver import PREFERENCE, Mode, UltraServerShape

CLASS = "sys/class/neuron_device"

_MODE_FILE = "ultraserver_mode"
_ELECTED_FILES = ("node_id_2", "node_id_4", "server_id_2", "server_id_4")
_FIRMWARE_FILES = ("node_id", "node_cnt", "reservation_id")

_MODES = re.compile(r"[0-9]{1,3}(?:\s*,\s*[0-9]{1,3}){0,15}")
_SERVER_ID = re.compile(r"[0-9a-f]{16}")
_NO_SERVER = "0" * 16
_NUMBER = re.compile(r"[0-9]{1,3}")
_NO_NODE = "-1"


def membership(scan: Scan, shape: UltraServerShape, *, loaded: bool) -> Membership:
    """What the node is of its UltraServer.

    While the election runs there are no modes, the sets are those of the scan before, and the scan is ``settling``.

    Args:
        scan: of this host; findings are added to it.
        shape: what its instance type is part of.
        loaded: whether the kernel driver is. Without it nothing is known, which other findings say.
    """
    elected = _is_elected(scan.files, shape)
    if not loaded:
        return Membership((), (), elected)
    names = (*(_ELECTED_FILES if elected else _FIRMWARE_FILES), _MODE_FILE)
    readings = _read(scan.files, names)
    if all(content.missing for content in readings.values()):
        scan.findings.add("ultraserver-files-missing", CLASS, ", ".join(names))
        return Membership((), (), elected)
    # Read twice: an election that begins or ends in between would show a mixture of two states.
    if any(content.busy for content in readings.values()) or _read(scan.files, names) != readings:
        scan.settling = True
        scan.findings.add("ultraserver-electing", CLASS)
        before = scan.former.ultraserver if scan.former is not None else None
        return Membership((), before.sets if before is not None else (), elected, electing=True)
    values = _Values(readings)
    modes = values.modes()
    sets = values.elected_sets() if elected else values.firmware_sets()
    if values.problems:
        scan.findings.add("ultraserver-value-odd", CLASS, "; ".join(values.problems))
    member = Membership(modes, sets, elected)
    _judge(scan, shape, member)
    return member


def _is_elected(files: HostFiles, shape: UltraServerShape) -> bool:
    """Which form to read: the one of the instance type, or the other where only that is there (old drivers)."""
    elected = shape.files == "elected"
    usual, other = (_ELECTED_FILES, _FIRMWARE_FILES) if elected else (_FIRMWARE_FILES, _ELECTED_FILES)
    return elected if _any_there(files, usual) or not _any_there(files, other) else not elected


def _any_there(files: HostFiles, names: Iterable[str]) -> bool:
    return any(files.status(f"{CLASS}/{name}") is not None for name in names)


def _read(files: HostFiles, names: Iterable[str]) -> dict[str, Reading]:
    return {name: files.read(f"{CLASS}/{name}") for name in names}


class _Values:
    """What the files say, and what of it cannot be used (``problems``)."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings
        self.problems: list[str] = []

    def modes(self) -> tuple[Mode, ...]:
        text = self._text(_MODE_FILE)
        if not text:
            return ()
        if not _MODES.fullmatch(text):
            self._odd(_MODE_FILE, shown(text))
            return ()
        numbers = {int(number) for number in text.split(",")}
        unknown = sorted(numbers - {0, *(mode.value for mode in Mode)})
        if unknown:
            self._odd(_MODE_FILE, f"unknown modes {', '.join(map(str, unknown))}")
        return tuple(mode for mode in PREFERENCE if mode.value in numbers)

    def elected_sets(self) -> tuple[ServerSet, ...]:
        return tuple(
            item for nodes in (2, 4) if (item := self._set(nodes, f"server_id_{nodes}", f"node_id_{nodes}")) is not None
        )

    def firmware_sets(self) -> tuple[ServerSet, ...]:
        nodes = self._number("node_cnt")
        item = self._set(nodes, "reservation_id", "node_id") if nodes is not None and nodes > 1 else None
        return () if item is None else (item,)

    def _set(self, nodes: int, server_file: str, node_file: str) -> ServerSet | None:
        server_id, node_id = self._server_id(server_file), self._number(node_file)
        if node_id is not None and node_id >= nodes:
            self._odd(node_file, f"it says {node_id} in a server of {nodes} nodes")
            return None
        if server_id is not None and node_id is not None:
            return ServerSet(nodes, server_id, node_id)
        # One alone, unless the other could not be read, which a finding says already.
        present, other = (server_file, node_file) if server_id is not None else (node_file, server_file)
        if (server_id is None) != (node_id is None) and not any(text.startswith(other) for text in self.problems):
            self._odd(other, f"not set, although {present} is")
        return None

    def _server_id(self, name: str) -> str | None:
        text = self._text(name).lower()
        if text and not _SERVER_ID.fullmatch(text):
            self._odd(name, shown(text))
            return None
        return text if text not in {"", _NO_SERVER} else None

    def _number(self, name: str) -> int | None:
        text = self._text(name)
        if text in {"", _NO_NODE}:
            return None
        if not (text.isascii() and _NUMBER.fullmatch(text)):
            self._odd(name, shown(text))
            return None
        return int(text)

    def _text(self, name: str) -> str:
        """Text of a file; "" (none) for an empty one, and for one that cannot be read, which is a problem."""
        content = self._readings[name]
        if content.text is None:
            self._odd(name, content.problem)
        return content.text or ""

    def _odd(self, name: str, what: str) -> None:
        self.problems.append(f"{name}: {what}")


def _judge(scan: Scan, shape: UltraServerShape, member: Membership) -> None:
    """Say what is missing of a whole and linked server."""
    largest = max((one.nodes for one in member.sets), default=1)
    offered = ", ".join(map(str, member.modes)) or "no modes"
    if shape.nodes is not None and largest < shape.nodes:
        others = "this node found none of the others" if largest == 1 else f"{largest} of {shape.nodes} nodes are there"
        scan.findings.add("ultraserver-incomplete", others, offered)
    # How firmware without an election lists modes is not public.
    for one in member.sets if member.elected else ():
        if all(mode.nodes != one.nodes for mode in member.modes):
            scan.findings.add("ultraserver-link-down", f"{one.nodes} nodes", offered)
