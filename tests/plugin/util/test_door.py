"""Whoever reaches a port cannot keep others out of it, nor have the program's memory."""

from __future__ import annotations

import gzip
import logging
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast

import h2.config
import h2.connection
import pytest

from dra_driver.util import door as limits
from dra_driver.util.door import Connection, Door, Turns, own_addresses
from dra_driver.util.metrics import Collector, Operations, Sample, serve
from dra_driver.util.web import listen
from tests.builders.probes import CHECK, NOT_SERVING, SERVING, connect, health_server, is_closed, open_door, probe
from tests.descriptors import no_descriptors
from tests.eventually import eventually
from tests.golden import golden

KUBELET, ATTACKER, SCRAPER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
SECONDS = 20.0


def http2(*, path: str = CHECK, message: bytes = b"\0\0\0\0\x0a\x0a\x08liveness", end: bool = True) -> bytes:
    """A connection of HTTP/2 with one call, which has an end or not."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(
        1,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "driver"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ],
    )
    client.send_data(1, message, end_stream=end)
    return client.data_to_send()


ATTACKS = {
    "says nothing": b"",
    "begins": http2()[:20],
    "calls without an end": http2(message=b"", end=False),
    "calls, and stays": http2(),
    "watches": http2(path="/grpc.health.v1.Health/Watch"),
    "asks for what is not there": http2(path="/v1.DRAPlugin/NodePrepareResources"),
    "speaks something else": b"GET / HTTP/1.1\r\n\r\n",
}


@contextmanager
def attack(port: int, data: bytes, connections: int = 100) -> Iterator[list[socket.socket]]:
    """Hold as many connections as can be had, and open another for each that is closed."""
    with ExitStack() as ended:
        stopping = threading.Event()
        opened = [ended.enter_context(connect(port, ATTACKER, data)) for _ in range(connections)]

        def reopen() -> None:
            while not stopping.wait(0.001):
                for index, connection in enumerate(opened):
                    if is_closed(connection):
                        connection.close()
                        opened[index] = connect(port, ATTACKER, data)

        thread = threading.Thread(target=reopen)
        thread.start()
        try:
            yield opened
        finally:
            stopping.set()
            thread.join()
            for connection in opened:
                connection.close()


@pytest.mark.parametrize("data", ATTACKS.values(), ids=ATTACKS)
def test_kubelet_is_answered_while_a_pod_holds_all_that_it_can_get(data: bytes) -> None:
    with health_server({"liveness": list, "readiness": list}, own=(KUBELET,)) as address:
        with attack(int(address.rpartition(":")[2]), data):
            for service in ("liveness", "readiness") * 5:
                assert probe(address, service, SECONDS) == SERVING
        assert probe(address) == SERVING


@pytest.mark.parametrize("data", ATTACKS.values(), ids=ATTACKS)
def test_another_pod_is_answered_meanwhile(data: bytes) -> None:
    # No places are kept for the probe here.
    with health_server({"liveness": list}) as address, attack(int(address.rpartition(":")[2]), data):
        for _ in range(3):
            assert probe(address, seconds=SECONDS) == SERVING


class Silence:
    """A conversation that takes all and answers nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def receive(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass


class Echo(Silence):
    """Answers at once with what was said; what ends in "?" is answered when ``answers`` is called."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.answers: list[Callable[[], None]] = []

    def receive(self, data: bytes) -> None:
        self.connection.begin_answer()
        if data.endswith(b"?"):
            self.answers.append(lambda: self.answer(data))
        else:
            self.answer(data)

    def answer(self, data: bytes) -> None:
        self.connection.send(data)
        self.connection.end_answer()


def test_connections_are_bounded_and_those_of_the_node_have_places_of_their_own() -> None:
    with open_door(KUBELET) as door, ExitStack() as ended:
        port = door.listen("127.0.0.1", 0, Echo)
        own = ended.enter_context(connect(port, KUBELET, b"a"))
        assert own.recv(1) == b"a"
        opened = [ended.enter_context(connect(port, ATTACKER)) for _ in range(100)]
        eventually(lambda: sum(not is_closed(item) for item in opened) == limits.OTHER_PLACES, SECONDS)
        assert [is_closed(item) for item in opened].index(False) == 100 - limits.OTHER_PLACES
        own.sendall(b"b")
        assert own.recv(1) == b"b"


def test_at_the_bound_the_oldest_silent_connection_is_closed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OTHER_PLACES", 3)
    with open_door() as door, ExitStack() as ended:
        port = door.listen("127.0.0.1", 0, Echo)
        busy, oldest, older = (ended.enter_context(connect(port, ATTACKER)) for _ in range(3))
        for connection, text in ((oldest, b"a"), (older, b"b")):
            connection.sendall(text)
            assert connection.recv(1) == text
        busy.sendall(b"one?")
        eventually(lambda: [item.silent for item in door._connections[False]] == [False, True, True], SECONDS)
        newest = ended.enter_context(connect(port, ATTACKER, b"c"))
        assert newest.recv(1) == b"c"
        assert (is_closed(busy), is_closed(oldest), is_closed(older)) == (False, True, False)


def test_the_address_with_the_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OTHER_PLACES", 4)
    with open_door() as door, ExitStack() as ended:
        port = door.listen("127.0.0.1", 0, Echo)
        scraper = ended.enter_context(connect(port, SCRAPER, b"a"))
        assert scraper.recv(1) == b"a"
        for _ in range(20):
            attacker = ended.enter_context(connect(port, ATTACKER, b"b"))
            assert attacker.recv(1) == b"b"
        scraper.sendall(b"c")
        assert scraper.recv(1) == b"c"


def test_if_all_wait_for_answers_one_of_them_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OTHER_PLACES", 2)
    with open_door() as door, ExitStack() as ended:
        port = door.listen("127.0.0.1", 0, Echo)
        first, second = (ended.enter_context(connect(port, ATTACKER, b"?")) for _ in range(2))
        eventually(lambda: [item.silent for item in door._connections[False]] == [False, False], SECONDS)
        with connect(port, ATTACKER, b"c") as third:
            assert third.recv(1) == b"c"
        assert (is_closed(first), is_closed(second)) == (True, False)


DEADLINES: dict[str, tuple[str, Callable[[int], socket.socket]]] = {
    "the first request": ("FIRST_SECONDS", lambda port: connect(port, ATTACKER)),
    "the next request": ("IDLE_SECONDS", lambda port: connect(port, ATTACKER, b"a")),
    "an answer to be made": ("ANSWER_SECONDS", lambda port: connect(port, ATTACKER, b"a?")),
}


@pytest.mark.parametrize(("limit", "open_"), DEADLINES.values(), ids=DEADLINES)
def test_a_connection_is_closed_that_waits_for_too_long_for(
    limit: str, open_: Callable[[int], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, 0.2)
    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Echo)
        with open_(port) as connection:
            eventually(lambda: is_closed(connection), SECONDS)


def test_words_that_drip_do_not_prolong_the_time_to_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIRST_SECONDS", 0.5)
    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Silence)
        with connect(port, ATTACKER) as connection:

            def drips() -> bool:
                try:
                    connection.send(b".")
                except OSError:
                    return True
                return is_closed(connection)

            eventually(drips, SECONDS)


def test_an_answer_that_is_not_taken_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWER_SECONDS", 0.5)

    class Flood(Echo):
        def answer(self, data: bytes) -> None:
            super().answer(data * 64 * 1024 * 1024)

    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Flood)
        with connect(port, ATTACKER, b"a"):
            eventually(lambda: any(item._output for item in door._connections[False]), SECONDS)
            eventually(lambda: not door._connections[False], SECONDS)


def test_an_answer_larger_than_the_sockets_arrives_whole_and_the_next_one_too() -> None:
    class Large(Echo):
        def answer(self, data: bytes) -> None:
            super().answer(data * 8 * 1024 * 1024)

    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Large)
        with connect(port, ATTACKER) as connection:
            for _ in range(2):
                connection.sendall(b"a")
                size = 0
                while size < 8 * 1024 * 1024:
                    size += len(connection.recv(1024 * 1024))
                assert size == 8 * 1024 * 1024


def test_a_connection_may_send_so_many_bytes_in_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIRST_SECONDS", 60.0)
    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Silence)
        with connect(port, ATTACKER, b"a" * limits.MAX_BYTES) as connection:
            eventually(lambda: [item.last for item in door._connections[False]] == [True], SECONDS)
            assert not is_closed(connection)
            connection.setblocking(True)
            connection.sendall(b"a")
            eventually(lambda: is_closed(connection), SECONDS)


def test_an_old_connection_gets_one_more_answer_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_door() as door:
        port = serve(door, Collector(Operations(), list), "127.0.0.1", 0)
        with connect(port, SCRAPER, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") as connection:
            assert b"close" not in connection.recv(65536).partition(b"\r\n\r\n")[0]
            monkeypatch.setattr(Connection, "deadline", float("inf"))
            monkeypatch.setattr(limits, "AGE_SECONDS", 0.0)
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"\r\nConnection: close\r\n" in connection.recv(65536)
            eventually(lambda: is_closed(connection), SECONDS)


GOAWAY = bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8)
NO_WINDOW = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes([0, 4, 0, 0, 0, 0])
RUDE = {
    "leaves before the answer": http2() + GOAWAY,
    "takes no data": http2()[:24] + NO_WINDOW + http2()[24:],
    "watches, and takes no data": http2(path="/grpc.health.v1.Health/Watch") + NO_WINDOW,
}


@pytest.mark.parametrize("data", RUDE.values(), ids=RUDE)
def test_an_answer_that_cannot_be_given_ends_its_own_connection_only(data: bytes) -> None:
    problems: list[str] = []
    with health_server({"liveness": lambda: problems}, watch_seconds=0.05) as address, ExitStack() as ended:
        port = int(address.rpartition(":")[2])
        for _ in range(3):
            for _ in range(5):
                ended.enter_context(connect(port, ATTACKER, data))
            problems.append("changed")
            assert probe(address, seconds=SECONDS) == NOT_SERVING
            problems.clear()
            assert probe(address, seconds=SECONDS) == SERVING


def test_the_door_survives_what_a_call_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing but a fault of ours: those of peers end their connections."""
    raised = threading.Event()

    def fail() -> None:
        raised.set()
        raise KeyError("door")

    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Echo)
        door.call(fail)
        assert raised.wait(SECONDS)
        with connect(port, SCRAPER, b"a") as connection:
            assert connection.recv(1) == b"a"
    golden([record.getMessage() for record in caplog.records if record.name == limits.__name__])


