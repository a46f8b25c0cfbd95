"""What ``top``, ``health`` and ``explain`` say while something is wrong: each time one command names the cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.commands import Commands
from tests.cluster.lib.installation import DAEMONSET, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    is_ready,
    keep_emulated_host,
    kept_host,
    pods_cut_off,
    renew_driver,
    wait_driver_ready,
    wait_gone,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import config, neuron_config, pod, request, template

pytestmark = pytest.mark.nightly

NODE = "node-1"
SLICES_STAY = 75.0
"""kubelet deletes the slices of a driver that is gone after 30 s, and looks every 30 s or so."""


@pytest.fixture
def holder(driver: Installation, namespace: Namespace) -> str:
    """A running pod on ``NODE`` that has a chip, of a template of which tests make more pods."""
    namespace.apply(template("one", request()), with_chip("holder"))
    namespace.wait_ready("holder")
    return "holder"


def with_chip(name: str) -> Object:
    return pod(name, templates={"neurons": "one"}, node=NODE)


def no_slices(kube: Kube) -> None:
    eventually("the slices to be deleted", lambda: not kube.slices(NODE), SLICES_STAY)


@pytest.fixture
def crashing(driver: Installation) -> Iterator[Installation]:
    """A wrong setting, and the driver's pod of ``NODE`` deleted, as people do who want it to start anew."""
    old = driver.pod(NODE)["metadata"]  # before the update brings another one to the node
    wrong = [{"name": "RESCAN_SECONDS", "value": "0"}]
    containers = [{"name": "neuron-dra-driver", "env": wrong}]
    driver.changed()
    driver.patch(json.dumps({"spec": {"template": {"spec": {"containers": containers}}}}))
    driver.kube.kubectl("-n", NAMESPACE, "delete", "pod", old["name"], "--grace-period=1")
    yield driver
    driver.kube.kubectl("-n", NAMESPACE, "rollout", "undo", f"daemonset/{DAEMONSET}")
    driver.kube.kubectl("-n", NAMESPACE, "delete", "pod", "--all", "--grace-period=1", "--wait=false")
    wait_driver_ready(driver, NODE)


def test_a_driver_that_crashes_is_named_with_its_last_line(
    holder: str, crashing: Installation, kube: Kube, namespace: Namespace, commands: Commands, figures: list[str]
) -> None:
    namespace.apply(with_chip("starts"))
    no_slices(kube)
    namespace.apply(with_chip("waits"))
    namespace.kubectl("delete", "pod", holder, "--grace-period=1", "--wait=false")
    node = eventually(
        "the crash loop", lambda: (n := commands.node(NODE))["driverPod"]["status"] == "CrashLoopBackOff" and n, 90
    )
    assert node["counts"]["free"] == 0
    assert {chip["state"] for chip in node["chips"]} == {"unknown"}
    assert "--rescan-seconds" in node["driverPod"]["problem"]

    def text_with(ask: Callable[[], str], *parts: str) -> str:
        def answer() -> str:
            text = ask()
            return text if all(part in text for part in parts) else ""

        # Each start lasts for a moment, in which the driver is only not ready yet, and might answer.
        return eventually(" and ".join(parts), answer)

    health = text_with(partial(commands.run, "health"), "--rescan-seconds")
    assert "16 of 16" not in "".join(line for line in health.splitlines() if line.startswith(NODE))
    crash = (f"the driver's pod {NAMESPACE}/", "--rescan-seconds")
    figures.append(text_with(partial(commands.explain, namespace, "starts"), "cannot prepare", *crash))
    figures.append(text_with(partial(commands.explain, namespace, holder), "cannot unprepare", *crash))
    unserved = "no driver publishes devices there: the driver's pod"
    figures.append(text_with(partial(commands.explain, namespace, "waits"), unserved))


