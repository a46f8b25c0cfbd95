"""Looks at a host, reading only: every file that a row of ``hostfiles`` describes, without what names anybody."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from dra_driver.neuron.emulation.tree import NULL_DEVICE, PCI_VENDOR
from dra_driver.neuron.health.kernel_log import marked_lines
from dra_driver.neuron.host.devices import PCI_DEVICES, PROC_DEVICES
from dra_driver.neuron.host.discover import EMULATION_MARKER
from dra_driver.neuron.host.signals import HEARTBEAT
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.neuron.topology.hardware import CHIPS
from dra_driver.operations.verification.evidence import UNREADABLE, Evidence, ListedDevice, SeenFile
from dra_driver.operations.verification.hostfiles import (
    DEVICES,
    FILES,
    MAX_TEXT,
    PLACES,
    ROWS,
    HostFile,
    anonymous,
    kept,
    scrubbed,
)
from dra_driver.operations.verification.replay import KERNEL_LOG, NEURON_LS
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import quoted
from dra_driver.util.worker import bounded

READ_SECONDS: Final = 60.0
"""Reading a thousand files takes a tenth of a second; what takes so long hangs in the kernel."""
MAX_INPUT_BYTES: Final = 16 << 20
"""Of a kernel log or a report."""
MAX_LISTING_BYTES: Final = 1 << 20
"""Of an output of neuron-ls, which takes some fifty times as much as it is decoded."""
_MAX_LISTED: Final = 256
_LISTING_REMEDY: Final = "give the output of neuron-ls -j as it is, or leave --neuron-ls out"
_MAX_LINES: Final = 64
_PCI_IDS: Final = re.compile("|".join([*(name for chip in CHIPS for name in chip.pci_device_ids), "efa[0-9a-f]"]))
_SAID = ("NEURON_HW_ERR", "nd-id", "nc-id", "action")
"""Words of a line of the kernel log whose values are kept."""
_UNANSWERED = re.compile(rb"\bfw_io_execute_request\w{0,16}: [^\n=]{0,40}?\bcmd: ([0-9]{1,4}) timed out")
"""A line of the kernel driver (bottlerocket-os/bottlerocket#4582)."""
_VALUE = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_SERIAL = re.compile(r"[0-9A-Fa-f]{16}", re.ASCII)


def collect(root: Path) -> Evidence:
    """What the host below ``root`` shows: its files, and what an emulated host has in place of other sources.

    Raises:
        UsageError: ``root`` is not a directory.
        DriverError: the kernel does not answer.
    """
    at: list[str] = []

    def overdue() -> DriverError:
        return DriverError(
            f"reading {at[-1] if at else root} does not end",
            consequence="the check of this host cannot continue",
            remedy="look at the node's kernel log, and send in the name of this file with what it says",
        )

    return bounded(lambda: _collect(root, at), READ_SECONDS, overdue)


def _collect(root: Path, at: list[str]) -> Evidence:
    """The same, with the path of each file in ``at`` before it is read."""
    files = HostFiles(root)
    if not files.is_directory(""):
        raise UsageError(
            f"{root} is not a directory",
            remedy="mount the host's file system there, or make one with: dra-driver emulate-host",
        )
    emulated = files.status(EMULATION_MARKER) is not None
    seen: dict[str, SeenFile] = {}
    for row in ROWS:
        for path in _paths(files, row):
            at.append(path)
            if (found := _look(files, row, path, emulated=emulated)) is not None:
                seen[path] = found
    if not emulated and PROC_DEVICES not in seen and (own := HostFiles(Path("/")).read(PROC_DEVICES).text):
        # The kernel has one list for all containers.
        seen[PROC_DEVICES] = SeenFile(text=kept(FILES["proc-devices"], own), mode=0o444)
    seen = {path: seen[path] for path in sorted(seen) if not _is_others(seen, path)}
    texts = anonymous({path: found.text for path, found in seen.items() if found.text is not None})
    seen = {path: msgspec.structs.replace(found, text=texts.get(path)) for path, found in seen.items()}
    inside = root.resolve() != Path("/") and not emulated
    listed, log = (files.read(name).text if emulated else None for name in (NEURON_LS, KERNEL_LOG))
    return Evidence(
        emulated=emulated,
        files=seen,
        container_chips=_own_chips() if inside else None,
        neuron_ls=None if listed is None else listing(listed),
        kernel_log=None if log is None else lines_of(log.encode()),
        unanswered=None if log is None else unanswered(log.encode()),
    )


def beat_again(root: Path, evidence: Evidence, seconds: int, progress: Callable[[int, int], None]) -> Evidence:
    """The same with what the heartbeats say after a wait, during which ``progress`` is told the seconds of all."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(seconds - round(left), seconds)
        time.sleep(min(left, 1.0))
    files = HostFiles(root)
    said = {chip: files.read(f"{DEVICES}/neuron{chip}/{HEARTBEAT}").text for chip in evidence.chips}
    beats = {chip: kept(FILES["healthcheck_heartbeat"], text) for chip, text in said.items() if text is not None}
    return msgspec.structs.replace(evidence, waited_seconds=seconds, heartbeats=beats)


def _own_chips() -> tuple[int, ...]:
    names = _matching(HostFiles(Path("/")), DEVICES, "<chip>")
    return tuple(sorted(int(name.removeprefix("neuron")) for name in names))


def _paths(files: HostFiles, row: HostFile) -> list[str]:
    """The paths of a row that may exist on this host."""
    paths = [""]
    for part in row.path.split("/"):
        paths = [f"{path}/{name}" for path in paths for name in _matching(files, path, part)]
    return [path[1:] for path in paths]


def _matching(files: HostFiles, directory: str, part: str) -> list[str]:
    if part not in PLACES:
        return [part]
    pattern, most = PLACES[part]
    return [name for name in files.names(directory) if re.fullmatch(pattern, name, re.ASCII)][:most]


def _look(files: HostFiles, row: HostFile, path: str, *, emulated: bool) -> SeenFile | None:
    """One entry; None: it is not there, or is of another kind and no file in its place says why."""
    if row.kind == "link":
        target = files.link(path)
        return SeenFile(kind="link", text=kept(row, target)) if target else None
    status = files.status(path)
    if status is None:
        return None
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode) & 0o777
    # A host that was made of a report has plain files in the place of sockets and, without root, of nodes.
    stands_for = emulated and kind == stat.S_IFREG
    match row.kind:
        case "directory":
            return SeenFile(kind="directory") if kind == stat.S_IFDIR else None
        case "socket":
            return SeenFile(kind="socket") if kind == stat.S_IFSOCK or stands_for else None
        case "device":
            number = NULL_DEVICE if stands_for else (os.major(status.st_rdev), os.minor(status.st_rdev))
            node = SeenFile(kind="device", mode=mode, number="{}:{}".format(*number))
            return node if kind == stat.S_IFCHR or stands_for else None
    said = files.read(path)
    if said.text is not None:
        return SeenFile(text=kept(row, said.text), mode=mode)
    if said.missing:
        return None
    why = files.read(f"{path}/{UNREADABLE}").text if emulated else None
    return SeenFile(problem=scrubbed(why or said.problem)[:64], mode=0 if why else mode)


def _is_others(seen: Mapping[str, SeenFile], path: str) -> bool:
    """Whether it is of a PCI device that is neither a chip nor an EFA device: these are nobody's business here."""
    if not path.startswith(PCI_DEVICES):
        return False
    directory = "/".join(path.split("/")[:5])
    vendor, device = (seen.get(f"{directory}/{name}", SeenFile()).text or "" for name in ("vendor", "device"))
    return vendor != f"0x{PCI_VENDOR}" or not _PCI_IDS.fullmatch(device.removeprefix("0x"))


def listing(text: str) -> tuple[ListedDevice, ...]:
    """The devices of an output of ``neuron-ls -j``, in its order; raises UsageError for something else.

    What newer tools add (the instance's id, its type) and the processes with their commands are left out.
    """
    try:
        found: Any = json.loads(text)
        entries = found.get("devices", found.get("neuron_devices")) if isinstance(found, dict) else found
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UsageError("there is no list of devices in it")
        if len(entries) > _MAX_LISTED:
            raise UsageError(f"it has {len(entries):,} devices, and {_MAX_LISTED} are the most")
        names = ListedDevice.__struct_fields__
        plain = [{name: entry[name] for name in names if entry.get(name) is not None} for entry in entries]
        return msgspec.convert(plain, tuple[ListedDevice, ...])
    except (ValueError, RecursionError, UsageError, msgspec.ValidationError) as error:
        raise UsageError(
            f"this is not output of 'neuron-ls -j': {quoted(str(error), 160)}",
            remedy=_LISTING_REMEDY,
        ) from error


def lines_of(log: bytes) -> tuple[str, ...]:
    """The lines of the Neuron runtime in a kernel log, at most 64, without what names the instance or the chip."""
    return tuple(_told(line.text) for line in islice(marked_lines(log), _MAX_LINES))


def unanswered(log: bytes) -> tuple[str, ...]:
    """The commands that a chip's firmware did not answer, at most 8, each in a line of the kernel driver."""
    commands = dict.fromkeys(found[1].decode("ascii") for found in _UNANSWERED.finditer(log))
    return tuple(f"neuron:fw_io_execute_request: cmd: {command} timed out" for command in islice(commands, 8))


def _told(text: str) -> str:
    """The words of a line: those that the code understands with their values, of the others the names at most."""
    words = []
    for word in text[max(text.find("NEURON_HW_ERR"), 0) :].split()[:32]:
        name, equals, value = word.partition("=")
        if name in _SAID and _VALUE.fullmatch(value):
            words.append(f"{name}={value}")
        elif name == "serial-num" and _SERIAL.fullmatch(value):
            words.append(f"{name}={'0' * 15}{1 if value.strip('0') else 0}")
        elif equals:
            words.append(f"{scrubbed(name)[:40]}=redacted")
    return " ".join(words)[:MAX_TEXT]


def read_listing(path: Path) -> tuple[ListedDevice, ...]:
    """The devices of a file with an output of ``neuron-ls -j``; ``-`` is standard input. Raises UsageError."""
    return listing(read_input(path, MAX_LISTING_BYTES, _LISTING_REMEDY).decode("utf-8", "replace"))


def read_input(path: Path, most: int = MAX_INPUT_BYTES, remedy: str = "give a smaller file") -> bytes:
    """A file that the user names, of ``most`` bytes; ``-`` is standard input. Raises UsageError."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as opened:
                data = opened.read(most + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", remedy="name a file that you may read") from error
    if len(data) > most:
        raise UsageError(f"{path} is longer than {most >> 20} MiB", remedy=remedy)
    return data
