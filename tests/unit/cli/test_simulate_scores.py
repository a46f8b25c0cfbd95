"""Which of several nodes a pod gets: kube-scheduler's scores where they follow from what is given, else names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.documents import document as parsed
from tests.golden import golden
from tests.unit.cli.test_simulate import GADGETS, Shell, claim, gadgets, node, pod, shell, write

__all__ = ["shell"]

Json = dict[str, Any]
BY_NAME = "node chosen by name, not by score"


def sized(name: str, cpu: str = "64", memory: str = "256Gi", **labels: str) -> Json:
    """A node that tells what it has."""
    return {**node(name, **labels), "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}}}


def asking(name: str, *claims: str, cpu: str = "", memory: str = "", **spec: Any) -> Json:
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    made = pod(name, *claims, **spec)
    made["spec"]["containers"][0]["resources"] = {"requests": requests}
    return made


def alternatives(name: str, *types: str) -> Json:
    """A claim for one chip: of the first type if there is one, else of the next."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "r",
                        "firstAvailable": [
                            {
                                "name": f"a{place}",
                                "deviceClassName": "neuron.aws.com",
                                "selectors": [
                                    {
                                        "cel": {
                                            "expression": "device.attributes['neuron.aws.com'].instanceType "
                                            f"== '{one}.{'32' if one == 'trn1' else '48'}xlarge'"
                                        }
                                    }
                                ],
                            }
                            for place, one in enumerate(types)
                        ],
                    }
                ]
            }
        },
    }


def cluster(*names: str, devices: int = 4) -> list[Json]:
    """Two nodes or more with equal devices."""
    return [GADGETS, *(sized(name) for name in names), *(item for name in names for item in gadgets(name, devices))]


def ask(shell: Shell, *arguments: object, status: int = 0) -> dict[str, tuple[str | None, str | None]]:
    """Node and how it was chosen, by claim."""
    rows = shell.claims(*arguments, status=status)
    return {row["name"]: (row["node"], row["nodeChoice"]) for row in rows}


@pytest.mark.parametrize(("types", "wanted"), [(("trn2", "trn1"), "node-2"), (("trn1", "trn2"), "node-1")])
def test_the_node_that_gives_an_earlier_alternative_is_taken(
    shell: Shell, tmp_path: Path, types: tuple[str, str], wanted: str
) -> None:
    file = write(tmp_path, alternatives("c", *types), pod("p", "c"))
    nodes = ("--instance-type", "trn1.32xlarge", "--instance-type", "trn2.48xlarge")
    assert ask(shell, file, *nodes) == {"c": (wanted, "score")}
    assert shell(file, *nodes) == 0
    assert BY_NAME not in shell.out


def test_explain_names_the_node_that_simulate_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from dra_driver.cli.main import main

    file = write(tmp_path, alternatives("c", "trn2", "trn1"), pod("p", "c"))
    assert (
        main(["explain", file, "--instance-type", "trn1.32xlarge", "--instance-type", "trn2.48xlarge", "-o", "json"])
        == 0
    )
    (found,) = parsed(capsys.readouterr().out)["items"]
    assert found["node"] == "node-2"
    assert found["couldGoTo"] == ["node-1", "node-2"]


def test_small_pods_are_spread_by_their_requests_so_that_a_pod_for_a_whole_node_waits(
    shell: Shell, tmp_path: Path
) -> None:
    documents = [claim("a", device_class="gadgets"), claim("b", device_class="gadgets")]
    documents += [claim("c", 4, "gadgets"), asking("pa", "a", cpu="4"), asking("pb", "b", cpu="4"), pod("pc", "c")]
    file, objects = write(tmp_path, *documents), write(tmp_path, *cluster("n1", "n2"), name="cluster.yaml")
    found = ask(shell, file, "--objects", objects, status=1)
    assert found == {"a": ("n1", "name"), "b": ("n2", "score"), "c": (None, None)}
    assert shell(file, "--objects", objects) == 1
    assert shell.out.count(BY_NAME) == 1
    assert "2 of 3 placed" in shell.out


def test_equal_scores_are_said_to_be_a_choice_by_name(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("a"), claim("b"), pod("pa", "a"), pod("pb", "b"))
    # A pod without requests counts as 100 millicores and 200 MiB, less than a hundredth of the node.
    found = ask(shell, file, "--instance-type", "trn2.48xlarge=2")
    assert found == {"a": ("node-1", "name"), "b": ("node-1", "name")}
    assert ask(shell, file, "--instance-type", "trn2.48xlarge") == {"a": ("node-1", "only"), "b": ("node-1", "only")}


def test_what_runs_on_a_node_counts(shell: Shell, tmp_path: Path) -> None:
    running = {**asking("other", cpu="32", nodeName="n1"), "status": {"phase": "Running"}}
    ended = {**asking("ended", cpu="60", nodeName="n2"), "status": {"phase": "Succeeded"}}
    objects = write(tmp_path, *cluster("n1", "n2"), running, ended, name="cluster.yaml")
    file = write(tmp_path, claim("c", device_class="gadgets"), asking("p", "c", cpu="1"))
    assert ask(shell, file, "--objects", objects) == {"c": ("n2", "score")}


def test_running_pods_without_requests_count_as_small_ones(shell: Shell, tmp_path: Path) -> None:
    running = [{**pod(f"idle-{i}", nodeName="n1"), "status": {"phase": "Running"}} for i in range(30)]
    objects = write(tmp_path, *cluster("n1", "n2"), *running, name="cluster.yaml")
    file = write(tmp_path, claim("c", device_class="gadgets"), asking("p", "c", cpu="1"))
    assert ask(shell, file, "--objects", objects) == {"c": ("n2", "score")}


