"""The detector: from a kernel log to hints in a directory.

Records cannot be written to the kernel's log without everybody on the machine seeing them. So most tests give a file
with the lines that syslog(2) would give (``--kernel-log``), and others read the machine's own log, whatever is in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dra_driver.neuron.health.assess import Hint
from dra_driver.neuron.health.detector import Detector, read_log_file, read_system_log
from dra_driver.neuron.health.hints import MAX_FILES, encode, file_name, read_hints
from dra_driver.neuron.health.kernel_log import TAIL_BYTES
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from tests.builders.agent import free_port, health, scraped
from tests.builders.programs import ended
from tests.eventually import eventually
from tests.golden import golden, lines

BOOT, OTHER_BOOT = "6aa22853-a073-4fb9-9c8b-15972cd2d951", "00000000-0000-4000-8000-000000000000"
SERIAL = "19fcda00f5ff6eb9"
ROUND = 0.02


def line(text: str, seconds: float | None = None) -> str:
    """A line of the log, logged now or so many seconds after boot."""
    at = time.clock_gettime(time.CLOCK_MONOTONIC) if seconds is None else seconds
    return f"<3>[{at:12.6f}] {text}\n"


def blamed(kind: str = "DMA_ERROR", device: int = 0, serial: str = SERIAL) -> str:
    return f"NEURON_HW_ERR={kind} instance-id=i-0 nd-id={device} nc-id=1 serial-num={serial} action=TERMINATE_INSTANCE"


class Node:
    """A log and a directory of hints."""

    def __init__(self, root: Path) -> None:
        self.log = root / "kernel.log"
        self.log.write_text(line("Linux version 6", 0.0))
        self.directory = root / "hints"

    def add(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.write("".join(lines))

    def hints(self) -> dict[str, Hint]:
        """As the driver reads them."""
        found, broken = read_hints(self.directory)
        assert broken == 0
        return {file_name(hint): hint for hint in found}

    @contextmanager
    def detector(self, lookback: float | None = None) -> Iterator[Detector]:
        """A running detector that has read the log once."""
        read = partial(read_log_file, self.log)
        running = Detector(read, self.directory, BOOT, interval=ROUND, lookback=lookback)
        running.start()
        try:
            eventually(lambda: not running.not_ready(), what="the first reading")
            yield running
        finally:
            assert running.stop()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def figures(running: Detector) -> dict[str, float]:
    return {
        "/".join((item.name.removeprefix("node_problem_detector_"), *(value for _, value in item.labels))): item.value
        for item in running.samples()
    }


def test_a_line_becomes_a_hint_that_everyone_can_read(node: Node) -> None:
    with node.detector() as running:
        assert node.hints() == {}
        before = int(time.time())
        node.add(line("eth0: link up"), line(blamed(device=3)), line("eth0: link down"))
        name = f"DMA_ERROR-{SERIAL}.json"
        eventually(lambda: name in node.hints())
        hint = node.hints()[name]
        assert hint == Hint(BOOT, "DMA_ERROR", hint.seen, 3, SERIAL, 1)
        assert before - 1 <= hint.seen <= time.time()
        assert (node.directory / name).stat().st_mode & 0o777 == 0o644
        assert [path.name for path in node.directory.iterdir()] == [name]
        eventually(lambda: figures(running)["hints_written"] == 1)
        found = figures(running)
        assert (found["lines"], found["hints/DMA_ERROR"]) == (4, 1)


def test_a_line_that_comes_again_moves_the_time_of_its_hint_forward_only(node: Node) -> None:
    uptime, now = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
    node.add(line(blamed(), uptime - 500), line(blamed(), uptime - 900))
    with node.detector():
        ((name, first),) = node.hints().items()
        assert abs(now - 500 - first.seen) <= 2
        node.add(line(blamed()))
        eventually(lambda: node.hints()[name].seen >= now - 10)


@pytest.mark.parametrize("again", [True, False])
def test_a_line_that_came_while_the_clock_was_ahead_counts_once_that_is_right(node: Node, again: bool) -> None:
    """A driver takes no hint from the future."""
    ahead = [10 * 365 * 86400]
    with runtime.use(runtime.Runtime(now=lambda: time.time() + ahead[0])), node.detector():
        node.add(line(blamed()))
        eventually(node.hints, what="the hint")
        ((name, first),) = node.hints().items()
        assert first.seen > time.time() + 9 * 365 * 86400
        ahead[0] = 0
        if again:
            node.add(line(blamed()))
        eventually(lambda: node.hints()[name].seen <= time.time())


def test_lines_from_before_the_start_count_however_old_they_are(node: Node) -> None:
    """Unlike AWS's detector, which looks back five minutes: a chip does not get well by waiting."""
    node.add(line(blamed("HBM_UNCORRECTABLE_ERROR", 5), 1.0))
    with node.detector():
        assert list(node.hints()) == [f"HBM_UNCORRECTABLE_ERROR-{SERIAL}.json"]


