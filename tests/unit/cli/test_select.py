from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.main import main
from dra_driver.simulator.cel import nearest
from tests.builders.documents import document as parsed
from tests.golden import golden

SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "slice-0"},
    "spec": {
        "driver": "dra.example.com",
        "nodeName": "node-0",
        "pool": {"name": "node-0", "generation": 2, "resourceSliceCount": 1},
        "devices": [
            {"name": "d0", "attributes": {"cores": {"int": 8}}, "allowMultipleAllocations": True},
            {"name": "d1", "attributes": {"cores": {"int": 2}}},
            {"name": "d2"},
        ],
    },
}
CORES = 'device.attributes["dra.example.com"].cores'


def write(path: Path, *documents: object) -> str:
    file = path / "slices.yaml"
    file.write_text("\n---\n".join(json.dumps(document) for document in documents))
    return str(file)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    status = main(["select", *arguments, "-o", "json"])
    found: list[dict[str, Any]] = parsed(capsys.readouterr().out)["items"]
    assert status == int(any(row["matches"] is None for row in found)), "an error on a device stops the scheduler"
    return found


def test_each_device_matches_does_not_or_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys, f"{CORES} > 4", "-f", write(tmp_path, SLICE)) == [
        {"pool": "node-0", "device": "d0", "matches": True, "error": None},
        {"pool": "node-0", "device": "d1", "matches": False, "error": None},
        {"pool": "node-0", "device": "d2", "matches": None, "error": "no such key: cores"},
    ]


def test_the_table_has_a_line_per_device_and_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", f"{CORES} > 4", "-f", write(tmp_path, SLICE)]) == 1
    golden(capsys.readouterr().out.splitlines())


def test_a_misspelt_attribute_is_one_line_with_what_may_have_been_meant(capsys: pytest.CaptureFixture[str]) -> None:
    expression = 'device.attributes["neuron.aws.com"].topology_z == 1'
    assert main(["select", expression, "--instance-type", "trn2.48xlarge"]) == 1
    golden(capsys.readouterr().out.splitlines(), "an attribute")
    expression = 'device.attributes["neuron.aws.com"].instanceType == "trn2.48xlage"'
    assert main(["select", expression, "--instance-type", "trn2.48xlarge"]) == 0
    golden(capsys.readouterr().out.splitlines(), "a value")


def test_shared_devices_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "device.allowMultipleAllocations", "-f", write(tmp_path, SLICE))
    assert [row["matches"] for row in found] == [True, False, False]


def test_devices_of_an_instance_type(capsys: pytest.CaptureFixture[str]) -> None:
    expression = 'device.attributes["neuron.aws.com"].deviceId in [0, 1]'
    found = rows(capsys, expression, "--instance-type", "trn2.48xlarge")
    assert [row["matches"] for row in found] == [True, True] + [False] * 14


def test_only_the_newest_generation_of_a_pool_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {**SLICE, "spec": {**SLICE["spec"], "pool": {**SLICE["spec"]["pool"], "generation": 1}}}
    old["metadata"] = {"name": "slice-1"}
    assert len(rows(capsys, "true", "-f", write(tmp_path, old, SLICE))) == 3


def test_a_node_hides_no_devices_of_another_ones_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def published(node: str, pool: str, generation: int) -> dict[str, Any]:
        of_pool = {"name": pool, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": "neuron.aws.com", "nodeName": node, "pool": of_pool, "devices": [{"name": f"of-{node}"}]}
        return {**SLICE, "metadata": {"name": f"{node}-{len(pool)}"}, "spec": spec}

    slices = [published("node", "node", 1), published("node", "node/cores", 1), published("evil", "node", 99)]
    found = rows(capsys, "true", "-f", write(tmp_path, *slices))
    assert [(row["pool"], row["device"]) for row in found] == [("node", "of-node"), ("node/cores", "of-node")]


def test_slices_of_the_first_version_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"name": "d0", "basic": {"attributes": {"cores": {"int": 8}}}}]
    first = {**SLICE, "apiVersion": "resource.k8s.io/v1beta1", "spec": {**SLICE["spec"], "devices": devices}}
    assert [row["matches"] for row in rows(capsys, f"{CORES} == 8", "-f", write(tmp_path, first))] == [True]


def test_capacities_may_be_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"name": "d0", "capacity": {"memory": {"value": 8}}}]
    numbers = {**SLICE, "spec": {**SLICE["spec"], "devices": devices}}
    expression = 'device.capacity["dra.example.com"].memory == quantity("8")'
    assert [row["matches"] for row in rows(capsys, expression, "-f", write(tmp_path, numbers))] == [True]


def test_the_slices_of_a_list_count_and_other_objects_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"}}
    items = {"apiVersion": "v1", "kind": "List", "items": [node, SLICE]}
    assert [row["device"] for row in rows(capsys, "true", "-f", write(tmp_path, items))] == ["d0", "d1", "d2"]


def test_without_devices_an_expression_is_only_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", 'device.driver == "a"']) == 0
    golden(capsys.readouterr().out)
    assert rows(capsys, "true") == []


def test_a_compile_error_is_bad_input_and_shows_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "true ||\n  device.name == 'a'", "-f", write(tmp_path, SLICE)]) == 2
    golden(capsys.readouterr().err.splitlines())


def test_the_mark_of_a_place_stands_below_it_behind_tabulators_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "true &&\n\tdevice.foo"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["  \tdevice.foo", "  \t      ^"]


def test_what_cannot_be_told_is_not_called_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", 'duration("1s") == duration("1s")']) == 1
    error = capsys.readouterr().err
    golden(error)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n",
        "kind: ResourceSlice\napiVersion: resource.k8s.io/v9\n",
        "kind: ResourceSlice\napiVersion: resource.k8s.io/v1\nspec: 7\n",
        "- 1\n",
        "",
    ],
)
def test_a_bad_file_is_bad_input_with_its_place(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    assert main(["select", "true", "-f", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}:")
    golden(error)


def test_a_file_that_is_no_text_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"kind: \xff")
    assert main(["select", "true", "-f", str(file)]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("release", "meant"),
    [("1.34", "1.36"), ("1.36", "1.36"), ("1.37", "1.37"), ("1.40", "1.37"), ("", "1.37"), ("x", "1.37")],
)
def test_a_cluster_of_another_release_is_taken_for_the_nearest_that_is_known(release: str, meant: str) -> None:
    assert nearest(release) == meant


def test_the_release_that_is_meant_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["select", "device.attributes.`dra.example.com`.cores == 8", "-f", write(tmp_path, SLICE)]
    assert main(arguments) == 1, "d2 has no cores"
    assert main([*arguments, "--kubernetes", "1.36"]) == 2
    golden(capsys.readouterr().err)
