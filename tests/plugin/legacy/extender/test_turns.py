"""Bindings that get no answer: what they cost those of other namespaces, and what is told to whoever asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from dra_driver.legacy.extender import binding, turns
from dra_driver.legacy.extender.turns import Turns
from tests.builders.extender import Extender, add_node, extender, known, pod_document
from tests.builders.threads import no_further_threads
from tests.calls import calls_in
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import PATIENCE, eventually
from tests.golden import golden

pytestmark = pytest.mark.slow

FOR_EVER = 3600.0
OF_HANGING = "/namespaces/hangs.*/binding$"


@pytest.fixture
def one(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Extender]:
    """What hangs does so until the test lets it go on."""
    monkeypatch.setattr(binding, "REQUEST_SECONDS", FOR_EVER)
    monkeypatch.setattr(turns, "WAIT_SECONDS", FOR_EVER)
    add_node(server, "n")
    with extender(server) as running:
        yield known(running)


def add(server: ApiServer, namespace: str, name: str) -> Object:
    item = pod_document(name, {})
    return server.store.create("pods", item | {"metadata": {"namespace": namespace, "name": name}})


@contextmanager
def hanging(
    server: ApiServer, one: Extender, namespaces: int, pods: int, path: str = OF_HANGING
) -> Iterator[list[Future[str]]]:
    """The errors of binds that are under way, or wait, while bindings in these namespaces hang."""
    items = [add(server, f"hangs-{space}", f"p{pod}") for space in range(namespaces) for pod in range(pods)]
    with ThreadPoolExecutor(len(items)) as pool, server.hold(namespaces, path=path) as come:
        # In the extender's hands, one after another: which of them is first is then known.
        begun = [pool.submit(one.bind, item, "n") for item in items[::pods]]
        eventually(come, what="a binding of each namespace")
        with server.hold(len(items), path=path):
            yield begun + [pool.submit(one.bind, item, "n") for item in items if item not in items[::pods]]


@pytest.mark.parametrize(("namespaces", "pods"), [(1, 64), (8, 8)])
def test_bindings_that_hang_in_some_namespaces_keep_no_thread_from_others(
    server: ApiServer, one: Extender, namespaces: int, pods: int
) -> None:
    with hanging(server, one, namespaces, pods) as binds:
        for number in range(20):
            assert one.bind(add(server, "good", f"g{number}"), "n") == ""
        assert not any(bind.done() for bind in binds)
    assert {bind.result() for bind in binds} == {""}


def test_who_waits_in_a_namespace_whose_bindings_last_is_told_why(
    server: ApiServer, one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLOW_SECONDS", 0.05)
    with hanging(server, one, 1, 40) as binds:
        refused = 40 - 1 - turns.SLOW_WAITING
        eventually(lambda: sum(bind.done() for bind in binds) == refused, what="the answers to those that do not wait")
        texts = {bind.result() for bind in binds if bind.done()}
        assert len(texts) == 1
        golden(texts.pop())
    assert [bind.result() for bind in binds].count("") == 40 - refused


def test_who_has_waited_for_too_long_is_told_to_ask_again(
    server: ApiServer, one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(turns, "SLOW_SECONDS", FOR_EVER)
    with hanging(server, one, 1, 2) as (first, second):
        golden(second.result(PATIENCE))
        assert not first.done()
    assert first.result() == ""
    assert server.count("POST", "/p1/binding$") == 0


def test_what_nobody_waits_for_any_more_is_not_carried_out(
    server: ApiServer, one: Extender, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging(server, one, 1, 1) as (first,):
        meta = add(server, "hangs-0", "left")["metadata"]
        body = {"PodName": "left", "PodNamespace": "hangs-0", "PodUID": meta["uid"], "Node": "n"}
        with socket.create_connection(("127.0.0.1", one.port), timeout=10) as connection:
            text = json.dumps(body)
            connection.sendall(f"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            # The extender has read it when it answers a request that came later.
            assert one.get("/livez")[0] == 200
        assert one.get("/livez")[0] == 200
    assert first.result() == ""
    assert one.bind(add(server, "hangs-0", "next"), "n") == ""
    assert server.count("POST", "/left/binding$") == 0
    golden([message for message in caplog.messages if "hangs-0/left" in message])


def test_preemption_waits_for_no_binding(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "REQUEST_SECONDS", FOR_EVER)
    monkeypatch.setattr(turns, "THREADS", 1)
    add_node(server, "n")
    with extender(server) as one, hanging(server, known(one), 1, 1):
        plain = pod_document("plain", {"limits": {"cpu": "1"}})
        assert one.preempt(plain, {"n": ["some"]}) == {"n": ["some"]}


class Crowd:
    """Calls that last until the test lets them end."""

    def __init__(self, turns: Turns, stack: ExitStack) -> None:
        self._turns = turns
        self._gates: dict[str, threading.Event] = {}
        self.begun: list[str] = []
        stack.callback(self.end_all)

    def begin(self, name: str, number: int = 1, ended_as: str = "") -> list[asyncio.Task[None]]:
        gate = self._gates[ended_as or name] = threading.Event()

        def work() -> None:
            self.begun.append(name)
            assert gate.wait(PATIENCE)

        return [asyncio.create_task(self._turns.run(name, work)) for _ in range(number)]

    def end(self, name: str) -> None:
        self._gates[name].set()

    def end_all(self) -> None:
        for gate in self._gates.values():
            gate.set()


async def come_true(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, condition)


def with_crowd(monkeypatch: pytest.MonkeyPatch, story: Callable[[Turns, Crowd], Awaitable[None]]) -> None:
    monkeypatch.setattr(turns, "WAIT_SECONDS", FOR_EVER)
    monkeypatch.setattr(turns, "SLOW_SECONDS", FOR_EVER)

    async def run() -> None:
        them = Turns()
        with ExitStack() as stack:
            crowd = Crowd(them, stack)
            try:
                await story(them, crowd)
            finally:
                crowd.end_all()
                await them.stop()

    asyncio.run(run())


def prompt(them: Turns, name: str, number: int) -> list[asyncio.Task[None]]:
    """Calls of a namespace that end at once."""
    return [asyncio.create_task(them.run(name, lambda: None)) for _ in range(number)]


def test_a_namespace_whose_calls_end_gets_half_of_the_threads_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(them: Turns, crowd: Crowd) -> None:
        tasks = prompt(them, "eager", 100) + crowd.begin("eager", 100)
        await come_true(lambda: len(crowd.begun) == turns.THREADS // 2)
        await asyncio.gather(*prompt(them, "other", 5))
        assert len(crowd.begun) == turns.THREADS // 2
        crowd.end("eager")
        await asyncio.gather(*tasks)
        assert len(crowd.begun) == 100

    with_crowd(monkeypatch, story)


def test_slow_namespaces_have_one_thread_each_and_half_of_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [f"slow-{number}" for number in range(12)]

    async def story(them: Turns, crowd: Crowd) -> None:
        monkeypatch.setattr(turns, "SLOW_SECONDS", 0.01)
        tasks = [task for name in slow for task in crowd.begin(name)]
        await come_true(lambda: sorted(crowd.begun) == sorted(slow))
        await asyncio.sleep(0.05)  # so that they have lasted
        crowd.end_all()
        await asyncio.gather(*tasks)
        crowd.begun.clear()
        tasks = [task for name in slow for task in crowd.begin(name, ended_as=f"first of {name}")]
        tasks += [task for name in slow for task in crowd.begin(name, 2)]
        await come_true(lambda: len(crowd.begun) == turns.THREADS // 2)
        await asyncio.sleep(0.05)
        monkeypatch.setattr(turns, "SLOW_SECONDS", FOR_EVER)
        await asyncio.gather(*prompt(them, "other", 5))
        assert crowd.begun == slow[: turns.THREADS // 2], "one of each"
        # They take turns: as one ends, the next namespace begins, also where the one that has ended has more.
        monkeypatch.setattr(turns, "SLOW_SECONDS", 0.01)
        for former, following in zip([0, *range(turns.THREADS // 2, 11)], range(turns.THREADS // 2, 12), strict=True):
            crowd.end(f"first of {slow[former]}")
            await come_true(lambda number=following: slow[number] in crowd.begun)  # type: ignore[misc] # bound at once
            await asyncio.sleep(0.05)  # so that it stays a slow one
        crowd.end_all()
        await asyncio.gather(*tasks)

    with_crowd(monkeypatch, story)


def test_a_namespace_that_was_slow_is_not_when_a_call_of_it_ends_promptly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(them: Turns, crowd: Crowd) -> None:
        monkeypatch.setattr(turns, "SLOW_SECONDS", 0.01)
        tasks = crowd.begin("a")
        await come_true(lambda: crowd.begun)
        await asyncio.sleep(0.05)
        crowd.end("a")
        await asyncio.gather(*tasks)
        monkeypatch.setattr(turns, "SLOW_SECONDS", FOR_EVER)
        crowd.begun.clear()
        tasks = prompt(them, "a", 8) + crowd.begin("a", 8)
        await come_true(lambda: len(crowd.begun) == turns.THREADS // 2)
        crowd.end("a")
        await asyncio.gather(*tasks)

    with_crowd(monkeypatch, story)


async def make_slow(monkeypatch: pytest.MonkeyPatch, them: Turns, names: list[str]) -> None:
    """Have one call of each of these namespaces last, and end."""
    monkeypatch.setattr(turns, "SLOW_SECONDS", 0.001)
    for first in range(0, len(names), turns.THREADS // 2):
        some = names[first : first + turns.THREADS // 2]
        await asyncio.gather(*(them.run(name, partial(time.sleep, 0.02)) for name in some))
    monkeypatch.setattr(turns, "SLOW_SECONDS", FOR_EVER)


@pytest.mark.parametrize(("limit", "value"), [("MEMORY_SECONDS", 0.05), ("MAX_SLOW", 4)])
def test_slow_namespaces_without_calls_are_forgotten_after_a_time_and_above_a_number(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    slow = [f"slow-{number}" for number in range(12)]

    async def story(them: Turns, crowd: Crowd) -> None:
        monkeypatch.setattr(turns, limit, value)
        await make_slow(monkeypatch, them, slow)
        await asyncio.sleep(0.1)
        tasks = [task for name in slow for task in crowd.begin(name)]
        await come_true(lambda: sorted(crowd.begun) == sorted(slow))
        crowd.end_all()
        await asyncio.gather(*tasks)

    with_crowd(monkeypatch, story)


def test_a_binding_costs_the_same_however_many_namespaces_were_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(them: Turns, _: Crowd) -> None:
        await make_slow(monkeypatch, them, [f"slow-{number}" for number in range(8)])
        few = await steps(them)
        await make_slow(monkeypatch, them, [f"slow-{number}" for number in range(120)])
        assert await steps(them) <= few + 8

    async def steps(them: Turns) -> int:
        with calls_in(turns) as calls:
            await asyncio.gather(*prompt(them, "other", 20))
        return calls.number

    with_crowd(monkeypatch, story)


def test_calls_for_which_no_thread_can_be_had_keep_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of others may take all that a node may have; that passes, and each namespace binds again."""
    names = [f"n{number}" for number in range(2 * turns.THREADS)]

    async def story(them: Turns, crowd: Crowd) -> None:
        with no_further_threads():
            under_way = [task for name in names for task in crowd.begin(name)]
            await asyncio.sleep(0)
            crowd.end_all()
            await asyncio.gather(*under_way)
        await asyncio.gather(*(task for name in names for task in prompt(them, name, 2)))

    with_crowd(monkeypatch, story)
