"""Each remedy of ``explain`` for a claim that the node's driver or kubelet refuses: carried out, the pod runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from dra_driver.neuron.topology.partitions import device_name
from tests.cluster.lib.commands import Commands
from tests.cluster.lib.health import SickHost, healthy_host, wait_taints
from tests.cluster.lib.installation import EMULATED, EMULATED_ULTRASERVER, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    emulated_root,
    keep_emulated_host,
    kept_host,
    renew_driver,
    unwritable,
    wait_gone,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import claim, config, connected, container, neuron_config, pod, request, template
from tests.cluster.lib.remedies import (
    CLAIM,
    LATE,
    allocate,
    recreate,
    remedy_of,
    set_status,
    user,
    wait_retried,
)
from tests.cluster.test_efa import node_drivers
from tests.cluster.test_exclusion import Plugin
from tests.doubles import idle_driver

pytestmark = pytest.mark.nightly

NODE = "node-1"
KIND = "device.attributes['neuron.aws.com']"
WHOLE_NODE = f"{KIND}.resourceType == 'neuron_node'"


def mode(nodes: int) -> Object:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": nodes}


def test_a_device_that_is_not_published(driver: Installation, namespace: Namespace, commands: Commands) -> None:
    allocate(namespace, NODE, "neuron-device-77x")
    namespace.apply(user("w", NODE))
    assert "recreate the pod with its claim" in remedy_of(commands, namespace, "w", "UnknownDevice")
    recreate(namespace, NODE, "w")


def test_a_device_that_another_claim_has(driver: Installation, namespace: Namespace, commands: Commands) -> None:
    allocate(namespace, NODE, device_name(0), name="first")
    namespace.apply(user("first", NODE, "first"))
    namespace.wait_ready("first")
    allocate(namespace, NODE, device_name(0))
    namespace.apply(user("w", NODE))
    assert "wait until the other claim is unprepared" in remedy_of(commands, namespace, "w", "DeviceInUse")
    namespace.delete_pod("first")
    wait_retried(namespace, "w")


def test_a_device_that_a_claim_has_twice(driver: Installation, namespace: Namespace, commands: Commands) -> None:
    allocate(namespace, NODE, device_name(0), device_name(0))
    namespace.apply(user("w", NODE))
    assert "recreate the pod with its claim" in remedy_of(commands, namespace, "w", "ConflictingDevices")
    recreate(namespace, NODE, "w")


def test_chips_with_a_gap(installation: Installation, namespace: Namespace, commands: Commands) -> None:
    installation.ensure("--emulate", EMULATED, "--env", "CONTIGUITY_POLICY=refuse")
    allocate(namespace, NODE, device_name(0), device_name(2))
    namespace.apply(user("w", NODE))
    assert "by a constraint on a device group" in remedy_of(commands, namespace, "w", "NotContiguous")
    recreate(namespace, NODE, "w", claim(CLAIM, request(count=4), constraints=[connected(4)]))


def test_cores_of_two_sizes_on_one_chip(installation: Installation, namespace: Namespace, commands: Commands) -> None:
    installation.ensure("--emulate", EMULATED, "--partitions", "core")
    allocate(namespace, NODE, "neuron-core-0-0", name="first")
    namespace.apply(user("first", NODE, "first"))
    namespace.wait_ready("first")
    allocate(namespace, NODE, "neuron-core-0-1", parameters=neuron_config(1))
    namespace.apply(user("w", NODE))
    assert "the logical core size that the chip has now" in remedy_of(commands, namespace, "w", "CoreSize")
    core = request(device_class="core.neuron.aws.com", selectors=[f"{KIND}.deviceId == 0"])
    recreate(namespace, NODE, "w", claim(CLAIM, core, configs=[config(neuron_config(2))]))


@pytest.fixture
def ultraserver(installation: Installation) -> Installation:
    """Both nodes are a half of an UltraServer."""
    installation.ensure("--emulate", EMULATED_ULTRASERVER, "--emulated-ultraservers", "1x2")
    return installation


def of_ultraserver(nodes: int) -> Object:
    return claim(CLAIM, request(selectors=[WHOLE_NODE]), configs=[config(mode(nodes))])


def test_a_mode_that_the_ultraserver_does_not_offer(
    ultraserver: Installation, namespace: Namespace, commands: Commands
) -> None:
    namespace.apply(of_ultraserver(4), user("w", NODE))
    assert "request a mode that the node offers" in remedy_of(commands, namespace, "w", "UltraServerMode")
    recreate(namespace, NODE, "w", of_ultraserver(2))


@contextmanager
def election(lab: Cluster, ultraserver: Installation, kube: Kube) -> Iterator[None]:
    """The nodes of the UltraServer elect their ids, as the kernel driver of ``NODE`` says it."""
    path = emulated_root(lab, ultraserver, NODE) / "sys/class/neuron_device/ultraserver_mode"
    modes = path.read_text()
    path.write_text("busy")
    try:
        eventually("the slices to say so", lambda: "electing" in json.dumps(kube.slices(NODE)), 60)
        yield
    finally:
        path.write_text(modes)
    eventually("the election to have ended", lambda: "electing" not in json.dumps(kube.slices(NODE)), 90)


def test_an_ultraserver_that_elects(
    ultraserver: Installation, lab: Cluster, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    with election(lab, ultraserver, kube):
        namespace.apply(of_ultraserver(2), user("w", NODE))
        assert "wait; kubelet tries again" in remedy_of(commands, namespace, "w", "UltraServerElecting")
    wait_retried(namespace, "w")


@pytest.fixture
def host(installation: Installation, lab: Cluster) -> Path:
    """The emulated host of ``NODE``, at a place that outlives the driver's container."""
    installation.vary("a host whose chips can fail", keep_emulated_host)
    return healthy_host(lab, installation, NODE).root


