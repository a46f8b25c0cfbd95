"""install-dra-driver.sh on a real cluster: first time, again, and removal."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.neuron.names import CLASSES_POLICY, DEVICES_VIEWER_ROLE, VIEWER_ROLE
from tests.cluster.lib.installation import DAEMONSET, EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Object, eventually, steadily
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod, request, template

_OF_DRIVER = ("own-slices", "own-pools", "own-node", "own-events", "own-claims", "parameters", "placer-mirror-pods")
POLICIES = (CLASSES_POLICY, *(f"neuron-dra-driver-{name}" for name in _OF_DRIVER))
CLUSTER_OBJECTS = {
    ("namespaces", NAMESPACE),
    *(("deviceclasses", row.name) for row in DEVICE_CLASSES),
    *(("validatingadmissionpolicies", name) for name in POLICIES),
    *(("validatingadmissionpolicybindings", name) for name in POLICIES),
    ("clusterroles", "neuron-dra-driver-clusterrole"),
    ("clusterroles", "neuron-dra-driver-claim-status"),
    ("clusterroles", VIEWER_ROLE),
    ("clusterroles", DEVICES_VIEWER_ROLE),
    ("clusterrolebindings", "neuron-dra-driver-binding"),
    ("clusterrolebindings", "neuron-dra-driver-claim-status"),
}
NAMESPACED_OBJECTS = 4
"""The service account and the DaemonSet; Role and RoleBinding for Events."""


def present(installation: Installation) -> set[tuple[str, str]]:
    """Which of the installation's cluster-wide objects exist."""
    return {(resource, name) for resource, name in CLUSTER_OBJECTS if installation.kube.get(resource, name) is not None}


def identities(installation: Installation) -> set[tuple[str, int]]:
    """UID and restarts of each of the driver's pods."""
    pods = installation.pods()
    return {(item["metadata"]["uid"], item["status"]["containerStatuses"][0]["restartCount"]) for item in pods}


def remove(installation: Installation) -> None:
    """Uninstall and wait until the namespace is gone."""
    installation.uninstall()
    eventually("the namespace to be gone", lambda: not present(installation), 60)


def test_the_first_installation_prints_what_is_published_and_the_second_changes_nothing(
    installation: Installation, nodes: Sequence[str]
) -> None:
    remove(installation)
    first = installation.install("--emulate", EMULATED)
    created = [line for line in first.stdout.splitlines() if line.endswith(" created")]
    assert len(created) == len(CLUSTER_OBJECTS) + NAMESPACED_OBJECTS
    lines = [line.split() for line in first.stderr.partition("Published:")[2].splitlines()]
    assert [line for line in lines if line[:1] and line[0] in nodes] == [
        [node, EMULATED, "16", "devices", "in", "1", "slice(s)"] for node in nodes
    ]
    assert present(installation) == CLUSTER_OBJECTS
    before, slices = identities(installation), installation.kube.slices()

    second = installation.install("--emulate", EMULATED)
    assert {line.rpartition(" ")[2] for line in second.stdout.splitlines()} == {"unchanged"}
    assert "Published:" in second.stderr
    steadily("no pod of the driver was replaced", lambda: identities(installation) == before, during=3)
    assert installation.kube.slices() == slices


def test_uninstall_refuses_while_claims_are_in_use_and_names_them(driver: Installation, namespace: Namespace) -> None:
    namespace.apply(template("one", request()), pod("uses", templates={"neurons": "one"}))
    namespace.wait_ready("uses")
    before, slices = identities(driver), driver.kube.slices()
    refused = driver.run("--uninstall", check=False)
    assert refused.returncode == 1
    claim = namespace.claim_of("uses")["metadata"]["name"]
    assert f"  {namespace.name}/{claim}, used by uses" in refused.stderr
    assert "use --force" in refused.stderr
    assert (identities(driver), present(driver), driver.kube.slices()) == (before, CLUSTER_OBJECTS, slices)


