"""The device plugin on a real kubelet. It runs beside the node here, as a process with the node's directories."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.cluster import Cluster
from lab.node import Node

from dra_driver.legacy.annotations import ALLOCATED, IDS, OF, ContainerShare, write
from dra_driver.legacy.device_plugin.choosing import NEEDS_EXTENDER
from dra_driver.legacy.rules import NeuronResource, NodeHardware
from dra_driver.neuron.topology.instance_types import resolve
from tests.cluster.lib.health import SickHost, condition
from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import IMAGE, SLEEP
from tests.paths import ROOT

pytestmark = pytest.mark.kubernetes("1.37", "1.33")

NODE = "node-1"
NEURON, CORE = NeuronResource.DEVICE.value, NeuronResource.CORE.value


@contextmanager
def device_plugin(
    lab: Cluster, kube: Kube, tmp_path: Path, kind: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The plugin of node-1; returns when the Node's status has lost its devices."""
    node: Node = lab.node(NODE)
    log = tmp_path / "device-plugin.log"
    command = [sys.executable, "-m", "dra_driver", "device-plugin", "--node-name", NODE, "--emulate", kind]
    command += ["--kubeconfig", str(lab.kubeconfig), "--kubelet-directory", str(node.layout.kubelet)]
    command += ["--cdi-root", str(node.layout.cdi), "--emulation-root", str(tmp_path / "host")]
    command += ["--healthcheck-port", "-1", "--rescan-seconds", "1", "--state-dir", str(tmp_path / "state"), *options]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        sys.stdout.write(log.read_text())
        # kubelet reports it late, and the next plugin's devices must not be mistaken for these.
        wait_allocatable(kube, 0, 0)


@pytest.fixture(autouse=True)
def _alone(installation: Installation) -> None:
    """The device plugin ends where the DRA driver publishes devices."""
    installation.ensure_absent()


def hardware(kind: str) -> NodeHardware:
    row = resolve(kind)
    return NodeHardware(row.name, row.fabric, row.cores_per_device // row.default_lnc)


def allocatable(kube: Kube) -> tuple[int, int]:
    """Chips and cores that the node's status tells of."""
    node = kube.get("nodes", NODE) or {}
    found = node.get("status", {}).get("allocatable", {})
    return int(found.get(NEURON, "0")), int(found.get(CORE, "0"))


def wait_allocatable(kube: Kube, devices: int, cores: int) -> None:
    eventually(f"{devices} chips and {cores} cores", lambda: allocatable(kube) == (devices, cores), 60)


def pod(name: str, limits: Mapping[str, int], *, annotations: Mapping[str, str] | None = None, init: int = 0) -> Object:
    """A pod of node-1. With annotations it is bound already, as by an extender; without, the scheduler does it."""
    container = {"image": IMAGE, "resources": {"limits": {key: str(count) for key, count in limits.items()}}}
    spec: Object = {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "command": SLEEP, **container}],
        "nodeSelector": {"kubernetes.io/hostname": NODE},
    }
    if annotations:
        spec["nodeName"] = NODE
    if init:
        spec["initContainers"] = [{"name": "init", "command": ["true"], **container}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": spec,
    }


def chosen(kind: str, name: str, resource: NeuronResource, ids: Sequence[int], *, init: int = 0) -> Object:
    shares = [ContainerShare("main", resource, tuple(ids))]
    if init:
        shares.append(ContainerShare("init", resource, tuple(ids)))
    annotations = write(hardware(kind), "", tuple(shares), time.time_ns())
    del annotations[OF]  # as of AWS's extender: the pod has no UID yet
    return pod(name, {resource.value: len(ids)}, annotations=annotations, init=init)


def visible_cores(namespace: Namespace, name: str) -> str:
    return namespace.environment(name, "main").get("NEURON_RT_VISIBLE_CORES", "")


@pytest.mark.parametrize("injection", ["nodes", pytest.param("cdi", marks=pytest.mark.nightly)])
def test_nine_cores_that_were_chosen_reach_the_container(
    lab: Cluster, kube: Kube, namespace: Namespace, tmp_path: Path, injection: str
) -> None:
    kind = "inf1.6xlarge"
    with device_plugin(lab, kube, tmp_path, kind, "--device-injection", injection):
        wait_allocatable(kube, 4, 16)
        namespace.apply(
            chosen(kind, "nine", NeuronResource.CORE, range(9), init=1),
            chosen(kind, "chip", NeuronResource.DEVICE, [3]),
        )
        namespace.wait_ready("nine", "chip")
        assert visible_cores(namespace, "nine") == "0,1,2,3,4,5,6,7,8"
        assert namespace.numbers("nine", "main") == [0, 1, 2]
        assert namespace.numbers("chip", "main") == [3]

        def handed_out() -> bool:
            found = [namespace.pod(name) or {} for name in ("nine", "chip")]
            return all(item["metadata"]["annotations"][ALLOCATED] == "true" for item in found)

        eventually("the annotations to say so", handed_out, 15)


