"""What was seen of a host, as one value: every verdict follows from it, and so does an emulated host.

It is JSON as msgspec writes it, and strict when it is read: a report comes from somebody else's host, by mail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, InstanceType, lookup
from dra_driver.operations.verification.hostfiles import FILES, MAX_TEXT, Kind, form_of, path_pattern, row_of

MAX_FILES: Final = 12_000
"""64 chips of 8 cores have 4600."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Word = Annotated[str, Meta(max_length=64, pattern=r"^[\x20-\x7e]*\Z")]
Number = Annotated[int, Meta(ge=-1, le=(1 << 62))]
ChipIndex = Annotated[int, Meta(ge=0, le=999)]
DeviceNumber = Annotated[str, Meta(max_length=16, pattern=r"^(?:[0-9]{1,5}:[0-9]{1,8})?\Z")]


class SeenFile(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One file, device node, directory or socket of the host."""

    kind: Kind = "file"
    text: Text | None = None
    """Without surrounding white space; None: it could not be read (``problem``), or the kind has none."""
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
    container_runtime: Word = ""
    """As in a Node's status, such as ``containerd://2.1.5``."""
    opened: Opened | None = None
    container: ContainerView | None = None

    @cached_property
    def instance_type(self) -> str | None:
        """What DMI says; None: nothing of the form of an EC2 instance type."""
        text = self.text("product-name")
        usable = text is not None and form_of(FILES["product-name"]).fullmatch(text)
        return text.removeprefix(HYPERPOD_PREFIX) if text is not None and usable else None

    @cached_property
    def kind(self) -> InstanceType | None:
        """The table's row of the instance type."""
        return lookup(self.instance_type) if self.instance_type is not None else None

    @cached_property
    def version(self) -> tuple[int, ...] | None:
        """Of the kernel driver, for comparison; None: unknown."""
        text = self.text("module-version")
        usable = text is not None and form_of(FILES["module-version"]).fullmatch(text)
        return tuple(map(int, text.split("."))) if text is not None and usable else None

    @cached_property
    def chips(self) -> tuple[int, ...]:
        """Chips that have files in sysfs, ascending."""
        return tuple(sorted({int(chip) for chip in self._groups("chip", "sys/devices/")}))

    @cached_property
    def by_row(self) -> Mapping[str, Mapping[tuple[str, ...], SeenFile]]:
        """Key of a row -> what stands for its places in the path -> the file."""
        found: dict[str, dict[tuple[str, ...], SeenFile]] = {}
        for path, seen in self.files.items():
            row = row_of(path)
            match = path_pattern(row).fullmatch(path) if row is not None else None
            if row is not None and match is not None:
                found.setdefault(row.key, {})[match.groups()] = seen
        return found

    def file(self, key: str, *places: str) -> SeenFile | None:
        """The file of a row; None: there is none."""
        return self.by_row.get(key, {}).get(places)

    def text(self, key: str, *places: str) -> str | None:
        """Its text; None: there is no such file, or it could not be read."""
        seen = self.file(key, *places)
        return seen.text if seen is not None else None

    def of_chip(self, key: str, chip: int) -> SeenFile | None:
        """The file of a row for one chip."""
        return self.file(key, f"neuron{chip}")

    def cores(self, chip: int) -> tuple[int, ...]:
        """Cores of a chip that have a directory, ascending."""
        found = (places[1] for places in self.by_row.get("core-arch", {}) if places[0] == f"neuron{chip}")
        return tuple(sorted(int(name.removeprefix("neuron_core")) for name in found))

    def pci(self, *device_ids: str) -> tuple[str, ...]:
        """Addresses of Amazon's PCI devices whose id matches one of these regular expressions, ascending."""
        return tuple(
            sorted(
                address
                for (address,), seen in self.by_row.get("pci-device", {}).items()
                if any(re.fullmatch(f"0x{expected}", seen.text or "") for expected in device_ids)
            )
        )

    def _groups(self, place: str, below: str) -> Iterator[str]:
        for path in self.files:
            row = row_of(path)
            match = path_pattern(row).fullmatch(path) if row is not None and path.startswith(below) else None
            if match is not None and place in match.re.groupindex:
                yield match[place].removeprefix("neuron")


def unknown_paths(evidence: Evidence) -> Iterator[str]:
    """Paths that no row of the host's files describes, or that are of another kind than its."""
    for path, seen in evidence.files.items():
        row = row_of(path)
        if row is None or row.kind != seen.kind:
            yield path


def plain(value: Any) -> Any:
    """A value of this module as JSON-ready values."""
    from msgspec import to_builtins

    return to_builtins(value, str_keys=True)
