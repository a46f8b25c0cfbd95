"""Pods that ask for devices by limits: extended resources of DeviceClasses, for which kube-scheduler makes claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from tests.builders.documents import document as parsed
from tests.golden import golden
from tests.unit.cli.test_simulate import Shell, claim, node, pod, shell, write

__all__ = ["shell"]

Json = dict[str, Any]
NEURON = "aws.amazon.com/neuron"
TRN2 = ("--instance-type", "trn2.48xlarge")


def offering(resource: str | None, name: str = "limits", created: str | None = None) -> Json:
    """A class of chips as ``dra-driver migrate --extended-resources`` prints it."""
    expression = (
        'device.driver == "neuron.aws.com" && device.attributes["neuron.aws.com"].resourceType == "neuron_device"'
    )
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if resource is not None:
        spec["extendedResourceName"] = resource
    metadata = {"name": name} | ({"creationTimestamp": created} if created else {})
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def container(name: str, count: int | str = 0, resource: str = NEURON, **fields: Any) -> Json:
    limits = {"cpu": "1", resource: count} if count else {}
    return {"name": name, "resources": {"limits": limits}, **fields}


def asking(name: str, count: int | str, resource: str = NEURON, **spec: Any) -> Json:
    return pod(name, containers=[container("main", count, resource)], **spec)


def requests(row: Json) -> dict[str, int]:
    """How many devices each request of an allocation got."""
    found: dict[str, int] = {}
    for device in row["allocation"]["devices"]["results"]:
        found[device["request"]] = found.get(device["request"], 0) + 1
    return found


def test_limits_that_a_class_offers_get_devices(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, offering(NEURON), asking("web", "4"))
    (row,) = shell.claims(file, *TRN2)
    assert row["name"].startswith("web-extended-resources-")
    assert row["node"] == "node-1"
    # The name counts the container, and the resource among what it requests: cpu is the second.
    assert requests(row) == {"container-0-request-0": 4}
    assert shell(file, *TRN2) == 0
    assert "NEURON_LOGICAL_NC_CONFIG=2" in shell.out
    golden(shell.out)
    assert f"resources: {NEURON}" not in shell.out


def test_every_class_is_offered_under_its_own_name(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, asking("web", 2, "deviceclass.resource.kubernetes.io/neuron.aws.com"))
    (row,) = shell.claims(file, *TRN2)
    assert requests(row) == {"container-0-request-1": 2}


def test_of_two_classes_with_one_name_the_newer_is_taken(shell: Shell, tmp_path: Path) -> None:
    none: Json = offering(NEURON, "a-old", "2026-01-01T00:00:00Z")
    none["spec"]["selectors"] = [{"cel": {"expression": "false"}}]
    file = write(tmp_path, none, offering(NEURON, "b-new", "2026-02-01T00:00:00Z"), asking("web", 1))
    (row,) = shell.claims(file, *TRN2)
    assert row["node"] == "node-1"


def test_containers_get_requests_of_their_own_and_init_containers_share_them(shell: Shell, tmp_path: Path) -> None:
    containers = [container("one", 2), container("none"), container("two", 3)]
    init = [
        container("before", 1),
        container("sidecar", 1, restartPolicy="Always"),
        container("bigger", 8),
    ]
    file = write(tmp_path, offering(NEURON), pod("web", containers=containers, initContainers=init))
    (row,) = shell.claims(file, *TRN2)
    # `bigger` uses the five of the containers after it and needs three more; `before` needs none of its own.
    assert requests(row) == {
        "container-1-request-0": 1,
        "container-2-request-0": 3,
        "container-3-request-0": 2,
        "container-5-request-0": 3,
    }


def test_an_init_container_with_more_than_later_ones_sees_their_chips_and_its_own(shell: Shell, tmp_path: Path) -> None:
    init = [container("ic1", 1), container("sidecar", 1, restartPolicy="Always"), container("ic2", 2)]
    file = write(tmp_path, offering(NEURON), pod("web", containers=[container("c1", 1)], initContainers=init))
    assert shell(file, *TRN2, "-o", "json") == 0
    (found,) = parsed(shell.out)["items"]
    given = {
        item["name"]: {node["containerPath"]: node["hostPath"] for node in item["deviceNodes"]}
        for item in found["containers"]
    }
    assert {name: list(nodes) for name, nodes in given.items()} == {
        "ic1": ["/dev/neuron0"],
        "sidecar": ["/dev/neuron0"],
        "ic2": ["/dev/neuron1", "/dev/neuron0"],
        "c1": ["/dev/neuron0"],
    }
    assert given["ic1"] == given["sidecar"]
    assert given["ic2"].items() > given["c1"].items()
    assert shell(file, *TRN2) == 0
    golden(shell.out)


def test_a_pod_with_a_claim_and_limits_gets_both_on_one_node(shell: Shell, tmp_path: Path) -> None:
    both = pod("web", "c", containers=[container("main", 12)])
    taken = [claim("other", 8), pod("first", "other", nodeSelector={"kubernetes.io/hostname": "node-1"})]
    file = write(tmp_path, offering(NEURON), claim("c", 2), *taken, both)
    rows = {
        row["name"].partition("-extended")[0]: row for row in shell.claims(file, "--instance-type", "trn2.48xlarge=2")
    }
    assert [rows[name]["node"] for name in ("other", "c", "web")] == ["node-1", "node-2", "node-2"]


def test_devices_in_use_make_the_pod_wait(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, offering(NEURON), asking("a", 16), asking("b", 1))
    rows = shell.claims(file, *TRN2, status=1)
    assert [row["node"] for row in rows] == ["node-1", None]
    golden(rows[1]["reason"])


def plugin(name: str, chips: int) -> Json:
    """A node on which a device plugin offers the resource."""
    return {**node(name), "status": {"allocatable": {"cpu": "64", "memory": "256Gi", NEURON: str(chips)}}}


def test_a_node_with_a_device_plugin_serves_the_limits_itself(shell: Shell, tmp_path: Path) -> None:
    running = {**asking("running", 3, nodeName="legacy"), "status": {"phase": "Running"}}
    objects = write(tmp_path, plugin("legacy", 4), running, name="cluster.yaml")
    file = write(tmp_path, offering(NEURON), asking("a", 1), asking("b", 1))
    assert shell(file, "--objects", objects) == 1
    golden(shell.out)
    assert "claim" not in shell.out.partition("Pod default/b")[0]
    # Beside a node of the driver the second goes there, with a claim.
    assert shell(file, "--objects", objects, *TRN2) == 0


def test_the_claim_of_a_pod_that_runs_is_its_own(shell: Shell, tmp_path: Path) -> None:
    special = claim("web-extended-resources-x", 4, "limits")
    results = [
        {"request": "r", "driver": "neuron.aws.com", "pool": "node-1", "device": f"neuron-device-{i}"} for i in range(4)
    ]
    special["status"] = {"allocation": {"devices": {"results": results}}}
    running = asking("web", 4, nodeName="node-1")
    running["status"] = {
        "phase": "Running",
        "extendedResourceClaimStatus": {"resourceClaimName": special["metadata"]["name"]},
    }
    objects = write(tmp_path, offering(NEURON), special, running, name="cluster.yaml")
    file = write(tmp_path, asking("next", 12))
    (row,) = shell.claims(file, "--objects", objects, *TRN2)
    assert row["node"] == "node-1"
    assert shell("--objects", objects, *TRN2) == 0
    golden(shell.out)


def test_resources_that_nothing_here_offers_are_not_considered(shell: Shell, tmp_path: Path) -> None:
    made = pod("web", "c", containers=[container("main", 8, "vpc.amazonaws.com/efa")])
    assert shell(write(tmp_path, claim("c"), made), *TRN2) == 0
    assert "resources: vpc.amazonaws.com/efa: default/web" in shell.out


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Json]]:
    status = main(["explain", *arguments, "-o", "json"])
    found: list[Json] = parsed(capsys.readouterr().out)["items"]
    return status, found


def test_explain_says_why_limits_do_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, offering(NEURON), asking("a", 10), asking("b", 10))
    status, (first, second) = explain(capsys, file, *TRN2)
    assert (status, first["fits"], second["fits"]) == (1, True, False)
    golden(second["nodeGroups"][0]["message"])
    golden(second["remedies"])


def test_explain_points_at_migrate_when_no_class_offers_the_limits(
    capsys: pytest.CaptureFixture[str], shell: Shell, tmp_path: Path
) -> None:
    file = write(tmp_path, asking("web", 1))
    status, (found,) = explain(capsys, file, *TRN2)
    assert (status, found["fits"]) == (1, False)
    sentence = found["nodeGroups"][0]["message"]
    golden(sentence)
    assert shell(file, *TRN2) == 1
    assert "dra-driver migrate" in shell.out


def test_explain_and_simulate_agree_where_nodes_differ_in_who_offers_the_limits(
    capsys: pytest.CaptureFixture[str], shell: Shell, tmp_path: Path
) -> None:
    objects = write(tmp_path, plugin("a-legacy", 4), name="cluster.yaml")
    file = write(tmp_path, offering(NEURON), *(asking(f"p{i}", count) for i, count in enumerate((4, 16, 1))))
    status, found = explain(capsys, file, "--objects", objects, *TRN2)
    assert status == 1
    assert [item["node"] for item in found] == ["a-legacy", "node-1", None]
    assert shell(file, "--objects", objects, *TRN2) == 1
    assert [line.rpartition(" ")[2] for line in shell.out.splitlines() if line.startswith("Pod ")] == [
        "a-legacy",
        "node-1",
        "placed",
    ]


def select(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["select", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", [NEURON, "deviceclass.resource.kubernetes.io/limits"])
def test_select_takes_the_name_of_an_extended_resource(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    main(["slices", "--instance-type", "trn2.48xlarge", "-o", "yaml"])
    slices = list(yaml.safe_load_all(capsys.readouterr().out))
    file = write(tmp_path, *slices, offering(NEURON))
    status, out, err = select(capsys, name, "-f", file)
    assert (status, err) == (0, "")
    golden(out)


def test_select_says_that_no_class_offers_a_resource(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["slices", "--instance-type", "trn2.48xlarge", "-o", "yaml"])
    slices = list(yaml.safe_load_all(capsys.readouterr().out))
    status, _, err = select(capsys, NEURON, "-f", write(tmp_path, *slices, offering("example.com/other")))
    assert status == 2
    golden(err)


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_a_fraction_of_what_a_class_offers_by_its_name_is_a_claim_without_devices(
    output: str, shell: Shell, tmp_path: Path
) -> None:
    """The API server checks no amounts below kubernetes.io, and kube-scheduler asks for whole devices only."""
    half = asking("half", "500m", "deviceclass.resource.kubernetes.io/neuron.aws.com")
    arguments = (write(tmp_path, half), "--instance-type", "trn2.3xlarge", "--extended-resources", "-o", output)
    assert shell(*arguments) == 0, shell.err
    if output == "json":
        (row,) = parsed(shell.out)["claims"]
        assert row["allocation"]["devices"] == {}
