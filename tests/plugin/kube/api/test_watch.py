"""The reflector against a server that ends, breaks, refuses and expires watches."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self

import pytest
from msgspec.structs import replace

from dra_driver.kube.api import watch
from dra_driver.kube.api.codec import NODES
from dra_driver.kube.api.errors import Unreachable
from dra_driver.kube.api.resources import Collection, ResourceApi, WatchEvent
from dra_driver.kube.api.watch import Informer, Reflector
from dra_driver.kube.objects.core import Node
from dra_driver.util.worker import Backoff
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually


class Follower:
    """A reflector of the own Node, and what it told."""

    def __init__(self, server: ApiServer, **options: Any) -> None:
        api = ResourceApi(server.transport())
        self.lists: list[list[Node]] = []
        self.events: list[WatchEvent[Node]] = []
        self.reflector: Reflector[Node] = Reflector(
            "own Node",
            lambda: api.list_nodes("node-a"),
            lambda version, seconds: api.watch_nodes("node-a", version, seconds),
            self.lists.append,
            self.events.append,
            **options,
        )

    def __enter__(self) -> Self:
        self.reflector.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.reflector.stop()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node("node-a", labels={"zone": "1"})
        running.add_node("node-b")
        yield running


def relabel(server: ApiServer, value: str) -> None:
    node = server.store.get("nodes", "node-a")
    node["metadata"]["labels"]["zone"] = value
    server.store.update("nodes", "node-a", node)


def watches(server: ApiServer) -> int:
    return server.count("GET", "nodes", watch=True)


def lists(server: ApiServer) -> int:
    return server.count("GET", "nodes", watch=False)


def test_it_lists_then_follows_only_the_own_object(server: ApiServer) -> None:
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        assert [node.metadata.name for node in follower.lists[0]] == ["node-a"]
        server.add_node("node-c")
        relabel(server, "2")
        eventually(lambda: follower.events)
        (event,) = follower.events
        assert event.type == "MODIFIED"
        assert event.object is not None
        assert event.object.metadata.labels == {"zone": "2"}


def test_a_watch_that_the_server_ends_goes_on_without_a_list(server: ApiServer) -> None:
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        server.close_watches()
        eventually(lambda: watches(server) == 2)
        relabel(server, "2")
        eventually(lambda: follower.events)
        assert lists(server) == 1


@contextmanager
def few(requests: Callable[[ApiServer], float], server: ApiServer) -> Iterator[None]:
    """After at least two, and over a second or more, requests have come no sooner than back-off lets them."""
    began = time.monotonic()
    eventually(lambda: requests(server) >= 2)
    yield
    time.sleep(1.0)
    # The first two may come at once; each wait is at least half of its bound, which begins with 0.2 s and doubles.
    made = requests(server)
    assert made <= 3 + math.log2(1 + (time.monotonic() - began) / 0.1)


def test_nothing_is_lost_between_two_watches(server: ApiServer) -> None:
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        server.stop()
        relabel(server, "2")
        relabel(server, "3")
        server.start()
        eventually(lambda: len(follower.events) == 2)
        assert lists(server) == 1


def test_bookmarks_move_the_place_to_go_on_from(server: ApiServer) -> None:
    server.bookmark_seconds = 0.02
    with Follower(server):
        eventually(lambda: watches(server) == 1)
        before = int(server.requests[-1].query["resourceVersion"])
        server.add_node("node-c")

        def moved() -> bool:
            opened = watches(server)
            time.sleep(0.1)  # a bookmark comes, unless the machine is too busy
            server.close_watches()
            eventually(lambda: watches(server) > opened)
            last = [request for request in list(server.requests) if request.watch][-1]
            return int(last.query["resourceVersion"]) > before

        eventually(moved)
        assert lists(server) == 1


def test_an_expired_watch_lists_again_and_is_no_reason_for_a_warning(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        relabel(server, "2")
        eventually(lambda: follower.events)
        server.store.expire()
        eventually(lambda: len(follower.lists) == 2)
        relabel(server, "3")
        eventually(lambda: len(follower.events) == 2)
    assert {record.levelname for record in caplog.records if "410" in record.getMessage()} == {"INFO"}


def test_a_server_that_says_410_is_there_again_and_is_asked_soon_after_an_outage(server: ApiServer) -> None:
    backoff = Backoff(first=0.05)
    with Follower(server, backoff=backoff) as follower:
        eventually(lambda: watches(server) == 1)
        server.stop()
        relabel(server, "2")
        eventually(lambda: backoff.tries == 6)
        backoff.tries, backoff.cap = 30, 1000.0  # as after a long outage: the next try but one comes after minutes
        server.store.expire()
        server.start()
        eventually(lambda: watches(server) == 2)
        eventually(lambda: len(follower.lists) == 2)


def test_a_server_that_always_says_410_is_not_asked_in_a_loop(server: ApiServer) -> None:
    server.fail(410, times=10_000, watch=True, reason="Expired")
    with Follower(server), few(lists, server):
        pass


def test_a_server_that_ends_watches_at_once_is_not_asked_in_a_loop(server: ApiServer) -> None:
    server.watch_seconds = 0.0
    with Follower(server), few(watches, server):
        pass
    assert lists(server) == 1


def test_a_server_that_fails_or_drops_is_not_asked_in_a_loop_and_told_of_once(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    server.fail(500, times=3)
    server.drop(times=10_000)
    with Follower(server) as follower:
        with few(lambda _: len(server.requests) / 2, server):  # each lost read is tried twice at most
            eventually(lambda: len(told()) == 2, what="a word on each of the two failures")
        assert follower.reflector.last_error != ""
    assert len(told()) == 2


def test_errors_end_in_a_list_and_a_watch(server: ApiServer) -> None:
    server.fail(500, times=1, watch=False)
    server.fail(503, times=1, watch=True)
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 2)
        eventually(lambda: follower.reflector.last_error == "")
        relabel(server, "2")
        eventually(lambda: follower.events)


def test_retry_after_is_honoured(server: ApiServer) -> None:
    server.fail(429, times=1, retry_after=1)
    with Follower(server, backoff=Backoff(first=0.01)) as follower:
        eventually(lambda: follower.lists)
    first, second = (request.at for request in server.requests[:2])
    assert second - first >= 1.0


def test_it_stops_at_once_out_of_a_blocked_read(server: ApiServer) -> None:
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        time.sleep(0.05)
        started = time.monotonic()
        follower.reflector.stop(60.0)
        assert time.monotonic() - started < 30.0
        asked = len(server.requests)
        relabel(server, "2")
        time.sleep(0.1)
        assert follower.events == []
        assert len(server.requests) == asked


def test_it_stops_at_once_out_of_a_wait(server: ApiServer) -> None:
    server.fail(500, times=100)
    with Follower(server, backoff=Backoff(first=120.0, cap=120.0)) as follower:
        eventually(lambda: len(server.requests) == 1)
        started = time.monotonic()
        follower.reflector.stop(60.0)
        assert time.monotonic() - started < 30.0


def test_a_callback_that_fails_gets_a_new_list(server: ApiServer) -> None:
    follower = Follower(server)
    on_event, calls = follower.reflector._on_event, []

    def fail_once(event: WatchEvent[Node]) -> None:
        calls.append(event)
        if len(calls) == 1:
            raise RuntimeError("on purpose")
        on_event(event)

    follower.reflector._on_event = fail_once
    with follower:
        eventually(lambda: watches(server) == 1)
        relabel(server, "2")
        eventually(lambda: "on purpose" in follower.reflector.last_error)
        eventually(lambda: len(follower.lists) == 2)
        assert follower.lists[1][0].metadata.labels == {"zone": "2"}
        eventually(lambda: not follower.reflector.last_error)
        relabel(server, "3")
        eventually(lambda: follower.events)


def test_an_event_that_cannot_be_read_does_not_end_it(server: ApiServer) -> None:
    with Follower(server) as follower:
        eventually(lambda: watches(server) == 1)
        node = server.store.get("nodes", "node-a")
        node["metadata"]["labels"] = "none"
        server.store.update("nodes", "node-a", node)
        eventually(lambda: follower.reflector.last_error)
        assert "labels" in follower.reflector.last_error
        node["metadata"].pop("resourceVersion")
        node["metadata"]["labels"] = {"zone": "2"}
        server.store.update("nodes", "node-a", node)
        eventually(lambda: len(follower.lists) == 2)
        assert follower.lists[1][0].metadata.labels == {"zone": "2"}


def test_a_watch_in_a_version_that_is_no_longer_served_leads_to_a_list(server: ApiServer) -> None:
    server.fail(404, times=1, watch=True, message="404 page not found")
    with Follower(server):
        eventually(lambda: watches(server) == 2)
        assert lists(server) == 2


def test_a_failure_that_nobody_foresaw_does_not_end_it(server: ApiServer) -> None:
    follower = Follower(server)
    list_, calls = follower.reflector._list, []

    def fail_once() -> tuple[list[Node], str]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("on purpose")
        return list_()

    follower.reflector._list = fail_once
    with follower:
        eventually(lambda: watches(server) == 1)
        assert len(follower.lists) == 1


def test_watches_are_agreed_for_about_ten_minutes(server: ApiServer) -> None:
    with Follower(server):
        eventually(lambda: watches(server) == 1)
        query = server.requests[-1].query
    assert 540 <= int(query["timeoutSeconds"]) <= 660
    assert query["allowWatchBookmarks"] == "true"


def test_a_server_that_is_slow_to_fail_is_asked_ever_more_seldom_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STABLE_SECONDS", 0.05)
    tries: list[float] = []

    def list_() -> tuple[list[Node], str]:
        tries.append(time.monotonic())
        time.sleep(0.1)  # a server that takes connections and does not answer
        raise Unreachable("no answer in time")

    def never(version: str, seconds: float) -> Any:
        raise AssertionError("nothing was listed")

    reflector: Reflector[Node] = Reflector(
        "own Node",
        list_,
        never,
        lambda nodes: None,
        lambda event: None,
        backoff=Backoff(first=0.2, cap=10, random=lambda: 1.0),
    )
    reflector.start()
    eventually(lambda: len(tries) == 4)
    reflector.stop()
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert all(wait >= 0.1 + 0.2 * 2**number for number, wait in enumerate(waits)), waits


@contextmanager
def informed(server: ApiServer) -> Iterator[tuple[Informer[Node], Collection[Node], list[str]]]:
    """An informer of the Nodes, where it asks, and the zone of the own one after each change."""
    zones: list[str] = []
    nodes = Collection(server.transport(), NODES)

    def look() -> None:
        zones.extend(item.metadata.labels["zone"] for item in informer.objects() if item.metadata.name == "node-a")

    informer = Informer("nodes", nodes, look)
    informer.start()
    try:
        eventually(lambda: watches(server) == 1)
        yield informer, nodes, zones
    finally:
        informer.stop()


def test_what_was_read_is_not_undone_by_older_events(server: ApiServer) -> None:
    with informed(server) as (informer, nodes, zones):
        outage = server.fail(503, 10**6, watch=True)
        server.close_watches()
        eventually(lambda: outage.times < 10**6)
        relabel(server, "2")
        relabel(server, "3")
        informer.wrote(nodes.get("", "node-a"))
        outage.times = 0
        eventually(lambda: len(zones) >= 2)
        assert zones == ["1", "3"]


def test_what_was_written_is_not_undone_by_a_list_of_before(server: ApiServer) -> None:
    with informed(server) as (informer, nodes, zones):
        node = nodes.get("", "node-a")
        ahead = replace(node.metadata, resource_version="1000000", labels={"zone": "written"})
        informer.wrote(replace(node, metadata=ahead))
        server.store.expire()
        server.close_watches()
        eventually(lambda: len(zones) >= 2)
        assert zones == ["1", "written"]


@pytest.mark.parametrize("version", ["", "latest", "9" * 5000, "\u0663"])
def test_a_version_that_is_no_number_is_older_than_any(server: ApiServer, version: str) -> None:
    """What answers may not be an API server; that is no defect of who asks."""
    with informed(server) as (informer, nodes, zones):
        node = nodes.get("", "node-a")
        informer.wrote(replace(node, metadata=replace(node.metadata, resource_version=version, labels={"zone": "x"})))
        relabel(server, "2")
        eventually(lambda: len(zones) >= 2)
        assert zones == ["1", "2"]
