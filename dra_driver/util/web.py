"""HTTP/1.1 behind a ``Door``: a WSGI application with one page, of metrics."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11

from dra_driver.util.door import Connection, Door, Turns

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

MAX_HEADER_BYTES: Final = 8 * 1024
"""Of one request, its first line included."""

_FORMS: Final = {b"accept": "application/openmetrics-text", b"accept-encoding": "gzip"}
"""Headers on which the form of a page depends, and what may be asked for with each."""
_METHODS: Final = ("GET", "OPTIONS")
_LONGEST_PAUSE_SECONDS: Final = 0.5
"""Between two pages. The largest takes a tenth of a second, and a scrape, which has 10 s, waits for five of them."""

log = logging.getLogger(__name__)


def listen(door: Door, address: str, port: int, application: WSGIApplication) -> int:
    """Serve an application on a port (0: any that is free); returns it. Raises OSError if it cannot be had.

    It is called in a thread, for one request at a time; requests that are alike and wait at the same time get the same
    answer.
    """
    turns: Turns[Response] = Turns(door, "web", _LONGEST_PAUSE_SECONDS)
    return door.listen(address, port, lambda connection: _HttpConversation(connection, application, turns))


@dataclass(frozen=True, slots=True)
class Response:
    """Of the application."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class _HttpConversation:
    """HTTP/1.1 on one connection: one request after the other."""

    def __init__(self, connection: Connection, application: WSGIApplication, turns: Turns[Response]) -> None:
        self._connection = connection
        self._application = application
        self._turns = turns
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._request: h11.Request | None = None

    def end(self) -> None:
        """Let go of the request."""
        self._request = None

    def receive(self, data: bytes) -> None:
        """Take what has arrived."""
        self._http.receive_data(data)
        self._advance()

    def _advance(self) -> None:
        """Have the next request answered, if it is complete."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    self._send(Response(error.error_status_hint, (("Connection", "close"),)))
                self._connection.end()
                return
            if isinstance(event, h11.Request):
                self._request = event
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                environment = _environment(self._request)
                self._connection.begin_answer()
                answer = partial(_call, self._application, environment)
                self._turns.ask(tuple(environment.items()), answer, self._answer, self._connection)
            elif not isinstance(event, h11.Data):  # nobody needs a body, and what the door takes of one is bounded
                return

    def _answer(self, response: Response) -> None:
        if self._connection.closed:
            return
        ending = (("Connection", "close"),) if self._connection.last else ()
        self._send(Response(response.status, response.headers + ending, response.body))
        self._connection.end_answer()
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
            self._advance()
        else:
            self._connection.end()

    def _send(self, response: Response) -> None:
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        reason = HTTPStatus(response.status).phrase
        start = self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        bodiless = self._request is not None and self._request.method == b"HEAD"
        body = b"" if bodiless else self._http.send(h11.Data(data=response.body)) or b""
        end = self._http.send(h11.EndOfMessage()) or b""
        self._connection.send(start + body + end)


def _environment(request: h11.Request) -> dict[str, str]:
    """What a page depends on (PEP 3333), without the streams.

    There are few of them, whatever is asked: so whoever waits gets an answer with the next few pages, and no number of
    strangers, each of whom asks for something else, has others wait for theirs.
    """
    method = request.method.decode("ascii")
    environment = {"REQUEST_METHOD": method if method in _METHODS else "POST", "PATH_INFO": "/metrics"}
    for name, value in request.headers if method == "GET" else ():
        form = _FORMS.get(name)
        if form in {part.partition(";")[0].strip().lower() for part in value.decode("latin-1").split(",")}:
            environment[f"HTTP_{name.decode('ascii').upper().replace('-', '_')}"] = form
    return environment


def _call(application: WSGIApplication, environment: dict[str, str]) -> Response:
    begun: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> Any:
        begun.append((status, headers))

    try:
        streams = {"wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr}
        body = b"".join(application({**environment, **streams}, start_response))
        status, headers = begun[-1]
        return Response(int(status.split()[0]), tuple(headers), body)
    except Exception:
        log.exception("%s cannot be answered", environment["PATH_INFO"])
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
