"""What the device plugin keeps of the pods of its node."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.kube.objects.meta import JsonObject
from dra_driver.legacy.annotations import MAX_LENGTH, POD_KEYS
from dra_driver.legacy.device_plugin.snapshot import CHOSEN_BY, PODS, PluginPod, bound_pod

LONG = "x" * 100_000
ASKS: JsonObject = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}


def whole(phase: str, containers: list[JsonObject]) -> PluginPod:
    annotations = {key: f"of {key}" for key in (*POD_KEYS, CHOSEN_BY)} | {"other": LONG}
    meta = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    meta |= {"labels": {"a": LONG}, "finalizers": [LONG], "creationTimestamp": "2026-01-01T00:00:00Z"}
    document = {"metadata": meta, "spec": {"nodeName": "n", "containers": containers}, "status": {"phase": phase}}
    return msgspec.convert(document, PluginPod)


def in_short(pod: PluginPod) -> PluginPod:
    assert PODS.from_version is not None
    return PODS.from_version(pod, "v1")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
@pytest.mark.parametrize("containers", [[ASKS], [], [ASKS] * 99])
def test_decisions_rest_on_no_more_of_a_pod_than_what_is_kept(phase: str, containers: list[JsonObject]) -> None:
    pod = whole(phase, containers)
    kept = in_short(pod)
    assert bound_pod(kept) == bound_pod(pod)
    assert (kept.metadata.key, kept.metadata.uid, kept.status.phase) == (pod.metadata.key, "u", phase)
    assert kept.metadata.resource_version == "7"
    assert len(repr(kept)) < (30_000 if bound_pod(pod) else 1000)


def test_an_annotation_that_is_too_long_stays_too_long() -> None:
    pod = whole("Running", [ASKS])
    pod.metadata.annotations[POD_KEYS[0]] = LONG
    assert len(in_short(pod).metadata.annotations[POD_KEYS[0]]) == MAX_LENGTH + 1
