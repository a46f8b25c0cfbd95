"""A chip of an emulated node gets sick: the node is drained and replaced; another one is mended and taken back.

Recovery runs as a process beside the cluster, with a stand-in for AWS's API on loopback, which no pod could reach.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from lab.cluster import Cluster
from moto.server import ThreadedMotoServer

from dra_driver.operations.recovery.controller import NAME
from dra_driver.operations.recovery.nodes import MARK, REQUEST
from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import emulated_root, wait_driver_ready
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.release import helm_program
from tests.manifests import chart

pytestmark = pytest.mark.nightly

SICK, OTHER = "node-1", "node-2"
CHIP = 3
REGION = "us-east-1"
SYSTEM = "default"
"""Namespace of the lease: recovery is not installed here."""
FAILOVER_SECONDS = 40.0
"""A killed leader's lease lasts 20 s, and its successor reads the cluster first."""
POLICY = """\
persistSeconds: 5
healthySeconds: 5
pauseSeconds: 0
remedies:
  replacement: [cordon, drain, request, replace]
"""


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, str]]:
    """A stand-in for AWS, as the environment that leads to it."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    found = keys | {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_CONFIG_FILE": os.devnull}
    before = dict(os.environ)
    os.environ.update(found)
    yield found
    os.environ.clear()
    os.environ.update(before)
    server.stop()


@pytest.fixture(scope="module")
def instances(aws: dict[str, str], kube: Kube) -> list[str]:
    """The instances that the two nodes run on, of one Auto Scaling group. A Node's provider id can be set only once."""
    # The stand-in loads a service at its first call, which takes it longer than recovery waits.
    boto3.client("ec2", region_name=REGION).describe_vpcs()
    client = boto3.client("autoscaling", region_name=REGION)
    client.create_launch_configuration(
        LaunchConfigurationName="neuron", ImageId="ami-12c6146b", InstanceType="trn2.48xlarge"
    )
    client.create_auto_scaling_group(
        AutoScalingGroupName="neuron",
        LaunchConfigurationName="neuron",
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=2,
        AvailabilityZones=["us-east-1a"],
    )
    (group,) = client.describe_auto_scaling_groups(AutoScalingGroupNames=["neuron"])["AutoScalingGroups"]
    found = sorted(str(item["InstanceId"]) for item in group["Instances"])
    for node, instance in zip((SICK, OTHER), found, strict=True):
        patch = {"spec": {"providerID": f"aws:///us-east-1a/{instance}"}}
        kube.kubectl("patch", "node", node, "-p", json.dumps(patch))
    return found


def health(instances: list[str]) -> list[str]:
    found = boto3.client("autoscaling", region_name=REGION).describe_auto_scaling_instances(InstanceIds=instances)
    by_id = {item["InstanceId"]: item["HealthStatus"].lower() for item in found["AutoScalingInstances"]}
    return [by_id[instance] for instance in instances]


