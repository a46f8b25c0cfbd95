"""Hints: what another program saw in the kernel log, one small file for each kind of line and chip.

The detector (``dra-driver node-problem-detector``) writes them and is the only part that may read the kernel log; the
node's driver or device plugin, which does without the capability for that, takes them in. What a hint is worth,
``assess`` decides; here it only has to be well-formed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.neuron.health.assess import KINDS, Hint
from dra_driver.neuron.host.sysfs import HostFiles

DIRECTORY: Final = "/run/neuron-health"
"""Where they are unless told otherwise: a directory of the node, emptied by a reboot."""
MAX_FILES: Final = 256
MAX_NUMBER: Final = 999
"""Of a device or a core."""
_MAX_BYTES: Final = 4096
_VERSION: Final = 1
_SUFFIX: Final = ".json"
_SERIAL = re.compile(r"[0-9a-f]{0,16}")
_BOOT_ID = re.compile(r"[0-9A-Za-z-]{0,64}")


class _Versioned(msgspec.Struct):
    """What a file has beside the fields of the hint."""

    version: int


def file_name(hint: Hint) -> str:
    """Name of a hint's file. A line that says the same of the same chip again goes into the same file.

    The serial number names the chip, if there is one: containers may number their devices themselves, so that two of
    them may say 0 and mean two chips.
    """
    return f"{hint.kind}-{hint.serial or hint.device}{_SUFFIX}"


def encode(hint: Hint) -> bytes:
    """Content of a hint's file."""
    return msgspec.json.encode({"version": _VERSION, **msgspec.to_builtins(hint)}) + b"\n"


def decode(data: bytes | str) -> Hint | None:
    """A hint from the content of its file; None if it is none."""
    if len(data) > _MAX_BYTES:
        return None
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        hint = msgspec.json.decode(data, type=Hint)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wrong = (
        version != _VERSION
        or hint.kind not in KINDS
        or not _BOOT_ID.fullmatch(hint.boot_id)
        or not _SERIAL.fullmatch(hint.serial)
        or not 0 <= hint.seen < 1 << 40
        or not all(number is None or 0 <= number <= MAX_NUMBER for number in (hint.device, hint.core))
    )
    return None if wrong else hint


def read_hints(directory: Path) -> tuple[tuple[Hint, ...], int]:
    """The hints in a directory, ordered by name of file, and how many files are none. Never raises.

    At most ``MAX_FILES`` files are looked at; only regular ones of a few kilobytes are read.
    """
    files = HostFiles(directory)
    names = [name for name in files.names("") if name.endswith(_SUFFIX) and not name.startswith(".")]
    texts = [files.read(name).text for name in names[:MAX_FILES]]
    hints = tuple(hint for text in texts if text is not None and (hint := decode(text)) is not None)
    return hints, len(names) - len(hints)
