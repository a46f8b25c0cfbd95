"""A node is booted while the API server is stopped, and its pods reach it later than kubelet does."""

from __future__ import annotations

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import (
    Stopwatch,
    keep_emulated_host,
    kept_host,
    nudge,
    pods_cut_off,
    restart_count,
    set_boot_id,
    uid_of,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import claim, pod, request

NODE = "node-1"
NEXT_BOOT = "22222222-2222-4222-8222-222222222222"


@pytest.mark.nightly
def test_a_claim_that_was_allocated_again_while_its_node_was_down_waits_for_the_api_server(
    kube: Kube, lab: Cluster, installation: Installation, namespace: Namespace
) -> None:
    """Of its former devices another claim has been given one. kubelet has lost its own record of claims."""
    installation.ensure("--emulate", EMULATED)
    installation.vary("emulated host that stays", keep_emulated_host)
    files, node = NodeFiles(lab.node(NODE)), lab.node(NODE)
    driver = wait_driver_ready(installation, NODE)
    namespace.apply(claim("shared", request(count=2)), pod("before", {"neurons": "shared"}, node=NODE))
    namespace.wait_ready("before")
    shared = namespace.claim("shared") or {}
    uid, former = uid_of(shared), namespace.allocated(shared)
    record = files.checkpoint()[uid]

    def allocated(name: str) -> bool:
        return bool(namespace.allocated(namespace.claim(name) or {}))

    def refused() -> str | None:
        nudge(namespace, "again")
        messages = [str(event.get("message", "")) for event in namespace.events("again")]
        return next((text for text in messages if "it was prepared before the node was booted" in text), None)

    node.stop()
    namespace.kubectl("delete", "pod", "before", "--force", "--grace-period=0")
    eventually("the claim to be free", lambda: not allocated("shared"))
    namespace.apply(claim("other", request()), pod("other", {"neurons": "other"}, node=NODE))
    eventually("another claim to have a device of it", lambda: allocated("other"))
    namespace.apply(pod("again", {"neurons": "shared"}, node=NODE))
    eventually("the claim to be allocated again", lambda: allocated("shared"))
    now = namespace.allocated(namespace.claim("shared") or {})
    assert now != former
    set_boot_id(kept_host(lab, NODE, driver), NEXT_BOOT)
    (node.layout.kubelet / "dra_manager_state").unlink()

    clock = Stopwatch()
    lab.stop_apiserver()
    try:
        node.reboot()
        assert files.checkpoint() == {uid: record}
        with pods_cut_off(node):
            lab.start_apiserver()
            clock.lap("kubelet reaches the API server, and its pods do not")
            message = eventually("kubelet to be refused", refused, 90, every=2)
            clock.lap(f"kubelet says: {message}")
            assert files.checkpoint() == {uid: record}, "it is none of this boot"
            assert namespace.phase("again") == namespace.phase("other") == "Pending"
    finally:
        lab.start_apiserver()
    wait_driver_ready(installation, NODE, restarts=restart_count(driver) + 1, within=90)
    clock.lap("the driver is ready")
    nudge(namespace, "again", "other")
    namespace.wait_ready("again", "other", within=120)
    clock.lap("both pods run")
    assert sorted(files.shown(uid).values()) == sorted(item.chip for item in now)
    other = uid_of(namespace.claim("other") or {})
    assert set(files.shown(other).values()).isdisjoint(files.shown(uid).values())
    assert files.checkpoint()[uid]["bootId"] == NEXT_BOOT
