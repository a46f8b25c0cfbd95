"""The chart refuses what would harm running pods, as far as it can see them; what it sees is a test API server's."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.doubles.lookups import lookups
from tests.golden import golden
from tests.manifests.chart import CHART, HELM, HELM3, helm, hooks, needs_helm, notes, template
from tests.manifests.support import Object

RELEASE = ("neuron", "default")
DRIVER = "draDriver.enabled=true"
LABELLED = ("draDriver.nodeSelector.neuron=dra", "devicePlugin.enabled=false")
HELMS = [
    pytest.param(program, id=name, marks=[tier, pytest.mark.skipif(not program, reason=f"there is no {name} here")])
    for program, name, tier in ((HELM, "helm", pytest.mark.slow), (HELM3, "helm 3", pytest.mark.nightly))
]


def daemonset(release: tuple[str, str] | None = RELEASE, *settings: str, namespace: str = "") -> Object:
    """The driver's, as it is in the cluster."""
    found = [item for item in template(DRIVER, *settings) if item["kind"] == "DaemonSet"]
    (made,) = [item for item in found if item["metadata"]["name"].startswith("neuron-dra-driver")]
    if release:
        name, of = release
        made["metadata"]["annotations"] = {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": of}
    if namespace:
        made["metadata"]["namespace"] = namespace
    return made


def rights(*subjects: Object, rule: Object | None = None) -> list[Object]:
    """The driver's rights in the cluster; ``subjects`` and ``rule`` say otherwise whose, and which."""
    made = [item for item in template(DRIVER) if item["metadata"]["name"].startswith("neuron-dra-driver-")]
    role, binding = (
        next(item for item in made if item["kind"] == kind and item["metadata"]["name"].endswith(end))
        for kind, end in (("ClusterRole", "-clusterrole"), ("ClusterRoleBinding", "-binding"))
    )
    if rule:
        role = role | {"rules": [rule]}
    return [role, binding | {"subjects": list(subjects) or binding["subjects"]}]


def posing(release: tuple[str, str] | None = None, **env: str) -> Object:
    """A tenant's DaemonSet that looks like the driver's to the last label."""
    made = daemonset(release, namespace="tenant")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "KUBELET_PLUGINS_DIRECTORY_PATH", **env}]
    return made


def claim(
    name: str, node: str = "node-1", *, pods: Sequence[str] = ("web-0",), driver: str = "neuron.aws.com"
) -> Object:
    results = [{"request": "r", "driver": driver, "pool": node, "device": "d"}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": "u"} for pod in pods],
    }
    metadata = {"namespace": "team", "name": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "status": status}


def node(name: str, **labels: str) -> Object:
    metadata = {"name": name, "labels": {"node.kubernetes.io/instance-type": "trn2.48xlarge", **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def pod(name: str, node: str = "node-1", resource: str = "aws.amazon.com/neuron", **status: object) -> Object:
    containers = [{"name": "main", "resources": {"limits": {resource: "1"}}}, {"name": "other"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "team", "name": name},
        "spec": {"containers": containers, **({"nodeName": node} if node else {})},
        "status": {"phase": "Running", **status},
    }


def upgrade(
    tmp_path: Path,
    objects: Sequence[Object],
    *settings: str,
    program: str | None = HELM,
    claims: str = "v1",
    namespace: str = "default",
) -> subprocess.CompletedProcess[str]:
    """What helm makes of the release in a cluster with these objects; an installation renders what an upgrade does."""
    with lookups(objects, tmp_path, claims=claims) as kubeconfig:
        named = [part for setting in ("image.repository=r.example/n", *settings) for part in ("--set", setting)]
        options = ("--dry-run=server", "--take-ownership", "--disable-openapi-validation")
        common = ("install", "neuron", str(CHART), *options)
        return helm(*common, "--namespace", namespace, "--kubeconfig", str(kubeconfig), *named, program=program)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0, "it is not refused"
    return done.stderr.partition("\n\n")[2].removesuffix("Use --debug flag to render out invalid YAML\n").strip()


@pytest.mark.parametrize("program", HELMS)
def test_an_upgrade_that_forgets_the_driver_is_refused_while_pods_use_its_devices(
    program: str | None, tmp_path: Path
) -> None:
    there = [daemonset(), claim("mine"), claim("shared", pods=("web-1", "web-2"))]
    done = upgrade(tmp_path, there, "draDriver.logFormat=json", program=program)
    golden(refused(done))


@needs_helm
@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_claims_of_every_version_that_is_served_count(version: str, tmp_path: Path) -> None:
    there = [daemonset(), claim("mine") | {"apiVersion": f"resource.k8s.io/{version}"}]
    assert "team/mine, used by web-0" in refused(upgrade(tmp_path, there, claims=version))


@needs_helm
def test_of_many_claims_ten_are_named(tmp_path: Path) -> None:
    there = [daemonset(), *(claim(f"claim-{index:02}") for index in range(13))]
    golden(refused(upgrade(tmp_path, there)))


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        (DRIVER,),
        (DRIVER, "draDriver.placer.enabled=true"),
        ("draDriver.force.claimsInUse=1",),
        (DRIVER, "draDriver.nodeSelector.neuron=dra", "devicePlugin.enabled=false"),
    ],
)
def test_what_takes_the_driver_from_no_pod_goes_on(settings: tuple[str, ...], tmp_path: Path) -> None:
    there = [daemonset(), claim("mine"), node("node-1", neuron="dra")]
    assert upgrade(tmp_path, there, *settings).returncode == 0