def test_nodes_that_do_not_tell_what_they_have_are_chosen_by_name(shell: Shell, tmp_path: Path) -> None:
    nodes = [GADGETS, node("n1"), node("n2"), *gadgets("n1", 4), *gadgets("n2", 4)]
    file = write(tmp_path, *nodes, claim("c", device_class="gadgets"), asking("p", "c", cpu="1"))
    assert ask(shell, file) == {"c": ("n1", "name")}


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet", "Deployment"])
def test_pods_of_one_controller_are_spread_over_nodes(shell: Shell, tmp_path: Path, kind: str) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {"spec": claim("x")["spec"]},
    }
    spec = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]}
    labels = {"metadata": {"labels": {"app": "web"}}}
    owner = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": {**labels, "spec": spec}},
    }
    rows = shell.claims(write(tmp_path, template, owner), "--instance-type", "trn2.48xlarge=4")
    assert [row["node"] for row in rows] == ["node-1", "node-2", "node-3", "node-4"]
    assert [row["nodeChoice"] for row in rows] == ["name", "name", "name", "score"]


def test_a_pod_is_spread_as_its_own_constraints_say(shell: Shell, tmp_path: Path) -> None:
    nodes = [sized(f"n{i}", **{"zone": zone, "kubernetes.io/hostname": f"n{i}"}) for i, zone in enumerate("aab")]
    objects = [GADGETS, *nodes, *(item for i in range(3) for item in gadgets(f"n{i}", 4))]
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
    }
    pods = [pod(f"p{i}", f"c{i}", topologySpreadConstraints=[constraint]) for i in range(2)]
    for one in pods:
        one["metadata"]["labels"] = {"app": "web"}
    claims = [claim(f"c{i}", device_class="gadgets") for i in range(2)]
    file = write(tmp_path, *objects, *claims, *pods)
    assert ask(shell, file) == {"c0": ("n0", "name"), "c1": ("n2", "score")}


def test_preferred_node_affinity_and_taints_count(shell: Shell, tmp_path: Path) -> None:
    tainted = sized("n0")
    tainted["spec"] = {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}
    objects = [GADGETS, tainted, sized("n1", disk="slow"), sized("n2", disk="fast")]
    objects += [item for i in range(3) for item in gadgets(f"n{i}", 4)]
    term = {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    claims = [claim(f"c{i}", device_class="gadgets") for i in range(2)]
    file = write(tmp_path, *objects, *claims, pod("p0", "c0", affinity=affinity), pod("p1", "c1"))
    assert ask(shell, file) == {"c0": ("n2", "score"), "c1": ("n1", "name")}


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAffinity": {}}},
        {"schedulerName": "mine"},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_what_is_not_considered_leaves_the_choice_to_names(shell: Shell, tmp_path: Path, spec: Json) -> None:
    documents = [*cluster("n1", "n2"), claim("a", device_class="gadgets"), claim("b", device_class="gadgets")]
    documents += [asking("pa", "a", cpu="8", **spec), asking("pb", "b", cpu="8", **spec)]
    assert ask(shell, write(tmp_path, *documents)) == {"a": ("n1", "name"), "b": ("n1", "name")}


def test_images_that_only_some_nodes_have_leave_the_choice_to_names(shell: Shell, tmp_path: Path) -> None:
    documents = [*cluster("n1", "n2"), claim("c", device_class="gadgets"), asking("p", "c", nodeName="")]
    documents[-1]["spec"]["containers"][0]["image"] = "big"
    busy = {**asking("other", cpu="32", nodeName="n1"), "status": {"phase": "Running"}}
    assert ask(shell, write(tmp_path, *documents, busy)) == {"c": ("n2", "score")}
    documents[1]["status"]["images"] = [{"names": ["big:latest"], "sizeBytes": 9 << 30}]
    assert ask(shell, write(tmp_path, *documents, busy)) == {"c": ("n1", "name")}


@pytest.mark.parametrize(("app", "wanted"), [("web", ("n1", "name")), ("other", ("n2", "score"))])
def test_an_affinity_of_a_pod_that_runs_matters_to_those_that_it_means(
    shell: Shell, tmp_path: Path, app: str, wanted: tuple[str, str]
) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    running = asking("running", cpu="32", nodeName="n1", affinity={"podAntiAffinity": preferred})
    waiting = asking("p", "c")
    waiting["metadata"]["labels"] = {"app": app}
    file = write(tmp_path, *cluster("n1", "n2"), running, claim("c", device_class="gadgets"), waiting)
    assert ask(shell, file) == {"c": wanted}


def test_alternatives_decide_where_the_rest_of_the_scores_is_not_known(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, alternatives("c", "trn2", "trn1"), pod("p", "c", schedulerName="mine"))
    nodes = ("--instance-type", "trn1.32xlarge", "--instance-type", "trn2.48xlarge")
    assert ask(shell, file, *nodes) == {"c": ("node-2", "alternative")}
    assert shell(file, *nodes) == 0
    golden(shell.out)


def test_an_amount_that_is_none_is_named_with_its_place(shell: Shell, tmp_path: Path) -> None:
    documents = [GADGETS, sized("n1", cpu="many"), claim("c", device_class="gadgets"), pod("p", "c")]
    assert shell(write(tmp_path, *documents)) == 2
    golden(shell.err)
    documents[1:] = [sized("n1"), claim("c", device_class="gadgets"), asking("p", "c", cpu="much")]
    assert shell(write(tmp_path, *documents)) == 2
    golden(shell.err)


def test_of_more_nodes_than_kube_scheduler_looks_at_the_first_by_name_is_taken(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, alternatives("c", "trn2", "trn1"), pod("p", "c"))
    assert ask(shell, file, "--instance-type", "trn1.32xlarge=80", "--instance-type", "trn2.48xlarge=80") == {
        "c": ("node-001", "name")
    }