@pytest.mark.nightly
def test_pods_started_together_get_what_was_chosen_for_each(
    lab: Cluster, kube: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    kind = "trn1.32xlarge"
    with device_plugin(lab, kube, tmp_path, kind):
        wait_allocatable(kube, 16, 32)
        order = [7, 2, 11, 0, 15, 4, 9, 1]
        namespace.apply(*(chosen(kind, f"p{chip}", NeuronResource.DEVICE, [chip]) for chip in order))
        namespace.wait_ready(*(f"p{chip}" for chip in order))
        assert {chip: namespace.numbers(f"p{chip}", "main") for chip in order} == {chip: [chip] for chip in order}


@pytest.mark.nightly
def test_without_an_extender_one_and_all_run_and_two_are_refused(
    lab: Cluster, kube: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    with device_plugin(lab, kube, tmp_path, "inf2.24xlarge"):
        wait_allocatable(kube, 6, 12)
        namespace.apply(pod("all", {CORE: 12}))
        namespace.wait_ready("all")
        assert visible_cores(namespace, "all") == ",".join(map(str, range(12)))
        wait_allocatable(kube, 0, 12)  # the chips are in use by way of their cores
        namespace.delete_pod("all")
        wait_allocatable(kube, 6, 12)
        namespace.apply(pod("one", {NEURON: 1}))
        namespace.wait_ready("one")
        (chip,) = namespace.numbers("one", "main")
        eventually("its record", lambda: _annotations(namespace, "one").get(IDS) == str(chip), 15)
        namespace.apply(pod("two", {NEURON: 2}))
        failed = namespace.wait_phase("two", "Failed")
        assert NEEDS_EXTENDER in failed["status"]["message"]
        assert failed["status"]["reason"] == "UnexpectedAdmissionError"


def test_restarts_of_kubelet_and_plugin_leave_pods_alone_and_the_resources_come_back(
    lab: Cluster, kube: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    kind = "trn1.32xlarge"
    with device_plugin(lab, kube, tmp_path, kind):
        wait_allocatable(kube, 16, 32)
        namespace.apply(chosen(kind, "before", NeuronResource.DEVICE, range(4)))
        namespace.wait_ready("before")
        lab.node(NODE).restart_kubelet()
        # The Node's status is still that from before the restart; kubelet fails pods that come before the plugin.
        eventually("kubelet to follow both resources again", lambda: _streams(tmp_path) == {1, 2}, 30)
        wait_allocatable(kube, 16, 32)
        namespace.apply(chosen(kind, "between", NeuronResource.DEVICE, range(4, 8)))
        namespace.wait_ready("before", "between")
        # Only its init container has chips, and runs for long: no list of kubelet tells of these.
        starts = chosen(kind, "starts", NeuronResource.DEVICE, range(12, 16), init=1)
        starts["spec"]["initContainers"][0]["command"] = SLEEP
        del starts["spec"]["containers"][0]["resources"]
        namespace.apply(starts)
        eventually("the init container to run", lambda: _init_runs(namespace, "starts"), 60)
    with device_plugin(lab, kube, tmp_path, kind):
        wait_allocatable(kube, 16, 32)
        namespace.apply(chosen(kind, "after", NeuronResource.DEVICE, range(8, 12)))
        namespace.wait_ready("before", "between", "after")
        numbers = [namespace.numbers(name, "main") for name in ("before", "between", "after")]
        assert numbers == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        namespace.apply(chosen(kind, "twice", NeuronResource.CORE, range(2)))
        failed = namespace.wait_phase("twice", "Failed")
        assert f"pod {namespace.name}/before" in failed["status"]["message"]
        namespace.apply(chosen(kind, "thrice", NeuronResource.CORE, range(24, 26)))
        failed = namespace.wait_phase("thrice", "Failed")
        assert f"pod {namespace.name}/starts" in failed["status"]["message"]


def _init_runs(namespace: Namespace, name: str) -> bool:
    statuses = (namespace.pod(name) or {}).get("status", {}).get("initContainerStatuses", [])
    return bool(statuses) and "running" in statuses[0]["state"]


def _streams(tmp_path: Path) -> set[int]:
    """Numbers of the streams by which kubelet has followed every resource, so far."""
    text = (tmp_path / "device-plugin.log").read_text()
    found = (re.findall(rf"kubelet follows the devices of {kind} on stream (\d+)", text) for kind in (NEURON, CORE))
    return set.intersection(*({int(number) for number in numbers} for numbers in found))


def _annotations(namespace: Namespace, name: str) -> dict[str, str]:
    found: dict[str, str] = (namespace.pod(name) or {}).get("metadata", {}).get("annotations", {})
    return found


@pytest.mark.nightly
def test_a_sick_chip_and_its_cores_are_taken_out_of_the_nodes_status_until_it_is_well(
    lab: Cluster, kube: Kube, tmp_path: Path
) -> None:
    with device_plugin(lab, kube, tmp_path, "inf1.6xlarge"):
        wait_allocatable(kube, 4, 16)
        host = SickHost(tmp_path / "host")
        host.fail("sram-uncorrectable@2")
        wait_allocatable(kube, 3, 12)
        eventually("the condition", lambda: (condition(kube, NODE) or {}).get("status") == "True", 30)
        assert (condition(kube, NODE) or {})["message"] == "neuron2: sram-uncorrectable"
        host.mend()
        wait_allocatable(kube, 4, 16)
        eventually("the condition to clear", lambda: (condition(kube, NODE) or {}).get("status") == "False", 30)