def test_requests_that_are_cancelled_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIRST_SECONDS", 600.0)  # which also ends a connection without a whole request
    with health_server({"liveness": list}) as address:
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        for stream in range(1, 201, 2):
            client.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")])
            client.reset_stream(stream)
        with connect(int(address.rpartition(":")[2]), ATTACKER) as connection:
            with suppress(OSError):
                connection.sendall(client.data_to_send())
            eventually(lambda: is_closed(connection), SECONDS)


def test_a_conversation_that_fails_ends_its_own_connection_only() -> None:
    class Fails(Echo):
        def receive(self, data: bytes) -> None:
            if data == b"x":
                raise KeyError(data)
            super().receive(data)

    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Fails)
        with connect(port, SCRAPER) as other, connect(port, ATTACKER, b"x") as failing:
            eventually(lambda: is_closed(failing), SECONDS)
            other.sendall(b"a")
            assert other.recv(1) == b"a"


# Turns


def in_door(door: Door, function: Callable[[], None]) -> None:
    """Call a function in the door's thread, and wait for its end."""
    ended = threading.Event()
    door.call(function)
    door.call(ended.set)
    assert ended.wait(SECONDS)


def test_who_asks_for_the_same_gets_the_result_of_one_call_and_one_call_runs_at_a_time() -> None:
    going, go = threading.Event(), threading.Event()
    calls: list[str] = []
    results: list[str] = []

    def call(name: str) -> str:
        calls.append(name)
        going.set()
        assert go.wait(SECONDS)
        return name

    with open_door() as door:
        door.listen("127.0.0.1", 0, Silence)
        turns: Turns[str] = Turns(door, "turns")

        def ask(name: str) -> None:
            turns.ask(name, lambda: call(name), results.append)

        def ask_all() -> None:
            for name in ("a", "a", "b", "a", "b"):
                ask(name)

        in_door(door, ask_all)
        assert going.wait(SECONDS)
        assert calls == ["a"]
        go.set()
        eventually(lambda: len(results) == 5, SECONDS)
        assert (calls, results) == (["a", "b"], ["a", "a", "a", "b", "b"])


