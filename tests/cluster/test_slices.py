"""What the driver publishes, as the API server has it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Object, eventually, steadily


def test_each_node_publishes_one_slice_of_its_own_and_leaves_it_alone(
    installation: Installation, nodes: Sequence[str]
) -> None:
    installation.ensure_absent()  # or the pool would go on counting what a test before has offered
    installation.ensure("--emulate", EMULATED)
    kube = installation.kube

    def one_each() -> list[Object]:
        found = kube.slices()
        return found if [item["spec"]["nodeName"] for item in found] == list(nodes) else []

    first = eventually("a slice for each node, and no other", one_each)
    for item in first:
        node = kube.get("nodes", item["spec"]["nodeName"])
        assert node is not None
        name = node["metadata"]["name"]
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", name, node["metadata"]["uid"])
        assert item["spec"]["pool"] == {"name": name, "generation": 1, "resourceSliceCount": 1}
        assert [device["name"] for device in item["spec"]["devices"]] == [f"neuron-device-{n}" for n in range(16)]
    steadily("the slices are as they were", lambda: kube.slices() == first, during=20, every=1)
