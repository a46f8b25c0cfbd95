"""Container CdiDevice Interface: typed specs, and the spec files of one CDI kind in a CDI directory.

Specs follow CDI 1.1.0 (cncf-tags/container-device-interface SPEC.md). A directory such as ``/var/run/cdi`` holds one
file per owner of devices. Other programs keep files there too, also under names that begin like ours. What is found is
ours if it is a regular file named ``<vendor>-<class>_<owner>.json``, the owner being a UID; or a temporary file of such
a one. Nothing else is read or removed, and no link is followed. The directory is on a tmpfs on most hosts and
its content can always be regenerated, so nothing here calls fsync. State that must survive a reboot is the caller's
responsibility. There must be one writer at a time (callers hold an inter-process lock); readers need no lock because
files are replaced atomically.

On a tmpfs every spec is of this boot. Elsewhere specs outlive a boot, and their times are no proof of anything, as
clocks are set. So a file beside them, in which runtimes see no spec, has the boot in which each was first seen, with
the inode and the time of the file: as its identity, never to be compared with a clock. A spec is of an earlier boot
only if that file says so. What it says nothing of counts as written in this boot: the spec of a writer that was killed
before it had noted it, or of a version of the program that takes no notes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from dra_driver.util.errors import DriverError
from dra_driver.util.files import is_regular, is_uuid, on_tmpfs, readable_content, remove_file, replace_file


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A device node in the container. If type, major and minor are set, the runtime does not stat the host's node."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class Mount(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str | None = None


class ContainerEdits(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Changes to a container; ``env`` entries are ``KEY=value``, and later entries win."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


class CdiDevice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One CDI device; ``container_edits`` must not be empty."""

    name: str
    container_edits: ContainerEdits


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A CDI spec file."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits | None = None


def encode(spec: Spec) -> bytes:
    """Encode a spec as JSON. Equal specs give equal bytes."""
    return msgspec.json.encode(spec) + b"\n"


def decode(data: bytes) -> Spec:
    """Decode a spec from JSON. Raises ValueError (RecursionError for absurd nesting) for anything else."""
    return _DECODER.decode(data)


def minimum_version(spec: Spec) -> str:
    """The lowest CDI version that has every feature the spec uses; a runtime refuses a spec that declares a lower one.

    Source: SPEC.md of cncf-tags/container-device-interface, table of versions. Of the features that these structs can
    express, 0.4.0 introduced ``mounts[].type``, 0.5.0 ``hostPath`` of device nodes and device names that start with a
    digit, and 0.6.0 dots in the class.
    """
    edits = [device.container_edits for device in spec.devices]
    if spec.container_edits is not None:
        edits.append(spec.container_edits)
    needs = (
        ("0.6.0", "." in spec.kind.partition("/")[2]),
        ("0.5.0", any(device.name[:1].isdigit() for device in spec.devices)),
        ("0.5.0", any(node.host_path is not None for edit in edits for node in edit.device_nodes)),
        ("0.4.0", any(mount.type is not None for edit in edits for mount in edit.mounts)),
    )
    return next((version for version, needed in needs if needed), "0.3.0")


_DECODER = msgspec.json.Decoder(Spec)


_OWNER = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")
"""Valid owner names: safe both in a file name and in a CDI device name."""


class _Sighting(msgspec.Struct, frozen=True):
    """In which boot a file was first seen."""

    boot: str
    inode: int
    written: int
    """The file's time in nanoseconds."""

    def is_of(self, status: os.stat_result) -> bool:
        """Whether this is still the file: one that replaces it has another inode, or at least another time."""
        return (self.inode, self.written) == (status.st_ino, status.st_mtime_ns)


_SIGHTINGS = msgspec.json.Decoder(dict[str, _Sighting])

MOUNTS = Path("/proc/self/mountinfo")


