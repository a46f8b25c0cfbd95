"""The API server of a simulation: the test double's objects and rules, without HTTP.

What may happen to a request: it is refused, the server is away, the answer is lost before or after the effect, the
effect comes when nobody waits for it any more, or the server asks to wait. What may happen to a watch: it is late, it
breaks, it ends, or its place is too old. The seed decides, as far as the server's mood lets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dra_driver.kube.api.client import JSON, MAX_OBJECT_BYTES, Query, RestConfig, Transport
from dra_driver.kube.api.client import Response as Answer
from dra_driver.kube.api.errors import Unreachable, refusal
from tests.doubles.apiserver.http import Request, respond, served_path, watched
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object, Refused
from tests.simulation.scheduler import Scheduler
from tests.simulation.workloads import KIND as WORKLOADS
from tests.simulation.workloads import Heard

LONGEST_AWAY: Final = 30.0
"""Of a request that nobody answers, in seconds."""


@dataclass
class Mood:
    """How the server and the way to it are."""

    away: bool = False
    """Nobody answers."""
    troubled: float = 0.0
    """Which part of all requests goes wrong."""
    slow: float = 0.0
    """Seconds that an answer takes at most."""
    late: float = 0.0
    """Seconds by which a watch is late at most."""


class SimulatedServer:
    """The server, and the way to it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.api = ApiServer(git_version="v1.37.1")
        self.store = self.api.store
        self.mood = Mood()
        self.era = 0
        """Watches of a former one break."""
        self.writes: list[tuple[float, str, str]] = []
        """Time, life, and method with path of each request that changed something or was to."""
        self.on_request: Callable[[str, str], None] = lambda _, __: None
        """Called with method and path of each request that arrives, by who waits for its answer."""
        self.on_slice: Callable[[Object], None] = lambda _: None
        """Called with each slice that is stored."""
        self.heard = Heard()
        self._scheduler = scheduler

    def transport(self) -> Transport:
        """The driver's way to it."""
        return SimulatedTransport(self, self._scheduler)

    def answer(self, request: Request) -> tuple[int, Any]:
        """What the server does, at once."""
        if request.path == "/version":
            return 200, {"gitVersion": self.api.git_version}
        match = served_path(self.api, request.path)
        if match is None:
            return 404, "404 page not found\n"
        before = self.store.version
        try:
            status, document = respond(self.api, request, match)
        except Refused as refused:
            status, document = refused.status, _status(refused)
        if match["kind"] == WORKLOADS and request.method == "GET" and status < 400:
            self.heard.list_answered(self._scheduler.life, document["items"])
        if request.method != "GET" and "dryRun" not in request.query:
            changed = "" if self.store.version != before else f" (no change: {status})"
            self.writes.append(
                (self._scheduler.clock, self._scheduler.life.name, f"{request.method} {request.path}{changed}")
            )
            if match["kind"] == "resourceslices" and request.method != "DELETE" and status < 400:
                self.on_slice(document)
        return status, document

    def break_watches(self) -> None:
        """End all watches without a word."""
        self.era += 1


def _status(refused: Refused) -> Object:
    details = {"name": refused.name} if refused.name else {}
    return {
        "kind": "Status",
        "code": refused.status,
        "reason": refused.reason,
        "message": str(refused),
        "details": details,
    }


