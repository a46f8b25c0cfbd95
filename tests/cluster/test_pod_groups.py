"""Claims of PodGroups (KEP-5729): what the pods of a group see, and what the commands say of them.

On Kubernetes 1.37 with the feature gates on in all components; older versions do not have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.commands import Commands
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import container, pod, request, template
from tests.paths import ROOT

pytestmark = [pytest.mark.pod_groups, pytest.mark.nightly]

NODE = "node-1"
API = "scheduling.k8s.io/v1beta1"
METRICS_PORT = "9464"
METRICS = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{METRICS_PORT}/metrics').read().decode())"
LATE = 150.0
"""Seconds for what a controller or kubelet tries again by itself, ever less often."""


def group(name: str, of: str, minimum: int = 0) -> Object:
    policy: Object = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    claims = [{"name": "neurons", "resourceClaimTemplateName": of}]
    spec = {"schedulingPolicy": policy, "resourceClaims": claims}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name: str, of: str, claim: str, containers: list[Object] | None = None) -> Object:
    made = pod(name, templates={"neurons": claim}, containers=containers or ())
    made["spec"]["schedulingGroup"] = {"podGroupName": of}
    return made


def workload(kind: str, of: str, claim: str, count: int) -> Object:
    spec = member("x", of, claim)["spec"]
    if kind == "Job":
        of_kind: Object = {"parallelism": count, "completions": count, "template": {"spec": spec}}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": of}, "spec": of_kind}
    spec["restartPolicy"] = "Always"
    labels = {"app": of}
    made = {"replicas": count, "selector": {"matchLabels": labels}}
    made["template"] = {"metadata": {"labels": labels}, "spec": spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": of}, "spec": made}


@pytest.fixture
def groups(kube: Kube, namespace: Namespace) -> Iterator[Namespace]:
    """The namespace, whose PodGroups are taken away with the pods: they keep their claims until they are gone."""
    yield namespace
    for kind in ("jobs", "deployments", "pods", "podgroups"):
        namespace.kubectl("delete", kind, "--all", "--wait=false")


def consumers(claim: Object) -> list[tuple[str, str]]:
    return [(item["resource"], item["name"]) for item in claim["status"].get("reservedFor", [])]


def holders(commands: Commands, namespace: Namespace) -> dict[str, list[str]]:
    """Pods by claim, as ``top`` has them."""
    found: dict[str, list[str]] = {}
    for item in json.loads(commands.run("top", "-o", "json", "-n", namespace.name))["holders"]:
        found.setdefault(item["claim"]["name"], []).append(item["pod"]["name"] if item["pod"] else "")
    return found


def test_the_pods_of_a_group_see_the_chips_of_its_claim(
    driver: Installation, groups: Namespace, commands: Commands, tmp_path: Path
) -> None:
    objects = [
        template("two", request(count=2)),
        group("workers", "two"),
        group("others", "two"),
        *(member(name, "workers", "two") for name in ("a", "b")),
        member("c", "others", "two"),
    ]
    files = tmp_path / "objects.json"
    files.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    simulated = commands.run("simulate", str(files), "--from-cluster", "-n", groups.name, "-o", "json")
    expected = {}
    for item in json.JSONDecoder().raw_decode(simulated)[0]["items"]:
        (made,) = item["containers"]
        expected[item["pod"]["name"]] = {one["hostPath"]: one["containerPath"] for one in made["deviceNodes"]}

    # Which of several groups comes first, kube-scheduler does not say.
    groups.apply(*objects[:-1])
    groups.wait_ready("a", "b")
    groups.apply(objects[-1])
    groups.wait_ready("c")
    shared, other = groups.claim_of("a"), groups.claim_of("c")
    assert shared == groups.claim_of("b") != other
    assert [owner["kind"] for owner in shared["metadata"]["ownerReferences"]] == ["PodGroup"]
    assert (consumers(shared), consumers(other)) == ([("podgroups", "workers")], [("podgroups", "others")])
    chips = {name: groups.device_files(name) for name in "abc"}
    assert chips["a"] == chips["b"]
    assert not {*groups.allocated(shared)} & {*groups.allocated(other)}
    assert [groups.numbers(name) for name in "abc"] == [[0, 1]] * 3, "each container counts from 0"
    for name, of in (("a", shared), ("b", shared), ("c", other)):
        assert expected[name].keys() == {f"/dev/neuron{item.chip}" for item in groups.allocated(of)}
        assert [*expected[name].values()] == [item.path for item in chips[name]]

    names = {shared["metadata"]["name"]: ["a", "b"], other["metadata"]["name"]: ["c"]}
    assert holders(commands, groups) == names
    assert "Running" in commands.explain(groups, "b", 0)


def test_the_metrics_name_the_pods_of_a_group(installation: Installation, groups: Namespace) -> None:
    installation.ensure("--emulate", EMULATED, "--env", f"METRICS_PORT={METRICS_PORT}")
    groups.apply(template("two", request(count=2)), group("workers", "two"))
    groups.apply(*(member(name, "workers", "two") for name in ("a", "b")))
    groups.wait_ready("a", "b")

    def pods() -> bool:
        lines = installation.exec(NODE, "python3", "-c", METRICS).splitlines()
        series = [line for line in lines if "chip_allocation{" in line and f'namespace="{groups.name}"' in line]
        return {re.findall(r'pod="(\w*)"', line)[0] for line in series} == {"a", "b"}

    eventually("both pods in the metrics", pods, 90)


def test_what_waits_for_the_claim_of_a_group(
    driver: Installation, groups: Namespace, commands: Commands, figures: list[str]
) -> None:
    groups.apply(template("most", request(count=12)), group("workers", "most"), member("a", "workers", "most"))
    groups.wait_ready("a")
    groups.apply(template("half", request(count=8)), pod("late", templates={"neurons": "half"}))
    text = eventually("it to wait", lambda: _without_node(commands, groups, "late"), 60)
    figures.append(text)
    assert "Delete PodGroup workers" in text
    assert f"kubectl -n {groups.name} delete podgroup workers" in text
    groups.delete_pod("a")
    assert groups.phase("late") == "Pending", "the claim stays the group's"
    assert [pods for claim, pods in holders(commands, groups).items() if "workers" in claim] == [[""]]
    groups.kubectl("delete", "podgroup", "workers")
    groups.wait_ready("late", within=LATE)


def _without_node(commands: Commands, namespace: Namespace, name: str) -> str:
    try:
        text = commands.explain(namespace, name)
    except AssertionError:
        return ""
    return text if "would help" in text else ""


def test_a_group_that_is_not_there_and_one_with_too_few_pods(
    driver: Installation, groups: Namespace, commands: Commands, figures: list[str]
) -> None:
    def waits(name: str) -> Any:
        def probe() -> Any:
            try:
                found = commands.findings(groups, name)
            except AssertionError:
                return None
            return found[0] if found and found[0]["code"] == "PodGroupNotReady" else None

        found = eventually(f"{name} to wait for its group", probe, 60)
        figures.append(f"{found['message']} / {found['remedy']}")
        return found

    groups.apply(template("two", request(count=2)), member("a", "workers", "two"))
    assert "get podgroup workers" in waits("a")["remedy"]
    groups.apply(group("workers", "two", minimum=2))
    eventually("the claim of the group", groups.claims, 60)
    waits("a")
    groups.apply(member("b", "workers", "two"))
    groups.wait_ready("a", "b", within=LATE)


@pytest.fixture
def kubelet_gates(lab: Cluster) -> Iterator[Any]:
    """Changes the feature gates of the node's kubelet."""
    node = lab.node(NODE)
    file = node.layout.config / "kubelet.json"
    before = file.read_text()

    def change(*, on: bool) -> None:
        config = json.loads(before)
        config["featureGates"]["DRAWorkloadResourceClaims"] = on
        file.write_text(json.dumps(config))
        node.restart_kubelet()

    yield change
    file.write_text(before)
    node.restart_kubelet()


