"""The edge to the host's files: bounded reads below one root, which nothing on the host can lead out of.

Symbolic links are followed as if the root were ``/`` (absolute targets start at the root, ``..`` stops there), since
``/sys/class`` and, on some distributions, ``/opt`` consist of links. Only regular files are ever opened: opening a
device or a pipe has effects.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT = 64 * 1024
"""Bytes; every file the driver needs is far smaller, so a longer one is not what it seems."""

MAX_ENTRIES = 4096
"""Directory entries looked at; the kernel driver knows at most 64 devices."""

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading one file: its text without surrounding white space, or why there is none."""

    text: str | None
    problem: str = ""
    """Such as ``Permission denied``; empty when there is a text."""

    @property
    def missing(self) -> bool:
        """Nothing is there, as opposed to something that cannot be read."""
        return self == MISSING

    @property
    def busy(self) -> bool:
        """The kernel driver asks to read again later."""
        return self.text == "busy"


MISSING = Reading(None, "no such file")


class HostFiles:
    """The files of one host: directories found once are not looked up again, so make a new one for each scan.

    Paths are strings relative to ``root`` without a leading slash. No method raises, whatever is on the disk.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._directories: dict[str, str] = {"": self._root}

    def read(self, path: str) -> Reading:
        """Text of a regular file of at most ``LIMIT`` bytes of UTF-8."""
        try:
            real, status = self._locate(path)
            if not stat.S_ISREG(status.st_mode):
                return Reading(None, "not a regular file")
            data = _read_all(real)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except OSError as error:
            return Reading(None, os.strerror(error.errno or errno.EIO))
        if len(data) > LIMIT:
            return Reading(None, f"longer than {LIMIT} bytes")
        try:
            return Reading(data.decode().strip())
        except UnicodeDecodeError:
            return Reading(None, "not UTF-8 text")

    def open(self, path: str) -> int | None:
        """Descriptor of a regular file, for a poll; None when there is none. The caller closes it."""
        try:
            real, status = self._locate(path)
            return os.open(real, _OPEN_FLAGS) if stat.S_ISREG(status.st_mode) else None
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """What the symbolic link at ``path`` says; None when there is none."""
        parent, _, name = path.rpartition("/")
        try:
            return os.readlink(f"{self._directory(parent)}/{name}")  # noqa: PTH115 - as below
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a directory, at most ``MAX_ENTRIES`` of them, sorted; empty when it cannot be read."""
        try:
            real, _ = self._locate(path)
            with os.scandir(real) as entries:
                return tuple(sorted(entry.name for entry in itertools.islice(entries, MAX_ENTRIES)))
        except OSError:
            return ()

    def status(self, path: str) -> os.stat_result | None:
        """What is at ``path``, links followed; None when there is nothing."""
        try:
            return self._locate(path)[1]
        except OSError:
            return None

    def inode(self, path: str) -> int | None:
        """What tells a directory apart from another one that took its place; None when there is nothing."""
        status = self.status(path)
        return None if status is None else status.st_ino

    def is_directory(self, path: str) -> bool:
        """Whether a directory, or a link to one, is at ``path``."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _locate(self, path: str) -> tuple[str, os.stat_result]:
        """Real path below the root, with no link in it, and its status. Raises OSError."""
        parent, _, name = path.rpartition("/")
        if name in {"", ".", ".."}:
            return self._walk(path)
        real = f"{self._directory(parent)}/{name}"
        status = os.lstat(real)
        return self._walk(path) if stat.S_ISLNK(status.st_mode) else (real, status)

    def _directory(self, path: str) -> str:
        """Real path of what files are looked for in. Raises OSError."""
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories[path] = self._locate(path)[0]
        return directory

    def _walk(self, path: str) -> tuple[str, os.stat_result]:
        """Follow every link of ``path`` from the root down. Raises OSError."""
        real = f"{self._root}/{follow(path, self._target)}"
        return real, os.lstat(real)

    def _target(self, path: str) -> str | None:
        here = f"{self._root}/{path}"
        if not stat.S_ISLNK(os.lstat(here).st_mode):
            return None
        return os.readlink(here)  # noqa: PTH115 - pathlib doubles the cost of a scan


def _read_all(path: str) -> bytes:
    """At most ``LIMIT`` + 1 bytes. A second read at the end of a sysfs file does not make the kernel print it again."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        data = b""
        while len(data) <= LIMIT:
            chunk = os.read(descriptor, LIMIT + 1 - len(data))
            if not chunk:
                break
            data += chunk
    finally:
        os.close(descriptor)
    return data


_MOST: Final = 40
"""As Linux has it."""


def follow(path: str, target_of: Callable[[str], str | None]) -> str:
    """The path, relative to the root, after every link on its way. No link leads out of the root.

    Args:
        path: relative to the root.
        target_of: what the link at a path says; None when there is something else. May raise OSError.

    Raises:
        OSError: from ``target_of``, and ELOOP after 40 links.
    """
    done: list[str] = []
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            del done[-1:]
            continue
        target = target_of("/".join((*done, name)))
        if target is None:
            done.append(name)
            continue
        links += 1
        if links > _MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        pending.extend(reversed(target.split("/")))
    return "/".join(done)
