"""Names of the plugin's sockets, and gRPC servers on unix sockets that appear, disappear and come back cleanly.

gRPC binds and unbinds by path: a second server silently replaces the first one's socket, and the first one, when it
stops (or is merely collected), removes whatever has its path by then. So a server here binds a hidden name that
nobody else uses, and its socket is then renamed to the public one. From there on the file is ours to remove, and only
if it still is the file we put there.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import cast

import grpc

from dra_driver.kubeletplugin.rpc import Activity, Method, ServiceTable
from dra_driver.kubeletplugin.workers import Workers, as_thread_pool
from dra_driver.util.errors import DriverError

log = logging.getLogger(__name__)

PATH_BYTES_MOST = 107
"""``sun_path`` has 108 bytes with the final NUL."""

CALLS_MOST = 256
"""Running and waiting calls of one server; more are answered RESOURCE_EXHAUSTED."""


def _digest(text: str, size: int) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()


def service_names(pod_uid: str | None) -> list[str]:
    """File names for the DRA service's socket, the preferred first, then the shorter one.

    The shorter one fits the longest driver name: ``/var/lib/kubelet/plugins/<63>/dra-<8>.sock`` has 106 bytes.
    """
    return ["dra.sock"] if not pod_uid else [f"dra-{pod_uid}.sock", f"dra-{_digest(pod_uid, 6)}.sock"]


def registrar_names(driver_name: str, pod_uid: str | None) -> list[str]:
    """File names for the registration socket, the preferred first, then shorter ones.

    The forms are those of Kubernetes' Go library, so that its users find what they know.
    """
    shortest = f"dra-{_digest(driver_name + chr(0) + (pod_uid or ''), 16)}-reg.sock"
    if not pod_uid:
        return [f"{driver_name}-reg.sock", shortest]
    return [f"{driver_name}-{pod_uid}-reg.sock", f"{driver_name}-{_digest(pod_uid, 8)}-reg.sock", shortest]


_RANDOM_BYTES = {False: 3, True: 2}


def _owner_tag(owner: str) -> str:
    return _digest(owner, 3) if owner else ""


def hidden_pattern(owner: str = "") -> re.Pattern[str]:
    """The hidden names that servers of ``owner`` bind.

    kubelet's watcher ignores names with a leading dot. They are no longer than the shortest public name of their
    directory (``dra.sock``; ``D-reg.sock``), so that whatever fits there, they fit too. In a directory of several
    drivers the owner's digest tells whose they are.
    """
    return re.compile(rf"\.{re.escape(_owner_tag(owner))}[0-9a-f]{{{2 * _RANDOM_BYTES[bool(owner)]}}}")


def fitting(directory: Path, names: Sequence[str]) -> Path:
    """The first of ``names`` whose path in ``directory`` a unix socket can have.

    Raises:
        DriverError: none fits.
    """
    for name in names:
        path = directory / name
        if len(bytes(path)) <= PATH_BYTES_MOST:
            return path
    raise DriverError(
        f"the path {directory / names[-1]} has {len(bytes(directory / names[-1]))} bytes, "
        f"a unix socket's can have {PATH_BYTES_MOST}",
        consequence="the driver cannot be reached by kubelet",
        remedy="use a shorter directory; kubelet's --root-dir decides where it is",
    )


_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

REPLY_SECONDS = 1.0
"""For the reply of a call that has ended to leave the process."""


class Presence(Enum):
    """Where a server's public socket file is."""

    OURS = "ours"
    MISSING = "missing"
    REPLACED = "replaced"


