"""The files of one CDI kind in a CDI directory (such as ``/var/run/cdi``), one file for each owner of devices.

Other drivers have files there too; only files named ``<vendor>-<class>_<owner>.json`` of the own kind, and temporary
files of those, are ever read, written or removed. The directory is on a tmpfs on most hosts and what is in it can
always be written again, so nothing here waits for a disk: a file that a loss of power took is written by the next
prepare or repair. What must survive is the caller's to keep elsewhere.

One writer at a time (callers hold a lock across processes); readers need none, since files change whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dra_driver.cdi.spec import Spec, decode, encode
from dra_driver.util.errors import DriverError
from dra_driver.util.files import read_file, remove_file, replace_file

_OWNER = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")
"""What an owner may be called: safe in a file name and in a CDI device name."""


class SpecDirectory:
    """Spec files of ``kind`` (``vendor/class``) below ``path``; the directory is made at the first write.

    Methods raise DriverError when the directory cannot be read or written, or an owner's name is not usable.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self._prefix = kind.replace("/", "-") + "_"
        self._temporary_prefix = f"spec.{self._prefix}"

    def qualified(self, name: str) -> str:
        """The fully qualified CDI name of a device of this kind."""
        return f"{self.kind}={name}"

    def file(self, owner: str) -> Path:
        """Where the owner's spec is kept."""
        return self.path / f"{self._prefix}{_checked(owner)}.json"

    def write(self, owner: str, spec: Spec) -> bool:
        """Put the owner's spec in place; False when the very same bytes were there."""
        path, data = self.file(owner), encode(spec)
        if self._content(path) == data:
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
        return True

    def remove(self, owner: str) -> bool:
        """Remove the owner's spec; False when there was none."""
        return self._remove(self.file(owner))

    def read(self, owner: str) -> Spec | None:
        """The owner's spec; None when there is none or it cannot be understood."""
        data = self._content(self.file(owner))
        if data is None:
            return None
        try:
            return decode(data)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None

    def content(self, owner: str) -> bytes | None:
        """The bytes of the owner's file; None when there is none or it cannot be read."""
        return self._content(self.file(owner))

    def list(self) -> dict[str, Path]:
        """Own spec files by owner."""
        return {
            owner: self.path / name
            for name in self._names()
            if (owner := _between(name, self._prefix, ".json")) is not None
        }

    def remove_temporary(self) -> int:
        """Remove what killed writers of this kind left; the number of files."""
        return sum(
            self._remove(self.path / name)
            for name in self._names()
            if _between(name, self._temporary_prefix, ".tmp") is not None
        )

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
        except OSError as error:
            raise self._unusable("remove", path, error) from error

    def _content(self, path: Path) -> bytes | None:
        try:
            return read_file(path)
        except OSError:
            return None

    def _unusable(self, verb: str, path: Path, error: OSError) -> DriverError:
        return DriverError(
            f"cannot {verb} {path}: {error.strerror or error}",
            consequence="container runtimes do not get the devices of this claim",
            remedy=f"check that {self.path} is mounted and writable for the driver",
        )


def _between(name: str, prefix: str, suffix: str) -> str | None:
    """The owner in a file name, None for names that are none of ours."""
    if not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    owner = name[len(prefix) : -len(suffix)]
    return owner if _OWNER.fullmatch(owner) else None


def _checked(owner: str) -> str:
    if not _OWNER.fullmatch(owner):
        raise DriverError(
            f"{owner[:60]!r} cannot name a CDI spec",
            consequence="nothing is written",
            remedy="use letters, digits, hyphens, dots and underscores, a letter or digit first",
        )
    return owner
