"""Where the driver's code meets the kernel: its files, its locks between processes, the host's files, and threads.

The real files of a directory on a tmpfs are used. Between any two effects somebody else may go on, or the instance may
be killed; then nothing that it still does has an effect. What was written is lost only with the power, where nobody had
waited until it was on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.claims import checkpoint, lock
from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.driver.device_use import ContainerWatch
from dra_driver.neuron.health import watch
from dra_driver.neuron.host import signals
from dra_driver.neuron.host.sysfs import HostFiles, Reading
from dra_driver.util import files
from tests.simulation.scheduler import Killed, Life, Scheduler

_EFFECTS = ("open", "write", "fsync", "replace", "unlink", "ftruncate")
"""Of ``os``: something may happen before each."""
_SHARED: Final = {
    NodeAgent: frozenset({"_scan_labels", "_last"}),
    ContainerWatch: frozenset({"plugin_pods"}),
    ClaimStatusWriter: frozenset({"_health_changed"}),
}
"""Fields that one thread writes and another reads without a lock of both: something may happen after each access."""
_QUIET_READS = 0.02
"""How often somebody else goes on before a file of the host is read: a scan reads hundreds."""


class Disk:
    """The kernel's side of one node's files. Outlives all instances, and ends with the history."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.on_read: Callable[[str, str], None] = lambda _, __: None
        """Called with the thread and the path before a file of the host is read."""
        self.on_access: Callable[[str, str], None] = lambda _, __: None
        """Called with the thread and the field after one that threads share was read or set."""
        self.full = False
        """Whether nothing can be written but what takes no room."""
        self._scheduler = scheduler
        self._open: dict[int, Life] = {}
        self._locks: dict[int, int] = {}
        """Descriptor that has it, by inode of the file."""
        self._effects = 0
        """So many, so far."""
        self._contents: dict[int, bytes] = {}
        """What a file had when it was synced last, by its inode."""
        self._names: dict[str, dict[str, bytes]] = {}
        """The files of a directory when it was synced last: what each had that was synced."""
        self._accesses: dict[tuple[int, str], int] = {}
        """So often was a field read or set."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have the driver's code use it during the body."""
        with ExitStack() as stack:
            for module in (files, checkpoint, lock):
                stack.enter_context(mock.patch.object(module, "os", self._os()))
            for module in (watch, signals):
                stack.enter_context(mock.patch.object(module, "os", self._descriptors()))
            stack.enter_context(mock.patch.object(HostFiles, "open", self._opening(HostFiles.open)))
            stack.enter_context(mock.patch.object(lock, "fcntl", self._fcntl()))
            stack.enter_context(mock.patch.object(HostFiles, "read", self._reading(HostFiles.read)))
            for owner, names in _SHARED.items():
                stack.enter_context(mock.patch.object(owner, "__getattribute__", self._getting(names), create=True))
                stack.enter_context(mock.patch.object(owner, "__setattr__", self._setting(names), create=True))
            try:
                yield
            finally:
                for descriptor in list(self._open):
                    self._close(descriptor)

    def _getting(self, names: frozenset[str]) -> Callable[[object, str], Any]:
        def get(owner: object, name: str) -> Any:
            value = object.__getattribute__(owner, name)
            if name in names:
                self._access(owner, name)
            return value

        return get

    def _setting(self, names: frozenset[str]) -> Callable[[object, str, Any], None]:
        def put(owner: object, name: str, value: Any) -> None:
            object.__setattr__(owner, name, value)
            if name in names:
                self._access(owner, name)

        return put

    def _access(self, owner: object, name: str) -> None:
        self.on_access(self._scheduler.name, name)
        key = (id(owner), name)
        self._accesses[key] = self._accesses.get(key, 0) + 1
        self._scheduler.pause(lambda: self._accesses[key])

    def killed(self, life: Life) -> None:
        """The kernel closes what a process had open, and lets go of its locks."""
        for descriptor in [number for number, owner in self._open.items() if owner is life]:
            self._close(descriptor)

    def lose_power(self, directory: Path) -> None:
        """What is below a directory and was not synced may be there afterwards, or not, or in part."""
        choice = self._scheduler.random.choice
        for folder in sorted(path for path in (directory, *directory.rglob("*")) if path.is_dir()):
            synced = self._names.get(str(folder), {})
            now = {path.name: path for path in folder.iterdir() if stat.S_ISREG(path.lstat().st_mode)}
            for name in sorted({*synced, *now}):
                former, path = synced.get(name), folder / name
                if name in now and path.read_bytes() == former:
                    continue
                content = choice((former, self._after_loss(path) if name in now else None))
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(content)

    def _after_loss(self, path: Path) -> bytes:
        """What a file has whose name is on the disk."""
        data = path.read_bytes()
        if self._contents.get(path.stat().st_ino) == data:
            return data
        return self._scheduler.random.choice((data, data[: len(data) // 2], bytes(len(data)), b""))

    def _sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            files_there = [child for child in path.iterdir() if stat.S_ISREG(child.lstat().st_mode)]
            self._names[str(path)] = {child.name: self._contents.get(child.stat().st_ino, b"") for child in files_there}
        else:
            self._contents[os.fstat(descriptor).st_ino] = path.read_bytes()

    def _descriptors(self) -> ModuleType:
        """``os``, whose descriptors are closed at the end of their process."""
        proxy = ModuleType("os")
        proxy.__dict__.update({name: value for name, value in vars(os).items() if not name.startswith("__")})
        proxy.close = self._closing  # type: ignore[attr-defined]
        proxy.eventfd = lambda *arguments: self._keep(os.eventfd(*arguments))  # type: ignore[attr-defined]
        return proxy

    def _opening(self, real: Callable[[HostFiles, str], int | None]) -> Callable[[HostFiles, str], int | None]:
        def open_(host: HostFiles, path: str) -> int | None:
            descriptor = real(host, path)
            return descriptor if descriptor is None else self._keep(descriptor)

        return open_

    def _keep(self, descriptor: int) -> int:
        self._open[descriptor] = self._scheduler.life
        return descriptor

    def _os(self) -> ModuleType:
        """``os``, with seams before its effects."""
        proxy = self._descriptors()
        for name in _EFFECTS:
            setattr(proxy, name, self._effect(name, getattr(os, name)))
        return proxy

    def _effect(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def effect(*arguments: Any, **options: Any) -> Any:
            writes = name != "open" or bool(arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
            if writes:
                self._scheduler.pause(lambda: self._effects)
                self._effects += 1
                if self.full and (name == "write" or (name == "open" and self._scheduler.random.random() < 0.5)):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            else:
                self._scheduler.check()
            result = real(*arguments, **options)
            if name == "fsync":
                self._sync(arguments[0])
            return self._keep(result) if name == "open" and (writes or arguments[1] & os.O_DIRECTORY) else result

        return effect

    def _closing(self, descriptor: int) -> None:
        if not self._scheduler.life.alive:
            return
        if descriptor in self._open:
            self._close(descriptor)
        else:
            os.close(descriptor)

    def _close(self, descriptor: int) -> None:
        del self._open[descriptor]
        self._locks = {inode: owner for inode, owner in self._locks.items() if owner != descriptor}
        os.close(descriptor)

    def _fcntl(self) -> ModuleType:
        proxy = ModuleType("fcntl")
        proxy.__dict__.update({name: value for name, value in vars(fcntl).items() if name.startswith("LOCK_")})
        proxy.flock = self._flock  # type: ignore[attr-defined]
        return proxy

    @property
    def has_locks(self) -> bool:
        """Whether some process has a lock on a file."""
        return bool(self._locks)

    def _flock(self, descriptor: int, operation: int) -> None:
        if not self._scheduler.life.alive:
            raise Killed
        inode = os.fstat(descriptor).st_ino
        if operation & fcntl.LOCK_UN:
            if self._locks.get(inode) == descriptor:
                del self._locks[inode]
            self._scheduler.pause(lambda: self._locks.get(inode))
            return
        self._scheduler.pause(lambda: self._locks.get(inode))
        if self._locks.setdefault(inode, descriptor) != descriptor:
            raise BlockingIOError(errno.EAGAIN, "somebody else has it")

    def _reading(self, real: Callable[[HostFiles, str], Reading]) -> Callable[[HostFiles, str], Reading]:
        def read(host: HostFiles, path: str) -> Reading:
            self._scheduler.check()
            self.on_read(self._scheduler.name, path)
            if self._scheduler.random.random() < _QUIET_READS:
                self._scheduler.pause()
            return real(host, path)

        return read
