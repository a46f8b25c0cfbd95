"""Prometheus metrics of the agent: counters kept where things happen, read out when somebody scrapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dra_driver.util.errors import DriverError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0)
"""A prepare takes single milliseconds; 45 s is where kubelet gives up."""

PREFIX = "neuron_dra_driver"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one metric."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    kind: str = "gauge"


@dataclass(slots=True)
class Latency:
    """A histogram of one operation's duration and result."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    total_seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one operation."""
        position = next((i for i, bound in enumerate(BUCKETS_SECONDS) if seconds <= bound), len(BUCKETS_SECONDS))
        self.buckets[position] += 1
        self.total_seconds += seconds


class Operations:
    """Durations of operations by name and result."""

    def __init__(self, names: Iterable[str] = ("prepare", "unprepare")) -> None:
        self._latencies = {(operation, result): Latency() for operation in names for result in ("ok", "error")}

    @contextmanager
    def measured(self, operation: str) -> Iterator[None]:
        """Time one operation; an exception makes it an error and goes on its way."""
        started = time.perf_counter()
        result = "error"
        try:
            yield
            result = "ok"
        finally:
            self._latencies[operation, result].observe(time.perf_counter() - started)

    def observe(self, operation: str, seconds: float, *, ok: bool) -> None:
        """Count one operation that was timed elsewhere."""
        self._latencies[operation, "ok" if ok else "error"].observe(seconds)

    def items(self) -> Iterable[tuple[tuple[str, str], Latency]]:
        """All histograms with their (operation, result)."""
        return self._latencies.items()


class Collector:
    """Turns the state of the agent, or of the extender, into Prometheus metrics at scrape time."""

    def __init__(
        self,
        operations: Operations,
        samples: Callable[[], Iterable[Sample]],
        name: str = "claim_operation_seconds",
        text: str = "Time to prepare or unprepare one claim, the API server's answer included.",
    ) -> None:
        self._operations = operations
        self._samples = samples
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        histogram = HistogramMetricFamily(
            f"{PREFIX}_{self._name}",
            self._text,
            labels=["operation", "result"],
        )
        for labels, latency in self._operations.items():
            seen, cumulative = 0, []
            for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), latency.buckets, strict=True):
                seen += count
                cumulative.append((bound, seen))
            histogram.add_metric(list(labels), cumulative, latency.total_seconds)
        yield histogram

        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples():
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                family = kind(f"{PREFIX}_{sample.name}", sample.help, labels=[name for name, _ in sample.labels])
                families[sample.name] = family
            family.add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()


def serve(collector: Collector, address: str, port: int) -> Callable[[], None]:
    """Answer ``GET /metrics`` on a port until the returned function is called. DriverError when it cannot be had."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise DriverError(
            f"the metrics cannot be served on {address}:{port}: {error.strerror or error}",
            remedy="find what uses the port, or choose another; a negative port turns the metrics off",
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
