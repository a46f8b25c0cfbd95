"""What the device plugin keeps of the pods of its node."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.kube.objects.meta import JsonObject
from dra_driver.legacy.annotations import POD_KEYS, read
from dra_driver.legacy.device_plugin.snapshot import CHOSEN_BY, PODS, PluginPod, StoredPod
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

LONG = "x" * 100_000
ASKS: JsonObject = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}


def kept(phase: str, containers: list[JsonObject], **more: str) -> PluginPod:
    annotations = {key: f"of {key}" for key in (*POD_KEYS, CHOSEN_BY)} | {"other": LONG} | more
    meta = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    meta |= {"labels": {"a": LONG}, "finalizers": [LONG], "creationTimestamp": "2026-01-01T00:00:00Z"}
    document = {"metadata": meta, "spec": {"nodeName": "n", "containers": containers}, "status": {"phase": phase}}
    assert PODS.from_version is not None
    return PODS.from_version(msgspec.convert(document, StoredPod), "v1")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
@pytest.mark.parametrize("containers", [[ASKS], [], [ASKS] * 99])
def test_little_is_kept_of_a_pod_and_nothing_of_one_without_devices(phase: str, containers: list[JsonObject]) -> None:
    pod = kept(phase, containers)
    assert (pod.metadata.key, pod.metadata.uid, pod.phase) == (("ns", "p"), "u", phase)
    assert pod.metadata.resource_version == "7"
    assert len(repr(pod)) < 2000
    if phase in ("Failed", "Succeeded") or not containers:
        assert pod.bound is None
        return
    assert pod.bound is not None
    assert (pod.bound.key, pod.bound.uid, pod.bound.running) == (("ns", "p"), "u", phase == "Running")
    assert pod.bound.created == "2026-01-01T00:00:00Z"
    assert (pod.bound.requests is None) == bool(pod.bound.trouble) == (len(containers) > 64)


def test_an_annotation_that_cannot_be_read_is_cut_and_still_cannot() -> None:
    pod = kept("Running", [ASKS], **{POD_KEYS[-2]: "0," * 8000})
    assert pod.bound is not None
    assert len(repr(pod)) < 2000
    with golden_error(DriverError):
        read(pod.bound.annotations)
