"""The files of an emulated host that shows what a report says, whatever the host of the report was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from dra_driver.neuron.emulation.tree import CLASS, DEVICES, DeviceNode, Entry, Link, TextFile
from dra_driver.operations.verification.evidence import Evidence, SeenFile, plain

NEURON_LS = "neuron-ls.json"
"""At the root of a host that was made of a report: what ``neuron-ls -j`` said there."""
KERNEL_LOG = "kernel.log"
"""The same for the lines of the Neuron runtime in the kernel log."""
UNREADABLE = "unreadable"
"""A directory with this file stands for a file that could not be read; the text says why."""

HARMLESS = (1, 3)
"""Number of the null device."""
HARMLESS_OTHER = (1, 5)
"""Number of the zero device: the node that had another number than sysfs said has another one here too."""
_NEURON = "{} neuron\n"


def files_of(host: Evidence) -> dict[str, Entry]:
    """By path below the root, as ``emulation.writer`` takes them; every path is one that ``hostfiles`` describes.

    Device numbers are not those of the report: containers on the emulated host may open whatever they name. A chip's
    becomes the null device's; a node that was at odds with sysfs, and a major number that was not the driver's, stay
    so.
    """
    tree: dict[str, Entry] = {}
    for path, seen in host.files.items():
        tree.update(_entries(host, path, seen))
    if host.neuron_ls is not None:
        tree[NEURON_LS] = TextFile(json.dumps(plain(host.neuron_ls), indent=1) + "\n")
    if host.kernel_log is not None:
        tree[KERNEL_LOG] = TextFile("".join(f"{line}\n" for line in host.kernel_log))
    return tree


def _entries(host: Evidence, path: str, seen: SeenFile) -> Iterator[tuple[str, Entry]]:
    chip = path.removeprefix(f"{CLASS}/")
    if seen.kind == "directory":
        below_class = path != chip
        if below_class and any(other.startswith(f"{DEVICES}/{chip}/") for other in host.files):
            yield path, Link(f"../../devices/virtual/neuron_device/{chip}")
        else:
            yield f"{path}/.keep", TextFile("")
    elif seen.kind == "socket":
        yield path, TextFile("", 0o600)
    elif seen.kind == "device":
        number = host.text("dev", path.rpartition("/")[2])
        yield path, DeviceNode(*(HARMLESS if number in (None, seen.number) else HARMLESS_OTHER), seen.mode)
    elif seen.text is None:
        yield f"{path}/{UNREADABLE}", TextFile(f"{seen.problem}\n")
    else:
        yield path, TextFile(f"{_harmless(host, path, seen.text)}\n", seen.mode & 0o666)


def _harmless(host: Evidence, path: str, text: str) -> str:
    if path == "proc/devices":
        return "".join(sorted({_NEURON.format(major) for major in _majors(host, text)})).strip()
    if path.startswith(f"{DEVICES}/") and path.endswith("/dev") and ":" in text:
        return "{}:{}".format(*HARMLESS)
    return text


def _majors(host: Evidence, text: str) -> Iterator[int]:
    """The null device's major number where the listed ones are the chips', else another one."""
    used: Mapping[tuple[str, ...], SeenFile] = host.by_row.get("dev", {})
    of_chips = {(seen.text or "").partition(":")[0] for seen in used.values()}
    for line in text.splitlines():
        listed = line.split()[0] if line.split() else ""
        yield HARMLESS[0] if not used or listed in of_chips else HARMLESS[0] + 1