class SimulatedTransport(Transport):
    """As ``Transport``, without connections."""

    def __init__(self, server: SimulatedServer, scheduler: Scheduler) -> None:
        super().__init__(RestConfig(server="http://127.0.0.1:1"), user_agent="test")
        self._to = server
        self._scheduler = scheduler

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content_type: str = JSON,
        timeout: float | None = None,
        whole: float | None = None,
        most: int = MAX_OBJECT_BYTES,
    ) -> Answer:
        plain = None if body is None else json.loads(msgspec.json.encode(body))
        request = Request(method, path, dict(query), "", plain, self._scheduler.clock, content_type)
        try:
            status, document, wait = self._sent(request, 10.0 if timeout is None else timeout)
        except Unreachable as error:
            self._heard(error)
            raise
        self._heard(None)
        data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        if not 200 <= status < 300:
            raise refusal(method, path, status, data, wait)
        return Answer(status, data)

    def _sent(self, request: Request, timeout: float) -> tuple[int, Any, str | None]:
        mood, scheduler = self._to.mood, self._scheduler
        scheduler.pause(lambda: self._to.store.version)
        if mood.away:
            scheduler.sleep(scheduler.random.choice((0.0, min(3.0, timeout), min(timeout, LONGEST_AWAY))))
            raise _lost(request)
        if mood.troubled and scheduler.random.random() < mood.troubled:
            return scheduler.random.choice(_TROUBLES)(self, request, timeout)
        if mood.slow:
            late = scheduler.random.uniform(0, mood.slow)
            if late > timeout:
                return self._too_late(request, timeout)
            scheduler.sleep(late * scheduler.random.random())
        self._to.on_request(request.method, request.path)
        scheduler.pause(lambda: self._to.store.version)
        answer = self._to.answer(request)
        scheduler.pause(lambda: self._to.store.version)
        return *answer, None

    def _refused(self, request: Request, timeout: float) -> tuple[int, Any, str | None]:
        del request, timeout
        status = self._scheduler.random.choice((429, 503, 504))
        wait = "1" if status == 429 else None
        return status, _status(Refused(status, "", "etcdserver: request timed out")), wait

    def _lost_before(self, request: Request, timeout: float) -> tuple[int, Any, str | None]:
        self._scheduler.sleep(self._scheduler.random.choice((0.0, timeout)))
        raise _lost(request)

    def _lost_after(self, request: Request, timeout: float) -> tuple[int, Any, str | None]:
        self._to.answer(request)
        self._scheduler.sleep(self._scheduler.random.choice((0.0, timeout)))
        raise _lost(request)

    def _too_late(self, request: Request, timeout: float) -> tuple[int, Any, str | None]:
        """It takes effect when nobody waits for the answer any more."""
        late = timeout + self._scheduler.random.uniform(0, 20.0)

        def work() -> None:
            self._scheduler.sleep(late)
            self._to.answer(request)

        self._scheduler.spawn(work, f"late {request.method}")
        self._scheduler.sleep(timeout)
        raise _lost(request)

    @contextmanager
    def stream(self, path: str, *, query: Query = (), timeout: float) -> Iterator[Any]:
        del timeout
        request = Request("GET", path, dict(query), "", None, self._scheduler.clock)
        self._scheduler.pause(lambda: self._to.store.version)
        if self._to.mood.away or self._scheduler.random.random() < self._to.mood.troubled:
            error = _lost(request)
            self._heard(error)
            raise error
        self._heard(None)
        version = int(request.query.get("resourceVersion") or 0)
        if version < self._to.store.oldest:
            raise refusal("GET", path, 410, json.dumps(_status(Refused(410, "Expired", "too old"))).encode())
        if WORKLOADS in path:
            self._to.heard.watch_begins(self._scheduler.life)
        yield SimulatedStream(self._to, self._scheduler, request, version)


_Trouble = Callable[[SimulatedTransport, Request, float], tuple[int, Any, str | None]]
_TROUBLES: Final[tuple[_Trouble, ...]] = (
    SimulatedTransport._refused,
    SimulatedTransport._lost_before,
    SimulatedTransport._lost_after,
    SimulatedTransport._too_late,
)


class SimulatedStream:
    """As ``client.Stream``."""

    def __init__(self, server: SimulatedServer, scheduler: Scheduler, request: Request, version: int) -> None:
        self._server, self._scheduler, self._request, self._version = server, scheduler, request, version
        self._era = server.era
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    def __iter__(self) -> Iterator[bytes]:
        store, scheduler = self._server.store, self._scheduler
        match = served_path(self._server.api, self._request.path)
        assert match is not None
        end = scheduler.clock + float(self._request.query.get("timeoutSeconds", 300))
        while True:
            changed = scheduler.wait(self._has_news, end - scheduler.clock)
            if self._aborted:
                return
            if self._server.era != self._era or self._server.mood.away:
                raise Unreachable("the watch was lost: broken on purpose")
            if not changed:
                return
            if self._server.mood.late:
                scheduler.sleep(scheduler.random.uniform(0, self._server.mood.late))
            if self._version < store.oldest:
                gone = _status(Refused(410, "Expired", "compacted"))
                yield json.dumps({"type": "ERROR", "object": gone}).encode()
                return
            lines, _ = watched(store, self._request, match, self._version)
            self._version = store.version
            for line in lines:
                scheduler.pause()
                if WORKLOADS in self._request.path:
                    self._server.heard.event_sent(scheduler.life)
                yield json.dumps(line).encode()
                if WORKLOADS in self._request.path:
                    self._server.heard.event_taken(scheduler.life, line)

    def _has_news(self) -> bool:
        server = self._server
        return self._aborted or server.era != self._era or server.mood.away or server.store.version != self._version


def _lost(request: Request) -> Unreachable:
    return Unreachable(f"the API server did not answer {request.method} {request.path}: on purpose")
