"""Each remedy of ``explain`` for a node whose driver does not run as it should: carried out, the pod runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.commands import Commands
from tests.cluster.lib.installation import DAEMONSET, EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    pods_cut_off,
    process_of,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import claim, request
from tests.cluster.lib.remedies import CLAIM, LATE, remedy_of, user, wait_retried

pytestmark = pytest.mark.nightly

NODE = "node-1"
CONTAINER = "neuron-dra-driver"


@pytest.fixture
def waiting(driver: Installation, namespace: Namespace) -> Callable[[], str]:
    """Makes a pod that has a claim of ``NODE``, and gives its name."""

    def make() -> str:
        namespace.apply(claim(CLAIM, request()), user("w", NODE))
        eventually("a device", lambda: all(item["status"].get("allocation") for item in namespace.claims()))
        return "w"

    return make


@contextmanager
def wrong_change(driver: Installation, spec: Object) -> Iterator[None]:
    """A wrong change of the DaemonSet, and the pod of ``NODE`` deleted; undone as people undo it."""
    old = driver.pod(NODE)["metadata"]  # before the update brings another one to the node
    driver.patch(json.dumps({"spec": {"template": {"spec": spec}}}))
    driver.kube.kubectl("-n", NAMESPACE, "delete", "pod", old["name"], "--grace-period=1")
    try:
        yield
    finally:
        driver.kube.kubectl("-n", NAMESPACE, "rollout", "undo", f"daemonset/{DAEMONSET}")
        wait_driver_ready(driver, NODE, within=LATE)


def driver_container(**changes: object) -> Object:
    return {"containers": [{"name": CONTAINER, **changes}]}


CHANGES = {
    "DriverCrashes": (driver_container(env=[{"name": "RESCAN_SECONDS", "value": "0"}]), "correct or revert that"),
    "DriverImage": (driver_container(image="registry.invalid/none:1"), "if the message names a wrong image"),
    "DriverOutOfMemory": (
        driver_container(resources={"limits": {"memory": "16Mi"}, "requests": {"memory": "16Mi"}}),
        "raise its limit",
    ),
}


@pytest.mark.parametrize("code", CHANGES)
def test_a_change_of_the_driver_that_is_reverted(
    code: str, driver: Installation, namespace: Namespace, commands: Commands, waiting: Callable[[], str]
) -> None:
    spec, remedy = CHANGES[code]
    with wrong_change(driver, spec):
        assert remedy in remedy_of(commands, namespace, waiting(), code)
    wait_retried(namespace, "w")


def test_a_pod_of_the_driver_that_does_not_start(
    driver: Installation, namespace: Namespace, kube: Kube, commands: Commands, waiting: Callable[[], str]
) -> None:
    volume = {"name": "more", "configMap": {"name": "none-such"}}
    mount = {"name": "more", "mountPath": "/more"}
    with wrong_change(driver, {"volumes": [volume], **driver_container(volumeMounts=[mount])}):
        _, _, command = remedy_of(commands, namespace, waiting(), "DriverNotStarted").partition("kubectl ")
        eventually("its reason", lambda: '"none-such" not found' in kube.kubectl(*command.split()), 60)
    wait_retried(namespace, "w")


def test_a_driver_that_is_not_ready(
    driver: Installation,
    lab: Cluster,
    namespace: Namespace,
    kube: Kube,
    commands: Commands,
    waiting: Callable[[], str],
) -> None:
    with pods_cut_off(lab.node(NODE)):
        _, _, command = remedy_of(commands, namespace, waiting(), "DriverNotReady").partition("kubectl ")
        assert "the API server has not answered since" in kube.kubectl(*command.split())
    wait_retried(namespace, "w")


def test_a_driver_that_is_not_installed(
    driver: Installation, namespace: Namespace, kube: Kube, commands: Commands, waiting: Callable[[], str]
) -> None:
    driver.changed()
    kube.kubectl("-n", NAMESPACE, "delete", "daemonset", DAEMONSET, "--cascade=foreground")
    assert remedy_of(commands, namespace, waiting(), "NoDaemonSet") == "install the driver"
    driver.install("--emulate", EMULATED)
    wait_retried(namespace, "w")


def remove_driver(driver: Installation) -> None:
    driver.kube.kubectl("-n", NAMESPACE, "delete", "pod", driver.pod(NODE)["metadata"]["name"], "--grace-period=1")


def test_a_daemonset_for_which_nobody_makes_pods(
    driver: Installation, lab: Cluster, namespace: Namespace, commands: Commands, waiting: Callable[[], str]
) -> None:
    waiting()
    namespace.wait_ready("w")
    namespace.delete_pod("w")
    lab.control_plane.stop("kube-controller-manager")
    try:
        remove_driver(driver)
        namespace.apply(user("w", NODE))
        remedy = remedy_of(commands, namespace, "w", "DaemonSetMakesNoPod")
        assert f"kubectl -n {NAMESPACE} describe daemonset {DAEMONSET}" in remedy
    finally:
        lab.control_plane.start("kube-controller-manager")
    wait_driver_ready(driver, NODE, within=LATE)
    wait_retried(namespace, "w")


LABEL = "eks.amazonaws.com/compute-type"


@contextmanager
def left_out(driver: Installation, kube: Kube) -> Iterator[None]:
    """The label of ``NODE`` is of those that the DaemonSet leaves out."""
    kube.kubectl("label", "node", NODE, f"{LABEL}=hybrid")
    try:
        eventually("the driver to be gone", lambda: not driver.pods(NODE), 60)
        yield
    finally:
        kube.kubectl("label", "node", NODE, f"{LABEL}-")
        wait_driver_ready(driver, NODE, within=LATE)


def test_a_node_that_the_daemonset_leaves_out(
    driver: Installation, namespace: Namespace, kube: Kube, commands: Commands, waiting: Callable[[], str]
) -> None:
    with left_out(driver, kube):
        remedy = remedy_of(commands, namespace, waiting(), "DaemonSetLeavesNodeOut")
        assert f"kubectl label node {NODE}" in remedy
    wait_retried(namespace, "w")


def test_a_node_without_a_driver_for_somebody_who_may_not_read_daemonsets(
    driver: Installation,
    lab: Cluster,
    namespace: Namespace,
    kube: Kube,
    waiting: Callable[[], str],
    tmp_path: Path,
) -> None:
    name = f"reader-{namespace.name}"
    namespace.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}})
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods", "events", "namespaces"], "verbs": ["get", "list"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace.name}
    role: Object = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    kube.apply(role | {"kind": "ClusterRole", "rules": rules})
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    kube.apply(role | {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]})
    access = yaml.safe_load(lab.kubeconfig.read_text())
    access["users"] = [{"name": "reader", "user": {"token": namespace.kubectl("create", "token", "reader").strip()}}]
    for context in access["contexts"]:
        context["context"]["user"] = "reader"
    (tmp_path / "reader").write_text(yaml.safe_dump(access))
    try:
        with left_out(driver, kube):
            remedy = remedy_of(Commands(tmp_path / "reader"), namespace, waiting(), "NoDriver")
            listed = remedy.partition("(kubectl get daemonset")[2].partition(")")[0]
            assert "hybrid" in kube.kubectl("get", "daemonset", *listed.replace("'", "").split())
        wait_retried(namespace, "w")
    finally:
        kube.kubectl("delete", "clusterrolebinding,clusterrole", name)


def test_a_driver_that_did_not_answer_in_time(
    driver: Installation, namespace: Namespace, commands: Commands, waiting: Callable[[], str]
) -> None:
    process = process_of(driver.pod(NODE))
    os.kill(process, signal.SIGSTOP)
    try:
        namespace.wait_event(waiting(), "eadline", 90)
    finally:
        os.kill(process, signal.SIGCONT)
    wait_driver_ready(driver, NODE, within=LATE)
    remedy = remedy_of(commands, namespace, "w", "DriverDoesNotAnswer")
    assert "read the log of driver neuron.aws.com" in remedy
    wait_retried(namespace, "w")


def test_a_node_of_which_nothing_is_offered(
    installation: Installation, namespace: Namespace, kube: Kube, commands: Commands
) -> None:
    # Groups of four chips, of an instance that has one.
    installation.ensure("--emulate", "trn1.2xlarge")
    kube.kubectl("label", "node", NODE, "neuron.aws.com/partitions=group4")
    try:
        node = eventually("nothing to be offered", lambda: (n := commands.node(NODE))["findings"] and n, 90)
        (found,) = node["findings"]
        assert found["code"] == "NothingOffered"
        assert "group4" in kube.kubectl(*found["remedy"].partition("kubectl ")[2].split())
    finally:
        kube.kubectl("label", "node", NODE, "neuron.aws.com/partitions-")
    namespace.apply(claim(CLAIM, request()), user("w", NODE))
    namespace.wait_ready("w", within=LATE)
