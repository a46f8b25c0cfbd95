"""Takes in what another program saw in the kernel log: one small file for each kind of line and chip.

The driver itself reads no kernel log: that needs a capability that it does without. What a hint is worth, ``assess``
decides; here it only has to be well-formed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.health.assess import KINDS, Hint
from dra_driver.host.sysfs import HostFiles

MAX_FILES: Final = 256
_MAX_BYTES: Final = 4096
_VERSION: Final = 1
_SUFFIX: Final = ".json"
_SERIAL = re.compile(r"[0-9a-f]{0,16}")
_BOOT_ID = re.compile(r"[0-9A-Za-z-]{0,64}")


class _File(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    boot_id: str
    kind: str
    seen: int
    device: int | None = None
    serial: str = ""
    core: int | None = None


_FILE = msgspec.json.Decoder(_File)


def read_hints(directory: Path) -> tuple[tuple[Hint, ...], int]:
    """The hints in a directory, ordered by name of file, and how many files are none. Never raises.

    At most ``MAX_FILES`` files are looked at; only regular ones of a few kilobytes are read.
    """
    files = HostFiles(directory)
    names = [name for name in files.names("") if name.endswith(_SUFFIX) and not name.startswith(".")]
    read = [_hint(files, name) for name in names[:MAX_FILES]]
    hints = tuple(hint for hint in read if hint is not None)
    return hints, len(names) - len(hints)


def _hint(files: HostFiles, name: str) -> Hint | None:
    text = files.read(name).text
    if text is None or len(text) > _MAX_BYTES:
        return None
    try:
        file = _FILE.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    wrong = (
        file.version != _VERSION
        or file.kind not in KINDS
        or not _BOOT_ID.fullmatch(file.boot_id)
        or not _SERIAL.fullmatch(file.serial)
        or not 0 <= file.seen < 1 << 40
        or not all(number is None or 0 <= number < 1000 for number in (file.device, file.core))
    )
    return None if wrong else Hint(file.boot_id, file.kind, file.seen, file.device, file.serial, file.core)
