"""A DRA driver's side of kubelet: one registration socket and one service socket, from start to stop.

Two gRPC servers, so that GetInfo (kubelet waits one second) has workers of its own while every worker of the service
prepares claims. Measured with grpcio 1.85 on 2 cores, connections held open: one idle synchronous server costs
0.09 % of a core, two 0.11 %, three (the third for health) 0.12 %; all of this library with health and its look at the
own sockets 0.14 to 0.18 %. asyncio costs 0.05 %, not worth a second kind of concurrency beside drivers that block on
files and the API server.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dra_driver.kube.kubelet.devicehealth import VERSIONS as HEALTH_VERSIONS
from dra_driver.kube.kubelet.devicehealth import HealthStream
from dra_driver.kube.kubelet.dra import VERSIONS, DRAPlugin, DRAService, is_driver_name
from dra_driver.kube.kubelet.grpcserver import (
    Activity,
    Method,
    Presence,
    SocketServer,
    fitting,
    hidden_pattern,
    registrar_names,
    remove_stale,
    service_names,
    serving,
)
from dra_driver.kube.kubelet.registration import OnRegistered, Registrar, Registration
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import is_uid
from dra_driver.util.text import quoted_ascii
from dra_driver.util.worker import Worker

log = logging.getLogger(__name__)

SUPPORTED_VERSIONS = tuple(VERSIONS)
"""``v1.DRAPlugin`` (kubelet 1.34 and later), then ``v1beta1.DRAPlugin`` (1.32 and later)."""

REGISTRAR_WORKERS = 2
RESTORE_GRACE_SECONDS = 45.0

PROBE_SECONDS = 5.0
PROBE_LOOKS = 6
"""It asks a server at every so many looks at its socket, and at each look while it is silent: an answer costs 3 ms."""
MAX_SILENT = 3
"""A server that stays silent so often in a row is broken; once can be a node under load."""


def _nothing_on_registered(registered: bool, error: str) -> None:
    """Default for ``on_registered``."""


def _nothing_on_error(error: BaseException) -> None:
    """Default for ``on_error``."""


class KubeletPlugin:
    """Serves ``plugin`` to kubelet.

    Args:
        plugin: the driver.
        driver_name: its name, the ``spec.driver`` of its slices: a DNS subdomain of at most 63 characters.
        plugin_dir: directory of this driver alone, ``/var/lib/kubelet/plugins/<driver name>``; made if missing. Its
            path must be the same for kubelet.
        registrar_dir: kubelet's ``/var/lib/kubelet/plugins_registry``.
        pod_uid: gives this instance sockets of its own, so that the next one can start before this one stops
            (kubelet 1.33 and later). Without it a second instance takes the first one's place.
        versions: what is offered to kubelet, the preferred first; a part of SUPPORTED_VERSIONS.
        on_registered: called with (True, "") after every registration, also those after a restart of kubelet, which
            has then deleted the node's slices; with (False, kubelet's text) after a refusal.
        on_error: called at most once, when the driver cannot be reached any more or a plugin's method raised
            SystemExit; the process should exit, so that it is started afresh.
        workers: number of calls handled at once; further ones wait.
        check_interval: seconds between looks at the own sockets: a deleted one is restored. At every sixth look they
            are asked for an answer; one that gives none three looks in a row is an error.
        health: tells kubelet the health of the devices; None: kubelet is not told that the driver could.

    Raises:
        DriverError: the arguments cannot be used, e.g. a socket's path is too long.
    """

    def __init__(
        self,
        plugin: DRAPlugin,
        driver_name: str,
        *,
        plugin_dir: Path,
        registrar_dir: Path,
        pod_uid: str | None = None,
        versions: Sequence[str] = SUPPORTED_VERSIONS,
        on_registered: OnRegistered = _nothing_on_registered,
        on_error: Callable[[BaseException], None] = _nothing_on_error,
        workers: int = 16,
        check_interval: float = 10.0,
        health: HealthStream | None = None,
    ) -> None:
        _check(driver_name, pod_uid, versions)
        self._driver_name = driver_name
        self._pod_uid = pod_uid
        self.endpoint = fitting(plugin_dir.absolute(), service_names(pod_uid))
        self.registration_socket = fitting(registrar_dir.absolute(), registrar_names(driver_name, pod_uid))
        # Last: kubelet 1.34 and later take the first DRA service that they know.
        services = (*versions, *(HEALTH_VERSIONS if health is not None else ()))
        self._registrar = Registrar(driver_name, self.endpoint, services, on_registered)
        self._service = DRAService(plugin, self._fail)
        self._versions = tuple(versions)
        self._health = health
        # An open stream keeps a worker.
        self._workers = workers + (health.streams if health is not None else 0)
        self._activity = Activity()
        self._on_error = on_error
        self._check_interval = check_interval
        self.worker = Worker("checking its sockets", self._look)
        self._lock = runtime.lock()  # start, stop and restoring of servers, one at a time; never held for long
        self._servers: dict[str, SocketServer] = {}
        self._replaced: set[str] = set()
        self._silent: dict[str, int] = {}
        self._looks = 0
        self._error: BaseException | None = None
        self._stopped = runtime.event()

    @property
    def registration(self) -> Registration:
        """What kubelet said last about the registration."""
        return self._registrar.registration

    def problems(self) -> list[str]:
        """What keeps kubelet from using this driver, for a health report: [] when all is well."""
        problems = [self.registration.problem()]
        if self._error is not None:
            problems.append(f"the driver's sockets are broken: {self._error}")
        problems += [f"another process has taken the socket {path}" for path in sorted(self._replaced)]
        return [problem for problem in problems if problem]

    def start(self) -> None:
        """Serve: first the service, then let the registration socket appear. Does not block.

        Raises:
            DriverError: a directory or socket cannot be made; nothing is left behind.
        """
        with self._lock:
            self._make_directories()
            self._remove_stale()
            try:
                for name in ("service", "registrar"):
                    self._servers[name] = self._launch(name)
            except DriverError:
                self._stop_servers(0)
                raise
        self.worker.start()
        log.info("%s serves %s and waits for kubelet at %s", self._driver_name, self.endpoint, self.registration_socket)

    def stop(self, grace: float = 10.0) -> None:
        """Deregister, refuse new calls, let running ones end within ``grace`` seconds, and remove the own sockets.

        Blocks up to ``grace`` and two seconds. What still runs then is cut off for kubelet (its threads go on until the
        process ends). May be called again, and before start().
        """
        self.worker.stop(0)
        with self._lock:
            self._stop_servers(grace)
        self._stopped.set()

    def succeeded(self) -> bool:
        """Whether, after ``stop``, another instance of the driver serves kubelet."""
        return serving(self.registration_socket.parent, self._registrations())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for stop() to end; False if ``timeout`` seconds passed before."""
        return self._stopped.wait(timeout)

    def _make_directories(self) -> None:
        for directory in (self.endpoint.parent, self.registration_socket.parent):
            try:
                directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            except OSError as error:
                raise DriverError(
                    f"cannot make the directory {directory}: {error.strerror}",
                    consequence="kubelet cannot reach the driver",
                    remedy="run as root with kubelet's directory mounted",
                ) from error

    def _remove_stale(self) -> None:
        uid = r"[0-9A-Za-z][0-9A-Za-z_.-]*"
        patterns = {
            self.endpoint.parent: [re.compile(rf"dra(-{uid})?\.sock"), hidden_pattern()],
            self.registration_socket.parent: [*self._registrations(), hidden_pattern(self._driver_name)],
        }
        for directory, names in patterns.items():
            try:
                for path in remove_stale(directory, names):
                    log.info("removed the socket %s of an instance that is gone", path)
            except OSError as error:
                raise DriverError(
                    f"cannot remove sockets of previous instances in {directory}: {error.strerror}",
                    consequence="kubelet cannot reach the driver",
                    remedy="run as root with kubelet's directory mounted and writable",
                ) from error

    def _registrations(self) -> list[re.Pattern[str]]:
        """Names of the registration sockets of this driver's instances."""
        driver, own = re.escape(self._driver_name), re.escape(self.registration_socket.name)
        return [re.compile(own), re.compile(rf"{driver}(-{_POD_UID})?-reg\.sock")]

    def _launch(self, name: str) -> SocketServer:
        server = self._server(name)
        try:
            server.start()
            server.publish()
        except DriverError:
            server.stop(0)
            raise
        return server

    def _server(self, name: str) -> SocketServer:
        if name == "service":
            methods: list[Method] = self._service.methods(self._versions)
            if self._health is not None:
                methods += self._health.methods()
            return SocketServer(self.endpoint, methods, self._workers, self._activity)
        return SocketServer(
            self.registration_socket, self._registrar.methods(), REGISTRAR_WORKERS, Activity(), self._driver_name
        )

    def _stop_servers(self, grace: float) -> None:
        deadline = runtime.monotonic() + grace
        # kubelet sends calls as long as the registration socket exists, so it goes first.
        for name in ("registrar", "service"):
            if name in self._servers:
                self._servers.pop(name).close(deadline - runtime.monotonic())

    def _look(self) -> float:
        try:
            with self._lock:
                if not self.worker.stopping:
                    self._check_sockets()
            self._check_answers()  # without the lock: a server that is silent must not hold up stop()
        except (DriverError, OSError) as error:
            log.critical("kubelet can no longer reach the driver: %s", error)
            self._fail(error)
            return math.inf
        return self._check_interval

    def _check_sockets(self) -> None:
        for name, server in list(self._servers.items()):
            presence = server.presence()
            path = str(server.path)
            if presence is Presence.REPLACED and path not in self._replaced:
                self._replaced.add(path)
                log.error(
                    "another process has taken the socket %s; kubelet now talks to that one; give each instance its "
                    "pod UID, or stop one",
                    path,
                )
            if presence is not Presence.REPLACED:
                self._replaced.discard(path)
            if presence is Presence.MISSING:
                log.warning("the socket %s was deleted; it is restored", path)
                self._servers[name] = self._launch(name)
                server.stop(RESTORE_GRACE_SECONDS)

    def _check_answers(self) -> None:
        self._looks += 1
        due = self._looks % PROBE_LOOKS == 0
        for name, server in list(self._servers.items()):
            if not due and not self._silent.get(name):
                continue
            if server.presence() is not Presence.OURS or server.answers(PROBE_SECONDS) or self.worker.stopping:
                self._silent[name] = 0
                continue
            self._silent[name] = self._silent.get(name, 0) + 1
            log.error("the driver's own socket %s does not answer (%d in a row)", server.path, self._silent[name])
            if self._silent[name] >= MAX_SILENT:
                raise DriverError(
                    f"the server at {server.path} no longer answers",
                    consequence="kubelet's calls are not answered",
                    remedy="restart the driver",
                )

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            try:
                runtime.spawn(lambda: self._on_error(error), name="on-error")
            except RuntimeError:  # no thread can be had: whoever finds the next error tells of it
                self._error = None
                raise


_POD_UID = r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-Za-z_-]{11})"
"""A pod's UID, or its digest in the shorter name: nothing that could be the rest of another driver's name."""


def _check(driver_name: str, pod_uid: str | None, versions: Sequence[str]) -> None:
    if not is_driver_name(driver_name):
        raise DriverError(
            f"the driver name {quoted_ascii(driver_name)} cannot be used",
            remedy="use a DNS subdomain of at most 63 characters, e.g. gpu.example.com",
        )
    if pod_uid is not None and not is_uid(pod_uid):
        raise DriverError(f"pod UID {quoted_ascii(pod_uid)} is not a UID", remedy="set it from the pod's metadata.uid")
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown or not versions:
        raise DriverError(
            f"DRA versions {list(versions)} cannot be served", remedy=f"choose from {', '.join(SUPPORTED_VERSIONS)}"
        )
