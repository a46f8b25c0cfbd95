"""The API server is away for a minute; on one of two nodes kubelet is restarted in that time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    Stopwatch,
    own_namespace,
    process_of,
    uid_of,
    unchanged,
    wait_driver_ready,
    wait_unprepared,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

CALM, RESTARTED = "node-1", "node-2"
NODES = (CALM, RESTARTED)
OUTAGE_SECONDS = 60


@dataclass
class Outage:
    """What was there before it."""

    namespace: Namespace
    files: dict[str, NodeFiles]
    slices: dict[str, Object]
    pods: dict[str, Object]
    processes: dict[str, int]
    drivers: dict[str, Object]
    checkpoints: dict[str, Object]


@pytest.fixture(scope="module")
def outage(kube: Kube, lab: Cluster, installation: Installation) -> Iterator[Outage]:
    """A pod runs on each node; the API server goes for a minute."""
    installation.ensure("--emulate", EMULATED)
    drivers = {node: wait_driver_ready(installation, node) for node in NODES}
    files = {node: NodeFiles(lab.node(node)) for node in NODES}
    with own_namespace(kube, "api-outage") as namespace:
        namespace.apply(template("two", request(count=2)), *(_pod(f"runs-{node}", node) for node in NODES))
        pods = dict(zip(NODES, namespace.wait_ready(*(f"runs-{node}" for node in NODES)), strict=True))
        slices = {node: kube.slices(node)[0] for node in NODES}
        processes = {node: process_of(item) for node, item in pods.items()}
        checkpoints = {node: files[node].checkpoint() for node in NODES}
        seen = Outage(namespace, files, slices, pods, processes, drivers, checkpoints)
        lab.stop_apiserver()
        end = time.monotonic() + OUTAGE_SECONDS
        try:
            lab.node(RESTARTED).restart_kubelet()
            time.sleep(end - time.monotonic())
            assert {node: files[node].checkpoint() for node in NODES} == checkpoints
        finally:
            lab.start_apiserver()
        clock = Stopwatch()
        namespace.apply(*(_pod(f"new-{node}", node) for node in NODES))
        # The scheduler, the controllers and kubelet's leases all come back from waits of up to half a minute.
        namespace.wait_ready(*(f"new-{node}" for node in NODES), within=150)
        clock.lap("pods that were made after the outage are ready on both nodes")
        yield seen


def _pod(name: str, node: str) -> Object:
    return pod(name, templates={"neurons": "two"}, node=node)


def test_running_pods_go_on(outage: Outage) -> None:
    for node, before in outage.pods.items():
        now = outage.namespace.pod(f"runs-{node}")
        assert now is not None
        assert unchanged(now, before)
        assert process_of(now) == outage.processes[node]
        assert outage.namespace.numbers(f"runs-{node}") == [0, 1]


def test_the_driver_is_not_restarted(outage: Outage, installation: Installation) -> None:
    for node, before in outage.drivers.items():
        assert unchanged(wait_driver_ready(installation, node), before)


def test_slices_are_not_written_where_kubelet_did_not_restart(outage: Outage, kube: Kube) -> None:
    (now,) = kube.slices(CALM)
    assert now == outage.slices[CALM]


def test_slices_are_back_where_kubelet_restarted_and_deleted_them_afterwards(outage: Outage, kube: Kube) -> None:
    (now,) = eventually("one slice", lambda: kube.slices(RESTARTED), 45)
    assert now["spec"]["devices"] == outage.slices[RESTARTED]["spec"]["devices"]


def test_claims_stay_prepared_and_can_be_unprepared_also_where_kubelet_restarted(outage: Outage) -> None:
    for node, files in outage.files.items():
        assert outage.checkpoints[node].items() <= files.checkpoint().items()
        claim = uid_of(outage.namespace.claim_of(f"new-{node}"))
        outage.namespace.delete_pod(f"new-{node}")
        wait_unprepared(files, claim)
