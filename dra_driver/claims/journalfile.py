"""The file of one prepared claim: version, checksum and the entry.

The checksum is over the bytes of the entry as they stand in the file, so fields that another version of the driver
added do not spoil it; they are ignored on reading. A file says which version a reader must have at least
(``minimumReader``), so a format may grow for as long as older drivers can still use it, and an older driver sets aside,
not misreads, what it cannot.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from dra_driver.claims.edits import cdi_device_name
from dra_driver.claims.values import Entry, Plan

VERSION = 1
"""Of the file format. A reader takes files whose ``minimumReader`` is at most this."""
_MINIMUM_READER = 1


class _File(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    minimum_reader: int
    checksum: str
    entry: msgspec.Raw


_FILE = msgspec.json.Decoder(_File)
_ENTRY = msgspec.json.Decoder(Entry)


def encoded(entry: Entry) -> bytes:
    """The file of an entry."""
    raw = msgspec.json.encode(entry)
    return msgspec.json.encode(_File(VERSION, _MINIMUM_READER, _checksum(raw), msgspec.Raw(raw))) + b"\n"


def decoded(data: bytes | None, uid: str) -> Entry:
    """The entry in the file of claim ``uid``. ValueError says why it is none."""
    if data is None:
        raise ValueError("it is missing")
    try:
        file = _FILE.decode(data)
        if file.minimum_reader > VERSION:
            raise ValueError(
                f"it was written by a newer version of the driver (format {file.version}, for readers of format "
                f"{file.minimum_reader} and later; this one has {VERSION})"
            )
        if file.checksum != _checksum(bytes(file.entry)):
            raise ValueError("its checksum is wrong")
        entry = _ENTRY.decode(file.entry)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if entry.plan.uid != uid:
        raise ValueError("it is about another claim than its name says")
    return replace(entry, plan=_named(entry.plan))


def _named(plan: Plan) -> Plan:
    """The plan with the names of its CDI devices; a version that did not keep them made them of the variables."""
    if all(device.cdi_name for device in plan.devices):
        return plan
    seen = [f"{name}={value}" for name, value in sorted(plan.env.items())]
    names = [cdi_device_name(plan.uid, device.device, device.nodes, seen) for device in plan.devices]
    return replace(
        plan, devices=tuple(replace(device, cdi_name=name) for device, name in zip(plan.devices, names, strict=True))
    )


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