@pytest.mark.nightly
def test_an_update_keeps_settings_and_refuses_to_leave_nodes_with_claims(
    driver: Installation, namespace: Namespace
) -> None:
    """With a kubelet root and a label beside --emulate: all that the installer reads back."""
    driver.changed()
    kube, label = driver.kube, "example.com/neuron=yes"
    kube.kubectl("label", "nodes", "--all", label)
    driver.run("--node-selector", label, "--kubelet-root", "/var/lib/kubelet", driver.image)
    spec, slices = driver.daemonset()["spec"], kube.slices()
    assert spec["template"]["spec"]["nodeSelector"] == {"example.com/neuron": "yes"}
    namespace.apply(template("one", request()), pod("uses", templates={"neurons": "one"}))
    namespace.wait_ready("uses")
    before = identities(driver)

    with_placer = driver.run("--placer", "--group-timeout", "60", driver.image)
    again = driver.run(driver.image)
    plain = f"{driver.image} --emulate {EMULATED} --node-selector {label} --kubelet-root /var/lib/kubelet"
    placing = f"{plain} --placer --group-timeout 60"
    assert f"installed: {plain}\nwill be:   {placing}\n" in with_placer.stderr
    assert f"installed: {placing}\nwill be:   {placing}\n" in again.stderr
    # kubectl writes the selector of a disruption budget each time: its patch strategy is to replace it.
    written = {line.partition(" ")[0] for line in again.stdout.splitlines() if not line.endswith(" unchanged")}
    assert written <= {"poddisruptionbudget.policy/neuron-dra-driver-placer"}
    assert (driver.daemonset()["spec"], identities(driver), kube.slices()) == (spec, before, slices)

    refused = driver.run("--node-selector", "example.com/neuron=no", driver.image, check=False)
    assert refused.returncode == 1
    claim = namespace.claim_of("uses")["metadata"]["name"]
    assert f"  {namespace.name}/{claim}, used by uses" in refused.stderr
    assert (driver.daemonset()["spec"], identities(driver), kube.slices()) == (spec, before, slices)

    namespace.kubectl("delete", "pod", "uses", "--grace-period=1", "--wait=false")
    eventually("the pod to be gone", lambda: namespace.pod("uses") is None, 60)
    left = driver.run("--node-selector", "example.com/neuron=no", driver.image)
    assert "not running" in left.stderr
    assert driver.daemonset()["status"]["desiredNumberScheduled"] == 0
    remove(driver)
    kube.kubectl("label", "nodes", "--all", "example.com/neuron-")


@pytest.mark.nightly
def test_tolerations_variables_and_resources_reach_the_pods_and_an_update_keeps_them(driver: Installation) -> None:
    driver.changed()
    options = (
        "--toleration=dedicated=neuron:NoSchedule",
        "--env=CONTIGUITY_POLICY=refuse",
        "--resources=requests.cpu=10m,limits.memory=192Mi",
    )
    driver.kube.kubectl("taint", "nodes", "--all", "dedicated=neuron:NoSchedule")
    try:
        driver.install("--emulate", EMULATED, *options)
        driver.wait_ready()
        assert driver.exec("node-1", "printenv", "CONTIGUITY_POLICY").strip() == "refuse"
        (container,) = driver.pod("node-1")["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "192Mi"}
        before = identities(driver)
        again = driver.run(driver.image)
        assert {line.rpartition(" ")[2] for line in again.stdout.splitlines()} == {"unchanged"}
        (will_be,) = [line for line in again.stderr.splitlines() if line.startswith("will be:")]
        assert will_be.endswith(" ".join(options))
        assert identities(driver) == before
    finally:
        driver.kube.kubectl("taint", "nodes", "--all", "dedicated=neuron:NoSchedule-")
    driver.install("--emulate", EMULATED)
    assert "annotations" not in driver.daemonset()["metadata"] or all(
        "install-options" not in name for name in driver.daemonset()["metadata"]["annotations"]
    )


RELEASED: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "neuron.aws.com"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "neuron.aws.com"'}}]},
}
"""The one class of an installation from before there were others."""