def test_a_chip_that_is_not_on_the_host(host: Path, namespace: Namespace, commands: Commands) -> None:
    chip, aside = host / "dev/neuron3", host / "dev/aside"
    chip.rename(aside)
    try:
        allocate(namespace, NODE, device_name(3))
        namespace.apply(user("w", NODE))
        assert "so that it gets other chips" in remedy_of(commands, namespace, "w", "DeviceMissing")
        recreate(namespace, NODE, "w")
    finally:
        aside.rename(chip)


def _refuse_unhealthy(daemonset: Object) -> None:
    keep_emulated_host(daemonset)
    spec = daemonset["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "policy", "configMap": {"name": "strict"}})
    container = spec["containers"][0]
    container["volumeMounts"].append({"name": "policy", "mountPath": "/etc/strict"})
    container["env"].append({"name": "HEALTH_POLICY", "value": "/etc/strict/policy.yaml"})


def test_a_chip_that_is_unhealthy(
    installation: Installation, lab: Cluster, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "strict", "namespace": "neuron-dra-driver"},
            "data": {"policy.yaml": yaml.safe_dump({"prepare": "refuse"})},
        }
    )
    installation.vary("unhealthy chips are refused", _refuse_unhealthy)
    sick = SickHost(kept_host(lab, NODE, renew_driver(installation, NODE)))
    sick.fail("hbm-uncorrectable@3")
    try:
        wait_taints(kube, NODE, {device_name(3): {"hbm-uncorrectable": "NoSchedule"}})
        allocate(namespace, NODE, device_name(3))
        namespace.apply(user("w", NODE))
        assert "chips without this taint" in remedy_of(commands, namespace, "w", "DeviceUnhealthy")
        recreate(namespace, NODE, "w")
    finally:
        sick.mend()


