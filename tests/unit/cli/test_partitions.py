"""Nodes that offer cores, groups and themselves: what ``simulate`` and ``explain`` say of pods that ask for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.main import main
from tests.golden import golden
from tests.unit.cli.test_simulate import Shell, claim, pod, shell, write

__all__ = ["shell"]

Json = dict[str, Any]
TRN2 = ("--instance-type", "trn2.48xlarge")
ALL = (*TRN2, "--partitions", "chip.core.group.node")
CORE, GROUP4, NODE = (f"{kind}.neuron.aws.com" for kind in ("core", "group4", "node"))


def together(made: Json, attribute: str) -> Json:
    made["spec"]["devices"]["constraints"] = [{"matchAttribute": f"neuron.aws.com/{attribute}"}]
    return made


def limited(name: str, **limits: int) -> Json:
    """A pod without claims, one container for each amount of cores."""
    containers = [
        {"name": container, "resources": {"limits": {"aws.amazon.com/neuroncore": count}}}
        for container, count in limits.items()
    ]
    return pod(name, containers=containers)


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The text that ``explain`` prints."""

    def run(*arguments: str) -> str:
        main(["explain", *arguments])
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("device_class", "count", "devices"),
    [
        ("neuron.aws.com", 1, ["neuron-device-0"]),
        ("chip.neuron.aws.com", 2, ["neuron-device-0", "neuron-device-1"]),
        (CORE, 2, ["neuron-core-0-0", "neuron-core-0-1"]),
        ("group.neuron.aws.com", 1, ["neuron-group4-0"]),
        (GROUP4, 2, ["neuron-group4-0", "neuron-group4-1"]),
        ("group8.neuron.aws.com", 1, ["neuron-group8-0"]),
        (NODE, 1, ["neuron-node"]),
    ],
)
def test_each_class_gets_what_it_is_for_on_a_node_that_offers_everything(
    device_class: str, count: int, devices: list[str], shell: Shell, tmp_path: Path
) -> None:
    (row,) = shell.claims(write(tmp_path, claim("c", count, device_class)), *ALL)
    assert [result["device"] for result in row["allocation"]["devices"]["results"]] == devices


def test_what_overlaps_excludes_each_other_and_nothing_else_does(shell: Shell, tmp_path: Path) -> None:
    wishes = [
        claim("a", 1, CORE),
        claim("b", 1, GROUP4),
        claim("c", 1, "chip.neuron.aws.com"),
        claim("d", 1, NODE),
        claim("e", 3, CORE),
        claim("f", 1, "group8.neuron.aws.com"),
    ]
    rows = {row["name"]: row for row in shell.claims(write(tmp_path, *wishes), *ALL, status=1)}
    got = {
        name: [result["device"] for result in row["allocation"]["devices"]["results"]]
        for name, row in rows.items()
        if row["allocation"]
    }
    assert got == {
        "a": ["neuron-core-0-0"],
        "b": ["neuron-group4-1"],
        "c": ["neuron-device-1"],
        "e": ["neuron-core-0-1", "neuron-core-0-2", "neuron-core-0-3"],
        "f": ["neuron-group8-1"],
    }


def test_a_pod_with_cores_is_drawn_with_them_and_told_which_to_use(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, together(claim("a", 2, CORE), "coreRun2_id"), together(claim("b", 2, CORE), "coreRun2_id"))
    assert shell(file, *ALL) == 0
    first, second = shell.out.split("ResourceClaim default/b")
    assert "[+ 0+]---(  1 )" in first
    assert "          ##..\n" in first
    golden(first)
    assert "    NEURON_RT_VISIBLE_CORES=0-1\n" in first
    assert "          ..##\n" in second
    assert "    NEURON_RT_VISIBLE_CORES=2-3\n" in second


def test_a_group_is_named_under_its_picture(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("g", 1, GROUP4)), *ALL) == 0
    golden(shell.out)
    assert "[* 0*]===[* 1*]===[* 2*]===[* 3*]" in shell.out
    assert shell(write(tmp_path, claim("g", 1, GROUP4)), *ALL, "-o", "svg") == 0
    assert 'data-group="neuron-group4-0"' in shell.out


def test_what_is_left_is_told_by_kind(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("a", 5, CORE)), *ALL) == 0
    golden(shell.out)


def test_an_unmodified_pod_gets_cores_for_each_of_its_containers(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, limited("old", a=2, b=1))
    (row,) = shell.claims(file, *ALL, "--extended-resources")
    assert [(result["request"], result["device"]) for result in row["allocation"]["devices"]["results"]] == [
        ("container-0-request-0", "neuron-core-0-0"),
        ("container-0-request-0", "neuron-core-0-1"),
        ("container-1-request-0", "neuron-core-0-2"),
    ]
    assert shell(file, *ALL, "--extended-resources") == 0
    variables = [line.partition("VISIBLE_CORES")[2] for line in shell.out.splitlines()]
    assert [line.partition(" with ")[2] for line in variables if " with " in line] == [
        "request container-0-request-0",
        "request container-1-request-0",
    ]


