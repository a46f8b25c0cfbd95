"""Writes the file tree of a Neuron host to a directory of its own, and changes it while it is being read.

The driver reads it like a real host; only a banner says that it is emulated. Each file is replaced by a rename, so a
reader sees either the old or the new content. Directories below ``whole_below`` (such as a sysfs device) appear and
vanish as a whole. ``commit`` is written last, so that a tree that is being written for the first time can be
distinguished from a finished one. A marker file at the top lists what was written: nothing else is ever removed, and a
directory with content but without the marker is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from dra_driver.neuron.emulation.options import EmulationOptions, check
from dra_driver.neuron.emulation.tree import (
    DEVICES,
    MODULE_VERSION,
    CharacterDevice,
    Entry,
    SymbolicLink,
    TextFile,
    host_files,
)
from dra_driver.neuron.host.discover import EMULATION_MARKER
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.util.errors import DriverError

_STAGING = ".dra-driver-staging"
_MARKER_LIMIT = 4 << 20
_COMMENT = "Written by 'dra-driver emulate-host'. Delete this directory when it is no longer needed."


@dataclass(frozen=True, slots=True)
class TreeWriter:
    """Where and how to write; ``write`` may be called repeatedly, also by several processes at a time."""

    root: Path
    marker: str
    whole_below: str
    commit: str

    def write(self, tree: Mapping[str, Entry], before: Mapping[str, Entry] = MappingProxyType({})) -> None:
        """Make the directory contain exactly ``tree``. Raises DriverError, if possible before any change.

        Files that are the same in ``before`` are left as they are: somebody may have edited them since.
        """
        if os.path.realpath(self.root) == "/":
            raise DriverError("an emulated host cannot be written to /", remedy="name another directory")
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            with _locked(self.root):
                same = frozenset(path for path, entry in tree.items() if before.get(path) == entry)
                self._replace(tree, self._written_before(), same)
        except OSError as error:
            raise DriverError(
                f"cannot write the emulated host to {self.root}: {error}",
                consequence="it may be incomplete",
                remedy="name a directory on a local file system that you may write to, and try again",
            ) from error

    def move(self, files: Mapping[str, Entry]) -> None:
        """Replace these files of a tree that was written before, and nothing else: one that is gone stays gone.

        Raises DriverError.
        """
        try:
            with _locked(self.root):
                staging = self.root / _STAGING
                staging.mkdir(exist_ok=True)
                for path, entry in files.items():
                    staged = staging / "moved"
                    _make(staged, entry)
                    if (self.root / path).exists():
                        # Its directory may have been taken away just now; nothing is to be made in its place.
                        with suppress(FileNotFoundError, NotADirectoryError):
                            staged.replace(self.root / path)
                shutil.rmtree(staging)
        except OSError as error:
            raise DriverError(
                f"cannot change the emulated host in {self.root}: {error}",
                consequence="its counters and heartbeats do not advance",
                remedy="give the driver a directory on a local file system that it may write to",
            ) from error

    def _replace(self, tree: Mapping[str, Entry], before: frozenset[str], same: frozenset[str]) -> None:
        staging = self.root / _STAGING
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        self._put_marker(before | tree.keys())
        kept = {self._whole(path) for path in tree}
        for directory in sorted({self._whole(path) for path in before} - kept):
            self._take_away(directory)
        for path in sorted(before - tree.keys()):
            if any(str(parent) in tree for parent in PurePosixPath(path).parents):
                self._remove(path)  # the directory becomes a link
        new = {directory for directory in kept if directory and not self._path(directory).is_dir()}
        for path in sorted(tree.keys() - same - {self.commit}):
            if self._whole(path) not in new:
                self._put(path, tree[path])
        for directory in sorted(new):
            self._put_whole(directory, tree)
        for path in sorted(before - tree.keys()):
            self._remove(path)
        if self.commit in tree and self.commit not in same:
            self._put(self.commit, tree[self.commit])
        self._put_marker(frozenset(tree))
        shutil.rmtree(staging)

    def _whole(self, path: str) -> str:
        """The directory together with which ``path`` appears, or "" if it appears on its own."""
        beyond = path.removeprefix(f"{self.whole_below}/")
        return f"{self.whole_below}/{beyond.partition('/')[0]}" if beyond != path and "/" in beyond else ""

    def _path(self, path: str) -> Path:
        """The absolute path, after checking that no component leads out of the root."""
        here = self.root
        for part in PurePosixPath(path).parts[:-1]:
            here /= part
            if here.is_symlink() or not here.is_dir():
                here.mkdir(mode=0o755)
        return here / PurePosixPath(path).name

    def _put(self, path: str, entry: Entry) -> None:
        target = self._path(path)
        if not _is_there(target, entry):
            staged = self.root / _STAGING / "entry"
            _make(staged, entry)
            staged.replace(target)

    def _put_whole(self, directory: str, tree: Mapping[str, Entry]) -> None:
        staged = self.root / _STAGING / "directory"
        directories: set[Path] = set()
        for path, entry in tree.items():
            if path.startswith(f"{directory}/"):
                target = staged / path.removeprefix(f"{directory}/")
                if target.parent not in directories:
                    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                    directories.add(target.parent)
                _make(target, entry)
        staged.rename(self._path(directory))

    def _take_away(self, directory: str) -> None:
        if directory and (target := self._path(directory)).is_dir() and not target.is_symlink():
            gone = self.root / _STAGING / "gone"
            target.rename(gone)
            shutil.rmtree(gone)

    def _remove(self, path: str) -> None:
        """Remove a file that was written before, and the directories that become empty."""
        target = self.root / path
        if any((self.root / parent).is_symlink() for parent in PurePosixPath(path).parents):
            return
        target.unlink(missing_ok=True)
        for parent in target.parents:
            if parent == self.root or not parent.is_dir() or any(parent.iterdir()):
                return
            parent.rmdir()

    def _put_marker(self, paths: frozenset[str] | set[str]) -> None:
        text = json.dumps({"comment": _COMMENT, "paths": sorted(paths)}, indent=1) + "\n"
        self._put(self.marker, TextFile(text))

    def _written_before(self) -> frozenset[str]:
        """The paths in the marker; raises DriverError if the directory has content that this program did not write."""
        names = {path.name for path in self.root.iterdir()} - {_STAGING}
        marker = self.root / self.marker
        if self.marker in names and not marker.is_symlink() and marker.is_file():
            paths = _marked(marker)
            if paths is not None:
                return paths
        elif not names:
            return frozenset()
        raise DriverError(
            f"{self.root} is not empty and was not made by 'dra-driver emulate-host'",
            consequence="nothing was written",
            remedy="name an empty or a new directory",
        )


def _marked(marker: Path) -> frozenset[str] | None:
    """The relative paths listed in a marker; None if the marker was modified."""
    if marker.stat().st_size > _MARKER_LIMIT:
        return None
    try:
        paths = json.loads(marker.read_bytes())["paths"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(paths, list) or not all(isinstance(path, str) and _is_inside(path) for path in paths):
        return None
    return frozenset(paths)


def _is_inside(path: str) -> bool:
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def _is_there(path: Path, entry: Entry) -> bool:
    """Whether ``path`` is as desired. A plain file does not count as a device node: mknod may succeed this time."""
    try:
        status = path.lstat()
        if isinstance(entry, SymbolicLink):
            return stat.S_ISLNK(status.st_mode) and str(path.readlink()) == entry.target
        if stat.S_IMODE(status.st_mode) != entry.mode:
            return False
        if isinstance(entry, CharacterDevice):
            return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(entry.major, entry.minor)
        return stat.S_ISREG(status.st_mode) and path.read_bytes() == entry.text.encode()
    except (FileNotFoundError, PermissionError):
        return False


def _make(path: Path, entry: Entry) -> None:
    if isinstance(entry, SymbolicLink):
        path.symlink_to(entry.target)
        return
    if isinstance(entry, TextFile):
        _write(path, entry.text.encode(), entry.mode)
        return
    try:
        os.mknod(path, stat.S_IFCHR, os.makedev(entry.major, entry.minor))
        path.chmod(entry.mode)
    except OSError:
        # Without CAP_MKNOD, or on a file system without device nodes, a plain file takes its place.
        _write(path, b"", entry.mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    """One file of a thousand: in as few system calls as there are."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock: one writer at a time."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


__all__ = ["EmulationOptions", "host_writer", "write_host"]


def host_writer(root: Path) -> TreeWriter:
    """The writer of an emulated host at ``root``."""
    return TreeWriter(root, EMULATION_MARKER, whole_below=DEVICES, commit=MODULE_VERSION)


def write_host(root: Path, kind: InstanceType, options: EmulationOptions | None = None) -> None:
    """Write an emulated host of type ``kind`` to ``root``, replacing one that was written there before.

    A driver that reads it meanwhile sees old or new files, never partial ones. Device nodes are character devices with
    the device number of the null device if this process may create them, otherwise plain files. The error counters of
    the cores are left out: ``EmulatedHost`` writes a host that can also become sick.

    Raises:
        DriverError: an option is not possible for the type; ``root`` is ``/``, has other content, or is not writable.
    """
    chosen = options or EmulationOptions()
    check(kind, chosen)
    host_writer(root).write(host_files(kind, chosen, counters=False))
