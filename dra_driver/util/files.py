"""Small files, read and replaced as a whole: never half-written, never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
"""Far more than any file of this driver has."""
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
UUID_LENGTH = 36


def is_uid(text: str) -> bool:
    """Whether ``text`` can be a UID: 1 to 64 characters that are safe in a file name, the first no dot."""
    return _UID.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    """Whether ``text`` has the form of the UIDs that the API server gives; no other file is an object's."""
    return _UUID.fullmatch(text) is not None


def replace_file(path: Path, data: bytes, *, temporary: str, mode: int, synced: bool) -> None:
    """Put ``data`` under ``path`` at once: readers see the old file or the new one, whole.

    Args:
        path: the file.
        data: its content.
        temporary: name, in the same directory, to write under first; what is there is taken as left by a killed
            writer, so two writers must not use one name at a time.
        mode: permission bits, whatever the umask.
        synced: wait until the content has reached the disk before it gets its name, so that a loss of power leaves
            the old file or the new one, whole. Which of them is certain only after a sync of the directory.

    Raises:
        OSError: nothing changed under ``path``.
    """
    # Text, since every preparation writes two files: pathlib takes as long for their names as the kernel for a file.
    target = os.fspath(path)
    staged = os.path.join(os.path.dirname(target), temporary)  # noqa: PTH118, PTH120
    write_file(staged, data, mode=mode, synced=synced)
    try:
        os.replace(staged, target)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(staged)  # noqa: PTH108
        raise


def write_file(path: str, data: bytes, *, mode: int, synced: bool) -> None:
    """Write a file that has no reader yet, for ``os.replace``; as ``replace_file``. Raises OSError: it is not there."""
    try:
        try:
            _write_new(path, data, mode, synced=synced)
        except FileExistsError:
            os.unlink(path)  # noqa: PTH108
            _write_new(path, data, mode, synced=synced)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        raise


def _write_new(path: str, data: bytes, mode: int, *, synced: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> bool:
    """Remove a file (of a symbolic link: the link). False when there was none. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def read_file(path: Path) -> bytes | None:
    """Content of a regular file, None if it does not exist.

    Raises:
        OSError: unreadable, a symbolic link, not a regular file, or larger than ``MAX_FILE_BYTES``.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - opened above without following links
        data = file.read(MAX_FILE_BYTES + 1)
    if data is None or len(data) > MAX_FILE_BYTES:
        raise OSError(f"{path} is larger than {MAX_FILE_BYTES} bytes, so it is not one of ours")
    return data


def readable_content(path: Path) -> bytes | None:
    """Content of a file that can be written again; None also if it cannot be read, for ``read_file``'s reasons."""
    try:
        return read_file(path)
    except OSError:
        return None


def open_regular(path: Path, flags: int, mode: int = 0) -> int:
    """Descriptor of a regular file, opened without following a symbolic link and without blocking.

    Args:
        path: the file.
        flags: of ``os.open``.
        mode: permission bits if ``flags`` create the file.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def is_regular(path: Path) -> bool:
    """Whether there is a regular file, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def on_tmpfs(path: Path, mounts: Path) -> bool:
    """Whether a directory is on a file system that a boot empties; False also if that cannot be told.

    ``mounts``: as ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)), where the third field is the file system's device
    number and the first field after the hyphen its type.
    """
    try:
        device = path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    rows = (line.partition(" - ") for line in lines)
    types = {own.partition(" ")[0] for mount, _, own in rows if mount.split(" ")[2:3] == [number]}
    return bool(types) and types <= {"tmpfs", "ramfs"}


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory have reached the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
