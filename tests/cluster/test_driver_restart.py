"""The driver killed, replaced, robbed of its sockets, or hanging: kubelet finds it again, and nothing is lost."""

from __future__ import annotations

import os
import signal

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import (
    SliceWatch,
    Stopwatch,
    kill_driver,
    nudge,
    process_of,
    registrations,
    renew_driver,
    restart_count,
    uid_of,
    unchanged,
    wait_driver_ready,
    wait_gone,
    wait_unprepared,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.threads import stopped_thread

NODE = "node-1"


def _own_sockets(driver_uid: str) -> list[str]:
    return sorted([f"dra-{driver_uid}.sock", f"neuron.aws.com-{driver_uid}-reg.sock"])


@pytest.mark.kubernetes("1.37", "1.34")
def test_a_killed_driver_registers_again_and_writes_no_slice(
    driver: Installation, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    fresh = renew_driver(driver, NODE)
    namespace.apply(template("two", request(count=2)), pod("before", templates={"neurons": "two"}, node=NODE))
    (before,) = namespace.wait_ready("before")
    claim = uid_of(namespace.claim_of("before"))
    with SliceWatch(kube) as watch:
        clock = Stopwatch()
        kill_driver(driver, NODE)
        namespace.apply(pod("after", templates={"neurons": "two"}, node=NODE))
        now = wait_driver_ready(driver, NODE, restarts=restart_count(fresh) + 1)
        clock.lap("the driver is ready")
        nudge(namespace, "after")
        namespace.wait_ready("after")
        clock.lap("a pod that was made when the driver was killed is ready")
        assert uid_of(now) == uid_of(fresh)
        assert files.sockets() == _own_sockets(uid_of(now))
        still = namespace.pod("before")
        assert still is not None
        assert unchanged(still, before)
        assert sorted(files.checkpoint()) == sorted({claim, uid_of(namespace.claim_of("after"))})
        namespace.delete_pod("before")
        wait_unprepared(files, claim)
        assert watch.events() == []


@pytest.mark.kubernetes("1.37", "1.34")
def test_a_replaced_driver_pod_registers_with_sockets_of_its_own_and_writes_no_slice(
    driver: Installation, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    namespace.apply(template("two", request(count=2)), pod("before", templates={"neurons": "two"}, node=NODE))
    (before,) = namespace.wait_ready("before")
    claim = uid_of(namespace.claim_of("before"))
    content = files.specs()[claim]
    with SliceWatch(kube) as watch:
        clock = Stopwatch()
        new = renew_driver(driver, NODE, grace=30)
        clock.lap("the old pod has ended and the new one is ready")
        assert files.sockets() == _own_sockets(uid_of(new))
        assert files.specs()[claim] == content
        namespace.apply(pod("after", templates={"neurons": "two"}, node=NODE))
        namespace.wait_ready("after")
        still = namespace.pod("before")
        assert still is not None
        assert unchanged(still, before)
        namespace.delete_pod("before")
        wait_unprepared(files, claim)
        assert watch.events() == []


def test_deleted_sockets_come_back_and_kubelet_uses_them(
    driver: Installation, lab: Cluster, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """The kubelet starts while there is a registration socket only; then even that one is deleted."""
    files, node = node_files[NODE], lab.node(NODE)
    before = wait_driver_ready(driver, NODE)
    wanted = _own_sockets(uid_of(before))
    namespace.apply(template("one", request()))
    node.stop_kubelet(grace=0)
    clock = Stopwatch()
    (files.state / f"dra-{uid_of(before)}.sock").unlink()
    node.start_kubelet()
    namespace.apply(pod("first", templates={"neurons": "one"}, node=NODE))
    eventually("the socket of the service to be restored", lambda: files.sockets() == wanted, 15)
    clock.lap("the socket of the service is back")
    registered = registrations(lab, driver, NODE)
    (files.registry / f"neuron.aws.com-{uid_of(before)}-reg.sock").unlink()
    eventually("a new registration", lambda: registrations(lab, driver, NODE) > registered, 15)
    clock.lap("the socket of the registration is back, and kubelet has registered the driver")
    assert files.sockets() == wanted
    namespace.apply(pod("second", templates={"neurons": "one"}, node=NODE))
    namespace.wait_ready("second")
    nudge(namespace, "first")
    namespace.wait_ready("first")
    clock.lap("both pods are ready")
    assert unchanged(wait_driver_ready(driver, NODE), before)


def test_a_driver_whose_main_thread_hangs_is_restarted_and_its_log_says_where(driver: Installation) -> None:
    """No probe tells kubelet: the program's own watchdog ends it."""
    before = wait_driver_ready(driver, NODE)
    clock = Stopwatch()
    with stopped_thread(process_of(before)):
        wait_driver_ready(driver, NODE, restarts=restart_count(before) + 1, within=120)
    clock.lap("the driver was restarted")
    log = driver.logs(NODE, "--previous")
    assert "Timeout (0:01:00)!" in log
    assert "in run_until" in log


def test_pods_that_waited_for_a_driver_that_was_stopped_go_on_with_it(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """Prepare and unprepare run into kubelet's limit of 45 s."""
    files = node_files[NODE]
    before = wait_driver_ready(driver, NODE)
    namespace.apply(template("one", request()), pod("ending", templates={"neurons": "one"}, node=NODE))
    namespace.wait_ready("ending")
    ended_claim = uid_of(namespace.claim_of("ending"))
    clock = Stopwatch()
    os.kill(process_of(before), signal.SIGSTOP)
    try:
        namespace.kubectl("delete", "pod", "ending", "--grace-period=1", "--wait=false")
        namespace.apply(pod("starting", templates={"neurons": "one"}, node=NODE))
        message = namespace.wait_event("starting", "DeadlineExceeded", within=60)
        clock.lap(f"kubelet gave up the call: {message}")
        assert namespace.phase("starting") == "Pending"
        assert namespace.pod("ending") is not None
        assert ended_claim in files.checkpoint()
    finally:
        os.kill(process_of(before), signal.SIGCONT)
    nudge(namespace, "starting", "ending")
    namespace.wait_ready("starting")
    wait_gone(namespace, "ending")
    wait_unprepared(files, ended_claim)
    clock.lap("one pod runs, the other is gone")