@contextmanager
def recovering(kube: Kube, directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``dra-driver recover`` as the administrator would start it."""
    (directory / "policy.yaml").write_text(POLICY)
    command = [sys.executable, "-m", "dra_driver", "recover", f"--kubeconfig={kube.access.kubeconfig}"]
    command += [f"--namespace={SYSTEM}", f"--policy={directory}/policy.yaml", *options]
    with (directory / "log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(40)


@contextmanager
def sick(lab: Cluster, installation: Installation, node: str, counter: str) -> Iterator[None]:
    """A chip of the node counts an error for as long as the block runs."""
    root = emulated_root(lab, installation, node)
    (file,) = {path.resolve() for path in root.glob(f"**/neuron{CHIP}/stats/hardware/{counter}")}
    before = file.read_text()
    file.write_text("1\n")
    try:
        yield
    finally:
        file.write_text(before)


def node_of(kube: Kube, name: str) -> Object:
    found = kube.get("nodes", name)
    assert found is not None
    return found


def notes(kube: Kube, name: str) -> dict[str, str]:
    found: dict[str, str] = node_of(kube, name)["metadata"].get("annotations") or {}
    return found


def said(kube: Kube, name: str, reason: str) -> list[str]:
    """Messages of the events about a node."""
    events = kube.find("events", "default", fields=f"involvedObject.kind=Node,involvedObject.name={name}")
    return [str(event["message"]) for event in events if event["reason"] == f"NeuronRecovery{reason}"]


def condition(kube: Kube, name: str) -> str:
    found = {item["type"]: item["status"] for item in node_of(kube, name)["status"]["conditions"]}
    return str(found.get("NeuronHealth", ""))


def is_as_before(kube: Kube, name: str) -> bool:
    return MARK not in notes(kube, name) and not node_of(kube, name)["spec"].get("unschedulable")


@pytest.fixture
def healthy(driver: Installation, kube: Kube) -> Installation:
    """The driver on nodes that are well."""
    for node in (SICK, OTHER):
        wait_driver_ready(driver, node)
        eventually(f"{node} to be well", lambda node=node: condition(kube, node) == "False", 60)  # type: ignore[misc] # bound at once
    return driver


def test_a_node_with_a_sick_chip_is_drained_and_replaced_though_recovery_is_killed(
    healthy: Installation,
    lab: Cluster,
    kube: Kube,
    namespace: Namespace,
    instances: list[str],
    tmp_path: Path,
    figures: list[str],
) -> None:
    training = pod("training", templates={"neurons": "two"}, node=SICK)
    training["metadata"]["labels"] = {"app": "training"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "training"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "training"}}},
    }
    namespace.apply(template("two", request(count=2)), training, budget)
    namespace.wait_ready("training")
    with sick(lab, healthy, SICK, "mem_ecc_uncorrected"):
        began = time.monotonic()
        with recovering(kube, tmp_path, "--act") as first:
            eventually("the drain to meet the budget", lambda: said(kube, SICK, "Drains"), 60)
            assert "disruption budget" in said(kube, SICK, "Drains")[0]
            assert node_of(kube, SICK)["spec"]["unschedulable"]
            steadily("the pod to stay", lambda: namespace.phase("training") == "Running", 3)
            first.send_signal(signal.SIGKILL)
            first.wait()
        assert health(instances) == ["healthy", "healthy"]
        namespace.kubectl("delete", "poddisruptionbudget", "training")
        with recovering(kube, tmp_path, "--act"):
            eventually("the pod to be evicted", lambda: namespace.pod("training") is None, FAILOVER_SECONDS + 30)
            eventually("the instance to be replaced", lambda: "replaced" in notes(kube, SICK)[MARK], 30)
            figures.append(f"from the fault to the replacement, with a kill: {time.monotonic() - began:.0f} s")
            assert health(instances) == ["unhealthy", "healthy"]
            assert json.loads(notes(kube, SICK)[REQUEST])["action"] == "replacement"
            assert is_as_before(kube, OTHER)
            # The driver's own pod stays, without which no claim could be ended.
            assert healthy.pod(SICK)["status"]["phase"] == "Running"
    kube.kubectl("annotate", "node", SICK, f"{MARK}-", f"{REQUEST}-")
    kube.kubectl("uncordon", SICK)


def test_a_node_that_is_mended_is_taken_back(
    healthy: Installation, lab: Cluster, kube: Kube, namespace: Namespace, aws: dict[str, str], tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1 $3 $4" >{tmp_path}/told\n')
    hook.chmod(0o755)

    def called() -> str:
        return (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""

    with recovering(kube, tmp_path, "--act", f"--hook={hook}"):
        with sick(lab, healthy, OTHER, "mem_ecc_repairable_uncorrected"):
            told = eventually("the hook to be called", called, FAILOVER_SECONDS + 60)
            assert told == f"{OTHER} driver-reload hbm-repairable\n"
            namespace.apply(template("one", request(count=1)), pod("late", templates={"neurons": "one"}, node=OTHER))
            steadily("the pod to wait", lambda: namespace.phase("late") == "Pending", 3)
        eventually("the node to be taken back", lambda: is_as_before(kube, OTHER), 60)
        namespace.wait_ready("late")
    assert said(kube, OTHER, "Ended")


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    healthy: Installation, lab: Cluster, kube: Kube, aws: dict[str, str], tmp_path: Path
) -> None:
    with sick(lab, healthy, OTHER, "sram_ecc_uncorrected"), recovering(kube, tmp_path):
        eventually("a dry run to be told", lambda: said(kube, OTHER, "DryRun"), FAILOVER_SECONDS + 60)
        assert f"sram-uncorrectable on neuron{CHIP} of {OTHER}" in said(kube, OTHER, "DryRun")[-1]
        steadily("the node to stay as it is", lambda: is_as_before(kube, OTHER), 5)
    lease = kube.get("leases", NAME, SYSTEM)
    assert lease is not None
    assert not lease["spec"].get("holderIdentity")


@pytest.fixture
def node_policy(kube: Kube) -> Iterator[None]:
    """What the chart sets up against forged marks."""
    made = chart.template("npd.nodeRecovery.enabled=true", program=str(helm_program()))
    own = [item for item in made if item["metadata"]["name"] == "neuron-node-recovery-annotations"]
    assert len(own) == 2, "the policy and its binding"
    kube.apply(*own)
    yield
    for item in own:
        kube.kubectl("delete", item["kind"], item["metadata"]["name"])


@pytest.mark.kubernetes("1.37", "1.34")
@pytest.mark.usefixtures("node_policy")
@pytest.mark.parametrize("key", [MARK, REQUEST])
def test_a_kubelet_writes_neither_mark_nor_request_and_an_administrator_does(kube: Kube, key: str) -> None:
    """Not on its Node, not with its status, and not as it registers."""

    def answer(*arguments: str, node: str = "", stdin: str | None = None) -> str:
        who = (f"--as=system:node:{node}", "--as-group=system:nodes") if node else ()
        done = kube.access.kubectl(*who, *arguments, "--dry-run=server", stdin=stdin, check=False)
        return done.stdout + done.stderr

    def patch(note: str | None, *options: str, node: str = "") -> str:
        change = {"metadata": {"annotations": {key: note}}}
        return answer("patch", "node", OTHER, "--type=merge", "-p", json.dumps(change), *options, node=node)

    def registration(**annotations: str) -> str:
        new = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-new", "annotations": annotations}}
        return answer("create", "-f", "-", node="node-new", stdin=json.dumps(new))

    def put_status(note: str, condition: str = "") -> str:
        """As a kubelet may: it does not read what kubectl would read before it patches a status."""
        found = kube.get("nodes", OTHER)
        assert found is not None
        found["metadata"].setdefault("annotations", {}).update({note: "x"})
        if condition:
            found["status"]["conditions"].append({"type": condition, "status": "False"})
        path = f"/api/v1/nodes/{OTHER}/status?dryRun=All"
        who = (f"--as=system:node:{OTHER}", "--as-group=system:nodes")
        done = kube.access.kubectl(*who, "replace", "--raw", path, "-f", "-", stdin=json.dumps(found), check=False)
        return done.stdout + done.stderr

    refused = f"A node may not add, change or remove {key}."
    eventually("the policy to be in force", lambda: refused in patch("forged", node=OTHER), 30)
    assert refused in put_status(key)
    assert refused in registration(**{key: "forged"})
    assert "created" in registration(**{"example.com/note": "x"})
    assert "annotated" in answer("annotate", "node", OTHER, "example.com/note=x", node=OTHER)
    assert '"type":"Example"' in put_status("example.com/note", "Example")
    assert "patched" in patch("of an administrator")
    kube.kubectl("annotate", "node", OTHER, f"{key}=x")
    try:
        assert refused in patch("other", node=OTHER)
        assert refused in patch(None, node=OTHER)
    finally:
        kube.kubectl("annotate", "node", OTHER, f"{key}-")
