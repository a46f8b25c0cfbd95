"""Updates of the DaemonSet: with two instances at a time, one after the other, and such as fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.cluster.lib.health import taints
from tests.cluster.lib.installation import EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import (
    SliceWatch,
    Stopwatch,
    nudge,
    patch_daemonset,
    process_of,
    restart_count,
    uid_of,
    unchanged,
    wait_driver_ready,
    wait_unprepared,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

NODE, OTHER = "node-1", "node-2"
NODES = (NODE, OTHER)
ONE = template("one", request())


@pytest.fixture(autouse=True)
def settled(driver: Installation, kube: Kube, nodes: Sequence[str]) -> None:
    """What an earlier test did to chips or settings is over: no slice is still to be written for it."""
    eventually("taints of earlier tests to be gone", lambda: not any(taints(kube, node) for node in nodes), 60)


def _change(container: Object | None = None, **spec: Object | int) -> Object:
    """A patch that brings new pods, with changes of the driver's container and of the DaemonSet's spec."""
    changed: Object = {"metadata": {"annotations": {"driver-test/round": str(time.time_ns())}}}
    if container:
        changed["spec"] = {"containers": [{"name": "neuron-dra-driver", **container}]}
    return {"spec": {"template": changed, **spec}}


def _sockets(pod: Object) -> list[str]:
    uid = uid_of(pod)
    return sorted([f"dra-{uid}.sock", f"neuron.aws.com-{uid}-reg.sock"])


@pytest.mark.kubernetes("1.37", "1.34")
def test_a_rolling_update_writes_no_slice_and_no_pod_notices_it(
    driver: Installation, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    old = {node: driver.pod(node) for node in NODES}
    namespace.apply(ONE, *(pod(f"before-{node}", templates={"neurons": "one"}, node=node) for node in NODES))
    before = dict(zip(NODES, namespace.wait_ready(*(f"before-{node}" for node in NODES)), strict=True))
    with SliceWatch(kube) as watch:
        clock = Stopwatch()
        patch_daemonset(driver, _change())
        waiting = set(NODES)

        def made_while_two_instances_run() -> bool:
            for node in sorted(waiting):
                if any(uid_of(item) != uid_of(old[node]) for item in driver.pods(node)):
                    namespace.apply(pod(f"during-{node}", templates={"neurons": "one"}, node=node))
                    waiting.remove(node)
            return not waiting

        eventually("the new instances", made_while_two_instances_run, 60, every=0.05)
        driver.wait_ready()
        clock.lap("every node has the new instance, ready, and the old one has ended")
        namespace.wait_ready(*(f"during-{node}" for node in NODES))
        clock.lap("the pods that were made when the new instance came are ready")
        failed = [event for event in namespace.events() if event["reason"] == "FailedPrepareDynamicResources"]
        assert failed == []
        assert watch.events() == []
    for node in NODES:
        files, new = node_files[node], driver.pod(node)
        assert uid_of(new) != uid_of(old[node])
        assert files.sockets() == _sockets(new)
        still = namespace.pod(f"before-{node}")
        assert still is not None
        assert unchanged(still, before[node])
        claim = uid_of(namespace.claim_of(f"before-{node}"))
        assert set(files.checkpoint()) == {claim, uid_of(namespace.claim_of(f"during-{node}"))} == set(files.specs())
        namespace.delete_pod(f"before-{node}")
        wait_unprepared(files, claim)


def test_an_update_that_replaces_one_instance_after_the_other_writes_no_slice(
    driver: Installation, kube: Kube, namespace: Namespace
) -> None:
    namespace.apply(ONE)
    with SliceWatch(kube) as watch:
        old = driver.pod(NODE)
        patch_daemonset(driver, _change(updateStrategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}))
        eventually("the old instance to end", lambda: "deletionTimestamp" in _latest(driver, old)["metadata"], 60, 0.02)
        clock = Stopwatch()
        namespace.apply(pod("during", templates={"neurons": "one"}, node=NODE))
        wait_driver_ready(driver, NODE, other_than=uid_of(old))
        clock.lap("the new instance is ready after the old one was told to end")
        nudge(namespace, "during")
        namespace.wait_ready("during")
        clock.lap("the pod that was made meanwhile is ready")
        driver.wait_ready()
        assert watch.events() == []


def _latest(driver: Installation, pod: Object) -> Object:
    """The pod as it is now; as one that is ending when it is gone."""
    found = driver.kube.get("pods", pod["metadata"]["name"], NAMESPACE)
    return found or {"metadata": {"deletionTimestamp": "gone"}}


@pytest.fixture
def undone(driver: Installation) -> Iterator[None]:
    """The installation as it was before, at the end of the test."""
    yield
    if "minReadySeconds" in driver.daemonset()["spec"]:
        patch_daemonset(driver, {"spec": {"minReadySeconds": 0}})
    driver.install("--emulate", EMULATED)
    driver.wait_ready()


BROKEN: dict[str, Object] = {
    "an image that is nowhere": {"image": "localhost/nowhere:1", "imagePullPolicy": "Never"},
    "a driver that ends at once": {"env": [{"name": "NEURON_DRA_DRIVER_EMULATION_MODE", "value": "no-such-type"}]},
}


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("broken", BROKEN)
def test_the_old_instance_goes_on_when_an_update_brings(
    broken: str, driver: Installation, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    driver.wait_ready()
    old = {node: driver.pod(node) for node in NODES}
    namespace.apply(ONE)
    with SliceWatch(kube) as watch:
        patch_daemonset(driver, _change(BROKEN[broken]))

        def fails() -> str | None:
            for node in NODES:
                for item in driver.pods(node):
                    if _waiting_for(item) in {"ErrImageNeverPull", "CrashLoopBackOff"}:
                        return node
            return None

        node = eventually("the new instance to fail", fails, 60)
        namespace.apply(pod("meanwhile", templates={"neurons": "one"}, node=node))
        namespace.wait_ready("meanwhile")
        claim = uid_of(namespace.claim_of("meanwhile"))
        namespace.delete_pod("meanwhile")
        wait_unprepared(node_files[node], claim)
        for name, former in old.items():
            assert uid_of(former) in {uid_of(item) for item in driver.pods(name)}
            now = kube.get("pods", former["metadata"]["name"], NAMESPACE)
            assert now is not None
            assert unchanged(now, former)
        assert watch.events() == []


@pytest.mark.usefixtures("undone")
def test_the_old_instance_serves_again_when_the_new_one_dies_after_it_has_registered(
    driver: Installation, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    driver.wait_ready()
    old = {node: driver.pod(node) for node in NODES}
    namespace.apply(ONE)
    with SliceWatch(kube) as watch:
        patch_daemonset(driver, _change(minReadySeconds=60))

        def ready_new() -> Object | None:
            found = [item for node in NODES for item in driver.pods(node) if uid_of(item) != uid_of(old[node])]
            registered = [item for item in found if item["status"].get("containerStatuses", [{}])[0].get("ready")]
            return registered[0] if registered else None

        new = eventually("a new instance that is registered", ready_new, 60)
        node = new["spec"]["nodeName"]
        # Twice, since kubelet restarts it at once the first time, and after 10 s the second time.
        for restarts in (0, 1):
            eventually("it to run", partial(_runs, driver, new, restarts), 30, every=0.05)
            os.kill(process_of(_latest(driver, new)), signal.SIGKILL)
        namespace.apply(pod("meanwhile", templates={"neurons": "one"}, node=node))
        namespace.wait_ready("meanwhile", within=9)
        claim = namespace.claim_of("meanwhile")["metadata"]["name"]
        log = kube.kubectl("--namespace", NAMESPACE, "logs", old[node]["metadata"]["name"])
        assert f" prepared claim {namespace.name}/{claim} " in log
        steadily("no slice is written", lambda: watch.events() == [], during=1)


def _waiting_for(pod: Object) -> str:
    """Why a pod's container does not run; "" when it does."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("state", {}).get("waiting", {}).get("reason", ""))


def _runs(driver: Installation, pod: Object, restarts: int) -> bool:
    now = _latest(driver, pod)
    return restart_count(now) == restarts and "running" in now["status"]["containerStatuses"][0]["state"]
