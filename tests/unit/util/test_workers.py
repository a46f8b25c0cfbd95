"""Workers do what they are given, also where no further thread can be had, and end when there is nothing to do."""

from __future__ import annotations

import threading
import time

import pytest

from dra_driver.util.workers import Workers
from tests.builders.threads import no_further_threads
from tests.golden import golden_error


def test_workers_pass_on_results_and_errors_and_live_on() -> None:
    workers = Workers(2, "test")
    try:
        assert workers.submit(lambda a, b: a + b, 1, b=2).result(30) == 3
        with pytest.raises(SystemExit):
            workers.submit(lambda: (_ for _ in ()).throw(SystemExit(1)).__next__()).result(30)
        assert [workers.submit(int, str(n)).result(30) for n in range(10)] == list(range(10))
        blocker = threading.Event()
        running = [workers.submit(blocker.wait, 5) for _ in range(2)]
        waiting = workers.submit(int)
        assert waiting.cancel()
        blocker.set()
        assert all(future.result(30) for future in running)
    finally:
        workers.shutdown()
        workers.shutdown()
    with golden_error(RuntimeError):
        workers.submit(int)


def test_workers_without_work_end_but_for_one() -> None:
    workers = Workers(3, "resting", idle_seconds=0.05)
    together = threading.Barrier(3)
    try:
        for future in [workers.submit(together.wait, 5) for _ in range(3)]:
            future.result(30)
        end = time.monotonic() + 5
        while sum(thread.name.startswith("resting-") for thread in threading.enumerate()) > 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        for future in [workers.submit(together.wait, 5) for _ in range(3)]:
            future.result(30)
    finally:
        workers.shutdown()


def test_workers_end_after_shutdown() -> None:
    workers = Workers(3, "ending")
    workers.shutdown()
    end = time.monotonic() + 5
    while any(thread.name.startswith("ending-") for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_without_a_further_thread_those_that_there_are_do_the_work() -> None:
    workers = Workers(3, "few")
    try:
        with no_further_threads():
            assert [future.result(30) for future in [workers.submit(int, str(n)) for n in range(10)]] == list(range(10))
        together = threading.Barrier(3)
        for future in [workers.submit(together.wait, 5) for _ in range(3)]:
            future.result(30)
    finally:
        workers.shutdown()
