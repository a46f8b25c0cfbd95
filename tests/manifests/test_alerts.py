"""The alerts: what fires them, by the real promtool; that each has a runbook; that their metrics exist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.prometheus import needs_prometheus, promtool
from tests.manifests.chart import CHART
from tests.paths import DOCS

RULES = CHART / "files/alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
P = "neuron_dra_driver_"


@dataclass(frozen=True)
class Case:
    """A history that fires one alert, and what is expected of it.

    ``series`` are in promtool's notation, a sample a minute. ``at``: the minute by which it fires; it does not fire
    ``before``.
    """

    alert: str
    series: dict[str, str]
    at: int
    before: int
    labels: dict[str, str]


def chip(state: str, values: str, device: str = "neuron3") -> dict[str, str]:
    return {f'{P}chip_health{{instance="n1:9100",device="{device}",state="{state}"}}': values}


def one(metric: str, values: str, **labels: str) -> dict[str, str]:
    """One series of a driver's pod."""
    return {f"{P}{metric}{{{selector({'instance': 'n1:9100', **labels})}}}": values}


def selector(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


N1 = {"instance": "n1:9100"}
OPERATION = "claim_operation_seconds"
REPLICA = {"job": "j", "namespace": "n"}
HELD = {"namespace": "team", "pod": "train", "container": "main", "claim": "c"}

CASES = (
    Case("NeuronChipUnhealthy", chip("unhealthy", "_x3 1x9"), 5, 3, N1 | {"device": "neuron3", "state": "unhealthy"}),
    Case(
        "NeuronUnhealthyChipInUse",
        chip("unhealthy", "_x3 1x9")
        | one("chip_allocation", "1x12", device="neuron3", neuron_device_index="3", **HELD)
        | one("chip_allocation", "1x12", device="neuron4", neuron_device_index="4", **HELD),
        5,
        3,
        N1 | HELD | {"device": "neuron3", "neuron_device_index": "3"},
    ),
    Case("NeuronChipHealthUnknown", chip("unknown", "1x30"), 11, 9, N1 | {"device": "neuron3", "state": "unknown"}),
    Case(
        "NeuronChipFlapping",
        one("chip_health_changes_total", "0x30 0+1x30", device="neuron3"),
        37,
        32,
        N1 | {"device": "neuron3"},
    ),
    Case("NeuronHealthNotRead", one("health_read_time_seconds", "0x9"), 3, 2, N1),
    Case("NeuronHealthRecordNotWritable", one("health_record_writable", "1x3 0x19"), 10, 6, N1),
    Case(
        "NeuronHostFinding",
        one("host_finding", "1x9", code="c", subject="s", severity="error")
        | one("host_finding", "1x9", code="c", subject="t", severity="warning"),
        6,
        4,
        N1 | {"code": "c", "subject": "s"},
    ),
    Case("NeuronKernelLogNotRead", one("node_problem_detector_last_read_timestamp_seconds", "0x9"), 3, 2, N1),
    Case(
        "NeuronDriverDown",
        {
            'kube_daemonset_status_number_unavailable{daemonset="neuron-dra-driver-kubelet-plugin"}': "0x3 2x19",
            'kube_daemonset_status_number_unavailable{daemonset="other"}': "5x22",
        },
        15,
        10,
        {"daemonset": "neuron-dra-driver-kubelet-plugin"},
    ),
    Case(
        "NeuronDriverUpdateStuck",
        {
            'kube_daemonset_status_updated_number_scheduled{daemonset="neuron-dra-driver-kubelet-plugin"}': "3x3 1x90",
            'kube_daemonset_status_desired_number_scheduled{daemonset="neuron-dra-driver-kubelet-plugin"}': "3x93",
            'kube_daemonset_status_updated_number_scheduled{daemonset="other"}': "1x93",
            'kube_daemonset_status_desired_number_scheduled{daemonset="other"}': "2x93",
        },
        70,
        60,
        {"daemonset": "neuron-dra-driver-kubelet-plugin"},
    ),
    Case("NeuronDriverNotRegistered", one("registered", "1x3 0x19"), 10, 6, N1),
    Case("NeuronSlicesNotPublished", one("slices_published", "0x19") | one("slices_missing", "0x19"), 11, 9, N1),
    Case("NeuronSlicesNotPublished", one("slices_published", "1x19") | one("slices_missing", "2x19"), 11, 9, N1),
    Case("NeuronSlicesChangedByOthers", one("slice_repairs_total", "0x30 0+1x30"), 40, 34, N1),
    Case("NeuronDevicesWithdrawn", one("slices_withdrawn_devices", "1x19"), 11, 9, N1),
    Case("NeuronOfferIncomplete", one("partitions_label_invalid", "1x19"), 11, 9, N1),
    Case("NeuronOfferIncomplete", one("slices_fallback", "1x19"), 11, 9, N1),
    Case("NeuronOfferIncomplete", one("node_not_offered", "1x19"), 11, 9, N1),
    Case("NeuronOfferIncomplete", one("kubelet_unsupported", "1x19"), 11, 9, N1),
    *(
        Case(
            alert,
            one(f"{OPERATION}_count", "0x10 0+1x20", operation=operation, result="error")
            | one(f"{OPERATION}_count", "0+9x30", operation=operation, result="ok"),
            15,
            11,
            N1 | {"operation": operation, "result": "error"},
        )
        for alert, operation in (("NeuronPrepareErrors", "prepare"), ("NeuronUnprepareErrors", "unprepare"))
    ),
    Case(
        "NeuronPrepareSlow",
        one(f"{OPERATION}_bucket", "0x60", operation="prepare", result="ok", le="5.0")
        | one(f"{OPERATION}_bucket", "0+1x60", operation="prepare", result="ok", le="10.0")
        | one(f"{OPERATION}_bucket", "0+1x60", operation="prepare", result="ok", le="+Inf"),
        20,
        14,
        N1,
    ),
    Case("NeuronCheckpointUnreadable", one("unreadable_journal_files", "1x9"), 6, 4, N1),
    Case("NeuronRepairsFail", one("repairs_total", "0x10 0+1x20", kind="failed"), 15, 11, N1 | {"kind": "failed"}),
    Case("NeuronNodeStatusOutdated", one("node_labels_current", "0x30"), 16, 14, N1),
    Case("NeuronNodeStatusOutdated", one("node_condition_current", "0x30"), 16, 14, N1),
    Case(
        "NeuronExtenderDown",
        {'kube_deployment_status_replicas_available{deployment="k8s-neuron-scheduler"}': "2x3 0x9"},
        9,
        6,
        {"deployment": "k8s-neuron-scheduler"},
    ),
    Case(
        "NeuronExtenderWithoutLeader",
        {
            f'{P}extender_leads{{job="j",namespace="kube-system",instance="a"}}': "1x3 0x9",
            f'{P}extender_leads{{job="j",namespace="kube-system",instance="b"}}': "0x12",
        },
        7,
        4,
        {"job": "j", "namespace": "kube-system"},
    ),
    Case("NeuronExtenderNotFollowing", one("extender_watch_troubles", "1x9"), 6, 4, N1),
    Case(
        "NeuronDevicePluginNotFollowed",
        one("device_plugin_followed", "0x9", resource="aws.amazon.com/neuron"),
        6,
        4,
        N1 | {"resource": "aws.amazon.com/neuron"},
    ),
    Case(
        "NeuronPlacerDown",
        {'kube_deployment_status_replicas_available{deployment="neuron-dra-driver-placer"}': "0x9"},
        6,
        4,
        {"deployment": "neuron-dra-driver-placer"},
    ),
    Case(
        "NeuronRecoveryWithoutLeader",
        {f'{P}recovery_leads{{job="j",namespace="n",instance="{name}"}}': "0x9" for name in "ab"},
        6,
        4,
        {"job": "j", "namespace": "n"},
    ),
    Case(
        "NeuronRecoveryStuck",
        one("recovery_waiting_nodes", "1x90", reason="remedy") | one("recovery_waiting_nodes", "1x90", reason="budget"),
        61,
        59,
        N1 | {"reason": "remedy"},
    ),
    Case(
        # Now for the one, now for the other, and another replica leads after three hours. In a dry run all wait.
        "NeuronRecoveryWaitsLong",
        {
            f"{P}recovery_waiting_nodes{{{selector(REPLICA | {'instance': instance, 'reason': reason})}}}": values
            for instance, reason, values in (
                ("a", "budget", "1x59 stale _x59 1x60 stale"),
                ("a", "pause", "_x60 2x59 stale"),
                ("b", "pause", "_x180 1x120"),
                ("b", "remedy", "1x300"),
            )
        }
        | {f'{P}recovery_acts{{instance="{instance}",job="j",namespace="n"}}': "1x300" for instance in "ab"}
        | {
            f'{P}recovery_acts{{instance="c",job="dry",namespace="n"}}': "0x300",
            f'{P}recovery_waiting_nodes{{instance="c",job="dry",namespace="n",reason="pause"}}': "1x300",
        },
        241,
        239,
        REPLICA,
    ),
    Case(
        "NeuronNodesDisputed",
        one("recovery_disputed_nodes", "0x5 5x20", what="server")
        | one("recovery_disputed_nodes", "0x30", what="instance"),
        22,
        19,
        N1 | {"what": "server"},
    ),
    Case(
        "NeuronRecoveryActionsFail",
        one("recovery_actions_total", "0x10 0+1x20", action="reboot", result="error"),
        15,
        11,
        N1 | {"action": "reboot", "result": "error"},
    ),
)


def firing(case: Case, minute: int, samples: list[dict[str, Any]]) -> dict[str, Any]:
    # Of the labels those of the case: others, such as the chip's index, may be there too.
    by = ", ".join(sorted(case.labels))
    alerts = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    return {"expr": f"count by ({by}) ({alerts})", "eval_time": f"{minute}m", "exp_samples": samples}


@needs_prometheus
def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    tests = [
        {
            "name": case.alert,
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "promql_expr_test": [
                firing(case, case.before, []),
                firing(case, case.at, [{"labels": f"{{{selector(case.labels)}}}", "value": 1}]),
            ],
        }
        for case in CASES
    ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_what_happened_what_follows_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/operate/monitoring.md#{alert.lower()}"


def test_the_page_has_a_runbook_for_each_alert_and_for_no_other() -> None:
    page = (DOCS / "operate/monitoring.md").read_text()
    runbooks = page.partition("\n## Runbooks\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", runbooks, re.MULTILINE) == list(ALERTS)