def test_a_call_waits_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[str] = []
    start = threading.Thread.start
    refusals = iter([True, True, True, False])  # of which one line tells

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "turns" and next(refusals):
            raise RuntimeError("can't start new thread")
        start(thread)

    with open_door() as door:
        door.listen("127.0.0.1", 0, Silence)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        turns: Turns[str] = Turns(door, "turns")
        in_door(door, lambda: turns.ask("a", lambda: "a", results.append))
        eventually(lambda: results == ["a"], SECONDS)
    golden([record.getMessage() for record in caplog.records if record.name == limits.__name__])


def test_no_connection_is_lost_where_none_can_be_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with open_door() as door:
        port = door.listen("127.0.0.1", 0, Echo)
        client = socket.socket()
        with no_descriptors(client.fileno()):
            client.bind((ATTACKER, 0))
            client.connect(("127.0.0.1", port))
            eventually(lambda: "Too many open files" in caplog.text, SECONDS)
        with client:
            client.settimeout(SECONDS)
            client.sendall(b"a")
            assert client.recv(1) == b"a"
    golden(caplog.messages[0])


def test_no_connection_outlives_a_door_that_takes_longer_than_one_waits_for_it() -> None:
    go = threading.Event()
    door = Door()
    port = door.listen("127.0.0.1", 0, Echo)
    with connect(port, ATTACKER, b"a") as client:
        assert client.recv(1) == b"a"
        door.call(lambda: cast("None", go.wait(SECONDS)))
        door.stop(0.0)
        go.set()
        eventually(lambda: is_closed(client), SECONDS)
    with pytest.raises(ConnectionRefusedError):
        connect(port, ATTACKER)


