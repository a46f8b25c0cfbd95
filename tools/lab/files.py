"""Atomic writes of files, complete creation of directories, and locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.progress import Progress

_LOCK_POLL_SECONDS = 0.1


def write(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write `path` so that a reader, or a run after a kill, finds the old or the new content, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def complete_directory(final: Path) -> Iterator[Path]:
    """Provide a new directory to fill, which becomes `final` only if the block ends without an error.

    The caller holds a lock, so an older unfinished directory for the same `final` was left by a killed run and is
    removed.
    """
    unfinished = final.parent / f".unfinished-{final.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.replace(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def lock(path: Path, what: str, progress: Progress, timeout: float = 3600.0) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which the kernel releases if this process is killed.

    Raises:
        LabError: Another process held it for `timeout` seconds.
    """
    handle = _try_lock(path)
    if handle is None:
        deadline = time.monotonic() + timeout
        with progress.step(f"waiting for {_holder(path)} that {what}"):
            while handle is None:
                if time.monotonic() > deadline:
                    who = _holder(path)
                    raise LabError(
                        f"{who[:1].upper()}{who[1:]} still {what} after {timeout:.0f} s; gave up. Its lock is {path}."
                    )
                time.sleep(_LOCK_POLL_SECONDS)
                handle = _try_lock(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def _holder(path: Path) -> str:
    """Who has the lock, for who waits: the process that has written itself there, if it still runs."""
    try:
        pid = int(path.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except (OSError, ValueError):
        return "another process"
    return f"process {pid} ({command[:100]})"


def _try_lock(path: Path) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the previous holder has just removed the directory
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed the file: then others will lock a new file, not the one that we locked.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
