"""From a claim's allocation to its end, with pods that end in every way."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import Stopwatch
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import claim, container, pod, request, template

pytestmark = pytest.mark.kubernetes("1.37", "1.34", "1.33")

FAST = ["sh", "-c", "ls /dev/neuron*"]
CHIP = "device.attributes['neuron.aws.com'].deviceId == {}"
STUBBORN = ["sh", "-c", "trap '' TERM; sleep infinity & wait; wait"]


def test_a_finished_pod_gives_its_devices_back_and_its_own_claim_goes_with_it(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    quick = pod("job", templates={"neurons": "two"}, containers=[container("main", "neurons", command=FAST)])
    namespace.apply(template("two", request(count=2)), quick)
    namespace.wait_phase("job", "Succeeded")
    assert namespace.kubectl("logs", "job").split() == ["/dev/neuron0", "/dev/neuron1"]
    eventually("the claim of the finished pod to be deleted", lambda: not namespace.claims())
    files = node_files[namespace.node_of("job")]
    eventually("nothing to be left on the node", files.is_empty, 10)


def test_a_claim_is_used_by_one_pod_after_the_other(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    def worker(name: str, node: str) -> dict[str, object]:
        return pod(name, {"neurons": "kept"}, containers=[container("main", "neurons", command=FAST)], node=node)

    namespace.apply(claim("kept", request(count=2)))
    for name, node in (("first", "node-1"), ("second", "node-2"), ("third", "node-1")):
        namespace.apply(worker(name, node))
        namespace.wait_phase(name, "Succeeded")
        assert namespace.kubectl("logs", name).split() == ["/dev/neuron0", "/dev/neuron1"]

        def free() -> bool:
            found = namespace.claim("kept")
            return found is not None and "allocation" not in found.get("status", {})

        eventually("the claim to be deallocated", free)
        eventually("nothing to be left on the node", node_files[node].is_empty, 10)


@pytest.mark.kubernetes("1.37", "1.34")  # kubelet 1.33 takes the new claim for the old one of its name
def test_a_pod_that_was_deleted_by_force_is_unprepared_and_its_successor_of_the_same_name_runs(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles], kube: Kube
) -> None:
    """Before 1.37, kubelet may unprepare the new claim, too.

    It looks every minute for claims of pods that are gone, and after it has unprepared one while the pod's containers
    still run, it unprepares once more, by the claim's name, when they end.
    """
    files = node_files["node-1"]
    objects = (
        claim("same", request(count=2)),
        pod("same", {"neurons": "same"}, containers=[container("main", "neurons", command=STUBBORN)], node="node-1"),
    )
    namespace.apply(*objects)
    namespace.wait_ready("same")
    old = namespace.claim_of("same")["metadata"]["uid"]
    namespace.kubectl("delete", "resourceclaim/same", "--wait=false")
    namespace.kubectl("delete", "pod/same", "--grace-period=0", "--force", "--wait=false")
    eventually("the old claim to be gone", lambda: namespace.claim("same") is None)
    namespace.apply(*objects)
    namespace.wait_ready("same")
    new = namespace.claim_of("same")["metadata"]["uid"]
    assert new != old
    assert namespace.numbers("same") == [0, 1]
    eventually("the old claim to be unprepared", lambda: old not in {*files.specs(), *files.checkpoint()})
    prepared = {*files.specs()}, {*files.checkpoint()}
    node = kube.get("nodes", "node-1") or {}
    fixed = not node["status"]["nodeInfo"]["kubeletVersion"].startswith(("v1.34.", "v1.35.", "v1.36."))
    assert prepared == ({new}, {new}) or (prepared == (set(), set()) and not fixed)


def test_pods_that_fill_two_nodes_at_once_share_no_device(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    names = [f"pod-{number}" for number in range(16)]
    namespace.apply(template("two", request(count=2)), *(pod(name, templates={"neurons": "two"}) for name in names))
    namespace.wait_ready(*names)
    given = [(item.pool, item.chip) for found in namespace.claims() for item in namespace.allocated(found)]
    assert len(given) == len(set(given)) == 32
    for node, files in node_files.items():
        shown = [chip for uid in files.specs() for chip in files.shown(uid).values()]
        assert sorted(shown) == list(range(16)), node
    assert {tuple(namespace.numbers(name)) for name in names} == {(0, 1)}


SUCCESSOR_SECONDS = 15.0
"""Without a wait of the driver for the chip it is more than a minute: kubelet's back-off."""


@pytest.mark.kubernetes("1.37", "1.34")
def test_a_pod_that_follows_one_deleted_by_force_has_its_chip_within_seconds(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """Five times in a row; and thereafter sixteen at once, of which kubelet has as many prepared as it likes."""
    clock = Stopwatch()

    def follow(former: Sequence[str], names: Sequence[str]) -> float:
        began = time.monotonic()
        if former:
            namespace.kubectl("delete", "pod", *former, "--grace-period=0", "--force", "--wait=false")
        namespace.apply(
            *(pod(name, templates={"neurons": f"chip-{number}"}, node="node-1") for number, name in enumerate(names))
        )
        namespace.wait_ready(*names, within=120)
        clock.lap(f"{len(names)} pods are Ready")
        return time.monotonic() - began

    namespace.apply(*(template(f"chip-{number}", request(selectors=[CHIP.format(number)])) for number in range(16)))
    follow([], ["p0"])
    assert max(follow([f"p{number}"], [f"p{number + 1}"]) for number in range(5)) < SUCCESSOR_SECONDS
    first, second = ([f"{name}{number}" for number in range(16)] for name in "ab")
    follow(["p5"], first)
    follow(first, second)
    eventually("only the last claims to be prepared", lambda: len(node_files["node-1"].specs()) == 16)
