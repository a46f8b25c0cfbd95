"""Daemons are recorded by pid and start time, and only those are stopped."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import files, process, waiting
from lab.errors import LabError
from lab.progress import Progress
from tests.builders.programs import ended

QUIET = Progress(quiet=True)


def start(tmp_path: Path, script: str) -> process.Record:
    return process.spawn(
        "daemon",
        ["sh", "-c", script],
        log=tmp_path / "logs" / "daemon.log",
        cgroups=[],
        path=os.environ["PATH"],
        records=tmp_path / "records",
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[process.Record]:
    record = start(tmp_path, "echo started; exec sleep 60")
    yield record
    process.stop(record, 0)


def test_a_started_daemon_is_found_again_by_its_record_and_has_a_session_and_a_log(
    daemon: process.Record, tmp_path: Path
) -> None:
    assert process.names(tmp_path / "records") == ("daemon",)
    assert process.load("daemon", tmp_path / "records") == daemon
    assert process.is_alive(daemon)
    assert os.getsid(daemon.pid) == daemon.pid
    waiting.until("log", lambda: "started" in waiting.tail(tmp_path / "logs/daemon.log"), progress=QUIET, timeout=30)


def test_a_stopped_daemon_is_gone_and_leaves_no_zombie(daemon: process.Record) -> None:
    process.stop(daemon, 5)
    assert not process.is_alive(daemon)
    assert not Path(f"/proc/{daemon.pid}").exists()
    process.stop(daemon, 5)


def test_a_daemon_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    record = start(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    waiting.until("trap", lambda: "deaf" in waiting.tail(tmp_path / "logs/daemon.log"), progress=QUIET, timeout=30)
    begun = time.monotonic()
    process.stop(record, 0.3)
    assert not process.is_alive(record)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot": "another"}])
def test_another_process_with_the_same_pid_is_left_alone(daemon: process.Record, change: dict[str, Any]) -> None:
    stranger = dataclasses.replace(daemon, **change)
    assert not process.is_alive(stranger)
    process.stop(stranger, 0)
    assert process.is_alive(daemon)


def test_the_state_is_read_past_a_program_name_with_blanks_and_parentheses() -> None:
    fields = " ".join(str(number) for number in range(4, 22))
    assert process.parse_stat(f"7 (a) R (b) Z {fields} 4711 0") == ("Z", 4711)


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "y.json").write_text('{"pid": 1}')
    assert process.load("x", tmp_path) is None
    assert process.load("y", tmp_path) is None
    assert process.load("z", tmp_path) is None


def test_waiting_ends_at_once_with_the_log_when_what_is_needed_has_died(tmp_path: Path) -> None:
    record = start(tmp_path, "echo out of cheese >&2; exit 1")
    with pytest.raises(LabError, match=r"(?s)daemon ended while waiting for a miracle.*out of cheese"):
        waiting.until(
            "a miracle",
            lambda: False,
            progress=QUIET,
            timeout=120,
            needed=[(record, tmp_path / "logs/daemon.log")],
        )
    process.stop(record, 0)


def test_waiting_gives_up_after_its_time() -> None:
    with pytest.raises(LabError, match="Gave up waiting for miracle after 0 s"):
        waiting.until("miracle", lambda: False, progress=QUIET, timeout=0.1)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Shells start background jobs, possibly including the whole test run, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupts_wait_until_the_end_of_an_uninterrupted_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), process.uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        done.append("whole block")
    assert done == ["whole block"]


def test_an_unfinished_directory_is_never_taken_for_a_finished_one(tmp_path: Path) -> None:
    final = tmp_path / "final"

    def fail(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"), files.complete_directory(final) as directory:
        fail(directory)
    assert list(tmp_path.iterdir()) == []
    with files.complete_directory(final) as directory:
        (directory / "whole").write_text("whole")
        assert not final.exists()
    assert [path.name for path in final.iterdir()] == ["whole"]


def test_a_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lab import files; from lab.progress import Progress\n"
        f"with files.lock(Path({str(tmp_path / 'lock')!r}), 'holds', Progress(quiet=True)):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    scripts = str(Path(files.__file__).parents[1])
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": scripts}
        )
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(LabError, match=rf"Process {holder.pid} \(.*\) still holds"),
            files.lock(tmp_path / "lock", "holds", QUIET, timeout=0.2),
        ):
            pytest.fail("two processes hold one lock")
        holder.kill()
        holder.wait()
        with files.lock(tmp_path / "lock", "holds", QUIET, timeout=30):
            pass


def test_who_waits_for_a_lock_gets_it_though_the_holder_removes_it_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    got = threading.Event()

    def wait() -> None:
        with files.lock(path, "waits", QUIET, timeout=30):
            got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    with files.lock(path, "works", QUIET):
        waiter.start()
        time.sleep(0.3)
        path.unlink()
        path.parent.rmdir()
        time.sleep(0.3)
    assert got.wait(30)
    waiter.join(30)
