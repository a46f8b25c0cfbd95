"""A tenant whose claims take long leaves room for those of others, whatever its calls wait for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.kube.kubelet.dra import PREPARE_TURNS, UNPREPARE_TURNS, NamespaceTurns
from tests.doubles.kubelet import Claim, Kubelet
from tests.doubles.sample_driver import DRIVER, SampleDriver, node_directory, served
from tests.eventually import eventually
from tests.golden import golden

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
    turns, go, began = NamespaceTurns(2, 60.0), threading.Event(), threading.Semaphore(0)

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


def test_where_all_turns_take_long_only_the_first_that_come_wait() -> None:
    turns, began = NamespaceTurns(1, 1.0), time.monotonic()
    with turns.turn("tenant", math.inf) as first:
        assert first
        for _ in range(300):
            with turns.turn("tenant", math.inf) as another:
                assert not another
        with turns.turn("other", math.inf) as others:
            assert others
    assert time.monotonic() - began < 100, "not a second for each"
    with turns.turn("tenant", math.inf) as later:
        assert later


def test_nobody_waits_for_long_where_turns_end_all_the_time_and_are_taken_at_once() -> None:
    """Else hundreds of calls that take a second or two each would have all places by turns, and nobody else one."""
    turns, over, began = NamespaceTurns(4, 1.0), threading.Event(), threading.Semaphore(0)

    def churn(first: float) -> None:
        over.wait(first)
        while not over.is_set():
            with turns.turn("tenant", math.inf):
                began.release()
                over.wait(1.6)

    with ThreadPoolExecutor(4) as calls:
        try:
            for number in range(4):
                calls.submit(churn, 0.4 * number)
            for _ in range(8):
                assert began.acquire(timeout=60.0)
            since = time.monotonic()
            for _ in range(20):
                with turns.turn("tenant", math.inf):
                    pass
            assert time.monotonic() - since < 2.0, "not 0.4 s for each"
        finally:
            over.set()


def test_a_namespace_whose_turns_were_free_for_long_enough_waits_again_and_is_forgotten() -> None:
    turns, go = NamespaceTurns(1, 0.2), threading.Event()

    def waits() -> float:
        began = time.monotonic()
        with turns.turn("tenant", math.inf) as has_turn:
            assert not has_turn
        return time.monotonic() - began

    for _ in range(2):
        with turns.turn("tenant", math.inf):
            assert waits() > 0.1
            assert waits() < 0.1
        go.wait(0.3)
    with turns.turn("other", math.inf):
        pass
    assert turns._namespaces.keys() <= {"other"}
