"""The chart's NetworkPolicies: each workload has one, which names the ports that its pods have and those they need.

No network plugin that enforces policies is here: ``tests/cluster/test_network_policies.py`` compares the policies with
the connections that pods really have.
"""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dra_driver.cli.rank import DEFAULT_PORT
from tests.golden import golden
from tests.manifests.chart import EVERYTHING, WORKLOADS, needs_helm, refusal, template
from tests.manifests.pages import blocks
from tests.manifests.support import Object, pod_spec
from tests.paths import DOCS

ON = "networkPolicy.enabled=true"
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
WITH_METRICS = json.dumps({"networkPolicy": {"enabled": True, "metricsFrom": [PROMETHEUS]}})
PODMONITOR = "monitoring.podMonitor.enabled=true"
EXTENDER = 12345


def policies(*settings: str, **more: Any) -> dict[str, Object]:
    """The policies' specs by the component label of the workload."""
    made = [item for item in template(*EVERYTHING, *settings, **more) if item["kind"] == "NetworkPolicy"]
    return {item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"] for item in made}


def ports(rules: list[Object]) -> set[int]:
    """All ports of rules; a rule without ports is for all of them, and is 0 here."""
    return {port["port"] for rule in rules for port in rule.get("ports", [{"port": 0}])}


@needs_helm
def test_there_are_none_unless_asked_for() -> None:
    assert policies() == {}


@needs_helm
@pytest.mark.parametrize("options", [(), ("--set=fullnameOverride=acme", "--namespace=team-ml")])
def test_each_workload_has_one_that_selects_its_pods_and_no_others(options: tuple[str, ...]) -> None:
    made = template(*EVERYTHING, ON, options=options)
    found = [item for item in made if item["kind"] == "NetworkPolicy"]
    for item in found:
        kubernetes_validate.validate(item, "1.34", strict=True)
    selected = {
        (item["metadata"]["namespace"], json.dumps(item["spec"]["podSelector"]["matchLabels"])) for item in found
    }
    pods = {
        (item["metadata"]["namespace"], json.dumps(item["spec"]["selector"]["matchLabels"]))
        for item in made
        if item["kind"] in ("DaemonSet", "Deployment")
    }
    assert selected == pods
    assert len(found) == len(WORKLOADS)
    assert all(item["spec"]["policyTypes"] == ["Ingress", "Egress"] for item in found)


@needs_helm
def test_the_health_ports_can_be_closed_alone() -> None:
    made = template(*EVERYTHING, "networkPolicy.closeHealthPort=true")
    health_ports = {
        json.dumps(item["spec"]["selector"]["matchLabels"]): port["containerPort"]
        for item in made
        if item["kind"] in ("DaemonSet", "Deployment")
        for port in pod_spec(item)["containers"][0].get("ports", [])
        if port["name"] == "health"
    }
    closed: dict[str, int] = {}
    for item in made:
        if item["kind"] != "NetworkPolicy":
            continue
        kubernetes_validate.validate(item, "1.34", strict=True)
        assert item["spec"]["policyTypes"] == ["Ingress"]
        (rule,) = item["spec"]["ingress"]
        assert "from" not in rule
        allowed = {(port["protocol"], port["port"], port["endPort"]) for port in rule["ports"]}
        (port,) = (end + 1 for protocol, first, end in allowed if (protocol, first) == ("TCP", 1))
        assert allowed == {("TCP", 1, port - 1), ("TCP", port + 1, 65535), ("UDP", 1, 65535), ("SCTP", 1, 65535)}
        closed[json.dumps(item["spec"]["podSelector"]["matchLabels"])] = port
    assert closed == health_ports
    assert closed


@needs_helm
def test_nothing_reaches_a_pod_but_who_may_read_metrics_and_schedulers_the_extender() -> None:
    """Probes come from the pod's own node, which no policy can exclude."""
    quiet = policies(ON)
    assert {part: ports(spec["ingress"]) for part, spec in quiet.items() if spec["ingress"]} == {
        "scheduler-extender": {EXTENDER}
    }
    made = template(*EVERYTHING, PODMONITOR, values=WITH_METRICS)
    for part, spec in policies(PODMONITOR, values=WITH_METRICS).items():
        (pods,) = (
            pod_spec(item)
            for item in made
            if item["kind"] in ("DaemonSet", "Deployment")
            and item["metadata"]["labels"]["app.kubernetes.io/component"] == part
        )
        open_ports = {port["containerPort"] for port in pods["containers"][0]["ports"] if port["name"] == "metrics"}
        scraped = [rule for rule in spec["ingress"] if rule.get("from") == [PROMETHEUS]]
        assert ports(scraped) == open_ports


@needs_helm
def test_pods_reach_the_api_server_and_what_their_work_needs() -> None:
    reached = {part: ports(spec["egress"]) for part, spec in policies(ON).items()}
    api = {443, 6443}
    assert reached == {
        "dra-driver": api,
        "placer": api,
        "device-plugin": api,
        "scheduler-extender": {*api, EXTENDER},
        "scheduler": {*api, 53, EXTENDER},
        "node-problem-detector": set(),
        "node-recovery": {*api, 53, 443},
    }
    assert ports(policies(ON, "networkPolicy.apiServerPorts={8443}")["dra-driver"]["egress"]) == {8443}
    assert ports(policies(ON, "npd.nodeRecovery.hook.configMap=mine")["node-recovery"]["egress"]) == {0}


@needs_helm
def test_the_extender_is_asked_by_its_schedulers_and_through_the_nodes_port_by_the_clusters() -> None:
    through_nodes = policies(ON)["scheduler-extender"]["ingress"]
    assert through_nodes == [{"ports": [{"protocol": "TCP", "port": EXTENDER}]}]
    (rule,) = policies(ON, "scheduler.defaultScheduler.enabled=false")["scheduler-extender"]["ingress"]
    selectors = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    made = policies(ON)
    assert selectors == [made[part]["podSelector"]["matchLabels"] for part in ("scheduler-extender", "scheduler")]


@needs_helm
def test_metrics_that_nobody_could_read_are_refused_with_what_to_set() -> None:
    golden(refusal(ON, PODMONITOR, "draDriver.enabled=true"))


def test_the_policy_of_the_page_on_ultraservers_closes_the_port_of_the_ranks_alone() -> None:
    """Whatever else the programs listen on stays open; the set's own pods reach everything."""
    (text,) = (block.text for block in blocks(DOCS / "use/ultraserver.md") if "kind: NetworkPolicy" in block.text)
    item = yaml.safe_load(text)
    kubernetes_validate.validate(item, "1.34", strict=True)
    own, others = item["spec"]["ingress"]
    assert own == {"from": [{"podSelector": item["spec"]["podSelector"]}]}
    spans = [(port["port"], port["endPort"]) for port in others["ports"] if port["protocol"] == "TCP"]
    closed = set(range(1, 65536)).difference(*(range(first, last + 1) for first, last in spans))
    assert closed == {DEFAULT_PORT}
