"""A program that hangs, or that a restart may mend, ends by itself; one that is well does not."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from dra_driver.util.watchdog import Watchdog
from tests.builders.threads import no_further_threads
from tests.golden import golden

PROGRAM = """
import ctypes, sys, threading, time
from dra_driver.cli import daemon
from dra_driver.util import watchdog

watchdog.LOOK_SECONDS = daemon.LOOK_SECONDS = 0.05
watchdog.HANG_SECONDS = watchdog.START_SECONDS = {hang}

class Service:
    def start(self): print("started", flush=True)
    def stop(self): print("stopped", flush=True)

arm = watchdog.faulthandler.dump_traceback_later
def refuse(*_, **__): raise RuntimeError("unable to start watchdog thread")

looks = []
def liveness():
    looks.append(1)
    {liveness}

with daemon.stopped_by_signals() as stop:
    daemon.run_until(stop, Service(), liveness)
"""

HANGS = {
    "a lock that nobody gives back": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a library that keeps the interpreter": "ctypes.PyDLL(None).sleep(600)",
}


def run(liveness: str, hang: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(liveness=liveness, hang=hang)
    return subprocess.run([sys.executable, "-c", program], timeout=50, check=False, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("liveness", HANGS.values(), ids=HANGS)
def test_a_program_that_hangs_ends_and_says_where(liveness: str) -> None:
    ended = run(liveness, hang=0.5)
    assert ended.returncode == 1
    assert "Timeout (0:00:00.500000)!" in ended.stderr
    assert "in liveness" in ended.stderr
    assert ended.stdout == "started\n"


@pytest.mark.slow
def test_a_program_that_a_restart_may_mend_ends_in_order_after_the_third_look() -> None:
    ended = run("return ['kubelet does not register the driver'] if len(looks) > 4 else []")
    assert ended.returncode == 1
    assert ended.stdout == "started\nstopped\n"
    golden(ended.stderr.splitlines()[-1])


@pytest.mark.slow
def test_a_program_whose_trouble_passes_goes_on() -> None:
    """Two looks with a problem, one without, again and again; in the end it stops itself."""
    ended = run("stop.set() if len(looks) > 20 else None; return ['no'] if len(looks) % 3 else []", hang=10.0)
    assert (ended.returncode, ended.stdout) == (0, "started\nstopped\n"), ended.stderr


@pytest.mark.slow
def test_a_look_that_fails_is_trouble() -> None:
    ended = run("raise KeyError('worker')")
    assert ended.returncode == 1
    golden(ended.stderr.splitlines()[-1])


def test_what_is_wrong_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    looks = iter([[], ["kubelet does not\nregister the driver"], ["kubelet does not\nregister the driver"], []])
    watchdog = Watchdog(lambda: next(looks))
    watchdog.start()
    try:
        for _ in range(4):
            watchdog.look()
    finally:
        watchdog.stop()
    golden(caplog.messages)


@pytest.mark.slow
def test_where_it_can_have_no_timer_the_program_goes_on_and_has_one_later() -> None:
    """The timer is a thread. It hangs at last, and is ended."""
    full = "watchdog.faulthandler.dump_traceback_later = refuse if 2 < len(looks) < 9 else arm"
    ended = run(f"{full}; time.sleep(600) if len(looks) > 20 else None; return []", hang=0.5)
    assert "in liveness" in ended.stderr
    assert (ended.returncode, ended.stdout) == (1, "started\n")


def test_that_there_is_no_timer_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watchdog = Watchdog(list)
    try:
        with no_further_threads():
            watchdog.start()
            watchdog.look()
        watchdog.look()
        with no_further_threads():
            watchdog.look()
    finally:
        watchdog.stop()
    golden(caplog.messages)
