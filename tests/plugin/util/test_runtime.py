"""The driver's parts run on another runtime, and on the real one before and after."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from dra_driver.kube.api.codec import NODES
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.core import Node
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations
from dra_driver.util.worker import Backoff, Worker, bounded
from tests.doubles.apiserver.server import ApiServer

BOOT = 1_800_000_000.0
"""Unix time."""
HOUR = 3600.0
DAY = 24 * HOUR
RETRY_AFTER = 300
"""Seconds; the client waits no longer for what a server says."""


class Simulation:
    """One thread: a thread that begins runs to its end at once, and who waits lets as much time pass."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.running: list[runtime.Thread] = []
        self.runtime = runtime.Runtime(
            now=lambda: BOOT + self.seconds,
            monotonic=lambda: self.seconds,
            uptime=lambda: self.seconds + DAY,
            sleep=self.sleep,
            event=lambda: SimulatedEvent(self),
            thread=lambda work, name: SimulatedThread(self, work, name),
            current_thread=lambda: self.running[-1] if self.running else None,
        )

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class SimulatedEvent(threading.Event):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            assert timeout is not None, "nobody would ever set it"
            self._simulation.sleep(timeout)
        return self.is_set()


class SimulatedThread:
    def __init__(self, simulation: Simulation, work: Callable[[], object], name: str) -> None:
        self.name = name
        self._simulation = simulation
        self._work = work

    def start(self) -> None:
        self._simulation.running.append(self)
        self._work()
        self._simulation.running.pop()

    def join(self, timeout: float | None = None) -> None:
        raise AssertionError(f"{self.name} would wait for itself for {timeout} s")

    def is_alive(self) -> bool:
        return self in self._simulation.running


def test_a_worker_rests_fails_and_stops_on_the_clock_of_the_runtime() -> None:
    rounds: list[float] = []

    def work() -> float:
        rounds.append(runtime.monotonic())
        if len(rounds) == 2:
            raise DriverError("the host is away")
        if len(rounds) == 4:
            assert not worker.stop(DAY), "it is this thread, and cannot wait for itself"
        return HOUR

    with runtime.use(Simulation().runtime):
        worker = Worker("counting", work, backoff=Backoff(first=60.0, cap=60.0, random=lambda: 1.0))
        worker.start()
        assert worker.stop(0)
    assert rounds == [0.0, HOUR, HOUR + 60.0, 2 * HOUR + 60.0]


def test_a_worker_is_stuck_by_the_clock_of_the_runtime_even_if_it_was_made_before() -> None:
    began, end = threading.Event(), threading.Event()

    def work() -> float:
        began.set()
        end.wait()
        return math.inf

    worker = Worker("counting", work, longest=HOUR)
    worker.start()
    assert began.wait(HOUR)
    with runtime.use(runtime.Runtime(monotonic=lambda: time.monotonic() + DAY)):
        assert worker.stuck() == f"counting has made no progress for {DAY:.0f} s"
    assert worker.stuck() == ""
    end.set()
    assert worker.stop(HOUR)


def test_a_follower_waits_for_a_refusing_api_server_on_the_clock_of_the_runtime() -> None:
    simulation, began = Simulation(), time.monotonic()
    with ApiServer() as server, runtime.use(simulation.runtime):
        server.add_node("node-a")
        server.fail(429, times=3, retry_after=RETRY_AFTER)
        nodes: list[Node] = []

        def changed() -> None:
            nodes.extend(informer.objects())
            informer.stop(0)

        informer = Informer("nodes", Collection(server.transport(), NODES), changed)
        informer.start()
    assert [node.metadata.name for node in nodes] == ["node-a"]
    assert 3 * RETRY_AFTER <= simulation.seconds < 4 * RETRY_AFTER
    assert time.monotonic() - began < RETRY_AFTER


def test_work_that_hangs_is_given_up_on_the_clock_of_the_runtime() -> None:
    simulation, end = Simulation(), threading.Event()
    with runtime.use(simulation.runtime):
        assert bounded(runtime.now, HOUR, AssertionError) == BOOT
    with runtime.use(runtime.Runtime(event=simulation.runtime.event)), pytest.raises(DriverError):
        bounded(end.wait, HOUR, lambda: DriverError("reading x does not end"))
    end.set()
    assert simulation.seconds == HOUR


def test_a_duration_is_measured_on_the_clock_of_the_runtime() -> None:
    operations, registry = Operations(["read"]), CollectorRegistry()
    operations.expose(registry, "seconds", "Duration.")
    with runtime.use(Simulation().runtime), operations.measured("read"):
        runtime.sleep(HOUR)
    assert registry.get_sample_value("seconds_sum", {"operation": "read", "result": "ok"}) == HOUR


def test_everything_is_real_before_and_after_even_if_the_body_fails() -> None:
    clocks = {runtime.now: time.time, runtime.monotonic: time.monotonic, runtime.uptime: uptime}
    simulation = Simulation()
    for _ in range(2):
        for clock, real in clocks.items():
            assert real() <= clock() <= real()
        assert isinstance(runtime.event(), threading.Event)
        assert isinstance(runtime.condition(), threading.Condition)
        assert isinstance(runtime.lock(), type(threading.Lock()))
        assert isinstance(runtime.thread(simulation.runtime.now, "idle"), threading.Thread)
        assert runtime.current_thread() is threading.current_thread()
        with pytest.raises(DriverError), runtime.use(simulation.runtime):
            assert [clock() for clock in clocks] == [BOOT, 0.0, DAY]
            with runtime.use(runtime.Runtime(now=lambda: 1.0)):
                assert runtime.now() == 1.0
            assert runtime.now() == BOOT
            raise DriverError("the body fails")


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