@needs_helm
@pytest.mark.parametrize(
    "claims",
    [
        [],
        [claim("of-nobody", pods=())],
        [claim("of-another", driver="gpu.example.com")],
        [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"namespace": "a", "name": "b"}}],
    ],
)
def test_the_driver_may_go_when_no_pod_uses_its_devices(claims: list[Object], tmp_path: Path) -> None:
    assert upgrade(tmp_path, [daemonset(), *claims]).returncode == 0


@needs_helm
def test_a_release_without_the_driver_does_not_look_after_the_driver_of_another(tmp_path: Path) -> None:
    there = [daemonset(("other", "default")), *rights(), claim("mine")]
    assert upgrade(tmp_path, there).returncode == 0


@needs_helm
@pytest.mark.parametrize("pool", ["node-1/proxy/x", "../secrets", ".."])
def test_a_pool_that_is_no_node_is_not_asked_for(pool: str, tmp_path: Path) -> None:
    """Who publishes slices names their pool: Kubernetes allows slashes in it, and helm has one path for each node."""
    there = [daemonset(), claim("odd", pool), node("node-1", neuron="dra")]
    done = upgrade(tmp_path, there, DRIVER, *LABELLED)
    assert done.returncode == 0, done.stderr


@needs_helm
def test_an_upgrade_that_leaves_nodes_is_refused_while_pods_use_devices_there(tmp_path: Path) -> None:
    there = [daemonset(), claim("stays", "node-1"), claim("left", "node-2"), claim("gone", "node-3")]
    there += [node("node-1", neuron="dra"), node("node-2")]
    golden(refused(upgrade(tmp_path, there, DRIVER, *LABELLED)), "labels")
    types = (DRIVER, "neuronInstances={trn1.32xlarge}")
    assert "team/left" in refused(upgrade(tmp_path, there, *types))
    golden(refused(upgrade(tmp_path, there, DRIVER, "kubeletRoot=/srv/kubelet")), "root")


@pytest.mark.parametrize("program", HELMS)
def test_a_second_driver_in_the_cluster_is_refused(program: str | None, tmp_path: Path) -> None:
    there = [daemonset(("neuron-helm-chart", "default")), *rights()]
    golden(refused(upgrade(tmp_path, there, DRIVER, program=program, namespace="team-b")), "of a release")
    of_script = [daemonset(None), *rights()]
    golden(refused(upgrade(tmp_path, of_script, DRIVER, program=program, namespace="team-b")), "of the script")
    forced = upgrade(tmp_path, there, DRIVER, "draDriver.force.secondDriver=true", program=program, namespace="team-b")
    assert forced.returncode == 0, forced.stderr
    assert "-parameters" not in forced.stdout, "the other one may know other parameters"


@needs_helm
@pytest.mark.parametrize(
    ("release", "env"),
    [(None, {"value": "/srv/plugins"}), (RELEASE, {"value": "/srv/plugins"}), (RELEASE, {})],
    ids=["unmarked", "marked", "without a value"],
)
def test_who_may_make_a_daemonset_neither_stops_a_release_nor_stands_in_for_its_driver(
    release: tuple[str, str] | None, env: dict[str, str], tmp_path: Path
) -> None:
    impostor = posing(release, **env)
    new = upgrade(tmp_path, [impostor, node("node-1"), claim("mine")], DRIVER)
    assert new.returncode == 0, new.stderr
    assert "neuron-dra-driver-parameters" in new.stdout, "nobody else's parameters are to be let through"
    assert "another driver" not in new.stdout
    for there in ([daemonset(), impostor], [impostor, daemonset()]):
        objects = [*there, *rights(), node("node-1"), claim("mine")]
        assert upgrade(tmp_path, objects, DRIVER).returncode == 0
        assert "team/mine" in refused(upgrade(tmp_path, objects))
    labelled = [daemonset(RELEASE, DRIVER, *LABELLED), impostor, *rights(), node("node-1", neuron="dra"), pod("late")]
    again = upgrade(tmp_path, labelled, DRIVER, *LABELLED)
    assert again.returncode == 0, "its nodes do not change: " + again.stderr