class SocketServer:
    """One gRPC server on one unix socket.

    :meth:`start` makes it answer, yet under a hidden name; :meth:`publish` lets the socket appear at ``path``,
    :meth:`withdraw` lets it disappear.

    Args:
        path: public path, at most 107 bytes.
        methods: what is served.
        workers: number of calls handled at once.
        activity: counts the calls.
        owner: who may clear the hidden name away after a kill: see :func:`hidden_pattern`.
    """

    def __init__(
        self, path: Path, methods: Sequence[Method], workers: int, activity: Activity, owner: str = ""
    ) -> None:
        self.path = path
        self._table = ServiceTable(methods, activity)
        self._activity = activity
        self._worker_count = workers
        self._workers: Workers | None = None
        self._server: grpc.Server | None = None
        self._hidden = path.with_name(f".{_owner_tag(owner)}{secrets.token_hex(_RANDOM_BYTES[bool(owner)])}")
        self._inode: tuple[int, int] | None = None

    def start(self) -> None:
        """Bind and serve under the hidden name.

        Raises:
            DriverError: the directory is missing or cannot be written, or no thread can be started.
        """
        try:
            self._workers = Workers(self._worker_count, self.path.name)
            self._server = grpc.server(
                as_thread_pool(self._workers),
                handlers=[self._table],
                maximum_concurrent_rpcs=CALLS_MOST,
            )
            self._server.add_insecure_port(f"unix:{self._hidden}")
            # gRPC made the file with the umask's mode. Connecting needs write permission.
            self._hidden.chmod(0o600)
            status = self._hidden.stat()
            self._server.start()
        except (OSError, RuntimeError) as error:
            raise DriverError(
                f"cannot serve on a unix socket in {self.path.parent}: {error}",
                consequence="kubelet cannot reach the driver",
                remedy="check that the directory exists and can be written (in a pod: its hostPath mount)",
            ) from error
        self._inode = (status.st_dev, status.st_ino)

    def publish(self) -> None:
        """Let the socket appear at ``path``, in place of a socket that is there.

        Raises:
            DriverError: something that is no socket is there, or the directory is gone.
        """
        try:
            present = _lstat(self.path)
            if present is not None and not stat.S_ISSOCK(present.st_mode):
                raise FileExistsError(errno.EEXIST, "something that is no socket is there")
            self._hidden.rename(self.path)
        except OSError as error:
            raise DriverError(
                f"cannot put the socket at {self.path}: {error.strerror}",
                consequence="kubelet cannot reach the driver",
                remedy="remove what is there" if error.errno == errno.EEXIST else "check the directory",
            ) from error

    def presence(self) -> Presence:
        """Whether the file at ``path`` is the one that was put there."""
        status = _lstat(self.path)
        if status is None:
            return Presence.MISSING
        return Presence.OURS if (status.st_dev, status.st_ino) == self._inode else Presence.REPLACED

    def answers(self, seconds: float) -> bool:
        """Whether the server answers a call at its public socket within ``seconds``.

        The call is to a method that does not exist: gRPC's serving thread refuses it itself, so that this holds while
        all workers are busy, and fails when that thread is dead or connections are no longer accepted.
        """
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
        with grpc.insecure_channel(f"unix:{self.path}", options=options) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/self/Probe")
            try:
                call(b"", timeout=seconds)
            except grpc.RpcError as error:
                return cast("grpc.Call", error).code() not in _NO_ANSWER
        return True

    def withdraw(self) -> None:
        """Remove the file at ``path`` if it is ours. Open connections stay."""
        if self.presence() is Presence.OURS:
            self.path.unlink(missing_ok=True)

    def reappear(self) -> None:
        """Remove the file and put it back at once, so that those who watch the directory see a new socket."""
        if self.presence() is Presence.OURS:
            self._hidden.hardlink_to(self.path)
            self.path.unlink()
            self._hidden.rename(self.path)

    def close(self, grace: float) -> None:
        """Withdraw, refuse new calls (UNAVAILABLE), and wait for running ones; after ``grace`` seconds cut them off."""
        self.withdraw()
        # Not gRPC's own grace: while that lasts, calls on open connections are cancelled as if by the caller.
        ended = self._activity.close(grace)
        self.stop(REPLY_SECONDS if ended else 0).wait(REPLY_SECONDS)

    def stop(self, grace: float) -> threading.Event:
        """Withdraw, send callers elsewhere, and cut running calls off after ``grace`` seconds. Does not wait.

        Returns:
            Set when the last call has ended. Works in every state, also after a start() that failed half-way.
        """
        self.withdraw()
        self._hidden.unlink(missing_ok=True)
        ended = self._server.stop(grace) if self._server else _already()
        # The workers go last: until then gRPC hands them calls that it had accepted.
        threading.Thread(target=self._dismiss, args=(ended,), name="socket-server-stop", daemon=True).start()
        return ended

    def _dismiss(self, ended: threading.Event) -> None:
        ended.wait()
        if self._workers:
            self._workers.shutdown()


def remove_stale(directory: Path, names: Iterable[re.Pattern[str]]) -> list[Path]:
    """Remove sockets in ``directory`` whose name matches fully one of ``names`` and that nobody listens on any more.

    A killed process leaves its sockets behind; kubelet would dial them for ever. Sockets with a listener belong to
    another instance and stay.

    Returns:
        What was removed.
    """
    removed = []
    for path in sorted(directory.iterdir()):
        if any(pattern.fullmatch(path.name) for pattern in names) and _is_dead(path):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _is_dead(path: Path) -> bool:
    status = _lstat(path)
    if status is None or not stat.S_ISSOCK(status.st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # a full queue of a busy listener, no permission: not ours to judge
        return False


def _already() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
