"""What was seen of a host, as one value: every verdict follows from it, and so does an emulated host.

The driver's own reader reads the files from here as it reads a host's, and what it says is the inventory. In a report
the value is JSON as msgspec writes it, and strict when it is read: a report comes from somebody else, by mail.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from dra_driver.neuron.emulation.memory import TreeFiles
from dra_driver.neuron.emulation.tree import CharacterDevice, Entry, SymbolicLink, TextFile
from dra_driver.neuron.host.devices import parse_pcie_root
from dra_driver.neuron.host.discover import discover_files
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import InstanceType, lookup
from dra_driver.operations.verification.hostfiles import CLASS, DEVICES, FILES, MAX_TEXT, Kind

UNREADABLE: Final = "unreadable"
LEFT_ALONE: Final = "left alone"
"""How the outcome begins of a chip that was not opened, since somebody may use it."""
MAX_FILES: Final = 12_000
"""64 chips of 8 cores have 4600."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Word = Annotated[str, Meta(max_length=64, pattern=r"^[\x20-\x7e]*\Z")]
Number = Annotated[int, Meta(ge=-1, le=(1 << 62))]
ChipIndex = Annotated[int, Meta(ge=0, le=999)]
DeviceNumber = Annotated[str, Meta(max_length=16, pattern=r"^(?:[0-9]{1,5}:[0-9]{1,8})?\Z")]


