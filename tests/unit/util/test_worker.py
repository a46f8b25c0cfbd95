"""A loop survives what its work raises, tells when it fails or hangs, and ends in bounded time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker, bounded, stop_in_turn
from tests.builders.threads import no_further_threads
from tests.eventually import eventually
from tests.golden import golden, golden_error

PATIENCE = 20.0
"""Seconds until a test gives up on another thread."""


@contextmanager
def working(work: Callable[[], float], *, longest: float = PATIENCE, settle: float = 0.0) -> Iterator[Worker]:
    quick = Backoff(first=0.02, cap=0.05)
    worker = Worker("counting", work, longest=longest, settle=settle, backoff=quick)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(0)


def test_it_works_again_after_the_rest_that_its_work_asks_for_or_when_woken() -> None:
    rounds: list[float] = []

    def work() -> float:
        rounds.append(time.monotonic())
        return 0.1 if len(rounds) == 1 else math.inf

    with working(work) as worker:
        eventually(lambda: len(rounds) == 2, PATIENCE)
        assert rounds[1] - rounds[0] >= 0.1
        time.sleep(0.1)
        assert len(rounds) == 2
        worker.wake()
        eventually(lambda: len(rounds) == 3, PATIENCE)
        assert worker.problem() == ""


def test_several_changes_in_a_row_are_one_round() -> None:
    rounds: list[float] = []

    def work() -> float:
        rounds.append(time.monotonic())
        return math.inf

    with working(work, settle=1.0) as worker:
        eventually(lambda: len(rounds) == 1, PATIENCE)
        for _ in range(5):
            worker.wake()
        eventually(lambda: len(rounds) == 2, PATIENCE)
        time.sleep(0.5)
        assert len(rounds) == 2


@pytest.mark.parametrize(
    ("error", "told", "traced"),
    [
        (DriverError("the disk is full"), "the disk is full", False),
        (KeyError("odd"), "internal error: KeyError: 'odd'", True),
    ],
)
def test_what_its_work_raises_is_told_logged_once_and_tried_again(
    error: Exception, told: str, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dra_driver.util.worker")
    rounds = 0
    well = threading.Event()

    def work() -> float:
        nonlocal rounds
        rounds += 1
        if not well.is_set():
            raise error
        return math.inf

    with working(work) as worker:
        eventually(lambda: rounds >= 3, PATIENCE)
        assert worker.problem() == f"counting fails: {told}"
        assert worker.stuck() == "", "not yet"
        well.set()
        eventually(lambda: worker.problem() == "", PATIENCE)
    failed, works = caplog.records
    assert failed.getMessage().endswith(f"): {told}")
    assert (failed.exc_info is not None) == traced
    assert works.getMessage() == "counting works again"


def test_being_woken_does_not_make_a_failing_loop_a_tight_one() -> None:
    rounds = 0

    def work() -> float:
        nonlocal rounds
        rounds += 1
        raise DriverError("no")

    worker = Worker("counting", work, backoff=Backoff(first=120.0, cap=120.0))
    worker.start()
    for _ in range(30):
        worker.wake()
        time.sleep(0.01)
    assert worker.stop(PATIENCE)
    assert rounds == 1


def test_a_round_that_hangs_is_told_at_once_and_counts_as_dead_after_some_patience() -> None:
    go_on = threading.Event()

    def work() -> float:
        go_on.wait(PATIENCE)
        return math.inf

    with working(work, longest=2.0) as worker:
        assert worker.problem() == ""
        eventually(worker.problem, PATIENCE)
        golden(worker.problem())
        assert worker.stuck(PATIENCE) == ""
        eventually(lambda: worker.stuck(0.2), PATIENCE)
        go_on.set()
        eventually(lambda: worker.problem() == "", PATIENCE)


def test_long_work_that_gives_signs_of_life_is_not_taken_for_a_hanging_one() -> None:
    told: list[str] = []

    def work() -> float:
        for _ in range(20):
            time.sleep(0.06)
            worker.beat()
            told.append(worker.problem())
        worker.beat(PATIENCE)
        time.sleep(1.5)
        told.append(worker.problem())
        return math.inf

    worker = Worker("counting", work, longest=1.0)
    worker.start()
    eventually(lambda: len(told) == 21, PATIENCE)
    worker.stop()
    assert set(told) == {""}


def test_failing_in_a_way_nobody_foresaw_is_no_sign_of_life_but_trouble_around_the_program_is() -> None:
    def unforeseen() -> float:
        raise RuntimeError("odd")

    def explained() -> float:
        raise DriverError("the API server is away")

    with working(unforeseen, longest=0.2) as broken, working(explained, longest=0.2) as troubled:
        eventually(lambda: broken.stuck(0.3), PATIENCE)
        golden(broken.stuck(0.3))
        golden(troubled.problem())
        assert troubled.stuck() == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_from_inside_counts_as_dead() -> None:
    def work() -> float:
        raise SystemExit

    with working(work, longest=0.1) as worker:
        eventually(worker.stuck, PATIENCE)


def test_stop_ends_a_rest_at_once_and_does_not_wait_for_hanging_work_for_longer_than_it_is_told() -> None:
    resting = Worker("resting", lambda: math.inf)
    resting.start()
    assert resting.stop(PATIENCE)
    assert resting.stop(0)

    go_on = threading.Event()
    hanging = Worker("hanging", lambda: float(go_on.wait(PATIENCE)))
    hanging.start()
    started = time.monotonic()
    assert not hanging.stop(0.2)
    assert time.monotonic() - started < PATIENCE / 2
    go_on.set()
    assert hanging.stop(PATIENCE)

    never = Worker("never started", lambda: math.inf)
    assert never.stop(0)
    never.start()
    assert never.stop(0), "nor begins it after the stop"


def test_parts_that_hang_use_up_one_time_together_and_each_is_told_to_end() -> None:
    asked: list[float] = []

    def hang(seconds: float) -> None:
        asked.append(seconds)
        time.sleep(seconds)

    started = time.monotonic()
    stop_in_turn((hang, 0.2), (hang, 60.0), (hang, 60.0), within=2.0)
    assert time.monotonic() - started < PATIENCE
    assert asked[0] == 0.2
    assert 0.0 < asked[1] <= 1.8
    assert asked[2] == 0.0


def test_bounded_work_gives_its_result_or_its_error() -> None:
    def refuse() -> int:
        raise TimeoutError("its own")

    assert bounded(lambda: 7, PATIENCE, AssertionError) == 7
    with golden_error(TimeoutError):
        bounded(refuse, PATIENCE, AssertionError)


def test_work_that_hangs_is_left_behind_with_the_callers_error() -> None:
    hanging = threading.Event()
    with golden_error(DriverError):
        bounded(hanging.wait, 0.05, lambda: DriverError("reading x does not end"))
    hanging.set()


def test_bounded_work_that_can_have_no_thread_is_trouble_that_no_restart_mends() -> None:
    with no_further_threads(), golden_error(DriverError):
        bounded(int, PATIENCE, AssertionError)
