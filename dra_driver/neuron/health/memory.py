"""The record of what is known of a node's chips, on disk: a restart of the driver forgets nothing.

Like a file of the checkpoint it has the version of the oldest reader that understands it, and a checksum over the bytes
of the record as they stand in the file. A file that cannot be used is moved aside and reported: the host says most
faults again, within two readings. A disk that cannot be written stops nothing either, and none is waited for: a loss of
power is a boot, which ends what only the driver remembers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.neuron.health.assess import ChipMemory, CounterState, HealthMemory, Heartbeat, Track
from dra_driver.neuron.health.faults import FAULTS
from dra_driver.util import runtime
from dra_driver.util.files import read_file, replace_file

VERSION: Final = 1
"""Of this reader, and of the files that it writes."""
FILE: Final = "health.json"
ASIDE: Final = "health.json.unusable"
_ABANDONED_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True):
    version: int
    checksum: str
    memory: msgspec.Raw


_FILE = msgspec.json.Decoder(_File)
_MEMORY = msgspec.json.Decoder(HealthMemory)


def encoded(memory: HealthMemory) -> bytes:
    """The file of a record; equal records give equal bytes."""
    raw = msgspec.json.encode(memory, order="sorted")
    return msgspec.json.encode(_File(VERSION, _checksum(raw), msgspec.Raw(raw))) + b"\n"


def decoded(data: bytes) -> HealthMemory:
    """The record in a file. ValueError says why it is none."""
    try:
        file = _FILE.decode(data)
        if file.version > VERSION:
            raise ValueError(f"it was written by a newer version of the driver (version {file.version})")
        if file.checksum != _checksum(bytes(file.memory)):
            raise ValueError("its checksum is wrong")
        memory = _MEMORY.decode(file.memory)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # A version of the driver with other faults may have written it.
    chips = (
        msgspec.structs.replace(chip, tracks={code: track for code, track in chip.tracks.items() if code in FAULTS})
        for chip in memory.chips
    )
    return msgspec.structs.replace(memory, chips=tuple(chips))


def lasting(memory: HealthMemory) -> HealthMemory:
    """What of a record must not be lost: without the counts and times that change with every reading."""
    return msgspec.structs.replace(memory, chips=tuple(map(_lasting, memory.chips)))


def _lasting(chip: ChipMemory) -> ChipMemory:
    return msgspec.structs.replace(
        chip,
        tracks={
            code: Track(track.first, since=track.since, earlier_boot=track.earlier_boot, uptime=track.uptime)
            for code, track in chip.tracks.items()
            if track.since
        },
        counters={name: CounterState(0, item.base, item.carried) for name, item in chip.counters.items()},
        heartbeat=Heartbeat(0, 0.0, moves=True) if chip.heartbeat is not None and chip.heartbeat.moves else None,
    )


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class MemoryFile:
    """The record below ``directory``, for one writer in this process. Neither ``read`` nor ``write`` raises.

    Args:
        directory: made when missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE
        # During an update two instances of the driver may write.
        self._temporary = f".{FILE}.{uuid.uuid4().hex[:8]}.new"
        self.problem = ""
        """Why it could not be written the last time; "" when it could."""

    def read(self, *, move_aside: bool = True) -> HealthMemory:
        """What was written last; ``HealthMemory()`` when there is nothing that can be used.

        ``move_aside``: keep what cannot be used under another name, for whoever wants to look at it.
        """
        try:
            data = read_file(self._path)
            return HealthMemory() if data is None else decoded(data)
        except (OSError, ValueError) as error:
            log.error(  # noqa: TRY400 # it explains itself
                "%s cannot be used: %s; only the faults that the host reports now are known%s",
                self._path,
                error,
                f"; the file is kept as {ASIDE}" if move_aside else "",
            )
            if move_aside:
                with contextlib.suppress(OSError):
                    self._path.replace(self._path.with_name(ASIDE))
            return HealthMemory()

    def write(self, memory: HealthMemory) -> bool:
        """Replace the record; False, and ``problem``, when that is not possible."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            replace_file(self._path, encoded(memory), temporary=self._temporary, mode=0o600, synced=False)
        except OSError as error:
            problem = f"{self._path} cannot be written: {error.strerror or error}"
            if problem != self.problem:
                log.error("%s; after a restart, the driver knows only the faults that the host reports then", problem)  # noqa: TRY400
            self.problem = problem
            return False
        if self.problem:
            log.info("%s can be written again", self._path)
        self.problem = ""
        return True

    def _sweep(self) -> None:
        """Remove what killed instances left half-written. Raises OSError."""
        for path in self._directory.glob(f".{FILE}.*.new"):
            if runtime.now() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
