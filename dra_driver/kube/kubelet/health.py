"""The standard gRPC health service over TCP, for kubelet's liveness probe.

A server of its own: nothing of the driver's interface to kubelet can be reached over the network.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from dra_driver.kube.kubelet.api import health_v1_pb2 as api
from dra_driver.kube.kubelet.grpcserver import Activity, Method, ServiceTable, Workers, as_thread_pool
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

log = logging.getLogger(__name__)

Check = Callable[[], list[str]]
"""Says what is wrong, one text a problem; an exception counts as a problem."""

_SERVICE = api.DESCRIPTOR.services_by_name["Health"].full_name
_WORKERS = 6
_MAX_WATCHERS = 2
_MAX_CALLS = 64


class HealthServer:
    """Answers Check and Watch.

    The status of a service is SERVING if and only if its check returned no problem. A check that takes longer than
    ``check_seconds`` counts as a problem, so that a probe (kubelet's own limit is often 5 s) always gets an answer; it
    is not begun a second time while it runs.

    Args:
        port: TCP port; 0 takes a free one (see :attr:`port`), a negative one disables the server.
        host: address to bind, e.g. ``0.0.0.0``, ``127.0.0.1`` or ``::``.
        checks: by service name, e.g. ``liveness`` and ``readiness``; "" is the name for the whole server.
        check_seconds: time limit of a check.
        watch_seconds: how often a Watch looks for a change.
    """

    def __init__(
        self,
        port: int,
        host: str,
        checks: Mapping[str, Check],
        *,
        check_seconds: float = 3.0,
        watch_seconds: float = 5.0,
    ) -> None:
        self.port = port
        self._host = host
        self._checks = {name: _BoundedCheck(name, check, check_seconds) for name, check in checks.items()}
        self._watch_seconds = watch_seconds
        self._watchers = threading.BoundedSemaphore(_MAX_WATCHERS)
        self._stopping = threading.Event()
        self._server: grpc.Server | None = None
        self._workers: Workers | None = None

    def start(self) -> None:
        """Serve; does not block, and does nothing if the port is negative.

        Raises:
            DriverError: the address cannot be bound.
        """
        if self.port < 0:
            log.info("the health service is off")
            return
        methods = [
            Method(f"/{_SERVICE}/Check", api.HealthCheckRequest, self._answer),
            Method(f"/{_SERVICE}/Watch", api.HealthCheckRequest, self._watch, streaming=True),
        ]
        self._workers = Workers(_WORKERS, "health")
        self._server = grpc.server(
            as_thread_pool(self._workers),
            handlers=[ServiceTable(methods, Activity())],
            # Without this a second process could bind the same port and get half of the probes.
            options=[("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        address = f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            self.stop(0)
            raise DriverError(
                f"the health service cannot listen on {address}",
                consequence="kubelet's liveness probe would fail",
                remedy="find what uses the port, or choose another; a negative port turns the service off",
            ) from error
        self._server.start()

    def stop(self, grace: float = 1.0) -> None:
        """Stop; running calls get ``grace`` seconds, and those that do not end then are left behind."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop(grace).wait(grace)
        if self._workers is not None:
            self._workers.shutdown()

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.service not in self._checks:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(f"known services: {', '.join(map(repr, self._checks))}")
            return api.HealthCheckResponse()
        return api.HealthCheckResponse(status=self._status(request.service))

    def _watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        # A Watch keeps a worker. Probes use Check, so Watches may not take them all.
        if not self._watchers.acquire(blocking=False):
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(f"{_MAX_WATCHERS} watches are open; use Check")
            return
        try:
            yield from self._changes(request.service, context)
        finally:
            self._watchers.release()

    def _changes(self, service: str, context: grpc.ServicerContext) -> Iterator[Any]:
        gone = threading.Event()
        if not context.add_callback(gone.set):
            return
        sent = None
        while not (gone.is_set() or self._stopping.is_set()):
            status = self._status(service) if service in self._checks else api.HealthCheckResponse.SERVICE_UNKNOWN
            if status != sent:
                yield api.HealthCheckResponse(status=status)
                sent = status
            gone.wait(self._watch_seconds)

    def _status(self, service: str) -> api.HealthCheckResponse.ServingStatus:
        problems = self._checks[service]()
        return api.HealthCheckResponse.NOT_SERVING if problems else api.HealthCheckResponse.SERVING


class _BoundedCheck:
    """``check`` with a time limit, run at most once at a time; logs when its result changes."""

    def __init__(self, name: str, check: Check, seconds: float) -> None:
        self._name = name or "health"
        self._check = check
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running: _Run | None = None
        self._logged: list[str] = []

    def __call__(self) -> list[str]:
        with self._lock:
            if self._running is None or self._running.ended.is_set():
                self._running = _Run(self._check)
            run = self._running
        problems = run.problems if run.ended.wait(self._seconds) else [f"the check did not end in {self._seconds:g} s"]
        self._log(problems)
        return problems

    def _log(self, problems: list[str]) -> None:
        with self._lock:
            if problems == self._logged:
                return
            self._logged = problems
        if problems:
            log.warning("%s: %s", self._name, one_line("; ".join(problems)))
        else:
            log.info("%s: healthy again", self._name)


class _Run:
    """One run of a check in a thread of its own."""

    def __init__(self, check: Check) -> None:
        self.problems = ["the health check ended without a result"]
        self.ended = threading.Event()
        threading.Thread(target=self._run, args=(check,), name="health-check", daemon=True).start()

    def _run(self, check: Check) -> None:
        try:
            self.problems = list(check())
        except BaseException as error:
            log.exception("the health check failed")
            self.problems = [f"the health check failed: {type(error).__name__}: {error}"]
        finally:
            self.ended.set()
