"""A claim's file in the checkpoint: what it looks like, and who can read it.

A file has a version, a checksum and the entry. The version is that of the oldest reader that understands the entry: 1,
unless the entry says something that such a reader would get wrong. A reader sets aside what is for later ones. Fields
that it does not know are ignored: the checksum is over the bytes of the entry as they stand in the file. They stay
there until the entry changes, and are lost when it is written again, so a field may do without a higher version if
nothing is wrong without it.
"""

from __future__ import annotations

import hashlib

import msgspec

from dra_driver.driver.claims.model import CheckpointEntry

VERSION = 1
"""Version of this reader, and of all files that it writes: each needs a reader of this version, and no later one."""


class _File(msgspec.Struct, frozen=True):
    version: int
    checksum: str
    entry: msgspec.Raw


_FILE = msgspec.json.Decoder(_File)
_ENTRY = msgspec.json.Decoder(CheckpointEntry)


def encoded(entry: CheckpointEntry) -> bytes:
    """The file of an entry."""
    return seal(msgspec.json.encode(entry))


def seal(raw: bytes) -> bytes:
    """The file of an entry that is encoded already."""
    return msgspec.json.encode(_File(VERSION, _checksum(raw), msgspec.Raw(raw))) + b"\n"


def decoded(data: bytes | None, uid: str) -> CheckpointEntry:
    """The entry in the file of claim ``uid``. ValueError says why it is none."""
    if data is None:
        raise ValueError("it is missing")
    try:
        entry = _ENTRY.decode(unseal(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if entry.plan.uid != uid:
        raise ValueError("it is about a different claim than its name says")
    return entry


def unseal(data: bytes) -> bytes:
    """The entry in a file, still encoded. ValueError says why there is none."""
    try:
        file = _FILE.decode(data)
        if file.version > VERSION:
            raise ValueError(
                f"it was written by a newer version of the driver, for readers of version {file.version} and later; "
                f"this one has version {VERSION}"
            )
        if file.checksum != _checksum(bytes(file.entry)):
            raise ValueError("its checksum is wrong")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return bytes(file.entry)


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
