"""Claims that cannot be prepared or unprepared for a while: the pod waits, says why, and goes on by itself."""

from __future__ import annotations

from lab.cluster import Cluster

from tests.cluster.lib.health import SickHost, wait_taints
from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import (
    Stopwatch,
    driver_log,
    emulated_root,
    nudge,
    uid_of,
    unchanged,
    unwritable,
    wait_driver_ready,
    wait_gone,
    wait_unprepared,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import claim, pod, request, template

NODE = "node-1"


def test_a_state_directory_that_cannot_be_written_delays_pods_over_a_restart_of_kubelet_too(
    driver: Installation, lab: Cluster, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    before = wait_driver_ready(driver, NODE)
    namespace.apply(template("one", request()), pod("ending", templates={"neurons": "one"}, node=NODE))
    namespace.wait_ready("ending")
    ending = uid_of(namespace.claim_of("ending"))
    clock = Stopwatch()
    with unwritable(files.state / "claims"):
        namespace.kubectl("delete", "pod", "ending", "--grace-period=1", "--wait=false")
        namespace.apply(pod("starting", templates={"neurons": "one"}, node=NODE))
        message = namespace.wait_event("starting", "/claims: Permission denied")
        clock.lap(f"kubelet says: {message}")
        assert "check the free space" in message
        failures = driver_log(lab, driver, NODE).count("Permission denied")
        lab.node(NODE).restart_kubelet()
        # One of prepare and one of unprepare, at least.
        eventually(
            "both to be tried again",
            lambda: driver_log(lab, driver, NODE).count("Permission denied") >= failures + 2,
            within=30,
        )
        clock.lap("kubelet was restarted and has tried both again")
        assert namespace.phase("starting") == "Pending"
        assert namespace.pod("ending") is not None
        assert list(files.checkpoint()) == [ending]
    nudge(namespace, "starting", "ending")
    namespace.wait_ready("starting")
    assert namespace.numbers("starting") == [0]
    wait_gone(namespace, "ending")
    assert list(files.checkpoint()) == [uid_of(namespace.claim_of("starting"))] == list(files.specs())
    clock.lap("one pod runs, the other is gone")
    assert unchanged(wait_driver_ready(driver, NODE), before)


def test_a_pod_whose_chip_vanished_before_it_was_prepared_waits_for_that_chip(
    driver: Installation, lab: Cluster, kube: Kube, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files, node = node_files[NODE], lab.node(NODE)
    wait_driver_ready(driver, NODE)
    third = request(selectors=["device.attributes['neuron.aws.com'].deviceId == 3"])

    clock = Stopwatch()
    host = SickHost(emulated_root(lab, driver, NODE))
    # Allocated, then kubelet away so that the chip can go before it is prepared.
    node.stop_kubelet()
    namespace.apply(template("third", third), pod("waiting", templates={"neurons": "third"}, node=NODE))
    eventually("the pod to be scheduled", lambda: namespace.node_of("waiting"))
    host.fail("device-lost@3")
    try:
        wait_taints(kube, NODE, {"neuron-device-3": {"device-lost": "NoSchedule"}})
        clock.lap("the driver has seen that the chip is gone")
        node.start_kubelet()
        message = namespace.wait_event("waiting", "neuron-device-3")
        clock.lap(f"kubelet says: {message}")
        assert namespace.phase("waiting") == "Pending"
        assert files.checkpoint() == {}
    finally:
        host.mend()
        node.start_kubelet()
    wait_taints(kube, NODE, {})
    clock.lap("the driver has seen that the chip is back")
    nudge(namespace, "waiting")
    namespace.wait_ready("waiting")
    assert files.shown(uid_of(namespace.claim_of("waiting"))) == {0: 3}


def test_a_claim_made_anew_under_its_old_name_waits_until_the_old_one_is_unprepared(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """A pod is deleted by force and made again with its claim, while the old claim cannot be unprepared."""
    files = node_files[NODE]
    wait_driver_ready(driver, NODE)
    objects = (claim("named", request(count=2)), pod("forced", {"neurons": "named"}, node=NODE))
    namespace.apply(*objects)
    namespace.wait_ready("forced")
    old = uid_of(namespace.claim("named") or {})
    clock = Stopwatch()
    with unwritable(files.state / "claims"):
        namespace.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
        namespace.kubectl("delete", "resourceclaim", "named", "--wait=false")
        eventually("the old claim to be gone", lambda: namespace.claim("named") is None)
        namespace.apply(*objects)
        message = namespace.wait_event("forced", "prepare dynamic resources")
        clock.lap(f"kubelet says: {message}")
        assert namespace.phase("forced") == "Pending"
        new = uid_of(namespace.claim("named") or {})
        assert new != old
        assert list(files.checkpoint()) == [old]
    wait_unprepared(files, old)
    clock.lap("the old claim is unprepared")
    nudge(namespace, "forced")
    namespace.wait_ready("forced")
    clock.lap("the new pod runs, and nothing of the old claim is left")
    assert list(files.checkpoint()) == [new] == list(files.specs())
    assert namespace.numbers("forced") == [0, 1]
