"""The chart of a driver that pods use, by helm 4 and 3: what administrators do wrong takes it from none of them."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.lib.installation import EMULATED
from tests.cluster.lib.installation import NAMESPACE as DRIVER_NAMESPACE
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.release import CHART, DRA, NAME, Release, helm_program

pytestmark = [pytest.mark.nightly, pytest.mark.kubernetes("1.37")]


def health_of(kube: Kube, node: str) -> str:
    found = kube.get("nodes", node)
    assert found is not None
    return next(str(item["reason"]) for item in found["status"]["conditions"] if item["type"] == "NeuronHealth")


@pytest.mark.parametrize("major", [4, 3])
def test_no_upgrade_release_removal_or_taint_takes_the_driver_from_a_running_pod(
    major: int, release: Release, namespace: Namespace, kube: Kube
) -> None:
    if release.settings:
        release.uninstall()
    release.program = helm_program(major)
    release.ensure(DRA, EMULATED)
    kube.create("secrets", {"metadata": {"name": "registry"}}, DRIVER_NAMESPACE)
    namespace.apply(template("one", request("neurons")), pod("user", templates={"neurons": "one"}, node="node-1"))
    namespace.wait_ready("user")
    claim = f"{namespace.name}/{namespace.claim_of('user')['metadata']['name']}"
    before = drivers(kube)

    def refused(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    # The flags of the installation are forgotten.
    assert claim in refused(release.upgrade({"emulate": EMULATED, "draDriver.logFormat": "json"}, check=False))
    # As are they with a force that was given to an earlier revision.
    forced = {"emulate": EMULATED, "draDriver.force.claimsInUse": "1"}
    assert "is for revision 1 alone" in refused(release.upgrade(forced, check=False))
    # A second release takes the objects over.
    elsewhere = ("--namespace", "team-b", "--create-namespace", "--take-ownership")
    options = release.options({**DRA, "emulate": EMULATED})
    second = release.helm("upgrade", "--install", "second", str(CHART), *elsewhere, *options, check=False)
    assert f"the release {NAME} in the namespace default" in refused(second)
    # The release is removed.
    assert claim in refused(release.helm("uninstall", NAME, check=False))
    log = kube.kubectl("--namespace", DRIVER_NAMESPACE, "logs", "job/neuron-dra-driver-check-unused")
    assert f"{claim}, used by user" in log
    assert drivers(kube) == before

    # The node is drained by a taint: the driver stays, so that the pod can end.
    kube.kubectl("taint", "node", "node-1", "dedicated=ml:NoExecute")
    try:
        eventually("the pod to end", lambda: namespace.pod("user") is None, 60)
        assert drivers(kube) == before
    finally:
        kube.kubectl("taint", "node", "node-1", "dedicated:NoExecute-")

    # Nothing keeps it now. What others have made in its namespace stays, and nothing waits for an end of that.
    eventually("the claim to be given back", lambda: not namespace.claims(), 30)
    release.helm("uninstall", NAME)
    assert {health_of(kube, node) for node in kube.nodes()} == {"NeuronDriverStopped"}, (
        "said while there was a right to"
    )
    release.upgrade(release.settings)
    release.wait_ready()
    assert kube.get("secrets", "registry", DRIVER_NAMESPACE) is not None
    release.uninstall()


def drivers(kube: Kube) -> set[str]:
    """UIDs of the driver's pods that are not about to end."""
    found = kube.find("pods", DRIVER_NAMESPACE, labels="app=neuron-dra-driver-kubelet-plugin")
    return {item["metadata"]["uid"] for item in found if "deletionTimestamp" not in item["metadata"]}
