"""Slices that others delete or change, and the one thing outside of the host that changes them: labels of the Node."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import SliceWatch, renew_driver, say

NODE, OTHER = "node-1", "node-2"
LAYER = "topology.k8s.aws/network-node-layer-1"


def _slice(kube: Kube, node: str) -> Object:
    (found,) = kube.slices(node)
    return found


@pytest.fixture
def calm_driver(driver: Installation) -> Installation:
    """A driver whose slices nobody has touched lately: it answers repeated changes by others ever more slowly."""
    renew_driver(driver, NODE)
    return driver


@pytest.mark.usefixtures("lab")
def test_a_deleted_slice_is_back_within_two_seconds(calm_driver: Installation, kube: Kube) -> None:
    before = _slice(kube, NODE)
    with SliceWatch(kube) as watch:
        kube.kubectl("delete", "resourceslice", before["metadata"]["name"], "--wait=false")
        gap = watch.gap(NODE)
        say(f"slice back {gap:.3f} s after its deletion")
        assert gap < 2
        after = _slice(kube, NODE)
        assert after["spec"]["devices"] == before["spec"]["devices"]
        steadily("written once", lambda: len(watch.events(NODE)) == 2, during=2)
        assert watch.events(OTHER) == []


@pytest.mark.usefixtures("lab")
def test_a_change_by_others_is_undone_within_two_seconds_and_once(calm_driver: Installation, kube: Kube) -> None:
    before = _slice(kube, NODE)
    path = "/spec/devices/3/attributes/instanceType"
    patch = [
        {"op": "replace", "path": path, "value": {"string": "t3.nano"}},
        {"op": "remove", "path": "/spec/devices/9"},
    ]
    with SliceWatch(kube) as watch:
        name = before["metadata"]["name"]
        kube.kubectl("patch", "resourceslice", name, "--type=json", "-p", json.dumps(patch))
        changed, restored = eventually(
            "the slice to be written again", lambda: watch.events(NODE) if len(watch.events(NODE)) > 1 else None, 10
        )[:2]
        say(f"slice restored {restored.at - changed.at:.3f} s after the change")
        assert restored.at - changed.at < 2
        after = _slice(kube, NODE)
        assert after["spec"]["devices"] == before["spec"]["devices"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        steadily("no more writes", lambda: len(watch.events(NODE)) == 2, during=2)
        assert watch.events(OTHER) == []


@pytest.mark.usefixtures("lab")
def test_labels_of_the_node_lead_to_one_write_if_they_matter_and_to_none_if_not(
    driver: Installation, kube: Kube
) -> None:
    def layers(item: Object) -> set[str | None]:
        devices = item["spec"]["devices"]
        return {device["attributes"].get("networkNodeLayer1", {}).get("string") for device in devices}

    def writes_after(*labels: str) -> list[Object]:
        with SliceWatch(kube) as watch:
            kube.kubectl("label", "node", NODE, *labels)
            try:
                eventually("a write", lambda: watch.events(NODE), 3)
            except AssertionError:
                return []
            steadily("one write", lambda: len(watch.events()) == 1, during=1.5)
            return [event.object for event in watch.events()]

    assert writes_after("example.com/colour=blue") == []
    try:
        (written,) = writes_after(f"{LAYER}=nn-0123456789abcdef0", "example.com/colour-")
        assert layers(written) == {"nn-0123456789abcdef0"}
    finally:
        (removed,) = writes_after(f"{LAYER}-")
    assert layers(removed) == {None}
