"""Hints: what the kernel log said of a chip, one small file each.

The detector (``dra-driver node-problem-detector``) is the only part that may read the kernel log. It has no right at
the API server; the node's driver or device plugin, which has, finds what it wrote in a directory of the node that only
the detector can write to. This is the form of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec

from dra_driver.host.sysfs import HostFiles

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SRAM_UNCORRECTABLE_ERROR": "log-sram",
        "NC_UNCORRECTABLE_ERROR": "log-core",
        "HBM_UNCORRECTABLE_ERROR": "log-hbm",
        "DMA_ERROR": "log-dma",
    }
)
"""What ``NEURON_HW_ERR=`` may say, as in the rules of AWS's detector (aws-neuron-sdk
``src/k8/neuron-problem-detector``), to the code of the fault in ``faults.FAULTS``."""

DIRECTORY: Final = "/run/neuron-health"
"""Where hints are unless told otherwise: a directory of the node, emptied by a reboot."""

MAX_HINTS: Final = 256
"""Files in the directory. A line names one of at most 64 chips, and there are four kinds."""

MAX_HINT_BYTES: Final = 4096
"""Of one file; an actual one has about 200."""

MAX_NUMBER: Final = 255
"""Of a device or a core: more than any host has."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class Hint(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a line said, and when. It says so of a chip by its serial number, or by its device number, or by both."""

    boot_id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f-]{1,64}\Z")]
    """Boot of the node in which the line was logged; a hint of another boot means nothing."""
    kind: str
    """A key of ``KINDS``."""
    device: _Number | None
    """``nd-id`` of the line. A container may number its devices itself, so a serial number counts for more."""
    serial: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{16})?\Z")]
    """``serial-num`` of the line, 16 hex digits as in sysfs (``info/serial_number``), or ""."""
    core: _Number | None
    """``nc-id`` of the line."""
    seen: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    """When the newest such line was logged, in whole seconds of Unix time."""
    version: Literal[1] = 1

    @property
    def name(self) -> str:
        """Name of its file. What another line says of the same chip by the same name goes into the same file."""
        return f"{self.kind}-{self.serial or self.device}.json"


def encode(hint: Hint) -> bytes:
    """Content of a hint's file."""
    return msgspec.json.encode(hint) + b"\n"


def decode(data: bytes) -> Hint:
    """A hint from the content of its file.

    Raises:
        ValueError: it is none of version 1.
    """
    if len(data) > MAX_HINT_BYTES:
        raise ValueError(f"a hint of {len(data)} bytes; the limit is {MAX_HINT_BYTES}")
    try:
        hint = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no hint of version 1: {error}") from error
    if hint.kind not in KINDS:
        raise ValueError(f"a hint of the kind {hint.kind[:64]!r}; known: {', '.join(KINDS)}")
    if hint.device is None and not hint.serial:
        raise ValueError("a hint that names no chip")
    return hint


def read_hints(directory: Path) -> tuple[tuple[Hint, ...], int]:
    """The hints in a directory, ordered by name of file, and how many files are none. Never raises.

    At most ``MAX_HINTS`` files are looked at, and only regular ones.
    """
    files = HostFiles(directory)
    names = [name for name in files.names("") if name.endswith(".json") and not name.startswith(".")]
    found = []
    for name in names[:MAX_HINTS]:
        try:
            found.append(decode((files.read(name).text or "").encode()))
        except ValueError:
            continue
    return tuple(found), len(names) - len(found)


_DECODER: Final = msgspec.json.Decoder(Hint)
