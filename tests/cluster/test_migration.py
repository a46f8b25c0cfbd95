"""Pods that were written for the device plugin, on the DRA driver: migrated, and unchanged by way of a DeviceClass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
import yaml

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import IMAGE, SLEEP
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
CHIPS = 16
ON_NODE_1 = {"kubernetes.io/hostname": "node-1"}


def migrate(*options: str, text: str = "") -> str:
    """What ``dra-driver migrate`` prints, asked as a user asks."""
    command = [sys.executable, "-m", "dra_driver", "migrate", *options]
    done = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def container(name: str, limits: Mapping[str, int], command: Sequence[str] = SLEEP) -> Object:
    amounts = {key: str(value) for key, value in limits.items()}
    return {"name": name, "image": IMAGE, "command": list(command), "resources": {"limits": amounts}}


def pod(name: str, *containers: Object, init: Sequence[Object] = (), **spec: object) -> Object:
    made = {"terminationGracePeriodSeconds": 1, "containers": list(containers), **spec}
    if init:
        made["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made}


@pytest.mark.kubernetes("1.37", "1.36", "1.34")
def test_migrated_pods_get_the_devices_that_they_asked_for_by_limits(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    selector = {"nodeSelector": {"node.kubernetes.io/instance-type": EMULATED}}
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": pod("", container("main", {NEURON: 4}))["spec"]}
    template["spec"] |= selector | {"schedulerName": "my-scheduler"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "serve"}}, "template": template},
    }
    several = pod(
        "several",
        container("eight", {NEURON: 8}),
        container("cores", {CORE: 4}),
        init=[container("before", {NEURON: 1}, ["sh", "-c", "ls /dev/neuron*"])],
        **selector,
    )
    namespace.apply(migrate("-", text=yaml.safe_dump_all([deployment, several])))
    namespace.wait_ready("several")
    # The chips of a pod are counted through, and the init container has those of a container after it.
    assert namespace.numbers("several", "eight") == list(range(8))
    assert namespace.numbers("several", "cores") == [8]
    assert namespace.kubectl("logs", "several", "-c", "before").splitlines() == ["/dev/neuron8"]

    def replicas() -> list[str]:
        found = [item["metadata"]["name"] for item in namespace.pods() if item["metadata"]["name"] != "several"]
        return found if len(found) == 2 else []

    names = eventually("the pods of the Deployment", replicas, 30)
    namespace.wait_ready(*names)
    for name in names:
        claim = namespace.claim_of(name)
        shown = node_files[namespace.node_of(name)].shown(claim["metadata"]["uid"])
        chips = [shown[number] for number in namespace.numbers(name)]
        assert [chip - chips[0] for chip in chips] == [0, 1, 2, 3], f"{chips} are no row of the torus"
        assert chips[0] % 4 == 0


def test_migrated_pods_with_cores_share_a_chip(installation: Installation, namespace: Namespace) -> None:
    installation.ensure("--emulate", EMULATED, "--partitions", "chip.core")
    spec = pod("", container("main", {CORE: 2}))["spec"] | {"nodeSelector": ON_NODE_1}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "serve"}},
            "template": {"metadata": {"labels": {"app": "serve"}}, "spec": spec},
        },
    }
    chip = pod("chip", container("main", {CORE: 4}), nodeSelector=ON_NODE_1)
    namespace.apply(migrate("-", "--instance-type", EMULATED, text=yaml.safe_dump_all([deployment, chip])))

    def names() -> list[str]:
        found = [item["metadata"]["name"] for item in namespace.pods() if item["metadata"]["name"] != "chip"]
        return found if len(found) == 2 else []

    served = eventually("the pods of the Deployment", names, 30)
    namespace.wait_ready("chip", *served)
    devices = {name: [item.device for item in namespace.allocated(namespace.claim_of(name))] for name in served}
    runs = sorted(sorted(each) for each in devices.values())
    chips = {run[0].rpartition("-")[0] for run in runs}
    assert len(chips) == 1, f"{devices} are not of one chip"
    (core,) = chips
    assert runs == [[f"{core}-0", f"{core}-1"], [f"{core}-2", f"{core}-3"]]
    for name in served:
        assert namespace.numbers(name) == [0]
        visible = "0-1" if f"{core}-0" in devices[name] else "2-3"
        assert namespace.environment(name)["NEURON_RT_VISIBLE_CORES"] == visible
    # As many cores as a chip has are a chip, which is another one.
    (whole,) = namespace.allocated(namespace.claim_of("chip"))
    assert whole.device.startswith("neuron-device-")
    assert whole.device.rpartition("-")[2] != core.rpartition("-")[2]
    assert "NEURON_RT_VISIBLE_CORES" not in namespace.environment("chip")


@pytest.mark.kubernetes("1.37", "1.36")
def test_with_the_class_old_pods_run_unchanged_and_wait_while_all_devices_are_taken(
    driver: Installation, namespace: Namespace
) -> None:
    namespace.apply(migrate("--extended-resources"))
    here: Object = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    namespace.apply(
        pod("one", container("main", {NEURON: 1}), container("none", {}), **here),
        pod("two", container("a", {NEURON: 2}), container("b", {NEURON: 1}), **here),
    )
    namespace.wait_ready("one", "two")
    assert namespace.numbers("one", "main") == [0]
    assert namespace.numbers("one", "none") == []
    assert [len(namespace.numbers("two", name)) for name in ("a", "b")] == [2, 1]
    namespace.apply(pod("all", container("main", {NEURON: CHIPS}), **here))
    namespace.wait_event("all", "cannot allocate all claims")
    assert namespace.node_of("all") == ""
    for name in ("one", "two"):
        namespace.delete_pod(name)
    namespace.wait_ready("all")
    assert namespace.numbers("all", "main") == list(range(CHIPS))
    environment = namespace.environment("all")
    assert environment["NEURON_LOGICAL_NC_CONFIG"] == "2"


@pytest.mark.kubernetes("1.37", "1.36")
def test_the_node_offers_no_device_twice_while_both_ways_are_in_use(
    driver: Installation, kube: Kube, namespace: Namespace
) -> None:
    """Chips of limits and chips of claims are the same chips for the scheduler."""
    namespace.apply(migrate("--extended-resources"))
    here: Object = {"nodeSelector": {"kubernetes.io/hostname": "node-1", "node.kubernetes.io/instance-type": EMULATED}}
    old = pod("old", container("main", {NEURON: 12}), **here)
    new = migrate("-", text=yaml.safe_dump(pod("new", container("main", {NEURON: 1}), **here)))
    more = migrate("-", text=yaml.safe_dump(pod("more", container("main", {NEURON: 4}), **here)))
    namespace.apply(old, new)
    namespace.wait_ready("old", "new")
    results = [item for claim in namespace.claims() for item in namespace.allocated(claim)]
    assert len({item.device for item in results}) == len(results) == 13
    namespace.apply(more)
    namespace.wait_event("more", "cannot allocate all claims")
    assert namespace.node_of("more") == ""
    # kubelet goes on to name a resource that a device plugin has offered once.
    assert (kube.get("nodes", "node-1") or {})["status"]["allocatable"].get(NEURON, "0") == "0"
