"""Ways from one installation to another on live nodes, with pods that run all the while."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import SliceWatch, uid_of, unchanged, wait_unprepared
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.release import CHART, DRA, INF1, LEGACY, NAME, NEURON, Release, limited

pytestmark = pytest.mark.nightly

NODES = ("node-1", "node-2")
ONE = template("one", request())


def next_chart(directory: Path) -> Path:
    """The chart as a later release has it."""
    made = directory / "chart"
    shutil.copytree(CHART, made)
    file = made / "Chart.yaml"
    file.write_text(re.sub(r"(?m)^version: .*$", "version: 99.0.0", file.read_text()))
    return made


def chart_of(release: Release) -> str:
    """Name and version of the chart that is released now."""
    return str(json.loads(release.helm("list", "--output", "json").stdout)[0]["chart"])


def test_a_later_chart_and_the_way_back_leave_pods_with_claims_and_slices_alone(
    release: Release,
    installation: Installation,
    kube: Kube,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
    tmp_path: Path,
) -> None:
    release.ensure(DRA, EMULATED)
    installation.wait_ready()
    namespace.apply(ONE, *(pod(f"before-{node}", templates={"neurons": "one"}, node=node) for node in NODES))
    before = namespace.wait_ready(*(f"before-{node}" for node in NODES))
    instances = {uid_of(item) for item in installation.pods()}
    with SliceWatch(kube) as watch:
        # Chips are what these nodes offer anyway: the pods are new, and nothing else.
        release.helm("upgrade", NAME, str(next_chart(tmp_path)), "--reuse-values", "--set", "draDriver.partitions=chip")
        release.wait_ready()
        installation.wait_ready()
        assert chart_of(release) == f"{NAME}-99.0.0"
        later = {uid_of(item) for item in installation.pods()}
        assert not later & instances
        namespace.apply(pod("during", templates={"neurons": "one"}, node="node-1"))
        namespace.wait_ready("during")

        release.helm("rollback", NAME)
        release.wait_ready()
        installation.wait_ready()
        assert chart_of(release) != f"{NAME}-99.0.0"
        assert not {uid_of(item) for item in installation.pods()} & later
        for item in before:
            assert unchanged(namespace.pod(item["metadata"]["name"]) or {}, item)
        assert namespace.numbers("during") == [0]
        assert watch.events() == []
    # What one release has prepared, another one unprepares.
    for name in ("before-node-1", "during"):
        held = uid_of(namespace.claim_of(name))
        namespace.delete_pod(name)
        wait_unprepared(node_files["node-1"], held)
    namespace.apply(pod("after", templates={"neurons": "one"}, node="node-1"))
    namespace.wait_ready("after")


def test_from_a_chart_whose_driver_says_nothing_in_claims_and_back(
    release: Release,
    installation: Installation,
    kube: Kube,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
    tmp_path: Path,
) -> None:
    release.ensure({**DRA, "draDriver.claimStatus": "false"}, EMULATED)
    installation.wait_ready()
    assert kube.get("clusterroles", "neuron-dra-driver-claim-status") is None
    namespace.apply(ONE, pod("before", templates={"neurons": "one"}, node="node-1"))
    (before,) = namespace.wait_ready("before")
    said: Object = {}

    def says(name: str) -> bool:
        said[name] = namespace.claim_of(name)["status"].get("devices", [])
        return [item["reason"] for entry in said[name] for item in entry["conditions"]] == ["Prepared", "Healthy"]

    with SliceWatch(kube) as watch:
        chart = str(next_chart(tmp_path))
        release.helm("upgrade", NAME, chart, "--reuse-values", "--set", "draDriver.claimStatus=true")
        release.wait_ready()
        installation.wait_ready()
        namespace.apply(pod("during", templates={"neurons": "one"}, node="node-1"))
        namespace.wait_ready("during")
        eventually("the new claim to say what it got", lambda: says("during"), 30)
        # Of a claim that was prepared by the one before.
        eventually("the other one to say it, too", lambda: says("before"), 150)

        release.helm("rollback", NAME)
        release.wait_ready()
        installation.wait_ready()
        assert kube.get("clusterroles", "neuron-dra-driver-claim-status") is None
        assert unchanged(namespace.pod("before") or {}, before)
        assert watch.events() == []
    namespace.apply(pod("after", templates={"neurons": "one"}, node="node-1"))
    namespace.wait_ready("after")
    for name in ("before", "during"):
        left = dict(said)
        assert says(name)
        assert said == left, "what was said stays as long as the claim is allocated"
        held = uid_of(namespace.claim_of(name))
        namespace.delete_pod(name)
        wait_unprepared(node_files["node-1"], held)
    assert not namespace.claim_of("after")["status"].get("devices")


def moved(release: Release, *, legacy: bool) -> None:
    """Have the driver on nodes with a label; the legacy pair on all others, or nowhere."""
    settings = {"draDriver.enabled": "true", "draDriver.nodeSelector.example\\.com/neuron": "dra", "emulate": INF1}
    settings |= LEGACY if legacy else {"devicePlugin.enabled": "false"}
    release.upgrade(settings)
    release.settings = settings
    release.wait_ready()


def with_limit(name: str, node: str) -> Object:
    return limited(name, {NEURON: 1}, node=node)


def test_the_legacy_pair_gives_way_to_the_driver_node_by_node_and_pods_elsewhere_go_on(
    release: Release, installation: Installation, kube: Kube, namespace: Namespace
) -> None:
    release.ensure(LEGACY, INF1)
    release.wait_allocatable(4, 16)
    namespace.apply(ONE, *(with_limit(f"limit-{node}", node) for node in NODES))
    first, second = namespace.wait_ready(*(f"limit-{node}" for node in NODES))
    try:
        moved(release, legacy=True)
        assert not installation.pods()
        assert unchanged(namespace.pod("limit-node-1") or {}, first), "the upgrade alone moves no pod"

        take_over("node-1", kube, namespace)
        assert unchanged(namespace.pod("limit-node-2") or {}, second)
        namespace.apply(with_limit("more", "node-2"))
        namespace.wait_ready("more")
        assert namespace.numbers("limit-node-2") != namespace.numbers("more"), "the pair goes on with what it knew"
        (by_claim,) = namespace.wait_ready("claim-node-1")

        namespace.delete_pod("more")
        take_over("node-2", kube, namespace)
        moved(release, legacy=False)
        assert unchanged(namespace.pod("claim-node-1") or {}, by_claim)
        assert {item["spec"]["nodeName"] for item in installation.pods()} == set(NODES)
    finally:
        for name in [item["metadata"]["name"] for item in namespace.pods()]:
            namespace.delete_pod(name)
        kube.kubectl("label", "nodes", "--all", "example.com/neuron-")


def take_over(node: str, kube: Kube, namespace: Namespace) -> None:
    """Hand a node over once its pod with limits is gone, as after a drain, and run a pod with a claim there."""
    namespace.delete_pod(f"limit-{node}")
    kube.kubectl("label", "node", node, "example.com/neuron=dra")
    eventually(f"the slices of {node}", lambda: kube.slices(node), 120)
    namespace.apply(pod(f"claim-{node}", templates={"neurons": "one"}, node=node))
    namespace.wait_ready(f"claim-{node}", within=90)