def test_a_node_that_the_daemonset_no_longer_selects_has_no_driver(
    holder: str, driver: Installation, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    kube.kubectl("label", "node", NODE, "eks.amazonaws.com/compute-type=hybrid")
    try:
        no_slices(kube)
        node = commands.node(NODE)
        assert (node["driverPod"]["status"], node["counts"]["free"], node["counts"]["allocated"]) == ("None", 0, 1)
        last_word = health_condition(kube)
        assert (last_word["status"], last_word["reason"]) == ("Unknown", "NeuronDriverStopped")
        assert node["driverPod"]["since"] == last_word["lastTransitionTime"]
        namespace.kubectl("delete", "pod", holder, "--grace-period=1", "--wait=false")
        text = commands.explain(namespace, holder)
        assert "Terminating" in text
        assert "no pod of the driver runs there" in text
    finally:
        kube.kubectl("label", "node", NODE, "eks.amazonaws.com/compute-type-")
    wait_driver_ready(driver, NODE)
    wait_gone(namespace, holder)
    eventually("the truth again", lambda: health_condition(kube)["reason"] == "NeuronHasNoError", 30)


def test_an_evicted_driver_is_back_and_its_node_served(
    holder: str, driver: Installation, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    old = driver.pod(NODE)["metadata"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": old["name"], "namespace": NAMESPACE},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{old['name']}/eviction"
    kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    wait_driver_ready(driver, NODE, other_than=old["uid"])
    assert commands.node(NODE)["driverPod"]["status"] == "Ready"
    eventually("the truth again", lambda: health_condition(kube)["reason"] == "NeuronHasNoError", 30)
    text = commands.explain(namespace, holder, 0)
    assert "Running on node" in text
    assert re.search(r"says of neuron-device-(\d+): Ready=True \(Prepared\): chip \1 as /dev/neuron0;", text)


def health_condition(kube: Kube) -> Object:
    conditions = (kube.get("nodes", NODE) or {})["status"]["conditions"]
    found: Object = next(item for item in conditions if item["type"] == "NeuronHealth")
    return found


def test_a_driver_that_is_cut_off_from_the_api_server_is_not_ready_and_says_so(
    holder: str, driver: Installation, kube: Kube, lab: Cluster, namespace: Namespace, commands: Commands
) -> None:
    slices = [item["metadata"]["uid"] for item in kube.slices(NODE)]
    with pods_cut_off(lab.node(NODE)):
        namespace.apply(with_chip("starts"))
        eventually("the driver to be not ready", lambda: not is_ready(driver.pod(NODE)), 120)
        text = commands.explain(namespace, "starts")
        assert "is not ready" in text
        assert f"from node {NODE}" in text, text
        log = driver.logs(NODE)
        assert f"{NODE}: the API server has not answered since" in log
        assert [item["metadata"]["uid"] for item in kube.slices(NODE)] == slices
        assert commands.node(NODE)["driverPod"]["status"] == "NotReady"
    eventually("the driver to be ready", lambda: is_ready(driver.pod(NODE)), 120)
    namespace.wait_ready("starts", within=120)
    assert commands.explain(namespace, holder, 0)


def test_a_kernel_driver_that_is_not_loaded_is_one_finding_with_its_remedy(
    installation: Installation, lab: Cluster, kube: Kube, namespace: Namespace, commands: Commands
) -> None:
    installation.vary("a host whose chips can fail", keep_emulated_host)
    root = kept_host(lab, NODE, renew_driver(installation, NODE))
    module, aside = root / "sys/module/neuron", root / "neuron-aside"
    module.rename(aside)
    try:
        found = eventually(
            "top to say so",
            lambda: (n := commands.node(NODE))["driverPod"]["status"] == "KernelDriverNotLoaded" and n,
            90,
        )
        assert "modprobe neuron" in found["driverPod"]["problem"]
        assert found["counts"]["free"] == 0
        namespace.apply(template("one", request()), with_chip("waits"))
        namespace.wait_event("waits", "cannot allocate all claims", 60)
        assert "modprobe neuron" in commands.explain(namespace, "waits")
        assert "modprobe neuron" in commands.run("health")
        conditions = {item["type"]: item for item in (kube.get("nodes", NODE) or {})["status"]["conditions"]}
        assert conditions["NeuronDriverNotLoaded"]["status"] == "True"
        assert conditions["NeuronHealth"]["status"] == "Unknown"
        events = [event for event in kube.find("events", "default") if event["involvedObject"]["name"] == NODE]
        assert not any("unreadable" in event["message"] for event in events)
    finally:
        aside.rename(module)
    namespace.wait_ready("waits", within=90)
    assert commands.node(NODE)["driverPod"]["status"] == "Ready"


KIND = "device.attributes['neuron.aws.com']"
CASES: dict[str, tuple[Object | None, tuple[str, ...]]] = {
    "typo": (
        template("typo", request(), configs=[config(neuron_config() | {"logicalNeuronCores": 1})]),
        ("logicalNeuronCores", "the driver will refuse it", "orrect the parameter in the ResourceClaimTemplate"),
    ),
    "lnc": (
        template("lnc", request(), configs=[config(neuron_config(3))]),
        ("expected 1 or 2, got 3", "orrect the parameter in the ResourceClaimTemplate"),
    ),
    "no-template": (None, ("needs the ResourceClaimTemplate", "which does not exist")),
    "no-class": (template("no-class", request(device_class="neuron.aws.co")), ("neuron.aws.co",)),
    "attribute": (
        template("attribute", request(selectors=[f"{KIND}.instancetype == 'trn2.48xlarge'"])),
        ("instanceType in place of instancetype",),
    ),
    "value": (
        template("value", request(selectors=[f"{KIND}.instanceType == 'trn2.48xlrge'"])),
        ("trn2.48xlarge",),
    ),
    "too-many": (template("too-many", request(count=16)), ("has room when these claims end together", "holder")),
}
"""What is wrong with a pod's claim, and what explain says of it."""


def test_one_command_tells_what_is_wrong_with_a_pod(
    holder: str, lenient_driver: Installation, namespace: Namespace, commands: Commands, figures: list[str]
) -> None:
    for name, (made, _) in CASES.items():
        namespace.apply(*([made] if made is not None else []), pod(name, templates={"neurons": name}, node=NODE))
    for name in ("typo", "lnc"):
        namespace.wait_event(name, "Failed to prepare dynamic resources", 60)
    namespace.wait_event("too-many", "cannot allocate all claims", 60)
    for name, (_, told) in CASES.items():
        text = commands.explain(namespace, name)
        assert [part for part in told if part not in text] == [], text
        figures.append(text)
    status = {
        row["pod"]["name"]: row
        for row in json.loads(commands.run("top", "-n", namespace.name, "-o", "json"))["holders"]
    }
    assert status["lnc"]["status"] == "ContainerCreating"
    assert "got 3" in status["lnc"]["problem"]


def test_a_tenant_gets_answers_with_the_rights_of_a_namespace(
    holder: str, lab: Cluster, kube: Kube, namespace: Namespace, commands: Commands, tmp_path: Path
) -> None:
    namespace.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}})
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace.name}
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [subject],
    }
    namespace.apply(binding)
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"] = [{"name": "tenant", "user": {"token": namespace.kubectl("create", "token", "tenant").strip()}}]
    for context in config["contexts"]:
        context["context"] |= {"user": "tenant", "namespace": namespace.name}
    kubeconfig = tmp_path / "tenant"
    kubeconfig.write_text(yaml.safe_dump(config))
    tenant = Commands(kubeconfig)
    eventually("the rights", lambda: "holder" in _either(tenant, "top"), 20)
    assert "explain FILE --instance-type TYPE" in tenant.explain(namespace, holder, 2)
    devices = binding | {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace.name},
        "roleRef": binding["roleRef"] | {"name": "neuron-devices-viewer"},
    }
    kube.apply(devices)
    try:
        eventually("the devices", lambda: NODE in _either(tenant, "top").partition("NAMESPACE")[0], 20)
        row = next(line for line in tenant.run("top").splitlines() if line.startswith(NODE))
        assert "-/16" in row
        assert "Running on node" in tenant.explain(namespace, holder, 0)
        big = pod("big", templates={"neurons": "many"}, node=NODE)
        namespace.apply(template("many", request(count=17)), big)
        assert "17 devices" in tenant.explain(namespace, "big")
    finally:
        kube.kubectl("delete", "clusterrolebinding", namespace.name)


def _either(commands: Commands, *arguments: str) -> str:
    try:
        return commands.run(*arguments)
    except AssertionError as error:
        return str(error)