# Metrics


def page(port: int, headers: dict[str, str] | None = None) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers or {})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return bytes(answer.read())


def test_metrics_are_read_while_a_pod_holds_all_that_it_can_get() -> None:
    samples = [Sample("chips", "Chips.", 16.0)]
    with open_door() as door:
        port = serve(door, Collector(Operations(), lambda: samples), "127.0.0.1", 0)
        for data in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"\0" * 100):
            with attack(port, data):
                assert b"neuron_dra_driver_chips 16.0" in page(port)
        assert b"neuron_dra_driver_chips 16.0" in gzip.decompress(page(port, {"Accept-Encoding": "gzip"}))


def test_strangers_who_each_ask_for_something_else_wait_for_the_same_few_pages() -> None:
    """So do those who stay, of whom each has an address of its own; who has gone is forgotten."""
    go = threading.Event()
    calls: list[Mapping[str, str]] = []

    def application(environment: Mapping[str, str], start: Callable[..., object]) -> list[bytes]:
        calls.append(environment)
        assert go.wait(SECONDS)
        start("200 OK", [])
        return [b"page"]

    with open_door() as door, ExitStack() as ended:
        port = listen(door, "127.0.0.1", 0, application)
        for number in range(200):
            headers = f"Host: {number}\r\nAccept: text/{number}\r\nAccept-Encoding: a{number}, gzip;q={number}"
            request = (
                f"{'GET' if number % 2 else f'GET{number}'} /{number}?name[]={number} HTTP/1.1\r\n{headers}\r\n\r\n"
            )
            stays = number >= 160
            address = f"127.0.77.{number}" if stays else ATTACKER
            connection = ended.enter_context(connect(port, address, request.encode()))
            eventually(lambda: any(not item.silent for item in door._connections[False][-1:]), SECONDS)
            if not stays:
                connection.close()
                eventually(lambda: not door._connections[False], SECONDS)
        with connect(port, SCRAPER, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") as scraper:
            eventually(lambda: len(door._connections[False]) > 40, SECONDS)
            go.set()
            assert scraper.recv(65536).endswith(b"page")
        assert len(calls) <= 4


FORMS = {
    "plain": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "gzip": b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
    "OpenMetrics": b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n",
    "POST": b"POST /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
}
"""Pages that may take long, but for the last."""


def form(environment: Mapping[str, str]) -> str:
    headers = {"HTTP_ACCEPT": "OpenMetrics", "HTTP_ACCEPT_ENCODING": "gzip"}
    method = environment["REQUEST_METHOD"]
    return " ".join([method] * (method != "GET") + [text for name, text in headers.items() if name in environment])


@pytest.mark.parametrize(
    ("questions", "pages"),
    [
        # Who asks for what somebody else has asked for before.
        (
            [("a", "plain"), ("a", "gzip"), ("scraper", "gzip"), ("b", "OpenMetrics"), ("c", "plain")],
            ["gzip", "OpenMetrics"],
        ),
        # Whoever has gone counts no more.
        ([("a", "plain"), ("gone", "gzip"), ("scraper", "OpenMetrics"), ("b", "gzip")], ["OpenMetrics", "gzip"]),
        # All that is no GET is one page.
        ([("a", "plain"), ("b", "POST"), ("scraper", "gzip")], ["POST", "gzip"]),
    ],
    ids=["shared", "gone", "no GET"],
)
def test_the_next_page_is_for_whoever_has_waited_longest(questions: list[tuple[str, str]], pages: list[str]) -> None:
    go = threading.Event()
    calls: list[str] = []

    def application(environment: Mapping[str, str], start: Callable[..., object]) -> list[bytes]:
        calls.append(form(environment))
        assert go.wait(SECONDS)
        start("200 OK", [])
        return [b"page"]

    with open_door() as door, ExitStack() as ended:
        port = listen(door, "127.0.0.1", 0, application)
        addresses = {name: f"127.0.78.{number}" for number, (name, _) in enumerate(questions, start=1)}
        count = 0

        def asked() -> bool:
            """Whether as many connections as there are have asked, so that the next one asks after them."""
            return [item.silent for item in door._connections[False]] == [False] * count

        for name, what in questions:
            connection = ended.enter_context(connect(port, addresses[name], FORMS[what]))
            count += 1
            eventually(asked, SECONDS)
            if name == "gone":
                connection.close()
                count -= 1
                eventually(asked, SECONDS)
        go.set()
        eventually(lambda: len(calls) > len(pages), SECONDS)
    assert calls[1 : 1 + len(pages)] == pages


def test_after_a_page_that_takes_long_comes_a_longer_pause_than_after_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    later = Door.later

    def application(_: object, start: Callable[..., object]) -> list[bytes]:
        time.sleep(0.1)
        start("200 OK", [])
        return []

    def note(door: Door, seconds: float, function: Callable[[], None]) -> None:
        pauses.append(seconds)
        later(door, seconds, function)

    monkeypatch.setattr(Door, "later", note)
    with open_door() as door:
        turns: Turns[None] = Turns(door, "turns")
        port = listen(door, "127.0.0.1", 0, application)
        with connect(port, SCRAPER, FORMS["plain"]) as connection:
            assert connection.recv(65536)
        in_door(door, lambda: turns.ask("a", lambda: time.sleep(0.1), lambda _: None))
        eventually(lambda: len(pauses) == 2, SECONDS)
    assert pauses == [0.5, limits.LONGEST_PAUSE_SECONDS]


REQUESTS = {
    "two, one behind the other": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2, [b"200 OK"] * 2),
    "not GET": (b"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", [b"405 Method Not Allowed"]),
    "HEAD": (b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 2, [b"405 Method Not Allowed"] * 2),
    "a body": (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", [b"200 OK"]),
    "no HTTP": (b"\x16\x03\x01\x00\xa5\r\n\r\n", [b"400 Bad Request"]),
    "a long line": (b"GET /" + b"a" * 20_000, [b"431 Request Header Fields Too Large"]),
}


@pytest.mark.parametrize(("data", "statuses"), REQUESTS.values(), ids=REQUESTS)
def test_each_request_gets_its_answer(data: bytes, statuses: list[bytes]) -> None:
    with open_door() as door:
        port = serve(door, Collector(Operations(), list), "127.0.0.1", 0)
        with connect(port, SCRAPER, data) as connection:
            text = b""

            def answers() -> list[bytes]:
                return re.findall(rb"HTTP/1\.1 (\d+ [A-Za-z ]+)\r\n", text)

            while len(answers()) < len(statuses):
                received = connection.recv(65536)
                assert received, text
                text += received
            assert answers() == statuses


def test_an_application_that_fails_is_answered_for() -> None:
    def fail(environment: object, start: object) -> list[bytes]:
        raise KeyError("chips")

    with open_door() as door:
        port = listen(door, "127.0.0.1", 0, fail)
        with connect(port, SCRAPER, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")


# Own addresses


def test_the_nodes_own_addresses_are_the_one_that_is_given_and_the_gateways(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0105F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0005F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    (tmp_path / "net/ipv6_route").write_text(
        "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 "
        "00000400 00000001 00000000 00000003     eth0\n"
    )
    assert own_addresses("192.0.2.7", tmp_path) == {"127.0.0.1", "::1", "192.0.2.7", "10.244.5.1", "fd00::1"}
    caplog.set_level(logging.DEBUG)
    assert own_addresses("", tmp_path / "none") == {"127.0.0.1", "::1"}
    golden(caplog.messages)
