"""Programs that run until they are ended by a signal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.cli import daemon
from dra_driver.util.errors import UsageError
from tests.builders.programs import ended

pytestmark = pytest.mark.slow

PROGRAM = """
import signal, time
from dra_driver.cli import daemon

class Nothing:
    def start(self): pass
    def stop(self): pass

end = time.monotonic() + 2.0
while time.monotonic() < end:
    for pause in range(10, 60):
        with daemon.stopped_by_signals() as stop:
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, pause / 1e6)
            daemon.run_until(stop, Nothing())
"""
"""A signal just before, while and after it begins to wait: the wait ends in each case."""


def test_a_signal_ends_a_program_at_whatever_moment_it_comes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_sigint_end_a_program_that_waits(number: signal.Signals) -> None:
    code = (
        PROGRAM.partition("end =")[0]
        + "with daemon.stopped_by_signals() as stop: print(flush=True); daemon.run_until(stop, Nothing())"
    )
    with ended(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(number)
        assert running.wait(30) == 0


HANGS = (
    PROGRAM.partition("end =")[0]
    + """
import threading

class Hanging(Nothing):
    def start(self):
        threading.Thread(target=self.publish, daemon=True).start()
    def publish(self):
        held = threading.Lock()
        held.acquire()
        print(flush=True)
        held.acquire()

with daemon.stopped_by_signals() as stop: daemon.run_until(stop, Hanging())
"""
)


def stacks(running: subprocess.Popen[bytes]) -> str:
    """Ask a program where its threads are, until it has said it."""
    assert running.stderr is not None
    text = b""
    running.send_signal(signal.SIGUSR2)
    while b"in <module>" not in text:
        if select.select([running.stderr], [], [], 1)[0]:
            read = os.read(running.stderr.fileno(), 65536)
            assert read, (running.wait(30), text)
            text += read
        else:
            # faulthandler drops a signal that a thread gets while another one still writes.
            running.send_signal(signal.SIGUSR2)
    return text.decode()


def test_sigusr2_shows_where_every_thread_of_a_program_is_and_ends_none() -> None:
    command = [sys.executable, "-c", HANGS]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as running:
        assert running.stdout is not None
        running.stdout.readline()
        for _ in range(2):
            told = stacks(running)
            assert "in publish" in told
            assert "in run_until" in told
        running.terminate()
        assert running.wait(30) == 0


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_signals_did_before_is_put_back_and_nothing_is_left_open() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    files = open_files()
    with pytest.raises(UsageError), daemon.stopped_by_signals() as stop:
        assert open_files() > files
        raise UsageError("a start that fails")
    stop.set()  # a thread that reports its death late
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert open_files() == files


MEMORY = """
import re, threading
from pathlib import Path
from dra_driver.cli import daemon

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

class Readers:
    def start(self):
        together = threading.Barrier(9)
        def read():
            body = bytearray()
            for _ in range(128):
                body += bytes(1 << 16)
            together.wait()
            together.wait()
        before = resident()
        for _ in range(3):
            threads = [threading.Thread(target=read) for _ in range(8)]
            [thread.start() for thread in threads]
            together.wait()
            together.wait()
            [thread.join() for thread in threads]
        print(resident() - before, flush=True)
    def stop(self): pass

with daemon.stopped_by_signals() as stop:
    stop.set()
    daemon.run_until(stop, Readers())
"""


def test_what_large_answers_took_is_given_back() -> None:
    """Eight threads have 8 MiB each, three times."""
    process = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120, check=True)
    assert int(process.stdout) < 8 << 10, "KiB"