def test_a_kubelet_without_the_feature_gate(
    driver: Installation, groups: Namespace, commands: Commands, kubelet_gates: Any, figures: list[str]
) -> None:
    kubelet_gates(on=False)
    groups.apply(template("two", request(count=2)), group("workers", "two"), member("a", "workers", "two"))

    def probe() -> Any:
        try:
            found = commands.findings(groups, "a")
        except AssertionError:
            return None
        return found[0] if found and found[0]["code"] == "PodGroupClaimRefused" else None

    found = eventually("kubelet to refuse the claim", probe, 120)
    figures.append(f"{found['message']} / {found['remedy']}")
    assert "DRAWorkloadResourceClaims" in found["remedy"]
    kubelet_gates(on=True)
    groups.wait_ready("a", within=LATE)


def test_each_container_of_a_group_may_use_all_cores_of_its_claim(
    installation: Installation, groups: Namespace, commands: Commands, figures: list[str]
) -> None:
    installation.ensure("--emulate", EMULATED, "--partitions", "chip.core")
    cores = request(device_class="core.neuron.aws.com", count=2)
    two = [container(name, "neurons") for name in ("main", "side")]
    groups.apply(template("cores", cores), *(group(name, "cores") for name in ("workers", "others")))
    groups.apply(
        member("a", "workers", "cores", two), member("b", "workers", "cores", two), member("c", "others", "cores")
    )
    groups.wait_ready("a", "b", "c")
    seen = {json.dumps(groups.environment(name, at), sort_keys=True) for name in "ab" for at in ("main", "side")}
    assert len(seen) == 1
    figures.append(seen.pop())
    assert [groups.numbers(name, at) for name, at in (("a", "main"), ("b", "side"), ("c", ""))] == [[0]] * 3


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_a_workload_whose_pods_are_of_a_group(kind: str, driver: Installation, groups: Namespace) -> None:
    groups.apply(template("four", request(count=4)), group("w", "four", minimum=3), workload(kind, "w", "four", 3))
    pods = eventually("three pods", lambda: found if len(found := groups.pods()) == 3 else None, 60)
    groups.wait_ready(*(item["metadata"]["name"] for item in pods))
    (claim,) = groups.claims()
    assert consumers(claim) == [("podgroups", "w")]


def test_the_example(driver: Installation, groups: Namespace) -> None:
    groups.apply((ROOT / "examples/batch/shared-claim.yaml").read_text())
    pods = eventually("three pods", lambda: found if len(found := groups.pods()) == 3 else None, 60)
    names = [str(item["metadata"]["name"]) for item in pods]
    groups.wait_ready(*names)
    assert [groups.printed(4, name) for name in names] == [[f"/dev/neuron{number}" for number in range(4)]] * 3
    assert len(groups.claims()) == 1
