"""The chart's NetworkPolicies against what its pods really do: the ports that they open, and whom they connect to.

The lab's network plugin (bridge) enforces no policies, so nothing is shown to be blocked here; that is a plugin's work.
What is shown is that one which does would take nothing away from these pods.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.cluster.lib.kube import Kube, Object
from tests.cluster.lib.release import DRA, LEGACY, TRN1, Release
from tests.cluster.test_security import connected, listening

pytestmark = pytest.mark.nightly

POLICIES = {
    "networkPolicy.enabled": "true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name": "monitoring",
}
WITH_CLAIMS = {
    **DRA,
    "draDriver.metricsPort": "9100",
    "draDriver.placer.enabled": "true",
    "npd.enabled": "true",
    "npd.metricsPort": "9100",
    "npd.nodeRecovery.enabled": "true",
}


def named(rules: list[Object]) -> set[int]:
    return {port["port"] for rule in rules for port in rule["ports"]}


@pytest.mark.parametrize(("settings", "workloads"), [(LEGACY, 3), (WITH_CLAIMS, 4)], ids=["limits", "claims"])
def test_a_policy_names_all_ports_that_pods_open_for_others_and_all_that_they_reach(
    release: Release, kube: Kube, settings: Mapping[str, str], workloads: int
) -> None:
    release.ensure({**settings, **POLICIES}, TRN1)
    policies = release.made("networkpolicy")
    assert len(policies) == workloads
    for policy in policies:
        name, namespace = policy["metadata"]["name"], policy["metadata"]["namespace"]
        labels = ",".join(f"{key}={value}" for key, value in policy["spec"]["podSelector"]["matchLabels"].items())
        pods = kube.find("pods", namespace, labels=labels)
        assert pods, name
        seen: set[int] = set()
        for pod in pods:
            where = (f"--namespace={namespace}", "exec", pod["metadata"]["name"], "--")
            tables = kube.kubectl(*where, "cat", "/proc/net/tcp", "/proc/net/tcp6")
            ports = pod["spec"]["containers"][0]["ports"]
            assert {port for _, port in listening(tables)} == {port["containerPort"] for port in ports}
            for_others = {port["containerPort"] for port in ports if port["name"] not in ("health", "https")}
            assert named(policy["spec"]["ingress"]) == for_others
            assert connected(tables) <= named(policy["spec"]["egress"])
            seen = seen | connected(tables)
        assert bool(seen) == bool(policy["spec"]["egress"]), f"{name}: without a connection nothing is compared"
