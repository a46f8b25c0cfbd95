"""A tenant whose claims take long leaves room for those of others, whatever its calls wait for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from dra_driver.kube.kubelet.dra import (
    ANSWER_SECONDS,
    CALL_SECONDS,
    PREPARE_TURNS,
    TURN_RATE,
    TURN_SECONDS,
    UNPREPARE_TURNS,
    NamespaceTurns,
)
from dra_driver.util import runtime
from tests.doubles.kubelet import Claim, Kubelet
from tests.doubles.sample_driver import DRIVER, SampleDriver, node_directory, served
from tests.eventually import eventually
from tests.golden import golden
from tests.simulation.scheduler import Scheduler

CALLS = 16
"""That are answered at once."""


def claim(number: int, namespace: str = "tenant") -> Claim:
    return Claim(namespace, "c", f"{number:08x}-1111-4222-8333-444444444444", (DRIVER,))


@pytest.mark.parametrize("of", [claim, lambda _: claim(0)], ids=["many", "one"])
@pytest.mark.parametrize(("verb", "turns"), [("Prepare", PREPARE_TURNS), ("Unprepare", UNPREPARE_TURNS)])
def test_one_namespace_never_has_all_turns(verb: str, turns: int, of: Callable[[int], Claim]) -> None:
    """Also where its calls are all for one claim, which its pods share, and wait for each other."""
    driver, go = SampleDriver(), threading.Event()

    def hang(claim: object) -> None:
        if getattr(claim, "namespace", "") == "tenant":
            go.wait(60.0)

    driver.on_prepare = driver.on_unprepare = hang
    with node_directory() as root, Kubelet(root) as kubelet, served(kubelet, driver):
        kubelet.wait_registered(DRIVER)
        call = kubelet.instance(DRIVER).call

        def error(number: int) -> str:
            text: str = call(f"Node{verb}Resources", [of(number)], 45.0).claims[of(number).uid].error
            return text

        with ThreadPoolExecutor(CALLS) as calls:
            answers = [calls.submit(error, number) for number in range(CALLS)]
            try:
                eventually(lambda: sum(answer.done() for answer in answers) == CALLS - turns, what="the refusals")
                others = claim(99, "other")
                for both in ("Prepare", "Unprepare"):
                    assert call(f"Node{both}Resources", [others], 10.0).claims[others.uid].error == ""
            finally:
                go.set()
            texts = {answer.result().rpartition("): ")[2] for answer in answers} - {""}
        golden(*texts)


def test_who_waits_has_the_turn_of_the_first_that_ends() -> None:
    turns, go, began = NamespaceTurns(2, 60.0, 1.0), threading.Event(), threading.Semaphore(0)

    def call(work: Callable[[], object]) -> bool:
        with turns.turn("tenant", math.inf) as has_turn:
            began.release()
            work()
            return has_turn

    with ThreadPoolExecutor(CALLS) as calls:
        try:
            first = [calls.submit(call, lambda: go.wait(60.0)) for _ in range(2)]
            for _ in first:
                assert began.acquire(timeout=60.0)
            with turns.turn("tenant", -math.inf) as has_turn:
                assert not has_turn
            waiting = calls.submit(call, lambda: None)
        finally:
            go.set()
        assert all(answer.result() for answer in (*first, waiting))


@dataclass(frozen=True)
class Call:
    namespace: str
    seconds: float
    """That it takes once it has its turn, at most until kubelet has to be answered."""


class Node:
    """Calls are answered sixteen at once, in the order in which they come; the clock stands while nobody waits."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.scheduler.fair = True
        with runtime.use(self.scheduler.runtime()):
            self.turns = NamespaceTurns(PREPARE_TURNS, TURN_SECONDS, TURN_RATE)

    def answer(self, calls: Sequence[Call]) -> list[float]:
        """After how many seconds each had its turn; inf: never."""
        since, deadline = self.scheduler.clock, runtime.monotonic() + CALL_SECONDS - ANSWER_SECONDS
        left, begun = list(enumerate(calls)), [math.inf] * len(calls)

        def work() -> None:
            while left:
                number, call = left.pop(0)
                with self.turns.turn(call.namespace, deadline) as has_turn:
                    if has_turn:
                        begun[number] = self.scheduler.clock - since
                        runtime.sleep(min(call.seconds, deadline - runtime.monotonic()))

        for number in range(CALLS):
            self.scheduler.spawn(work, f"call {number}")
        self.scheduler.run(lambda: not self.scheduler.tasks, math.inf)
        return begun


@pytest.fixture
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr("tests.simulation.scheduler.SLOW", 0.0)
    node = Node(request.param)
    with runtime.use(node.scheduler.runtime()):
        yield node
    node.scheduler.close()


BURST = 250
"""Pods of one namespace that start on one node at once: more than kubelet runs by default."""
SHORT = PREPARE_TURNS / TURN_RATE
"""Seconds of a call, of which so many end as have to for all to be served."""
seeds = pytest.mark.parametrize("node", range(20), indirect=True)


@seeds
def test_a_burst_of_calls_that_take_little_is_served_whole(node: Node) -> None:
    draw = node.scheduler.random
    begun = node.answer([Call("tenant", draw.uniform(SHORT / 2, SHORT)) for _ in range(BURST)])
    assert math.inf not in begun
    assert max(begun) > 2 * TURN_SECONDS, "it was longer than anything would have waited if all had hung"


@seeds
def test_calls_of_one_namespace_delay_those_of_others_little_whatever_they_wait_for(node: Node) -> None:
    """Some may be quick, so that those that are not wait longer, and none may get a second for itself."""
    draw = node.scheduler.random
    takes = draw.choices([0.01, SHORT, 0.6, 1.6, 2.2, CALL_SECONDS], [draw.random() ** 4 for _ in range(6)], k=BURST)
    if draw.random() < 0.5:
        takes.sort()
    begun = node.answer([*(Call("tenant", seconds) for seconds in takes), Call("other", 0.01)])
    assert begun[-1] < TURN_SECONDS + BURST / TURN_RATE + 0.5
    if min(takes) > 1.0:
        assert begun[-1] < 2 * TURN_SECONDS


@seeds
def test_a_namespace_that_had_turns_free_waits_as_long_again_and_is_forgotten(node: Node) -> None:
    hanging = [Call("tenant", CALL_SECONDS)] * CALLS
    shorter = [Call("tenant", TURN_SECONDS - 0.1)] * CALLS
    for _ in range(2):
        for calls in (hanging, shorter):
            assert node.answer(calls).count(math.inf) == CALLS - PREPARE_TURNS
        runtime.sleep(TURN_SECONDS)
        assert math.inf not in node.answer(shorter)
        runtime.sleep(TURN_SECONDS)
        node.answer([Call("other", 0.01)])
        assert node.turns._namespaces.keys() <= {"other"}
