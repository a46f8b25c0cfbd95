"""What the chart makes for the Prometheus operator and for Grafana."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.manifests.chart import CHART, EVERYTHING, HELM, refusal, template
from tests.manifests.pages import listings
from tests.manifests.support import Object, pod_spec
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HELM, reason="there is no helm here")]

POD_MONITOR, RULE, DASHBOARD = (
    f"monitoring.{name}.enabled=true" for name in ("podMonitor", "prometheusRule", "dashboard")
)


def all_of(made: list[Object], kind: str) -> list[Object]:
    return [item for item in made if item["kind"] == kind]


KINDS = ("PodMonitor", "PrometheusRule")


def rules(made: list[Object]) -> list[dict[str, Any]]:
    (found,) = all_of(made, "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def test_nothing_of_it_is_made_unless_asked_for() -> None:
    made = template(*EVERYTHING)
    assert not [item for item in made if item["kind"] in KINDS or item["metadata"]["name"] == "neuron-dashboard"]


def test_each_workload_with_metrics_is_scraped_at_a_port_that_it_has() -> None:
    made = template(*EVERYTHING, POD_MONITOR)
    pods = {item["metadata"]["name"]: item for item in made if item["kind"] in {"DaemonSet", "Deployment"}}
    monitors = all_of(made, "PodMonitor")
    assert {item["metadata"]["name"] for item in monitors} == {
        "neuron-dra-driver-kubelet-plugin",
        "neuron-dra-driver-placer",
        "neuron-device-plugin-daemonset",
        "k8s-neuron-scheduler",
        "neuron-node-problem-detector",
        "neuron-node-recovery",
    }
    for monitor in monitors:
        workload = pods[monitor["metadata"]["name"]]
        assert monitor["metadata"]["namespace"] == workload["metadata"]["namespace"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (container,) = pod_spec(workload)["containers"]
        (port,) = [item for item in container["ports"] if item["name"] == endpoint["port"]]
        variables = {item["name"]: item.get("value") for item in container["env"]}
        assert variables["METRICS_PORT"] == str(port["containerPort"])
        assert endpoint["honorLabels"] is True
        assert [item["targetLabel"] for item in endpoint["relabelings"]] == ["node"]


def test_a_port_of_ones_own_is_kept_and_labels_and_interval_are_set() -> None:
    settings = ("draDriver.metricsPort=9999", "monitoring.podMonitor.interval=15s", "monitoring.podMonitor.labels.a=b")
    made = template("draDriver.enabled=true", POD_MONITOR, *settings)
    (monitor,) = all_of(made, "PodMonitor")
    assert monitor["metadata"]["labels"]["a"] == "b"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    (driver,) = all_of(made, "DaemonSet")
    ports = {item["name"]: item["containerPort"] for item in pod_spec(driver)["containers"][0]["ports"]}
    assert ports["metrics"] == 9999


def test_the_rules_are_those_of_the_file() -> None:
    file = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    (found,) = all_of(template("draDriver.enabled=true", RULE), "PrometheusRule")
    assert found["spec"] == file


def test_prometheus_without_the_operator_scrapes_as_the_pages_have_it_what_the_podmonitor_of_the_driver_says() -> None:
    (monitor,) = all_of(template("draDriver.enabled=true", POD_MONITOR), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (driver,) = all_of(template("draDriver.enabled=true", POD_MONITOR), "DaemonSet")
    ports = {item["name"]: item["containerPort"] for item in pod_spec(driver)["containers"][0]["ports"]}
    config = yaml.safe_load(listings()["prometheus.yml"])
    (job,) = config["scrape_configs"]
    (pods,) = job["kubernetes_sd_configs"]
    assert job["honor_labels"] is endpoint["honorLabels"]
    assert (pods["role"], pods["namespaces"]["names"]) == ("pod", [monitor["metadata"]["namespace"]])
    kept, address, *labels = job["relabel_configs"]
    selected = {f"__meta_kubernetes_pod_label_{name}": value for name, value in kept_labels(monitor).items()}
    assert {kept["source_labels"][0]: kept["regex"]} == selected
    assert kept["action"] == "keep"
    assert (address["target_label"], address["replacement"]) == ("__address__", f"$1:{ports[endpoint['port']]}")
    given = {label["target_label"]: label["source_labels"] for label in labels}
    relabelled = {label["targetLabel"]: label["sourceLabels"] for label in endpoint["relabelings"]}
    # Namespace and pod are what the operator adds by itself.
    added = {
        name: [f"__meta_kubernetes_{source}"] for name, source in (("namespace", "namespace"), ("pod", "pod_name"))
    }
    assert given == relabelled | added
    assert (ROOT / config["rule_files"][0]).samefile(CHART / "files/alerts.yaml")


def kept_labels(monitor: Object) -> dict[str, str]:
    labels: dict[str, str] = monitor["spec"]["selector"]["matchLabels"]
    return labels


def test_rules_follow_the_names_of_the_workloads_and_the_place_of_the_runbooks() -> None:
    settings = ("fullnameOverride=x", "monitoring.prometheusRule.runbookURL=https://wiki.example/n")
    made = rules(template(*EVERYTHING, RULE, *settings))
    by_name = {rule["alert"]: rule for rule in made if "alert" in rule}
    assert by_name["NeuronChipUnhealthy"]["annotations"]["runbook_url"] == (
        "https://wiki.example/n#neuronchipunhealthy"
    )
    for alert, workload in (
        ("NeuronDriverDown", 'daemonset="x-dra-driver"'),
        ("NeuronDriverUpdateStuck", 'daemonset="x-dra-driver"'),
        ("NeuronExtenderDown", 'deployment="x-scheduler-extender"'),
        ("NeuronPlacerDown", 'deployment="x-placer"'),
    ):
        assert workload in by_name[alert]["expr"]


def test_the_dashboard_is_the_file_under_the_label_of_the_sidecar() -> None:
    (found,) = [
        item
        for item in all_of(template("draDriver.enabled=true", DASHBOARD), "ConfigMap")
        if item["metadata"]["name"] == "neuron-dashboard"
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = found["data"].values()
    assert json.loads(text) == json.loads((ROOT / "deploy/grafana/neuron-dra-driver.json").read_text())


def test_a_misspelt_key_is_refused() -> None:
    assert "podmonitor" in refusal("monitoring.podmonitor.enabled=true")
