"""``dra-driver simulate`` as a user sees it: examples, forms of output, exit statuses, and what bad input says."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.driver.deviceclasses import manifest
from dra_driver.neuron.names import ADMIN_CLASS
from tests.builders.documents import document as parsed
from tests.builders.explain import NEURON, published
from tests.builders.yamlfiles import as_yaml
from tests.golden import golden
from tests.paths import EXAMPLES, SPECS

FILES = sorted(SPECS.glob("*.yaml")) + sorted(SPECS.glob("v1beta1/*.yaml"))
ON_ULTRASERVERS = (
    "2-node-inference-us",
    "4-node-inference-us",
    "4-node-inference-us-efa",
    "4-node-inference-us-lnc-1",
    "us-and-lnc-config",
)
VERSIONS = {"2.26-driver-trn2": "2.24.7.0", "specific-driver-version": "2.25.4.0"}
"""Examples that ask for a version of the kernel driver."""


def claim(name: str, count: int = 1, device_class: str = "neuron.aws.com", **request: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "count": count, **request}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def main_with(*claims: str) -> dict[str, Any]:
    """A container that uses these claims of its pod."""
    return {"name": "main", "resources": {"claims": [{"name": one} for one in claims]}}


def pod(name: str, *claims: str, **spec: Any) -> dict[str, Any]:
    entries = [{"name": one, "resourceClaimName": one} for one in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [main_with(*claims)], "resourceClaims": entries, **spec},
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def gadgets(node_name: str, count: int, driver: str = "a.example") -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node_name}-{driver}"},
            "spec": {
                "driver": driver,
                "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
                "nodeName": node_name,
                "devices": [{"name": f"d{i}"} for i in range(count)],
            },
        }
    ]


GADGETS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gadgets"}, "spec": {}}


def write(path: Path, *documents: object, name: str = "input.yaml") -> str:
    file = path / name
    file.write_text(as_yaml(*documents))
    return str(file)


class Shell:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        status = main(["simulate", *map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return status

    def claims(self, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
        assert self(*arguments, "-o", "json") == status, self.err
        found: list[dict[str, Any]] = parsed(self.out)["claims"]
        return found


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def cluster_for(name: str) -> list[str]:
    """Arguments for a cluster on which the example fits."""
    kind = "trn2u" if name in ON_ULTRASERVERS else "trn1.32xlarge" if name.endswith("trn1") else "trn2.48xlarge"
    arguments = ["--instance-type", f"{kind}=8"]
    if name in VERSIONS:
        arguments += ["--emulated-driver-version", VERSIONS[name]]
    if "group" in name:
        arguments += ["--partitions", "chip.group4"]
    return arguments


def taint_rule(version: str = "v1", effect: str = "NoSchedule", **selector: str) -> dict[str, Any]:
    spec = {"deviceSelector": selector, "taint": {"key": "broken", "effect": effect}}
    meta = {"name": "rule"}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
@pytest.mark.parametrize(
    ("rule", "devices"),
    [
        ({"driver": "a.example", "pool": "n0", "device": "d0"}, ["d1", "d2"]),
        ({"device": "d1"}, ["d0", "d2"]),
        ({"pool": "n1"}, ["d0", "d1"]),
        ({"driver": "b.example"}, ["d0", "d1"]),
        ({"driver": "a.example"}, None),
        ({}, None),
        ({"effect": "NoExecute"}, None),
        ({"effect": "None"}, ["d0", "d1"]),
    ],
)
def test_a_device_taint_rule_taints_the_devices_that_it_selects(
    version: str, rule: dict[str, str], devices: list[str] | None, shell: Shell, tmp_path: Path
) -> None:
    objects = [node("n0"), *gadgets("n0", 3), GADGETS, claim("c", 2, "gadgets"), taint_rule(version, **rule)]
    (found,) = shell.claims("--objects", write(tmp_path, *objects), status=0 if devices else 1)
    allocation = found["allocation"]
    assert (allocation and [item["device"] for item in allocation["devices"]["results"]]) == devices


def test_a_device_taint_rule_without_a_selector_taints_nothing(shell: Shell, tmp_path: Path) -> None:
    rule = taint_rule()
    del rule["spec"]["deviceSelector"]
    objects = [node("n0"), *gadgets("n0", 1), GADGETS, claim("c", 1, "gadgets"), rule]
    assert shell("--objects", write(tmp_path, *objects)) == 0, shell.err


def test_a_device_taint_rule_is_tolerated_as_a_taint_of_the_driver_is(shell: Shell, tmp_path: Path) -> None:
    tolerating = claim("c", 2, "gadgets", tolerations=[{"key": "broken", "operator": "Exists"}])
    objects = [node("n0"), *gadgets("n0", 2), GADGETS, tolerating, taint_rule()]
    assert shell("--objects", write(tmp_path, *objects)) == 0, shell.err


def test_a_release_whose_gate_is_off_follows_no_device_taint_rules_and_it_is_told(shell: Shell, tmp_path: Path) -> None:
    objects = [node("n0"), *gadgets("n0", 1), GADGETS, claim("c", 1, "gadgets"), taint_rule("v1beta2")]
    file = write(tmp_path, *objects)
    assert shell("--objects", file, "--kubernetes", "1.36") == 0, shell.err
    golden(shell.out)
    assert shell("--objects", file) == 1
    assert "DRADeviceTaintRules" not in shell.out


def test_emulated_nodes_have_their_devices_tainted_too(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("c", 15), taint_rule(driver="neuron.aws.com", pool="node-1", device="neuron-device-3"))
    (found,) = shell.claims(file, "--instance-type", "trn2.48xlarge=2")
    assert [item["device"] for item in found["allocation"]["devices"]["results"]] == [
        f"neuron-device-{number}" for number in range(16) if number != 3
    ]


def sick_node() -> list[dict[str, Any]]:
    """The slices of a node with a broken chip and a worn one, as the API server shows them."""
    slices = published("n0")
    taint = {"key": "health.neuron.aws.com/hbm-uncorrectable", "value": "unhealthy", "effect": "NoSchedule"}
    worn = {"key": "health.neuron.aws.com/hbm-corrected-rising", "value": "degraded", "effect": "None"}
    for name, added in (("neuron-device-3", taint), ("neuron-device-2", worn)):
        found = next(device for item in slices for device in item["spec"]["devices"] if device["name"] == name)
        found["taints"] = [{**added, "timeAdded": "2026-11-22T10:00:00Z"}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return [node("n0"), *({**item, **kind} for item in slices), NEURON | kind | {"kind": "DeviceClass"}]


def test_sick_chips_are_left_out_and_shown(shell: Shell, tmp_path: Path) -> None:
    rule = taint_rule(driver="neuron.aws.com", device="neuron-device-1")
    objects = [*sick_node(), rule, claim("c", 4)]
    assert shell("--objects", write(tmp_path, *objects)) == 0, shell.err
    golden(shell.out)
    for line in (
        "(xnx)  unhealthy device: 3",
        "(!n!)  tainted device: 1",
        "(~n~)  degraded device: 2",
        "neuron-device-1 has the taint broken:NoSchedule by DeviceTaintRule rule",
        (
            "neuron-device-3 has the taint health.neuron.aws.com/hbm-uncorrectable=unhealthy:NoSchedule (uncorrectable "
            "errors in the chip's memory)"
        ),
    ):
        assert line in shell.out, shell.out


def test_the_example_for_a_diagnosis_gets_sick_chips_and_those_in_use(shell: Shell, tmp_path: Path) -> None:
    labelled = node("node-7") | {"metadata": {"name": "node-7", "labels": {"kubernetes.io/hostname": "node-7"}}}
    slices = [json.loads(json.dumps(item).replace('"n0"', '"node-7"')) for item in sick_node()[1:]]
    rule = taint_rule(driver="neuron.aws.com", device="neuron-device-1")
    classes = [item for item in yaml.safe_load_all(manifest()) if item["metadata"]["name"] == ADMIN_CLASS]
    cluster = write(tmp_path, labelled, *slices, rule, *classes, name="cluster.yaml")
    example = EXAMPLES / "health/diagnose-sick-chips.yaml"
    (found,) = shell.claims(example, "--objects", cluster)
    assert len(found["allocation"]["devices"]["results"]) == 16

    intolerant = tmp_path / "intolerant.yaml"
    intolerant.write_text(example.read_text().replace("tolerations:\n          - operator: Exists", "tolerations: []"))
    (found,) = shell.claims(intolerant, "--objects", cluster, status=1)
    assert found["allocation"] is None


def test_the_example_of_a_monitor_sees_all_chips_of_its_node_and_takes_none(shell: Shell, tmp_path: Path) -> None:
    rule = write(tmp_path, taint_rule(driver="neuron.aws.com", device="neuron-device-1"), name="rule.yaml")
    node = ("--instance-type", "trn2.48xlarge", "--objects", rule)
    files = (EXAMPLES / "health/monitor.yaml", EXAMPLES / "specs/1x4-connected-devices.yaml")
    monitor, user = sorted(
        shell.claims(*files, *node), key=lambda claim: -len(claim["allocation"]["devices"]["results"])
    )
    assert len(monitor["allocation"]["devices"]["results"]) == 16
    assert len(user["allocation"]["devices"]["results"]) == 4


def test_the_picture_of_a_pod_shows_sick_chips_as_well(shell: Shell, tmp_path: Path) -> None:
    objects = [*sick_node(), claim("c", 1)]
    assert shell("--objects", write(tmp_path, *objects), "-o", "svg") == 0, shell.err
    assert '<g class="device unhealthy" data-device="3">' in shell.out
    assert '<g class="device degraded" data-device="2">' in shell.out


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_example_is_placed(file: Path, shell: Shell) -> None:
    assert shell(file, *cluster_for(file.stem)) == 0, shell.out + shell.err
    assert "would refuse" not in shell.out
    assert re.search(r"^([0-9]+) of \1 placed$", shell.out, re.MULTILINE)


@pytest.mark.parametrize("file", [file for file in FILES if file.parent == SPECS], ids=lambda file: file.stem)
def test_what_an_example_says_of_its_containers_is_shown(file: Path, shell: Shell) -> None:
    shell(file, *cluster_for(file.stem), "-o", "wide")
    comment = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
    told = [line for line in comment if re.match(r"(/dev/neuron[0-9]|NEURON_)", line) and "SERVER_ID" not in line]
    for line in told:
        assert re.search(rf"^    {re.escape(line)}( |$)", shell.out, re.MULTILINE), line


def test_whole_nodes_are_a_row_each_and_no_value_of_their_containers_is_left_out(shell: Shell, tmp_path: Path) -> None:
    """Of 8 pods on UltraServers, half have another logical core size."""
    objects = []
    for number in range(8):
        size = number % 2 + 1
        own = claim(f"c{number}", device_class="node.neuron.aws.com")
        kinds = (
            {"kind": "NeuronConfig", "logicalNeuronCore": size},
            {"kind": "UltraServerConfig", "ultraserverMode": 4},
        )
        own["spec"]["devices"]["config"] = [
            {"opaque": {"driver": "neuron.aws.com", "parameters": {"apiVersion": "neuron.aws.com/v1", **kind}}}
            for kind in kinds
        ]
        objects += [own, pod(f"p{number}", f"c{number}")]
    file = write(tmp_path, *objects)
    assert shell(file, "--instance-type", "trn2u.48xlarge=8") == 0
    text = shell.out
    golden(text)
    for row in shell.claims(file, "--instance-type", "trn2u.48xlarge=8"):
        place = row["plan"]["environment"]
        columns = [*(place[f"NEURON_RT_ULTRASERVER_{name}"] for name in ("SERVER_ID", "NODE_ID")), "X4"]
        table = next(part for part in text.split("\n\n") if f"default/{row['name'].replace('c', 'p')} " in part)
        assert re.search(rf"{row['name'].replace('c', 'p')} +{row['node']} +{' +'.join(columns)}\n", table)
        others = {name: value for name, value in place.items() if "ULTRASERVER" not in name}
        assert others
        assert all(f" {name}={value}" in table for name, value in others.items())


def test_of_very_many_whole_nodes_the_first_are_listed(shell: Shell, tmp_path: Path) -> None:
    objects = [item for number in range(36) for item in (claim(f"c{number}"), pod(f"p{number:02}", f"c{number}"))]
    assert shell(write(tmp_path, *objects), "--instance-type", "trn2u.48xlarge=36") == 0
    assert shell.out.count("  default/p") == 32
    assert "  and 4 more pods\n" in shell.out


def test_the_json_form_has_the_claims_with_their_allocations(shell: Shell) -> None:
    found = shell.claims(SPECS / "1x4-connected-devices.yaml", "--instance-type", "trn2.48xlarge")
    (only,) = found
    assert list(only) == ["namespace", "name", "node", "allocation", "nodeChoice", "reason", "plan", "refusal"]
    assert (only["namespace"], only["node"], only["reason"]) == ("default", "node-1", None)
    assert [item["device"] for item in only["allocation"]["devices"]["results"]] == [
        f"neuron-device-{i}" for i in range(4)
    ]
    assert only["allocation"]["nodeSelector"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    }


@pytest.mark.parametrize("output", ["text", "wide", "json", "yaml", "svg"])
@pytest.mark.parametrize("devices", [{}, {"requests": []}, {"constraints": [{"matchAttribute": "a.example/n"}]}])
def test_a_claim_without_requests_is_allocated_with_no_devices(
    devices: dict[str, Any], output: str, shell: Shell, tmp_path: Path
) -> None:
    """The API server takes it, and kube-scheduler allocates it."""
    without = {**claim("none"), "spec": {"devices": devices}}
    file = write(tmp_path, without, pod("p", "none"), claim("one"), pod("q", "one"))
    assert shell(file, "--instance-type", "trn2.3xlarge=2", "-o", output) == 0, shell.err
    if output == "json":
        rows = {row["name"]: row for row in parsed(shell.out)["claims"]}
        assert rows["none"]["node"] == "node-1"
        assert rows["none"]["allocation"]["devices"] == {}
        assert rows["none"]["plan"] is None
    if output in ("text", "wide"):
        assert "claim none\n    no devices: it asks for none\n" in shell.out
    if output == "text" and not devices:
        golden(shell.out)


def slice_of(driver: str, **devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": driver},
        "spec": {
            "driver": driver,
            "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name, **device} for name, device in devices.items()],
        },
    }


def class_of(driver: str) -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


@pytest.mark.parametrize(
    ("policy", "asked", "left", "free"),
    [
        ({"default": "10G", "validRange": {"min": "10G", "max": "40G", "step": "10G"}}, "15G", "20G", ["eth0"]),
        ({"default": "10G", "validRange": {"min": "10G", "max": "40G", "step": "10G"}}, "35G", "0", []),
        ({"default": "30G", "validValues": ["30G", "40G"]}, "30G", "10G", []),
        (None, "39G", "1G", ["eth0"]),
        (None, "40G", "0", []),
    ],
)
def test_of_a_shared_device_is_told_what_is_left_and_one_that_is_used_up_is_not_free(
    policy: object, asked: str, left: str, free: list[str], shell: Shell, tmp_path: Path
) -> None:
    bandwidth = {"value": "40G"} | ({"requestPolicy": policy} if policy else {})
    nic = slice_of("nic.example", eth0={"allowMultipleAllocations": True, "capacity": {"bandwidth": bandwidth}})
    wanted = claim("c", device_class="nic.example", capacity={"requests": {"bandwidth": asked}})
    arguments = (write(tmp_path, nic, class_of("nic.example"), wanted), "--instance-type", "trn2.3xlarge")
    assert shell(*arguments) == 0, shell.err
    assert f"left of eth0: bandwidth {left}\n" in shell.out
    assert shell(*arguments, "-o", "json") == 0
    (pool,) = [pool for pool in parsed(shell.out)["nodes"][0]["pools"] if pool["driver"] == "nic.example"]
    assert pool["freeDevices"] == free
    assert pool["shared"] == [{"device": "eth0", "left": {"bandwidth": left}}]


def test_the_wait_for_conditions_of_a_device_is_told(shell: Shell, tmp_path: Path) -> None:
    conditions = {"bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}
    devices = slice_of("fabric.example", f0=conditions, f1=conditions)
    file = write(tmp_path, devices, class_of("fabric.example"), claim("c", 2, "fabric.example"), pod("p", "c"))
    assert shell(file, "--instance-type", "trn2.3xlarge") == 0, shell.err
    (warning,) = re.findall("  warning: (.*)", shell.out)
    golden(warning)
    assert main(["explain", file, "--instance-type", "trn2.3xlarge"]) == 0


def test_claims_without_a_pod_are_tried_on_each_node_in_name_order(shell: Shell, tmp_path: Path) -> None:
    objects = [node("b"), node("a"), GADGETS, *gadgets("a", 1), *gadgets("b", 2)]
    objects += [claim("two", 2, "gadgets"), claim("one", 1, "gadgets"), claim("more", 1, "gadgets")]
    found = shell.claims("--objects", write(tmp_path, *objects), status=1)
    assert [(item["name"], item["node"]) for item in found] == [("two", "b"), ("one", "a"), ("more", None)]
    assert found[2]["allocation"] is None
    golden(found[2]["reason"])


def test_claims_of_one_pod_are_allocated_together(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a"), node("b"), GADGETS, *gadgets("a", 2), *gadgets("b", 3)]
    objects += [claim("x", 2, "gadgets"), claim("y", 1, "gadgets"), pod("p", "y", "x")]
    found = shell.claims("--objects", write(tmp_path, *objects))
    assert [(item["name"], item["node"]) for item in found] == [("y", "b"), ("x", "b")]
    assert [[one["device"] for one in item["allocation"]["devices"]["results"]] for item in found] == [
        ["d0"],
        ["d1", "d2"],
    ]


def test_a_pod_goes_where_a_claim_that_it_shares_is_allocated(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a"), node("b"), GADGETS, *gadgets("a", 1), *gadgets("b", 2)]
    objects += [claim("big", 2, "gadgets"), claim("own", 1, "gadgets")]
    objects += [pod("first", "big"), pod("second", "big"), pod("third", "big", "own")]
    assert shell("--objects", write(tmp_path, *objects)) == 1
    golden(shell.out)
    found = shell.claims("--objects", write(tmp_path, *objects), status=1)
    assert [(item["name"], item["node"], item["reason"] is None) for item in found] == [
        ("big", "b", True),
        ("own", None, False),
    ]


def test_devices_in_use_are_not_given_again(shell: Shell, tmp_path: Path) -> None:
    used = claim("used", 1, "gadgets")
    used["status"] = {
        "allocation": {"devices": {"results": [{"request": "r", "driver": "a.example", "pool": "a", "device": "d0"}]}}
    }
    objects = write(tmp_path, node("a"), GADGETS, *gadgets("a", 2), used)
    found = shell.claims(write(tmp_path, claim("new", 1, "gadgets"), name="new.yaml"), "--objects", objects)
    assert [item["allocation"]["devices"]["results"][0]["device"] for item in found] == ["d1"]


def test_with_a_file_what_waits_in_the_cluster_is_left_alone_and_listed(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a"), GADGETS, *gadgets("a", 1), claim("waits", 1, "gadgets"), pod("waiting", "waits")]
    new = write(tmp_path, claim("new", 1, "gadgets"), name="new.yaml")
    found = shell.claims(new, "--objects", write(tmp_path, *objects))
    assert [item["name"] for item in found] == ["new"]
    golden(shell.err)


def test_nodes_that_a_pod_may_not_use_are_named_with_the_reason(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a", zone="1"), GADGETS, *gadgets("a", 1), claim("c", 1, "gadgets")]
    asked = pod("p", "c", nodeSelector={"zone": "2"})
    assert shell("--objects", write(tmp_path, *objects, asked)) == 1
    golden(shell.out)


def test_a_pod_that_names_its_node_is_not_seen_by_the_scheduler(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a"), GADGETS, *gadgets("a", 1), claim("c", 1, "gadgets"), pod("p", "c", nodeName="a")]
    assert shell("--objects", write(tmp_path, *objects)) == 1
    assert "the pod sets nodeName a" in shell.out


def test_what_is_being_deleted_gets_nothing(shell: Shell, tmp_path: Path) -> None:
    objects = [node("a"), GADGETS, *gadgets("a", 3), claim("c", 1, "gadgets"), claim("d", 1, "gadgets"), pod("p", "d")]
    for item in objects[-3], objects[-1]:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = shell.claims("--objects", write(tmp_path, *objects), status=1)
    assert [(item["name"], item["node"]) for item in found] == [("c", None), ("d", "a")]
    golden(found[0]["reason"])
    golden(shell.err)


def test_a_failing_selector_is_told_with_the_device(shell: Shell, tmp_path: Path) -> None:
    selectors = [{"cel": {"expression": "device.attributes['neuron.aws.com'].nothing == 1"}}]
    assert shell(write(tmp_path, claim("c", selectors=selectors)), "--instance-type", "trn2.48xlarge") == 1
    golden(shell.out)


def test_the_picture_marks_the_devices_and_the_rest_is_left(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("c", 15)), "--instance-type", "trn2.48xlarge=2") == 0
    assert shell.out.count("[*") == 16, "fifteen chips and the legend"
    golden(shell.out)


def test_chips_are_not_left_when_their_node_is_taken_as_a_whole(shell: Shell, tmp_path: Path) -> None:
    whole = [{"cel": {"expression": "device.attributes['neuron.aws.com'].resourceType == 'neuron_node'"}}]
    file = write(tmp_path, claim("c", selectors=whole))
    assert shell(file, "--instance-type", "trn2u.48xlarge", "--partitions", "chip.node") == 0
    golden(shell.out)
    assert shell(write(tmp_path, claim("c")), "--instance-type", "trn2u.48xlarge", "--partitions", "chip.node") == 0


def test_claims_of_one_pod_get_different_device_numbers(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("x", 2), claim("y", 1), pod("p", "x", "y"))
    assert shell(file, "--instance-type", "trn2.48xlarge", "-o", "wide") == 0
    paths = re.findall(r"^    (/dev/neuron[0-9]+) +is (/dev/neuron[0-9]+) of the host", shell.out, re.MULTILINE)
    assert paths == [(f"/dev/neuron{i}", f"/dev/neuron{i}") for i in range(3)]


def leader_worker_set(replicas: int, size: int) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all((SPECS / "4-node-inference-us.yaml").read_text()))
    documents[1]["spec"]["replicas"] = replicas
    documents[1]["spec"]["leaderWorkerTemplate"]["size"] = size
    return documents


def test_each_group_has_an_ultraserver_for_itself(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, *leader_worker_set(2, 3))
    found = shell.claims(file, "--instance-type", "trn2u.48xlarge=8")
    assert [item["node"] for item in found] == [f"node-{i}" for i in (1, 2, 3, 5, 6, 7)]


def test_workers_wait_for_their_leader_and_for_room_beside_it(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, *leader_worker_set(2, 4)), "--instance-type", "trn2u.48xlarge=7") == 1
    golden(shell.out)
    assert shell(write(tmp_path, *leader_worker_set(2, 2)), "--instance-type", "trn2u.48xlarge=4") == 1
    assert shell(write(tmp_path, *leader_worker_set(1, 1)), "--instance-type", "trn2.48xlarge") == 1


def test_the_svg_shows_each_pod_and_says_what_it_leaves_out(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("x", 4), claim("y", 4), claim("z", 17))
    assert shell(file, "--instance-type", "trn2.48xlarge=2", "-o", "svg") == 1
    root = ET.fromstring(shell.out)
    pictures = root.findall("{http://www.w3.org/2000/svg}svg")
    assert [len(picture.findall(".//*[@class='device marked']")) for picture in pictures] == [4, 4]
    ids = [item.get("id") for item in root.iter() if item.get("id")]
    assert len(ids) == len(set(ids))
    golden(shell.err)


def replicas(count: int, chips: int = 1) -> list[dict[str, Any]]:
    """A Deployment, and the template of its claims."""
    spec = claim("", chips)["spec"]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "chips"},
        "spec": {"spec": spec},
    }
    pods = {
        "containers": [main_with("c") | {"image": "x"}],
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "chips"}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pods},
        },
    }
    return [template, deployment]


def test_many_replicas_are_summarized_and_wide_output_has_each(shell: Shell, tmp_path: Path) -> None:
    arguments = [write(tmp_path, *replicas(100)), "--instance-type", "trn2.48xlarge=4"]
    assert shell(*arguments) == 1
    assert len(re.findall(r"^Pod default/web-", shell.out, flags=re.MULTILINE)) == 1
    summary = shell.out.partition("Deployment default/web: ")[2].partition("\n\nleft")[0].split("\n")
    golden(summary)
    assert shell.out.count("\n") < 60
    assert shell(*arguments, "-o", "wide") == 1
    assert len(re.findall(r"^Pod default/web-\S+ \(.*: node ", shell.out, flags=re.MULTILINE)) == 64
    assert "Deployment default/web: " not in shell.out


def test_few_replicas_are_shown_one_by_one(shell: Shell, tmp_path: Path) -> None:
    arguments = [write(tmp_path, *replicas(8)), "--instance-type", "trn2.48xlarge"]
    assert shell(*arguments) == 0
    narrow = re.findall(r"^Pod .*", shell.out, re.MULTILINE)
    assert len(narrow) == 8
    assert shell(*arguments, "-o", "wide") == 0
    assert re.findall(r"^Pod .*", shell.out, re.MULTILINE) == narrow


def test_where_many_nodes_are_used_the_free_devices_of_the_first_are_named(shell: Shell, tmp_path: Path) -> None:
    arguments = [write(tmp_path, *replicas(12, 16)), "--instance-type", "trn2.48xlarge=12"]
    assert shell(*arguments) == 0
    assert shell.out.partition("\nleft\n")[2].count("  node node-") == 8
    golden(shell.out)
    assert shell(*arguments, "-o", "wide") == 0
    assert shell.out.partition("\nleft\n")[2].count("  node node-") == 12


def test_where_nothing_is_placed_the_nodes_are_drawn_with_the_reason(shell: Shell, tmp_path: Path) -> None:
    held = claim("held", 2)
    results = [
        {"request": "r", "driver": "neuron.aws.com", "pool": "node-1", "device": f"neuron-device-{n}"} for n in (4, 5)
    ]
    held["status"] = {"allocation": {"devices": {"results": results}}}
    cluster = write(tmp_path, held, name="cluster.yaml")
    arguments = [write(tmp_path, claim("c", 17)), "--objects", cluster, "--instance-type", "trn2.48xlarge=3"]
    assert shell(*arguments) == 1
    golden(shell.out)
    first, second = shell.out.split("on which nothing was placed")[1:]
    assert "[* 4*]===[* 5*]---(  6 )" in first
    assert "[*n*]  allocated device" in first
    assert "*" not in second.partition("left")[0]
    assert shell(*arguments, "-o", "svg") == 1
    root = ET.fromstring(shell.out)
    heads = [
        text for item in root.iter("{http://www.w3.org/2000/svg}text") if (text := item.text or "").startswith("node ")
    ]
    assert [head.partition(",")[0] for head in heads] == ["node node-1", "node node-2", "node node-3"]
    golden(heads)


def test_where_nothing_is_placed_a_selector_that_no_device_meets_is_named(shell: Shell) -> None:
    assert shell(SPECS / "xl-trn2.yaml", "--instance-type", "inf2.xlarge") == 1
    golden(shell.out.lower())
    golden(shell.out)


def test_emulated_nodes_stand_beside_the_others_and_leave_their_class_alone(shell: Shell, tmp_path: Path) -> None:
    own = GADGETS | {"metadata": {"name": "neuron.aws.com"}}
    own["spec"] = {"selectors": [{"cel": {"expression": "device.driver == 'a.example'"}}]}
    objects = write(tmp_path, node("other"), own, *gadgets("other", 2))
    new = write(tmp_path, claim("new"), name="new.yaml")
    assert [item["node"] for item in shell.claims(new, "--objects", objects, "--instance-type", "trn2.48xlarge")] == [
        "other"
    ]
    objects = write(tmp_path, node("node-1"), own, *gadgets("node-1", 1, "neuron.aws.com"))
    assert shell(new, "--objects", objects, "--instance-type", "trn2.48xlarge") == 2
    golden(shell.err)


def test_emulated_nodes_have_the_labels_that_follow_from_their_type_whoever_provisions_them(
    shell: Shell, tmp_path: Path
) -> None:
    of_type = {"family": "inf2", "size": "48xlarge", "hypervisor": "nitro", "accelerator-count": "12", "cpu": "192"}
    for domain in ("karpenter.k8s.aws", "eks.amazonaws.com"):
        labels = {f"{domain}/instance-{name}": value for name, value in of_type.items()}
        file = write(tmp_path, claim("c"), pod("p", "c", nodeSelector=labels))
        assert shell(file, "--instance-type", "inf2.48xlarge") == 0, shell.out


def test_a_node_object_describes_an_emulated_node(shell: Shell, tmp_path: Path) -> None:
    described = node("node-1")
    described["metadata"]["labels"] = {"pool": "a"}
    described["spec"] = {"taints": [{"key": "own", "effect": "NoSchedule"}]}
    asked = pod("p", "c", nodeSelector={"pool": "a", "node.kubernetes.io/instance-type": "trn2.48xlarge"})
    file = write(tmp_path, claim("c"), asked, described)
    assert shell(file, "--instance-type", "trn2.48xlarge") == 1
    assert "does not tolerate the taint own:NoSchedule" in shell.out
    asked["spec"]["tolerations"] = [{"key": "own", "operator": "Exists"}]
    file = write(tmp_path, claim("c"), asked, described)
    assert shell(file, "--instance-type", "trn2.48xlarge") == 0


def test_cpu_and_affinity_are_listed_as_not_considered(shell: Shell, tmp_path: Path) -> None:
    asked = pod("p", "c", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}})
    asked["spec"]["containers"][0]["resources"] |= {"requests": {"cpu": "8", "memory": "1Gi"}}
    file = write(tmp_path, claim("c"), asked)
    assert shell(file, "--instance-type", "trn2.48xlarge") == 0
    section = shell.out.split("not considered\n")[1]
    assert all(word in section for word in ("cpu", "memory", "podAffinity"))
    shell.claims(file, "--instance-type", "trn2.48xlarge")
    golden(shell.err)


def test_the_release_decides_where_releases_differ(shell: Shell, tmp_path: Path) -> None:
    config = {"opaque": {"driver": "a.example", "parameters": {}}}
    asked = claim("c", 1, "gadgets")
    asked["spec"]["devices"]["config"] = [{"requests": ["r"], **config}]
    objects = write(tmp_path, node("a"), GADGETS, *gadgets("a", 1), asked)
    entries = {
        release: shell.claims("--objects", objects, "--kubernetes", release)[0]["allocation"]["devices"]["config"]
        for release in ("1.36", "1.37")
    }
    assert entries["1.36"] == [{"source": "FromClaim", "requests": ["r"], **config}]
    assert entries["1.37"] == [{"source": "FromClaim", **config}]


def test_a_node_known_from_its_slices_has_the_host_that_they_tell_of(shell: Shell, tmp_path: Path) -> None:
    assert main(["slices", "--instance-type", "trn2u.48xlarge", "--node-name", "real"]) == 0
    published = yaml.safe_load(shell._capsys.readouterr().out)
    neuron = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "neuron.aws.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
    }
    labels = {"neuron.amazonaws.com/ultraserver-server-id-2": "1a2b3c4d5e6f7081"}
    objects = write(tmp_path, node("real", **labels), neuron, published)
    assert shell(SPECS / "us-and-lnc-config.yaml", "--objects", objects) == 1, "two pods for one node"
    assert "NEURON_RT_ULTRASERVER_NODE_ID=0" in shell.out
    assert "1 of 2 placed" in shell.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--instance-type", "trn2.48xlarge"],
        ["FILE", "--instance-type", "nonsense"],
        ["FILE", "--instance-type", "trn2.48xlarge=0"],
        ["FILE", "--instance-type", "trn2.48xlarge=x"],
        ["FILE", "--instance-type", "trn2.48xlarge=99999999"],
        ["FILE", "--instance-type", "trn2u", "--emulated-ultraservers", "many"],
        ["FILE", "--instance-type", "trn1", "--emulated-ultraservers", "2x4"],
        ["FILE", "--instance-type", "trn2u=3", "--emulated-ultraservers", "1x2"],
        ["FILE"],
        ["-", "--objects", "-"],
        ["/does/not/exist", "--instance-type", "trn2.48xlarge"],
        ["/dev", "--instance-type", "trn2.48xlarge"],
    ],
)
def test_arguments_that_cannot_be_used_are_one_error(arguments: list[str], shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("c"))
    assert shell(*(file if item == "FILE" else item for item in arguments)) == 2
    golden(shell.err)
    assert shell.err.startswith("error: ")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"a: [",
        b"kind: ConfigMap\napiVersion: v1\n",
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceclaims: []}\n",
    ],
)
def test_files_that_cannot_be_used_are_one_error(content: bytes, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "input.yaml"
    file.write_bytes(content)
    assert shell(file, "--instance-type", "trn2.48xlarge") == 2
    golden(shell.err)
    assert shell.err.count("error:") == 1


def test_a_missing_parser_is_named_with_what_to_install() -> None:
    code = (
        "import sys; sys.modules['lark'] = None; from dra_driver.cli.main import main; "
        f"file = {str(SPECS / '1x4-connected-devices.yaml')!r}; "
        "sys.exit(main(['simulate', file, '--instance-type', 'trn2.48xlarge']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    golden(done.stderr)
    assert "Traceback" not in done.stderr


def test_a_kubeconfig_alone_means_its_cluster(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("c")), "--from-cluster", "--kubeconfig", "/does/not/exist") == 2
    assert "/does/not/exist" in shell.err


def test_standard_input_is_read(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(claim("c")).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert shell("-", "--instance-type", "trn2.48xlarge") == 0


@pytest.mark.slow
def test_neither_grpc_nor_an_http_client_is_loaded_to_simulate_on_emulated_nodes() -> None:
    code = (
        "import sys; from dra_driver.cli.main import main; main(sys.argv[1:]); "
        "sys.exit(str({'grpc', 'urllib3', 'kubernetes', 'asyncio', 'pydantic'} & sys.modules.keys() or ''))"
    )
    spec = SPECS / "1x4-connected-devices.yaml"
    command = [sys.executable, "-c", code, "simulate", str(spec), "--instance-type", "trn2.48xlarge"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr.strip() == ""