def test_older_lines_can_be_left_out(node: Node) -> None:
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
    node.add(line(blamed("HBM_UNCORRECTABLE_ERROR"), uptime - 301), line(blamed("DMA_ERROR"), uptime - 200))
    with node.detector(lookback=300) as running:
        assert list(node.hints()) == [f"DMA_ERROR-{SERIAL}.json"]
        assert figures(running)["lines_ignored/too-old"] == 1


def test_a_restart_writes_nothing_anew_and_keeps_what_the_log_has_dropped(node: Node) -> None:
    node.add(line(blamed("HBM_UNCORRECTABLE_ERROR")), line(blamed("DMA_ERROR")))
    with node.detector():
        before = node.hints()
        assert len(before) == 2
    node.log.write_text(line(blamed("DMA_ERROR"), 1.0))
    with node.detector() as running:
        assert node.hints() == before
        assert figures(running)["hints_written"] == 0


def test_hints_of_another_boot_and_broken_ones_are_removed_and_nothing_else_is(node: Node) -> None:
    node.directory.mkdir()
    old = Hint(OTHER_BOOT, "DMA_ERROR", 5, 1)
    mine = Hint(BOOT, "DMA_ERROR", 5, 2)
    for name, content in {
        file_name(old): encode(old),
        file_name(mine): encode(mine),
        "DMA_ERROR-9.json": encode(mine),
        "NC_UNCORRECTABLE_ERROR-0.json": b"{",
        "package.json": b"{}",
        "notes": b"",
    }.items():
        (node.directory / name).write_bytes(content)
    (node.directory / "DMA_ERROR-4.json").symlink_to(node.log)
    with node.detector():
        assert sorted(path.name for path in node.directory.iterdir()) == [file_name(mine), "notes", "package.json"]
        assert node.log.exists()


def test_a_cleared_log_is_counted_and_what_comes_next_is_seen(node: Node) -> None:
    """As ``dmesg --clear`` does, or a log that overran between two readings."""
    with node.detector() as running:
        node.log.write_text("")
        eventually(lambda: figures(running)["overruns"] == 1)
        node.add(line(blamed()))
        eventually(lambda: len(node.hints()) == 1)
        assert figures(running)["overruns"] == 1