@needs_helm
@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        ({"kind": "User", "name": "system:serviceaccount:tenant:neuron-dra-driver-sa"}, None),
        ({"kind": "Group", "name": "system:serviceaccounts:tenant"}, None),
        ({"kind": "Group", "name": "system:serviceaccounts"}, None),
        ({"kind": "Group", "name": "system:authenticated"}, None),
        (None, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
    ],
)
def test_a_driver_elsewhere_is_told_by_the_rights_of_its_account_however_they_are_given(
    subject: Object | None, rule: Object | None, tmp_path: Path
) -> None:
    account = {"kind": "ServiceAccount", "namespace": "tenant", "name": "neuron-dra-driver-sa"}
    there = [posing(None, value="/srv/plugins"), *rights(subject or account, rule=rule)]
    assert "tenant/neuron-dra-driver-kubelet-plugin" in refused(upgrade(tmp_path, there, DRIVER))


@needs_helm
@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        ({"kind": "ServiceAccount", "namespace": "tenant", "name": "other"}, None),
        ({"kind": "Group", "name": "neuron-dra-driver-sa"}, None),
        (None, {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["get", "list", "watch"]}),
        (None, {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create"]}),
        (None, {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}),
        (None, {"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ],
)
def test_an_account_that_may_not_publish_devices_is_no_drivers(
    subject: Object | None, rule: Object | None, tmp_path: Path
) -> None:
    account = {"kind": "ServiceAccount", "namespace": "tenant", "name": "neuron-dra-driver-sa"}
    there = [posing(None, value="/srv/plugins"), *rights(subject or account, rule=rule)]
    done = upgrade(tmp_path, there, DRIVER)
    assert done.returncode == 0, done.stderr


@needs_helm
def test_beside_a_second_driver_the_notes_say_that_parameters_are_not_refused_when_they_are_applied(
    tmp_path: Path,
) -> None:
    there = [daemonset(("other", "default")), *rights()]
    done = upgrade(tmp_path, there, DRIVER, "draDriver.force.secondDriver=true", namespace="team-b")
    assert done.returncode == 0, done.stderr
    (said,) = [part for part in done.stdout.partition("NOTES:\n")[2].split("\n\n") if "another driver" in part]
    golden(said)


@needs_helm
def test_what_objects_say_is_shown_only_if_it_is_a_name(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\nNothing was changed. Run this"
    second = [daemonset((hostile, "default")), *rights()]
    golden(refused(upgrade(tmp_path, second, DRIVER, namespace="team-b")), "release")
    own = daemonset()
    env = own["spec"]["template"]["spec"]["containers"][0]["env"]
    (root,) = [entry for entry in env if entry["name"] == "KUBELET_PLUGINS_DIRECTORY_PATH"]
    root["value"] = f"/{hostile}/plugins"
    there = [own, claim("mine", pods=("web-0", hostile)), node("node-1")]
    golden(refused(upgrade(tmp_path, there, DRIVER)), "root and user")
    del root["value"]
    root["valueFrom"] = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert "from another directory to /var/lib/kubelet" in refused(upgrade(tmp_path, there, DRIVER))


@needs_helm
@pytest.mark.parametrize(
    ("before", "settings"),
    [
        (None, (DRIVER,)),
        (("before", "default"), (DRIVER,)),
        (RELEASE, (DRIVER, "draDriver.fullnameOverride=acme")),
        (RELEASE, (DRIVER, "draDriver.namespaceOverride=acme")),
    ],
    ids=["of the script", "of another release in its place", "renamed", "moved"],
)
def test_taking_the_driver_over_in_its_place_or_renaming_it_makes_no_second_one(
    before: tuple[str, str] | None, settings: tuple[str, ...], tmp_path: Path
) -> None:
    done = upgrade(tmp_path, [daemonset(before), *rights(), claim("mine"), node("node-1")], *settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", HELMS)
def test_the_driver_does_not_begin_on_nodes_where_pods_have_devices_through_limits(
    program: str | None, tmp_path: Path
) -> None:
    there = [node("node-1"), node("node-2"), node("cpu") | {"metadata": {"name": "cpu"}}]
    there += [pod("lim1"), pod("cores", "node-2", "aws.amazon.com/neuroncore"), pod("stray", "cpu")]
    there += [pod("ended", phase="Succeeded"), pod("waits", ""), pod("gpu", resource="nvidia.com/gpu")]
    there += [pod("by-claim", extendedResourceClaimStatus={"resourceClaimName": "c"})]
    golden(refused(upgrade(tmp_path, there, DRIVER, "devicePlugin.enabled=false", program=program)))
    forced = upgrade(tmp_path, there, DRIVER, "draDriver.force.podsWithLimits=1", program=program)
    assert forced.returncode == 0, forced.stderr


@needs_helm
def test_node_by_node_only_the_drivers_nodes_count_and_only_when_they_change(tmp_path: Path) -> None:
    there = [node("node-1", neuron="dra"), node("node-2"), pod("lim2", "node-2")]
    labelled = (DRIVER, "draDriver.nodeSelector.neuron=dra")
    assert upgrade(tmp_path, there, *labelled).returncode == 0
    there.append(daemonset(RELEASE, *labelled))
    assert "team/lim2, on node-2" in refused(upgrade(tmp_path, there, DRIVER))
    there.append(pod("late", "node-1"))
    assert upgrade(tmp_path, there, *labelled, "draDriver.logFormat=json").returncode == 0


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("draDriver.nodeSelector.neuron=dra", "nodeSelector.pool=a"),
        ("draDriver.nodeSelector.neuron=dra", "neuronInstances={trn1.2xlarge,trn1.32xlarge}"),
        ("emulate=trn2.48xlarge",),
    ],
    ids=["types", "labels", "labels and types", "emulated"],
)
def test_the_notes_count_the_nodes_that_match_and_say_what_is_wanted_where_none_does(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    def said(*nodes: Object) -> str:
        done = upgrade(tmp_path, nodes, DRIVER, "devicePlugin.enabled=false", *settings)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:\n")[2].partition("To convert")[0].strip()

    labels = {"neuron": "dra", "pool": "a", "node.kubernetes.io/instance-type": "trn1.32xlarge"}
    serverless = node("serverless", **labels, **{"eks.amazonaws.com/compute-type": "auto"})
    unfit = [serverless] if "emulate=trn2.48xlarge" in settings else [node("cpu") | {"metadata": {"name": "cpu"}}]
    golden(said(*unfit), "none")
    assert "on 1 of 3 nodes. To see" in said(node("fits", **labels), serverless, *unfit)


@needs_helm
def test_before_an_uninstall_a_job_that_may_do_nothing_but_list_claims_asks_for_those_in_use() -> None:
    """What it says is tested in tests/plugin/cli/test_check_unused.py, and that it stops helm on the real cluster."""
    by_kind = {item["kind"]: item for item in hooks("pre-delete", DRIVER)}
    assert by_kind["ClusterRole"]["rules"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list"]}
    ]
    pod = by_kind["Job"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["command"] == ["dra-driver", "check-unused"]


@needs_helm
def test_who_asks_before_an_uninstall_runs_also_where_no_node_is_left_for_the_driver() -> None:
    """On the real cluster: tests/cluster/test_mixed_cluster.py and test_chart_values.py end with an uninstall."""
    affinity = "draDriver.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    term = f"{affinity}.matchExpressions[0].key=a,{affinity}.matchExpressions[0].operator=Exists"
    settings = (DRIVER, "draDriver.nodeSelector.neuron=dra", term, "nodeSelector.pool=infra")
    (pod,) = (item["spec"]["template"]["spec"] for item in hooks("pre-delete", *settings) if item["kind"] == "Job")
    assert pod["nodeSelector"] == {"pool": "infra"}, "what holds for all pods of the chart holds for it too"
    assert not pod["affinity"]
    assert {"operator": "Exists"} in pod["tolerations"]


@needs_helm
def test_where_there_is_no_driver_nobody_asks_before_an_uninstall() -> None:
    assert hooks("pre-delete") == []


@needs_helm
@pytest.mark.parametrize("value", ["true", "1", "7"])
def test_a_force_lets_no_uninstallation_through(value: str) -> None:
    """It was given to an upgrade; the pods that use devices now are others."""
    settings = (DRIVER, f"draDriver.force.claimsInUse={value}")
    assert [item["kind"] for item in hooks("pre-delete", *settings)] == [
        item["kind"] for item in hooks("pre-delete", DRIVER)
    ]


@needs_helm
@pytest.mark.parametrize("value", ["true", "7"])
def test_a_force_for_another_revision_lets_nothing_through_and_is_named(value: str, tmp_path: Path) -> None:
    """As --reuse-values and files keep it: this is revision 1."""
    there = [daemonset(), claim("mine")]
    golden(refused(upgrade(tmp_path, there, f"draDriver.force.claimsInUse={value}")), "the driver would go")
    there = [node("node-1"), pod("limits")]
    golden(
        refused(upgrade(tmp_path, there, DRIVER, f"draDriver.force.podsWithLimits={value}")), "the driver would begin"
    )
    shown = notes(DRIVER, f"draDriver.force.claimsInUse={value}", "draDriver.force.podsWithLimits=1")
    golden(shown.partition("no effect here:\n")[2].splitlines()[0], "the notes")


@needs_helm
def test_without_a_cluster_nothing_is_refused() -> None:
    assert template("devicePlugin.enabled=true", options=("--is-upgrade",))
