"""Small files, read and replaced as a whole: never half-written, never through somebody else's symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
"""Far more than any file of this driver has."""


def replace_file(path: Path, data: bytes, *, temporary: str, mode: int, durable: bool) -> None:
    """Replace ``path`` atomically: readers see either the old file or the new one, complete.

    Args:
        path: the file.
        data: its content.
        temporary: name in the same directory to write to first; an existing file is considered a leftover of a killed
            writer, so two writers must not use the same name at a time.
        mode: permission bits, regardless of the umask.
        durable: wait until content and name have reached the disk, so that they survive a power loss.

    Raises:
        OSError: nothing changed under ``path`` (with ``durable``: or it changed and may not survive a power loss).
    """
    staged = path.with_name(temporary)
    try:
        try:
            _write_new(staged, data, mode, durable=durable)
        except FileExistsError:
            staged.unlink()
            _write_new(staged, data, mode, durable=durable)
        staged.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def _write_new(path: Path, data: bytes, mode: int, *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path, *, durable: bool) -> bool:
    """Remove a file, or a symbolic link itself; returns whether there was one. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    if durable:
        sync_directory(path.parent)
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
        raise OSError(f"{path} is larger than {MAX_FILE_BYTES} bytes, so it is none of ours")
    return data


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


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory have reached the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
