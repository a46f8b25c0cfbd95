"""What ``simulate`` prints of the examples: text, JSON and objects say the same, and ``plan`` reads the objects."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.builders.documents import document as parsed
from tests.paths import EXAMPLES, ROOT
from tests.unit.cli.test_plan import Shell

pytestmark = pytest.mark.slow

Object = dict[str, Any]

NO_WORKLOADS = (
    "configuration.yaml",
    "queues.yaml",
    "ready-for-claims.yaml",
    "mixed.yaml",
    "notebooks.yaml",
    "dra-driver-cpu.yaml",
    "native-groups.yaml",
)
"""Settings, and input of another command."""
FILES = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.name not in NO_WORKLOADS]
VERSIONS = {"2.26-driver-trn2": "2.24.7.0", "specific-driver-version": "2.25.4.0"}
"""Examples that ask for a version of the kernel driver."""


def instance_type(path: Path) -> str:
    if "node-inference-us" in path.name or path.stem.startswith("us-"):
        return "trn2u.48xlarge"
    return {"trn1": "trn1.32xlarge", "inf2": "inf2.48xlarge"}.get(path.stem.rpartition("-")[2], "trn2.48xlarge")


def cluster_for(path: Path) -> list[str]:
    """Arguments for a cluster on which the example fits."""
    arguments = ["--instance-type", f"{instance_type(path)}=8"]
    if path.stem in VERSIONS:
        arguments += ["--emulated-driver-version", VERSIONS[path.stem]]
    if path.parent.name == "partitions" or "group" in path.name:
        arguments += ["--partitions", "chip.core.group.node"]
    if path.parent.name == "aligned":
        arguments += ["--objects", str(path.parent / "dra-driver-cpu.yaml")]
    if path.parent.name == "extended-resources":
        arguments += ["--partitions", "chip.core.group", "--extended-resources"]
    return arguments


def name_of(path: Path) -> str:
    return str(path.relative_to(EXAMPLES).with_suffix(""))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_plan_reads_the_printed_objects_and_gives_the_same(path: Path, run: Shell, tmp_path: Path) -> None:
    cluster = cluster_for(path)
    objects = tmp_path / "objects.yaml"
    objects.write_text(run("simulate", path, *cluster, "-o", "yaml"))
    items = yaml.safe_load(objects.read_text())["items"]
    for item in items:
        kubernetes_validate.validate(item, "1.37", strict=True)
    told = parsed(run("simulate", path, *cluster, "-o", "json"))
    planned = parsed(run("plan", "-f", objects, "--instance-type", instance_type(path), "-o", "json"))

    found = {row["claim"]["name"]: row for row in planned["items"]}
    wanted = {row["name"]: row["plan"] for row in told["claims"] if row["plan"]}
    assert found.keys() == wanted.keys()
    of_servers = instance_type(path).startswith("trn2u")
    for name, plan in wanted.items():
        # Which node of an UltraServer it is, an instance type does not tell.
        same = ("claim", "deviceNodes") if of_servers else ("claim", "deviceNodes", "environment", "cdi", "warnings")
        assert {key: found[name][key] for key in same} == {key: plan[key] for key in same}

    if not of_servers:
        given = [pod["containers"] for pod in told["items"] if pod["containers"]]
        assert [pod["containers"] for pod in planned["pods"]] == given
    text = run("simulate", path, *cluster, "-o", "wide")
    shown = re.findall(r"^    (/dev/neuron[0-9]+) +is (/dev/neuron[0-9]+) of the host", text, re.MULTILINE)
    assert {(row["containerPath"], row["hostPath"]) for plan in found.values() for row in plan["deviceNodes"]} == {
        *shown
    }


def test_the_objects_say_where_everything_is(run: Shell) -> None:
    """Of every example: each pod has a node and a claim for each entry, each claim its devices and its pods."""
    for path in FILES:
        items = yaml.safe_load(run("simulate", path, *cluster_for(path), "-o", "yaml"))["items"]
        claims = {item["metadata"]["name"]: item for item in items if item["kind"] == "ResourceClaim"}
        for pod in (item for item in items if item["kind"] == "Pod"):
            made = {
                entry["name"]: entry["resourceClaimName"] for entry in pod["status"].get("resourceClaimStatuses", ())
            }
            own = [
                entry.get("resourceClaimName") or made[entry["name"]] for entry in pod["spec"].get("resourceClaims", ())
            ]
            own += [
                status["resourceClaimName"]
                for name, status in pod["status"].items()
                if name == "extendedResourceClaimStatus"
            ]
            assert own
            for name in own:
                status = claims[name]["status"]
                group = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
                consumer = ("podgroups", group) if group else ("pods", pod["metadata"]["name"])
                assert consumer in [(item["resource"], item["name"]) for item in status["reservedFor"]]
                pools = {result["pool"] for result in status["allocation"]["devices"]["results"]}
                assert pools == {pod["spec"]["nodeName"]}


FACTS = {
    "outcome": r"(Pod|ResourceClaim) (\S+)(?: \(.*\))?: (?:node (\S+)|not placed)",
    "device": r"    (/dev/\S+) +is (/dev/\S+) of the host \(.*\)",
    "cdi": r"    k8s.neuron.aws.com/claim=(\S+)",
    "variable": r"    ([A-Z_]+=\S+)(?: with request \S+)?",
    "warning": r"  warning: (.*)",
    "left": r"  node (\S+): (.*) of ([^/ ]+/[^ :]+)(?:: .*)?",
    "placed": r"(\d+) of (\d+) placed",
    "obstacles": r"what blocks (.*)",
}
"""The lines of the text that say what a line says alone."""
RESULT = re.compile(r"    request (\S+): (.+) \(driver (\S+), pool (\S+?)(?:, admin access)?\)")
REASON = re.compile(r": not placed\n  (.*)")


def facts(text: str) -> Iterator[tuple[str, ...]]:
    """What the text says, without its pictures."""
    for line in text.splitlines():
        for name, pattern in FACTS.items():
            if found := re.fullmatch(pattern, line):
                yield name, *(group or "" for group in found.groups())
        if found := RESULT.fullmatch(line):
            yield from (("result", found[1], device, found[3], found[4]) for device in found[2].split(", "))
    yield from (("reason", found[1]) for found in REASON.finditer(text))
    for line in text.partition("\nnot considered\n")[2].splitlines():
        if line.startswith("  "):
            yield "notConsidered", line[2:]


def facts_of(document: Object) -> Iterator[tuple[str, ...]]:
    """The same of the JSON."""
    for row in document["items"]:
        kind, (what, *_) = ("Pod", [row["pod"]]) if row["pod"] else ("ResourceClaim", row["claims"])
        yield "outcome", kind, f"{what['namespace']}/{what['name']}", row["node"] or ""
        yield "reason", row["reason"] or ""
    for row in document["claims"]:
        for item in row["allocation"]["devices"]["results"] if row["allocation"] else ():
            yield "result", item["request"], item["device"], item["driver"], item["pool"]
    for plan in (row["plan"] for row in document["claims"] if row["plan"]):
        for item in (*plan["deviceNodes"], plan):
            yield from (("variable", f"{name}={value}") for name, value in item.get("environment", {}).items())
        yield from (("device", item["containerPath"], item["hostPath"]) for item in plan["deviceNodes"])
        yield from (("cdi", item["name"]) for item in plan["cdi"]["devices"])
        yield from (("warning", line) for line in plan["warnings"])
    for node in document["nodes"]:
        for pool in node["pools"]:
            kinds = [f"{len(kind['freeDevices'])} of {kind['total']} {kind['description']}" for kind in pool["offers"]]
            counts = ", ".join(kinds) or f"{len(pool['freeDevices'])} of {pool['total']} devices"
            yield "left", node["node"], counts, f"{pool['driver']}/{pool['pool']}"
    yield "obstacles", (document["explanation"] or {}).get("subject", "")
    yield from (("notConsidered", line) for line in document["notConsidered"])
    yield "placed", str(document["summary"]["placed"]), str(document["summary"]["total"])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_json_has_all_that_the_text_says(path: Path, run: Shell) -> None:
    cluster = cluster_for(path)
    said = {*facts(run("simulate", path, *cluster, "-o", "wide"))}
    document = parsed(run("simulate", path, *cluster, "-o", "json"))
    assert {name for name, *_ in said} >= {"outcome", "result", "device", "cdi", "left", "placed"}
    assert said - {*facts_of(document)} == set()


def test_the_json_says_what_is_in_the_way_as_the_text_does(run: Shell) -> None:
    path = EXAMPLES / "specs/specific-driver-version.yaml"
    text = run("simulate", path, "--instance-type", "trn2.48xlarge=2", "-o", "wide", status=1)
    document = parsed(run("simulate", path, "--instance-type", "trn2.48xlarge=2", "-o", "json", status=1))
    said = {*facts(text)}
    assert {name for name, *_ in said} >= {"outcome", "reason", "obstacles", "placed"}
    assert said - {*facts_of(document)} == set()
    assert document["summary"] == {"result": "not placed", "placed": 0, "total": 2, "refusedClaims": 0}
    messages = [group["message"] for group in document["explanation"]["nodeGroups"]]
    assert messages
    assert all(f": {message}." in text for message in messages)


def test_the_commands_are_piped_in_a_shell() -> None:
    driver = f"{sys.executable} -m dra_driver"
    kind = "--instance-type trn2.48xlarge"
    pod = EXAMPLES / "specs/1x4-connected-devices.yaml"
    line = f"{driver} simulate {pod} {kind} -o yaml | {driver} plan -f - {kind} -o json"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (found,) = parsed(done.stdout)["pods"]
    (container,) = found["containers"]
    assert found["name"] == "pod0"
    assert [item["containerPath"] for item in container["deviceNodes"]] == [
        f"/dev/neuron{number}" for number in range(4)
    ]
    assert container["environment"]["NEURON_LOGICAL_NC_CONFIG"] == "2"
