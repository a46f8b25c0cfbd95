"""What pods were given is recorded while some writes hang or fail."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from dra_driver.kube.api.errors import Unreachable
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.legacy.annotations import ALLOCATED, PodAnnotations
from dra_driver.legacy.device_plugin.record_writer import RecordWriter
from dra_driver.legacy.device_plugin.recording import Record
from dra_driver.legacy.device_plugin.snapshot import BoundPod, PluginPod
from dra_driver.util.errors import DriverError
from tests.golden import golden

HANG_SECONDS = 3.0


def record(namespace: str, name: str, uid: str = "") -> Record:
    pod = BoundPod(namespace, name, uid or f"uid-{namespace}-{name}", "", True, (), "", PodAnnotations())
    return Record(pod, {ALLOCATED: "true"})


def watched(pod: BoundPod) -> PluginPod:
    return PluginPod(
        ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid, resource_version="1"), "Running", pod
    )


class Bench:
    """A writer, its clock, and an API server where ``answer`` is what it does about a record."""

    def __init__(self, answer: Callable[[Record], None] = lambda _: None) -> None:
        self.now = 0.0
        self.pods: list[PluginPod] = []
        self.tries: list[str] = []
        self.answer = answer
        self.writer = RecordWriter(self._write, lambda: self.pods, lambda: self.now)

    def _write(self, item: Record) -> None:
        self.tries.append(str(item.pod))
        self.answer(item)

    def hang(self, item: Record) -> None:
        """What a webhook in namespace ``tenant`` does."""
        if item.pod.namespace == "tenant":
            self.now += HANG_SECONDS
            raise Unreachable("no answer in time")

    def round(self, after: float = 0.0) -> list[str]:
        """The writes of one round."""
        self.tries = []
        self.now += after
        self.writer._writer.round()
        return self.tries


def test_a_namespace_where_writes_hang_holds_up_no_other() -> None:
    bench = Bench()
    bench.answer = bench.hang
    hanging = [record("tenant", f"p{number}") for number in range(40)]
    bench.writer.want(hanging)
    assert bench.round() == ["tenant/p0"]
    for late in ("a", "b"):
        # They have waited for a long time, and still come last.
        bench.now += 600
        bench.writer.want([*hanging, record("other", late)])
        assert bench.round()[0] == f"other/{late}"
    bench.answer = lambda _: None
    bench.writer.want(hanging)
    assert sorted(bench.round(600)) == sorted(str(item.pod) for item in hanging)


def test_a_record_that_is_written_or_not_missing_any_more_is_not_tried_again() -> None:
    bench = Bench()
    one, two = record("default", "one"), record("default", "two")
    bench.writer.want([one, two])
    bench.writer.want([two])
    assert bench.round() == ["default/two"]
    assert bench.round(3600) == []
    bench.writer.want([two])
    assert bench.round() == ["default/two"], "somebody has changed it since"


def test_a_record_of_a_pod_that_has_changed_since_is_not_written() -> None:
    """Above all not a second time, where the records were listed while the first one was being written."""
    bench = Bench()
    item = record("default", "p")

    def store(_: Record) -> None:
        bench.writer.want([item])
        bench.pods = [watched(replace(item.pod, annotations=PodAnnotations(allocated="true")))]

    bench.answer = store
    bench.pods = [watched(item.pod)]
    bench.writer.want([item])
    assert bench.round() == ["default/p"]
    assert bench.round(3600) == []


def test_a_record_that_somebody_takes_out_again_and_again_is_written_ever_more_rarely() -> None:
    bench = Bench()
    item = record("default", "p")
    writes = 0
    for number in range(2000):
        annotations = dict(item.annotations) | {"of-theirs": str(number % 3)}
        bench.pods = [watched(item.pod)]
        bench.writer.want([replace(item, annotations=annotations)])
        writes += len(bench.round())
        bench.writer.want([])
        bench.round(0.05)
    assert writes < 15, "in 100 s"
    bench.writer.want([item])
    assert bench.round(60.0) == ["default/p"]


def test_trouble_is_said_once_and_kept_only_of_pods_that_still_wait(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(item: Record) -> None:
        raise DriverError("not allowed to patch pods " + str(item.pod) * size)

    size = 1
    bench = Bench(refuse)
    for _ in range(3):
        bench.writer.want([record("default", "p")])
        assert bench.round(600) == ["default/p"]
    golden([bench.writer.worker.name, *caplog.messages])
    size = 1000
    caplog.set_level(logging.CRITICAL)
    tracemalloc.start()
    try:
        for number in range(1000):
            bench.writer.want([record("default", f"p{number}")])
            assert bench.round(600)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
