"""A tenant whose claims take long to prepare leaves room for those of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.driver.claims import turns
from dra_driver.driver.claims.model import PrepareError
from dra_driver.driver.claims.turns import MOST, NamespaceTurns
from tests.eventually import eventually
from tests.golden import golden_error

CALLS = 16
"""That kubelet has answered at once."""


def test_one_namespace_has_half_of_all_turns_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.2)
    of, go, running = NamespaceTurns(), threading.Event(), set[int]()

    def call(number: int) -> bool:
        try:
            with of.turn("tenant"):
                running.add(number)
                go.wait(60.0)
        except PrepareError:
            return False
        return True

    with ThreadPoolExecutor(CALLS) as calls:
        answers = [calls.submit(call, number) for number in range(CALLS)]
        try:
            eventually(lambda: sum(answer.done() for answer in answers) == CALLS - MOST, what="the refusals")
            assert len(running) == MOST
            with of.turn("other"):
                pass
            with golden_error(PrepareError), of.turn("tenant"):
                pass
        finally:
            go.set()
        assert sum(answer.result() for answer in answers) == MOST
    with of.turn("tenant"):
        pass


def test_who_waits_has_the_turn_of_the_first_that_ends() -> None:
    of, go = NamespaceTurns(), threading.Event()
    began = threading.Semaphore(0)

    def call(wait: Callable[[], object]) -> None:
        with of.turn("tenant"):
            began.release()
            wait()

    with ThreadPoolExecutor(CALLS) as calls:
        try:
            first = [calls.submit(call, lambda: go.wait(60.0)) for _ in range(MOST)]
            for _ in first:
                assert began.acquire(timeout=60.0)
            waiting = calls.submit(call, lambda: None)
            go.set()
            waiting.result()
        finally:
            go.set()
