"""Prometheus metrics of the agent, the device plugin and the extender.

Durations are observed where things happen, by prometheus_client's own histogram. Everything else is a value that lives
elsewhere and is read at a scrape (``Collector``); reading takes no lock and changes nothing. A program whose
metrics are off does not import prometheus_client and h11: that costs 2 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_driver.util import runtime
from dra_driver.util.door import Door
from dra_driver.util.errors import DriverError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram
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


class Pauses:
    """In which an operation waits for somebody else, so that they say nothing of it."""

    seconds = 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time of the body."""
        began = runtime.monotonic()
        try:
            yield
        finally:
            self.seconds += runtime.monotonic() - began


class Operations:
    """Durations of operations by name and result. Nothing is kept before ``expose``."""

    def __init__(self, names: Iterable[str] = ("prepare", "unprepare")) -> None:
        self._names = tuple(names)
        self._histogram: Histogram | None = None

    def expose(self, registry: CollectorRegistry, name: str, text: str) -> None:
        """Keep durations from now on, in a histogram of this name that the registry shows."""
        from prometheus_client import Histogram

        labels = ("operation", "result")
        histogram = Histogram(name, text, labels, registry=registry, buckets=BUCKETS_SECONDS)
        for operation in self._names:
            for result in ("ok", "error"):
                histogram.labels(operation, result)  # so that each is there, with 0, before it happens
        self._histogram = histogram

    @contextmanager
    def measured(self, operation: str) -> Iterator[Pauses]:
        """Time one operation, without its pauses; an exception makes it an error and goes on its way."""
        started, pauses = runtime.monotonic(), Pauses()
        done = False
        try:
            yield pauses
            done = True
        finally:
            self.observe(operation, runtime.monotonic() - started - pauses.seconds, ok=done)

    def observe(self, operation: str, seconds: float, *, ok: bool) -> None:
        """Count one operation that was timed elsewhere."""
        if self._histogram is not None:
            self._histogram.labels(operation, "ok" if ok else "error").observe(seconds)


class Collector:
    """Shows durations, and values that live elsewhere, as Prometheus metrics.

    Args:
        operations: durations; None: there are none.
        samples: the other values, as they are when it is called.
        name: of the metric with the durations, without ``PREFIX``.
        text: its help.
    """

    def __init__(
        self,
        operations: Operations | None,
        samples: Callable[[], Iterable[Sample]],
        name: str = "claim_operation_seconds",
        text: str = "Time to prepare or unprepare one claim, the API server's answer included.",
    ) -> None:
        self._operations = operations
        self._samples = samples
        self._name = name
        self._text = text

    def register(self, registry: CollectorRegistry) -> None:
        """Have the registry show all of it."""
        if self._operations is not None:
            self._operations.expose(registry, f"{PREFIX}_{self._name}", self._text)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The other values. Called by prometheus_client for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples():
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                family = kind(f"{PREFIX}_{sample.name}", sample.help, labels=[name for name, _ in sample.labels])
                families[sample.name] = family
            family.add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()


def serve(door: Door, collector: Collector, address: str, port: int) -> int:
    """Answer ``GET /metrics`` on a port (0: any) behind the door; returns it. DriverError when it cannot be had."""
    from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app

    from dra_driver.util.web import listen

    # A second series of each histogram, which is not needed.
    disable_created_metrics()  # type: ignore[no-untyped-call] # the library gives no types for it
    registry = CollectorRegistry()
    collector.register(registry)
    try:
        return listen(door, address, port, make_wsgi_app(registry))
    except OSError as error:
        raise DriverError(
            f"the metrics cannot be served on {address}:{port}: {os.strerror(error.errno) if error.errno else error}",
            remedy="find what uses the port, or choose another; a negative port turns the metrics off",
        ) from error