def test_a_log_that_overran_is_read_from_its_oldest_line(node: Node) -> None:
    node.add(*(line(f"noise {number}", float(number)) for number in range(TAIL_BYTES // 10)))
    with node.detector() as running:
        node.log.write_text(line(blamed(), 1e6) + "".join(line(f"more {n}", 1e6 + n) for n in range(500)))
        eventually(lambda: len(node.hints()) == 1)
        assert figures(running)["overruns"] == 1


def test_forged_lines_are_counted_bounded_and_push_out_nothing(node: Node) -> None:
    node.add(line(blamed(serial="f" * 16)))
    with node.detector() as running:
        node.add(*(line(blamed(serial=f"{number:016x}")) for number in range(1, 2 * MAX_FILES)))
        node.add(line("NEURON_HW_ERR=COFFEE nd-id=0"), line("NEURON_HW_ERR=DMA_ERROR nd-id=x"))
        node.add(line("NEURON_HW_ERR=DMA_ERROR action=x"), line(f"NEURON_HW_ERR=DMA_ERROR {'x' * 9000}"))
        eventually(lambda: figures(running)["lines_ignored/too-long"] == 1)
        eventually(lambda: len(node.hints()) == MAX_FILES)
        found = figures(running)
        assert found["lines_ignored/too-many"] == MAX_FILES
        assert [found[f"lines_ignored/{reason}"] for reason in ("unknown-kind", "malformed", "names-no-chip")] == [
            1
        ] * 3
        assert f"DMA_ERROR-{'f' * 16}.json" in node.hints()


def test_a_log_that_cannot_be_read_is_a_problem_until_it_can(node: Node) -> None:
    kept = node.log.read_text()
    with node.detector() as running:
        node.log.unlink()
        eventually(lambda: "No such file" in " ".join(running.not_ready()))
        assert running.not_alive() == []
        node.log.write_text(kept + line(blamed()))
        eventually(lambda: not running.not_ready())
        eventually(lambda: len(node.hints()) == 1)


def test_a_directory_that_cannot_be_written_to_is_a_problem_until_it_can(node: Node) -> None:
    node.directory.write_text("in the way")
    node.add(line(blamed()))
    running = Detector(partial(read_log_file, node.log), node.directory, BOOT, interval=ROUND)
    running.start()
    try:
        eventually(lambda: "hints cannot be kept" in " ".join(running.not_ready()))
        node.directory.unlink()
        eventually(lambda: node.directory.is_dir() and len(node.hints()) == 1)
    finally:
        assert running.stop()


# The machine's own log


def permitted() -> bool:
    try:
        read_system_log()
    except DriverError:
        return False
    return True


def test_the_kernels_log_is_read_and_found_again() -> None:
    if not permitted():
        pytest.skip("this user may not read the kernel log")
    log = read_system_log()
    assert log.endswith(b"\n")
    assert read_system_log().find(log[-100:]) >= 0


# The process


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "dra_driver", "node-problem-detector", *options]


@contextmanager
def process(*words: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    with ended(subprocess.Popen([*before, *command(*words)], stderr=subprocess.PIPE, text=True)) as running:
        try:
            yield running
        finally:
            running.kill()


def test_the_process_is_ready_tells_what_it_does_and_ends_on_sigterm(node: Node) -> None:
    node.add(line(blamed()))
    port, metrics = free_port(), free_port()
    options = (
        *("--health-hints-dir", str(node.directory), "--kernel-log", str(node.log), "--rescan-seconds", "1"),
        *("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1", "--metrics-port", str(metrics)),
    )
    with process(*options) as running:
        eventually(lambda: health(port, "readiness") == "SERVING")
        assert health(port, "liveness") == "SERVING"
        (hint,) = node.hints().values()
        assert hint.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = scraped(metrics)
        golden(line for line in text.splitlines() if line.startswith("# HELP neuron_"))
        assert "neuron_dra_driver_node_problem_detector_lines_total 2.0" in text
        assert 'neuron_dra_driver_node_problem_detector_hints{kind="DMA_ERROR"} 1.0' in text
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
        assert running.returncode == 0
        golden(lines(said, "DMA_ERROR"))


RESTRICTED = Path("/proc/sys/kernel/dmesg_restrict")
needs_capabilities = pytest.mark.skipif(
    os.geteuid() != 0 or RESTRICTED.read_text().strip() != "1" or not permitted(),
    reason="needs root, and a kernel that restricts its log to CAP_SYSLOG",
)


@needs_capabilities
@pytest.mark.parametrize(("capabilities", "may"), [("-all,+syslog", True), ("-all", False)])
def test_the_process_needs_the_capability_syslog_and_no_other(tmp_path: Path, capabilities: str, may: bool) -> None:
    port = free_port()
    options = (
        "--health-hints-dir",
        str(tmp_path),
        "--healthcheck-port",
        str(port),
        "--healthcheck-address",
        "127.0.0.1",
    )
    before = ("setpriv", f"--bounding-set={capabilities}", "--inh-caps=-all", "--no-new-privs")
    with process(*options, before=before) as running:
        if may:
            eventually(lambda: health(port, "readiness") == "SERVING")
            status = Path(f"/proc/{running.pid}/status").read_text()
            assert f"CapEff:\t{1 << 34:016x}\n" in status
            return
        eventually(lambda: health(port, "liveness") == "SERVING")
        assert health(port, "readiness") == "NOT_SERVING"
        running.terminate()
        _, said = running.communicate(timeout=30)
        golden(lines(said, "util.worker"))


@pytest.mark.parametrize(
    "options",
    [
        ("--rescan-seconds", "0.5"),
        ("--lookback-seconds", "-1"),
        ("--host-root", "/nonexistent"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: tuple[str, str]) -> None:
    done = subprocess.run(command(*options), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2)
    golden(done.stderr)
    assert "Traceback" not in done.stderr