def test_classes_offer_extended_resources_on_request_only(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, limited("old", a=2)), *ALL) == 1
    assert "offers aws.amazon.com/neuroncore" in shell.out
    assert "--extended-resources" in shell.out


@pytest.mark.parametrize(
    "devices",
    ["chip,cores", ","],
)
def test_what_nodes_cannot_offer_is_refused(devices: str, shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("c")), *TRN2, "--partitions", devices) == 2
    golden(shell.err)


def test_devices_go_with_emulated_nodes(shell: Shell, tmp_path: Path) -> None:
    assert shell(write(tmp_path, claim("c")), "--objects", write(tmp_path, name="o.yaml"), "--partitions", "core") == 2
    golden(shell.err)


def test_an_explanation_names_who_holds_a_part_of_what_is_wanted(explain: Callable[..., str], tmp_path: Path) -> None:
    shown = explain(write(tmp_path, claim("small", 2, CORE), claim("big", 1, NODE)), *ALL)
    golden(shown)


@pytest.mark.parametrize(
    ("device_class", "node", "offered"),
    [
        (CORE, "trn2.48xlarge", "chip"),
        (GROUP4, "trn2.48xlarge", "chip.core"),
        (NODE, "trn2.48xlarge", "group"),
        ("neuron.aws.com", "trn2.48xlarge", "core"),
        ("group2.neuron.aws.com", "trn2.48xlarge", "chip"),
        ("group.neuron.aws.com", "trn2.3xlarge", "chip"),
    ],
)
def test_a_class_that_no_node_has_devices_for_leads_to_the_setting_that_offers_them(
    device_class: str, node: str, offered: str, explain: Callable[..., str], tmp_path: Path
) -> None:
    shown = explain(write(tmp_path, claim("c", 1, device_class)), "--instance-type", node, "--partitions", offered)
    assert "[not-offered]" in shown
    golden(shown)


def test_a_class_that_some_nodes_have_devices_for_is_not_called_unoffered(
    explain: Callable[..., str], tmp_path: Path
) -> None:
    assert "not-offered" not in explain(write(tmp_path, claim("a", 1, NODE), claim("b", 1, NODE)), *ALL)


def test_a_selector_for_another_kind_than_the_class_is_for_leads_to_the_right_class(
    explain: Callable[..., str], tmp_path: Path
) -> None:
    selector = {"cel": {"expression": "device.attributes['neuron.aws.com'].resourceType == 'neuron_core'"}}
    shown = explain(write(tmp_path, claim("c", selectors=[selector])), *ALL)
    golden(shown)


def test_cores_that_may_be_of_several_chips_are_a_trap(explain: Callable[..., str], tmp_path: Path) -> None:
    golden(explain(write(tmp_path, claim("c", 2, CORE)), *ALL))
    for attribute in ("deviceId", "coreRun2_id"):
        file = write(tmp_path, together(claim("c", 2, CORE), attribute))
        assert "scattered-cores" not in explain(file, *ALL)
    assert "scattered-cores" not in explain(write(tmp_path, claim("c", 5, CORE)), *ALL), "more than a chip has"


def test_a_count_that_is_a_whole_group_leads_to_the_device_that_is_one(
    explain: Callable[..., str], tmp_path: Path
) -> None:
    shown = explain(write(tmp_path, claim("c", 11)), "--instance-type", "inf2.48xlarge")
    assert "[subset-search]" in shown
    golden(shown)


def allocated(*devices: str) -> Json:
    """A claim for an extended resource as kube-scheduler makes it, one container for each device."""
    results = [
        {"request": f"container-{place}-request-0", "driver": "neuron.aws.com", "pool": "n", "device": device}
        for place, device in enumerate(devices)
    ]
    made = claim("c", device_class=CORE)
    made["metadata"] |= {
        "namespace": "default",
        "uid": "11111111-1111-1111-1111-111111111111",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
    }
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def test_a_plan_tells_which_cores_each_container_uses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, allocated("neuron-core-3-0", "neuron-core-4-1"))
    assert main(["plan", "--instance-type", "trn2.48xlarge", "--partitions", "core", "-f", file]) == 0
    shown = capsys.readouterr().out
    golden(shown)


def test_a_plan_of_devices_that_the_node_does_not_offer_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write(tmp_path, allocated("neuron-core-3-0"))
    assert main(["plan", "--instance-type", "trn2.48xlarge", "--partitions", "chip.group", "-f", file]) == 2
    golden(capsys.readouterr().err)
