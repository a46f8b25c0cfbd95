"""A kubelet that is away for a few seconds, while pods come and go: one outage, looked at by several tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    SliceEvent,
    SliceWatch,
    Stopwatch,
    own_namespace,
    uid_of,
    unchanged,
    wait_driver_ready,
    wait_gone,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

pytestmark = pytest.mark.kubernetes("1.37", "1.34", "1.33")
NODE, OTHER = "node-1", "node-2"


@dataclass
class Outage:
    """What was seen around it, and what is there now."""

    namespace: Namespace
    files: NodeFiles
    driver: Object
    stays: Object
    stays_uid: str
    checkpointed: Object
    ended_uid: str
    never_claim: str = ""
    gap: float = 0.0
    events: list[SliceEvent] = field(default_factory=list)


@pytest.fixture(scope="module")
def outage(kube: Kube, lab: Cluster, installation: Installation) -> Iterator[Outage]:
    """The kubelet of one node stops; a pod ends, one is made, one is made and ends; kubelet starts."""
    installation.ensure("--emulate", EMULATED)
    driver = wait_driver_ready(installation, NODE)
    files = NodeFiles(lab.node(NODE))
    with own_namespace(kube, "kubelet-restart") as namespace:
        names = ("stays", "ended", "late", "never")
        pods = {name: pod(name, templates={"neurons": "two"}, node=NODE) for name in names}
        namespace.apply(template("two", request(count=2)), pods["stays"], pods["ended"])
        (stays, _) = namespace.wait_ready("stays", "ended")
        stays_uid = uid_of(namespace.claim_of("stays"))
        checkpointed = files.checkpoint()[stays_uid]
        seen = Outage(namespace, files, driver, stays, stays_uid, checkpointed, uid_of(namespace.claim_of("ended")))
        with SliceWatch(kube) as watch:
            lab.node(NODE).stop_kubelet()
            namespace.kubectl("delete", "pod", "ended", "--grace-period=1", "--wait=false")
            namespace.apply(pods["late"], pods["never"])
            eventually("the pod never to be scheduled", lambda: namespace.node_of("never"))
            seen.never_claim = namespace.claim_of("never")["metadata"]["name"]
            namespace.kubectl("delete", "pod", "never", "--grace-period=1", "--wait=false")
            clock = Stopwatch()
            lab.node(NODE).start_kubelet()
            clock.lap("kubelet healthy again")
            seen.gap = watch.gap(NODE)
            clock.lap(f"slice published again, {seen.gap:.3f} s after kubelet deleted it")
            namespace.wait_ready("late")
            clock.lap("the pod that was made meanwhile is ready")
            wait_gone(namespace, "ended", "never")
            clock.lap("the pods that ended meanwhile are gone")
            seen.events = watch.events()
        yield seen


def test_slices_are_back_soon_after_a_starting_kubelet_deleted_them(outage: Outage, kube: Kube) -> None:
    assert outage.gap < 5  # a second or less, but for other clusters that are busy beside this one
    assert [event.kind for event in outage.events if event.node == NODE] == ["DELETED", "ADDED"]
    assert len(kube.slices(NODE)) == 1


def test_slices_of_other_nodes_are_not_written(outage: Outage) -> None:
    assert [event for event in outage.events if event.node == OTHER] == []


def test_the_driver_registers_again_without_a_restart(outage: Outage, installation: Installation) -> None:
    assert unchanged(wait_driver_ready(installation, NODE, within=20), outage.driver)
    assert "kubelet registered the" in installation.logs(NODE)


def test_a_running_pod_keeps_its_containers_and_devices(outage: Outage) -> None:
    now = outage.namespace.pod("stays")
    assert now is not None
    assert unchanged(now, outage.stays)
    assert outage.namespace.numbers("stays") == [0, 1]
    assert outage.files.checkpoint()[outage.stays_uid] == outage.checkpointed
    allocated = [item.chip for item in outage.namespace.allocated(outage.namespace.claim_of("stays"))]
    assert outage.files.shown(outage.stays_uid) == dict(enumerate(sorted(allocated)))


def test_a_pod_made_while_kubelet_was_down_runs(outage: Outage) -> None:
    assert outage.namespace.numbers("late") == [0, 1]


def test_a_pod_deleted_while_kubelet_was_down_is_unprepared(outage: Outage) -> None:
    assert outage.ended_uid not in outage.files.specs()
    assert outage.ended_uid not in outage.files.checkpoint()


def test_a_pod_made_and_deleted_while_kubelet_was_down_is_never_prepared(
    outage: Outage, installation: Installation
) -> None:
    log = installation.logs(NODE)
    prepared = f"prepared claim {outage.namespace.name}/"
    assert f" {prepared}{outage.namespace.claim_of('late')['metadata']['name']}" in log
    assert f" {prepared}{outage.never_claim}" not in log