class SeenFile(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One file, device node, directory, socket or link of the host."""

    kind: Kind = "file"
    text: Text | None = None
    """Without surrounding white space, or what the link says; None: it could not be read (``problem``), or the kind has
    none."""
    problem: Word = ""
    mode: Annotated[int, Meta(ge=0, le=0o777)] = 0
    """Permission bits of a file or a device node."""
    number: DeviceNumber = ""
    """``major:minor`` of a device node."""


class ListedDevice(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One device as ``neuron-ls -j`` lists it; its processes and the instance's id are left out."""

    neuron_device: ChipIndex
    bdf: Annotated[str, Meta(max_length=16, pattern=r"^[0-9a-f:.]*\Z")] = ""
    numa_node: Annotated[str, Meta(max_length=4, pattern=r"^(?:-?[0-9]+)?\Z")] = ""
    connected_to: Annotated[tuple[ChipIndex, ...], Meta(max_length=64)] | None = None
    nc_count: Number | None = None
    logical_neuroncore_config: Number | None = None
    memory_size: Number | None = None
    neuroncore_ids: Annotated[tuple[Annotated[int, Meta(ge=0, le=99_999)], ...], Meta(max_length=64)] = ()


class Opened(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of opening the nodes of the chips (``--probe host``): ``ok``, or why not, by chip."""

    once: Annotated[dict[ChipIndex, Word], Meta(max_length=64)]
    twice: Annotated[dict[ChipIndex, Word], Meta(max_length=64)]
    """While another process had it open."""


class ContainerView(Struct, frozen=True, forbid_unknown_fields=True):
    """What a container sees that was given chips (``--probe container``)."""

    nodes: Annotated[dict[ChipIndex, DeviceNumber], Meta(max_length=64)]
    """Its own ``/dev/neuronN`` to their numbers."""
    opened: Annotated[dict[ChipIndex, Word], Meta(max_length=64)]
    others: Annotated[dict[ChipIndex, Word], Meta(max_length=64)]
    """Chips of the host that it was not given, to what became of opening them by a node of its own."""


class Evidence(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """Everything that was looked at."""

    emulated: bool = False
    files: Annotated[dict[str, SeenFile], Meta(max_length=MAX_FILES)] = field(default_factory=dict)
    """By path below the host's root, sorted."""
    container_chips: Annotated[tuple[ChipIndex, ...], Meta(max_length=64)] | None = None
    """Chips in the /sys of the container in which this ran; None: it ran on the host itself."""
    waited_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    heartbeats: Annotated[dict[ChipIndex, Text], Meta(max_length=64)] = field(default_factory=dict)
    """What the heartbeats said after ``waited_seconds``."""
    neuron_ls: Annotated[tuple[ListedDevice, ...], Meta(max_length=64)] | None = None
    kernel_log: Annotated[tuple[Text, ...], Meta(max_length=64)] | None = None
    """Lines of the Neuron runtime; None: no log was given."""
    unanswered: Annotated[tuple[Text, ...], Meta(max_length=8)] | None = None
    """Lines of the kernel driver about a chip's firmware that did not answer; None: no log was given, or not looked."""
    container_runtime: Word = ""
    """As in a Node's status, such as ``containerd://2.1.5``."""
    opened: Opened | None = None
    container: ContainerView | None = None

    @cached_property
    def tree(self) -> Mapping[str, Entry]:
        """The same files as a host has them. A directory with a file ``unreadable`` stands for one without a text."""
        return dict(self._entry(path, seen) for path, seen in self.files.items())

    def _entry(self, path: str, seen: SeenFile) -> tuple[str, Entry]:
        name = path.removeprefix(f"{CLASS}/")
        directory, _, file = path.rpartition("/")
        if (place := self._place(directory)) is not None:
            path = f"{place}/{file}"
        match seen.kind:
            case "link" if self._place(path) is not None:
                return path, SymbolicLink(seen.text or "")
            case "link":
                return f"{path}/.keep", TextFile("")
            case "directory" if name != path and any(other.startswith(f"{DEVICES}/{name}/") for other in self.files):
                return path, SymbolicLink(f"../../devices/virtual/neuron_device/{name}")
            case "directory":
                return f"{path}/.keep", TextFile("")
            case "socket":
                return path, TextFile("", 0o600)
            case "device":
                major, _, minor = seen.number.partition(":")
                return path, CharacterDevice(int(major or 0), int(minor or 0), seen.mode)
            case _ if seen.text is None:
                return f"{path}/{UNREADABLE}", TextFile(f"{seen.problem}\n")
            case _:
                return path, TextFile(f"{seen.text}\n", seen.mode & 0o666)

    def _place(self, path: str) -> str | None:
        """Where the link of a PCI device leads; None: there is no such link, or it says something else."""
        seen = self.files.get(path)
        if seen is None or seen.kind != "link" or parse_pcie_root(seen.text or "", path.rpartition("/")[2]) is None:
            return None
        return f"sys/{(seen.text or '').removeprefix('../../../')}"

    @cached_property
    def _host(self) -> TreeFiles:
        return TreeFiles(self.tree)

    @cached_property
    def inventory(self) -> NodeInventory:
        """What the driver's own reader makes of the host. It has no labels of the node here."""
        return discover_files(self._host)

    @property
    def kind(self) -> InstanceType | None:
        """The table's row of the instance type."""
        return lookup(self.inventory.instance_type or "")

    @property
    def chips(self) -> tuple[int, ...]:
        """Chips that the reader finds, ascending."""
        return tuple(device.index for device in self.inventory.devices)

    def text(self, path: str) -> str | None:
        """Text of a file; None: there is no such file, or it could not be read."""
        return self.files.get(path, SeenFile()).text

    def paths(self, key: str) -> list[str]:
        """Where the file of a row should be: once, or for each chip, or for each core."""
        path = FILES[key].path
        if "<chip>" not in path:
            return [path]
        return [
            path.replace("<chip>", f"neuron{chip}").replace("<core>", f"neuron_core{core}")
            for chip in self.chips
            for core in (self.cores(chip) if "<core>" in path else (0,))
        ]

    def cores(self, chip: int) -> tuple[int, ...]:
        """Cores of a chip that have a directory, ascending."""
        return self.numbered(f"{DEVICES}/neuron{chip}", "neuron_core")

    def numbered(self, directory: str, prefix: str = "neuron") -> tuple[int, ...]:
        """N of the ``neuronN`` in a directory, ascending, or of those with another prefix."""
        names = [name.removeprefix(prefix) for name in self._host.names(directory) if name.startswith(prefix)]
        return tuple(sorted(int(name) for name in names if name.isdecimal()))