@pytest.mark.nightly
def test_an_update_renews_the_class_of_a_release_before_and_leaves_its_claims_alone(
    driver: Installation, namespace: Namespace
) -> None:
    driver.changed()
    kube = driver.kube
    others = [row.name for row in DEVICE_CLASSES if row.name != "neuron.aws.com"]
    kube.kubectl("delete", "deviceclass", *others)
    kube.apply(RELEASED)
    namespace.apply(template("one", request()), pod("before", templates={"neurons": "one"}))
    namespace.wait_ready("before")
    eventually("its claim to say so", lambda: namespace.claim_of("before")["status"].get("devices"))
    claim, pods = namespace.claim_of("before"), identities(driver)

    updated = driver.run(driver.image)
    changed = [line for line in updated.stdout.splitlines() if not line.endswith(" unchanged")]
    assert sorted(changed) == sorted(
        ["deviceclass.resource.k8s.io/neuron.aws.com configured"]
        + [f"deviceclass.resource.k8s.io/{name} created" for name in others]
    )
    for row in DEVICE_CLASSES:
        found = kube.get("deviceclasses", row.name) or {}
        assert found["spec"] == {"selectors": [{"cel": {"expression": row.expression}}]}
    assert (namespace.claim_of("before"), identities(driver)) == (claim, pods)
    namespace.apply(pod("after", templates={"neurons": "one"}))
    namespace.wait_ready("after")

    extended = driver.run("--extended-resources", driver.image)
    given = {row.name: row.extended_resource for row in DEVICE_CLASSES}
    found = {item["metadata"]["name"]: item["spec"].get("extendedResourceName") for item in kube.find("deviceclasses")}
    assert {name: found[name] for name in given} == given
    assert "warning" not in extended.stderr
    driver.run("--reset", "--emulate", EMULATED, driver.image)
    found = {item["metadata"]["name"]: item["spec"].get("extendedResourceName") for item in kube.find("deviceclasses")}
    assert {name: found[name] for name in given} == dict.fromkeys(given)


def test_uninstall_takes_everything_away_when_no_claim_is_in_use(driver: Installation) -> None:
    driver.changed()
    done = driver.run("--uninstall")
    assert "Left on" in done.stderr
    eventually("everything to be gone", lambda: not present(driver), 60)
    steadily("no slice comes back", lambda: not driver.kube.slices(), during=3)


def test_kubelet_removes_the_slices_of_a_driver_that_has_gone(driver: Installation) -> None:
    """Half a minute after the driver has gone: it may be an update, in which they should stay."""
    driver.changed()
    driver.kube.kubectl("--namespace", NAMESPACE, "delete", "daemonset", DAEMONSET, "--cascade=foreground")
    slices = driver.kube.slices()
    assert len(slices) == len(driver.kube.nodes())
    steadily("the slices stay for a while", lambda: driver.kube.slices() == slices, during=15, every=1)
    eventually("kubelet to remove the slices", lambda: not driver.kube.slices(), 60, every=1)
    driver.install("--emulate", EMULATED)
    assert len(driver.kube.slices()) == len(driver.kube.nodes())


def test_a_pod_from_before_the_installation_runs_once_the_driver_is_there(
    installation: Installation, namespace: Namespace, figures: list[str]
) -> None:
    remove(installation)
    namespace.apply(template("one", request()), pod("early", templates={"neurons": "one"}))
    namespace.wait_event("early", "neuron.aws.com")
    assert namespace.phase("early") == "Pending"
    installation.install("--emulate", EMULATED)
    ready = time.monotonic()
    namespace.wait_ready("early")
    figures.append(f"a pod that waited for the driver ran {time.monotonic() - ready:.1f} s after it was installed")
    assert namespace.numbers("early") == [0]


def test_a_pod_that_outlived_its_driver_ends_when_the_driver_is_back(
    driver: Installation, namespace: Namespace
) -> None:
    namespace.apply(template("one", request()), pod("left", templates={"neurons": "one"}))
    namespace.wait_ready("left")
    forced = driver.run("--uninstall", "--force")
    driver.changed()
    assert "stay Terminating" in forced.stderr
    assert namespace.numbers("left") == [0], "the pod still has its device"
    namespace.kubectl("delete", "pod", "left", "--grace-period=1", "--wait=false")
    steadily("the pod stays", lambda: namespace.pod("left") is not None, during=5)
    eventually("the namespace to be gone", lambda: not present(driver), 60)
    driver.install("--emulate", EMULATED)
    eventually("the pod to be gone", lambda: namespace.pod("left") is None, 100)
