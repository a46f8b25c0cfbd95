"""The files of an emulated host that shows what a report says, whatever the host of the report was."""

from __future__ import annotations

import json
from dataclasses import replace

from msgspec import to_builtins

from dra_driver.neuron.emulation.tree import NULL_DEVICE, CharacterDevice, Entry, TextFile
from dra_driver.neuron.host.devices import PROC_DEVICES
from dra_driver.operations.verification.evidence import Evidence
from dra_driver.operations.verification.hostfiles import DEVICES

NEURON_LS = "neuron-ls.json"
"""At the root of a host that was made of a report: what ``neuron-ls -j`` said there."""
KERNEL_LOG = "kernel.log"
"""The same for the lines about Neuron in the kernel log."""

HARMLESS = NULL_DEVICE
HARMLESS_OTHER = (1, 5)
"""Number of the zero device: the node that had another number than sysfs said has another one here too."""


def files_of(host: Evidence) -> dict[str, Entry]:
    """By path below the root, as ``emulation.writer`` takes them; every path is one that ``hostfiles`` describes.

    Device numbers are not those of the report: containers on the emulated host may open whatever they name. A chip's
    becomes the null device's; a node that was at odds with sysfs, and a major number that was not the driver's, stay
    so.
    """
    tree = {path: _harmless(host, path, entry) for path, entry in host.tree.items()}
    if host.neuron_ls is not None:
        tree[NEURON_LS] = TextFile(json.dumps(to_builtins(host.neuron_ls), indent=1) + "\n")
    if host.kernel_log is not None:
        tree[KERNEL_LOG] = TextFile("".join(f"{line}\n" for line in (*host.kernel_log, *(host.unanswered or ()))))
    return tree


def _harmless(host: Evidence, path: str, entry: Entry) -> Entry:
    if isinstance(entry, CharacterDevice):
        number = host.text(f"{DEVICES}/{path.removeprefix('dev/')}/dev")
        same = number in (None, host.files[path].number)
        return CharacterDevice(*(HARMLESS if same else HARMLESS_OTHER), entry.mode)
    if not isinstance(entry, TextFile):
        return entry
    if path == PROC_DEVICES:
        return replace(entry, text=_majors(host, entry.text))
    if path.startswith(f"{DEVICES}/") and path.endswith("/dev") and ":" in entry.text:
        return replace(entry, text="{}:{}\n".format(*HARMLESS))
    return entry


def _majors(host: Evidence, text: str) -> str:
    """Lines with the null device's major number where the listed ones are the chips', else with another one."""
    numbers = [host.text(f"{DEVICES}/neuron{chip}/dev") or "" for chip in host.numbered(DEVICES)]
    majors = {number.partition(":")[0] for number in numbers}
    listed = [line.split()[0] for line in text.splitlines() if line.strip()]
    found = {HARMLESS[0] if not majors or major in majors else HARMLESS[0] + 1 for major in listed}
    return "".join(f"{major} neuron\n" for major in sorted(found)) or "\n"