class SpecDirectory:
    """Spec files of ``kind`` (``vendor/class``) in ``path``; the directory is created by the first write.

    Methods raise DriverError if the directory cannot be read or written, or if an owner's name is invalid.

    Args:
        path: the directory.
        kind: vendor and class.
        boot_id: identity of this boot of the node; "" if it is not known: then every spec counts as of this boot.
        mounts: the table of mounted file systems, as ``/proc/self/mountinfo``.
    """

    def __init__(self, path: Path, kind: str, boot_id: str = "", *, mounts: Path = MOUNTS) -> None:
        self.path = path
        self.kind = kind
        self._boot_id = boot_id
        self._mounts = mounts
        self._prefix = kind.replace("/", "-") + "_"
        self._temporary_prefix = f"spec.{self._prefix}"
        # By its name no former version's spec or temporary file, and by its ending no spec to a runtime.
        self._sightings_file = path / f"{self._temporary_prefix}boots"

    def qualified(self, name: str) -> str:
        """The fully qualified CDI name of a device of this kind."""
        return f"{self.kind}={name}"

    def file(self, owner: str) -> Path:
        """The path of the owner's spec file."""
        return self.path / f"{self._prefix}{_checked(owner)}.json"

    def write(self, owner: str, spec: Spec) -> bool:
        """Write the owner's spec; returns False if the file had exactly these bytes, and is of this boot."""
        path, data = self.file(owner), encode(spec)
        if readable_content(path) == data and self.of_this_boot(owner):
            return False
        temporary = f"{self._temporary_prefix}{owner}.tmp"
        try:
            try:
                replace_file(path, data, temporary=temporary, mode=0o644, synced=False)
            except FileNotFoundError:
                self.path.mkdir(parents=True, exist_ok=True)
                self.path.chmod(0o755)
                replace_file(path, data, temporary=temporary, mode=0o644, synced=False)
        except OSError as error:
            raise self._unusable("write", path, error) from error
        self._note_boot(owner)
        return True

    def remove(self, owner: str) -> bool:
        """Remove the owner's spec; returns False if there was none (runtimes find none in a directory of its name)."""
        was_there = self._remove(self.file(owner))
        self._note_boot(owner)
        return was_there

    def read(self, owner: str) -> Spec | None:
        """The owner's spec; None if there is none, or it cannot be decoded, or is of another kind."""
        data = readable_content(self.file(owner))
        if data is None:
            return None
        try:
            spec = decode(data)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        return spec if spec.kind == self.kind else None

    def content(self, owner: str) -> bytes | None:
        """The bytes of the owner's file; None if there is none or it cannot be read."""
        return readable_content(self.file(owner))

    def of_this_boot(self, owner: str) -> bool:
        """Whether what is in the place of the owner's spec may have been written since the node was booted."""
        try:
            status = self.file(owner).lstat()
        except OSError:
            return False
        sighting = self._sightings().get(owner)
        earlier = sighting is not None and sighting.is_of(status) and sighting.boot != self._boot_id
        return not (earlier and self._boot_id) or on_tmpfs(self.path, self._mounts)

    def note_boots(self) -> None:
        """Note the specs that are seen for the first time as of this boot; where that fails, they count as such."""
        if self._notes_boots():
            before = self._sightings()
            with contextlib.suppress(OSError, DriverError):
                after = {owner: self._sighting(owner, path, before) for owner, path in self.list().items()}
                self._store_sightings(before, after)

    def _note_boot(self, owner: str) -> None:
        """The same for what is in the place of one owner's spec: a look at all costs 2 ms beside a hundred of them."""
        if self._notes_boots():
            before, path = self._sightings(), self.file(owner)
            after = {other: sighting for other, sighting in before.items() if other != owner}
            with contextlib.suppress(OSError):
                if is_regular(path):
                    after[owner] = self._sighting(owner, path, before)
                self._store_sightings(before, after)

    def _notes_boots(self) -> bool:
        return bool(self._boot_id) and not on_tmpfs(self.path, self._mounts)

    def _sighting(self, owner: str, path: Path, before: Mapping[str, _Sighting]) -> _Sighting:
        status, sighting = path.lstat(), before.get(owner)
        if sighting is not None and sighting.is_of(status):
            return sighting
        return _Sighting(self._boot_id, status.st_ino, status.st_mtime_ns)

    def _store_sightings(self, before: Mapping[str, _Sighting], after: Mapping[str, _Sighting]) -> None:
        if not after:
            remove_file(self._sightings_file)
        elif after != before:
            name = f"{self._sightings_file.name}.tmp"
            replace_file(self._sightings_file, msgspec.json.encode(after), temporary=name, mode=0o644, synced=False)

    def _sightings(self) -> Mapping[str, _Sighting]:
        try:
            return _SIGHTINGS.decode(readable_content(self._sightings_file) or b"{}")
        except (ValueError, RecursionError):
            return {}

    def list(self) -> dict[str, Path]:
        """Files named as specs of this kind, by owner."""
        return self._files(self._prefix, ".json")

    def others(self, owners: Collection[str]) -> Sequence[Path]:
        """What is named as if it were of this kind, but is the spec of none of the owners."""
        own = {self.file(owner).name for owner in owners}
        return [self.path / name for name in self._names() if name.startswith(self._prefix) and name not in own]

    def remove_temporary(self) -> int:
        """Remove temporary files that killed writers of this kind left behind; returns the number of files."""
        return sum(map(self._remove, self._files(self._temporary_prefix, ".tmp").values()))

    def _files(self, prefix: str, suffix: str) -> dict[str, Path]:
        return {
            owner: self.path / name
            for name in self._names()
            if is_uuid(owner := name.removeprefix(prefix).removesuffix(suffix))
            and name == f"{prefix}{owner}{suffix}"
            and is_regular(self.path / name)
        }

    def _names(self) -> Sequence[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("list", self.path, error) from error

    def _remove(self, path: Path) -> bool:
        try:
            return remove_file(path)
        except IsADirectoryError:
            return False
        except OSError as error:
            raise self._unusable("remove", path, error) from error

    def _unusable(self, verb: str, path: Path, error: OSError) -> DriverError:
        return DriverError(
            f"cannot {verb} {path}: {error.strerror or error}",
            consequence="container runtimes do not get the devices of this claim",
            remedy=f"check that {self.path} is mounted and writable for the driver",
        )


def _checked(owner: str) -> str:
    if not _OWNER.fullmatch(owner):
        raise DriverError(
            f"{owner[:60]!r} cannot name a CDI spec",
            consequence="nothing is written",
            remedy="use letters, digits, hyphens, dots and underscores, a letter or digit first",
        )
    return owner