def test_a_chip_that_a_device_plugin_may_have_given_away(
    driver: Installation, lab: Cluster, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    plugin = Plugin(lab, kube)
    plugin.come()
    try:
        allocate(namespace, NODE, device_name(0))
        namespace.apply(user("w", NODE))
        assert "keep the device plugin off the node" in remedy_of(commands, namespace, "w", "DeviceHeldBack")
    finally:
        plugin.go()
    wait_retried(namespace, "w")


def test_a_claim_that_is_allocated_anew_under_its_pod(
    driver: Installation, lab: Cluster, namespace: Namespace, commands: Commands
) -> None:
    allocate(namespace, NODE, device_name(0))
    namespace.apply(user("first", NODE))
    namespace.wait_ready("first")
    set_status(namespace, CLAIM, {"allocation": None, "reservedFor": None, "devices": None})
    allocate(namespace, NODE, device_name(1))
    lab.node(NODE).restart_kubelet()
    namespace.apply(user("w", NODE))
    assert "delete all pods" in remedy_of(commands, namespace, "w", "AllocatedAgain")
    for name in ("first", "w"):
        namespace.delete_pod(name)
    namespace.apply(user("w", NODE))
    namespace.wait_ready("w", within=LATE)


def test_pods_that_the_driver_may_not_read(
    installation: Installation, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    installation.ensure("--emulate", EMULATED, "--partitions", "core")
    role = json.loads(kube.kubectl("get", "clusterrole", "neuron-dra-driver-clusterrole", "-o", "json"))
    rules = [rule for rule in role["rules"] if "pods" not in rule.get("resources", ())]
    patch = json.dumps({"rules": rules})
    kube.kubectl("patch", "clusterrole", "neuron-dra-driver-clusterrole", "--type=merge", "-p", patch)
    try:
        for name, core in (("one", "neuron-core-0-0"), ("other", "neuron-core-1-0")):
            allocate(namespace, NODE, core, name=name)
        each = [container("a", "c0"), container("b", "c1")]
        namespace.apply(pod("w", {"c0": "one", "c1": "other"}, containers=each, node=NODE))
        assert "do what the message says" in remedy_of(commands, namespace, "w", "PodNotRead")
    finally:
        patch = json.dumps({"rules": role["rules"]})
        kube.kubectl("patch", "clusterrole", "neuron-dra-driver-clusterrole", "--type=merge", "-p", patch)
    wait_retried(namespace, "w")


def test_a_checkpoint_that_cannot_be_written(
    driver: Installation, node_files: dict[str, NodeFiles], namespace: Namespace, commands: Commands
) -> None:
    def told() -> str:
        try:
            found = commands.findings(namespace, "w")
        except AssertionError:  # it is well for a moment
            return ""
        return next((str(item["remedy"]) for item in found if item["code"] == "NotPrepared"), "")

    # The directory is there since the first claim of the node.
    namespace.apply(claim("first", request()), user("first", NODE, "first"))
    namespace.wait_ready("first")
    with unwritable(node_files[NODE].state / "claims"):
        namespace.apply(claim(CLAIM, request()), user("w", NODE))
        # After some seconds the driver is not ready either, which is told first.
        assert "do what the message says" in eventually("the refusal", told, 120)
    wait_retried(namespace, "w")


def test_a_refusal_of_which_kubelet_alone_speaks(
    installation: Installation, namespace: Namespace, commands: Commands
) -> None:
    installation.ensure("--emulate", EMULATED, "--env", "CLAIM_STATUS=off")
    allocate(namespace, NODE, "neuron-device-77x")
    namespace.apply(user("w", NODE))
    remedy = remedy_of(commands, namespace, "w", "FailedPrepareDynamicResources")
    assert "do what the message says" in remedy
    recreate(namespace, NODE, "w")


def test_a_claim_of_the_name_of_one_that_is_gone(
    driver: Installation, namespace: Namespace, commands: Commands
) -> None:
    namespace.apply(claim(CLAIM, request()), user("first", NODE))
    namespace.wait_ready("first")
    namespace.kubectl("delete", "resourceclaim", CLAIM, "--wait=false")
    namespace.kubectl("patch", "resourceclaim", CLAIM, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    namespace.apply(claim(CLAIM, request()), user("w", NODE))
    remedy = remedy_of(commands, namespace, "w", "OldClaimPrepared")
    assert "wait until the pod that had the former claim has ended" in remedy
    namespace.delete_pod("first")
    wait_gone(namespace, "first")
    wait_retried(namespace, "w")


def test_another_driver_that_does_not_run(
    driver: Installation, lab: Cluster, namespace: Namespace, commands: Commands, tmp_path: Path
) -> None:
    other = "other.example.com"
    allocate(namespace, NODE, "card-0", driver=other)
    namespace.apply(template("one", request()), pod("w", {"card": CLAIM}, templates={"neurons": "one"}, node=NODE))
    assert f"see that driver {other} runs on node {NODE}" in remedy_of(commands, namespace, "w", "DriverNotRegistered")
    with node_drivers([lab.node(NODE)], tmp_path, lambda node: [idle_driver.__name__, str(lab.kubeconfig), other]):
        wait_retried(namespace, "w")
        namespace.delete_pod("w")
        wait_gone(namespace, "w", within=LATE)
