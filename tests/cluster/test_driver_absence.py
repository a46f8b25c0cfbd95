"""A node without the driver for a while: what kubelet does then, and that everything goes on once it is back."""

from __future__ import annotations

import time
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
    driver_absent,
    nudge,
    own_namespace,
    uid_of,
    unchanged,
    wait_driver_ready,
    wait_gone,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

NODE, OTHER = "node-1", "node-2"


@dataclass
class Absence:
    """What was seen of it."""

    namespace: Namespace
    files: NodeFiles
    stays: Object
    stays_uid: str
    ending_uid: str
    left: float = 0.0
    message: str = ""
    pending: dict[str, str] = field(default_factory=dict)
    ending_during: bool = False
    specs_during: set[str] = field(default_factory=set)
    wiped: list[SliceEvent] = field(default_factory=list)


def _missed(namespace: Namespace) -> str | None:
    """What kubelet says of the pod that was bound, once it has noticed that the driver has gone."""
    nudge(namespace, "bound")  # what it has said before that would stand for 60 to 90 s
    messages = (str(event.get("message", "")) for event in namespace.events("bound"))
    return next((text for text in messages if "is not registered" in text), None)


@pytest.fixture(scope="module")
def absence(kube: Kube, lab: Cluster, installation: Installation) -> Iterator[Absence]:
    """The driver leaves one node; a pod ends, one is made at once, one when the slices are gone; the driver returns."""
    installation.ensure("--emulate", EMULATED)
    wait_driver_ready(installation, NODE)
    files = NodeFiles(lab.node(NODE))
    with own_namespace(kube, "absence") as namespace:
        names = ("stays", "ending", "bound", "unbound")
        pods = {name: pod(name, templates={"neurons": "one"}, node=NODE) for name in names}
        namespace.apply(template("one", request()), pods["stays"], pods["ending"])
        (stays, _) = namespace.wait_ready("stays", "ending")
        ending_uid = uid_of(namespace.claim_of("ending"))
        seen = Absence(namespace, files, stays, uid_of(namespace.claim_of("stays")), ending_uid)
        with SliceWatch(kube) as watch:
            with driver_absent(installation, NODE):
                seen.left = time.monotonic()
                clock = Stopwatch()
                namespace.kubectl("delete", "pod", "ending", "--grace-period=1", "--wait=false")
                namespace.apply(pods["bound"])
                seen.message = eventually("kubelet to miss the driver", lambda: _missed(namespace), 60, every=2.0)
                clock.lap(f"kubelet says of the pod that was bound: {seen.message}")
                eventually("the slice to be deleted", lambda: watch.events(NODE), 45)
                seen.wiped = watch.events()
                clock.lap("kubelet deleted the slice")
                namespace.apply(pods["unbound"])
                namespace.wait_event("unbound", "cannot allocate all claims")
                seen.pending = {name: namespace.phase(name) for name in ("bound", "unbound")}
                seen.ending_during = namespace.pod("ending") is not None
                seen.specs_during = set(files.specs())
                clock.lap("the driver may come back")
            clock.lap("it is ready")
            eventually("the last pod to be scheduled", lambda: namespace.node_of("unbound"))
            # The slices were there some tenths of a second before kubelet had registered the driver.
            nudge(namespace, "bound", "unbound", "ending")
            namespace.wait_ready("bound", "unbound")
            clock.lap("the pods that waited for it are ready")
            wait_gone(namespace, "ending")
            clock.lap("the pod that ended is gone")
        yield seen


def test_slices_stay_for_half_a_minute_and_go_then(absence: Absence) -> None:
    assert [(event.node, event.kind) for event in absence.wiped] == [(NODE, "DELETED")]
    assert 20 < absence.wiped[0].at - absence.left < 40


def test_a_pod_bound_before_the_slices_went_waits_and_runs_when_the_driver_is_back(absence: Absence) -> None:
    assert "neuron.aws.com is not registered" in absence.message
    assert absence.pending["bound"] == "Pending"
    assert absence.namespace.numbers("bound") == [0]


def test_a_pod_made_before_the_driver_came_runs_when_it_is_there(absence: Absence) -> None:
    assert absence.pending["unbound"] == "Pending"
    assert absence.namespace.numbers("unbound") == [0]


def test_a_pod_that_ends_without_the_driver_is_unprepared_when_it_is_back(absence: Absence) -> None:
    assert absence.ending_during
    assert absence.ending_uid in absence.specs_during
    assert absence.ending_uid not in absence.files.specs()
    assert absence.ending_uid not in absence.files.checkpoint()


def test_a_running_pod_does_not_notice_the_absence(absence: Absence) -> None:
    now = absence.namespace.pod("stays")
    assert now is not None
    assert unchanged(now, absence.stays)
    assert absence.stays_uid in absence.specs_during
    assert absence.stays_uid in absence.files.specs()
    chips = [item.chip for item in absence.namespace.allocated(absence.namespace.claim_of("stays"))]
    assert absence.files.shown(absence.stays_uid) == dict(enumerate(chips))


def test_no_device_is_with_two_of_the_pods(absence: Absence) -> None:
    namespace = absence.namespace
    chips = [
        item.chip for name in ("stays", "bound", "unbound") for item in namespace.allocated(namespace.claim_of(name))
    ]
    assert len(chips) == len(set(chips)) == 3
