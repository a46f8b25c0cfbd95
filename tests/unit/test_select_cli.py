from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.main import main

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
    assert main(["select", *arguments, "-o", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_each_device_matches_does_not_or_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys, f"{CORES} > 4", "--slices", write(tmp_path, SLICE)) == [
        {"pool": "node-0", "device": "d0", "matches": True, "error": None},
        {"pool": "node-0", "device": "d1", "matches": False, "error": None},
        {"pool": "node-0", "device": "d2", "matches": None, "error": "no such key: cores"},
    ]


def test_the_table_has_a_line_per_device_and_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", f"{CORES} > 4", "--slices", write(tmp_path, SLICE)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "POOL    DEVICE  MATCHES  ERROR",
        "node-0  d0      yes",
        "node-0  d1      no",
        "node-0  d2      error    no such key: cores",
        "3 devices: 1 match, 1 do not, 1 fail",
    ]


def test_shared_devices_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "device.allowMultipleAllocations", "--slices", write(tmp_path, SLICE))
    assert [row["matches"] for row in found] == [True, False, False]


def test_devices_of_an_instance_type(capsys: pytest.CaptureFixture[str]) -> None:
    expression = 'device.attributes["neuron.aws.com"].deviceId in [0, 1]'
    found = rows(capsys, expression, "--instance-type", "trn2.48xlarge")
    assert [row["matches"] for row in found] == [True, True] + [False] * 14


def test_only_the_newest_generation_of_a_pool_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {**SLICE, "spec": {**SLICE["spec"], "pool": {**SLICE["spec"]["pool"], "generation": 1}}}
    assert len(rows(capsys, "true", "--slices", write(tmp_path, old, SLICE))) == 3


def test_slices_of_the_first_version_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"name": "d0", "basic": {"attributes": {"cores": {"int": 8}}}}]
    first = {**SLICE, "apiVersion": "resource.k8s.io/v1beta1", "spec": {**SLICE["spec"], "devices": devices}}
    assert [row["matches"] for row in rows(capsys, f"{CORES} == 8", "--slices", write(tmp_path, first))] == [True]


def test_a_list_attribute_fails_its_device_as_in_kubernetes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"name": "d0", "attributes": {"cores": {"ints": [1, 2]}}}]
    lists = {**SLICE, "spec": {**SLICE["spec"], "devices": devices}}
    (row,) = rows(capsys, "true", "--slices", write(tmp_path, lists))
    assert row["error"] == "attribute cores: unsupported attribute value"


def test_a_compile_error_is_bad_input_and_shows_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "true ||\n  device.name == 'a'", "--slices", write(tmp_path, SLICE)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: the expression is refused: 2:9: undefined field 'name'",
        "    device.name == 'a'",
        "          ^",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not YAML or JSON"),
        ("kind: Pod\napiVersion: v1\n", "kind 'Pod' is no ResourceSlice"),
        ("kind: ResourceSlice\napiVersion: resource.k8s.io/v9\n", "apiVersion 'resource.k8s.io/v9'"),
        ("kind: ResourceSlice\napiVersion: resource.k8s.io/v1\nspec: 7\n", "not a ResourceSlice: "),
        ("- 1\n", "a Kubernetes object expected"),
        ("", "there is no ResourceSlice in it"),
    ],
)
def test_a_bad_file_is_bad_input_without_a_traceback(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    assert main(["select", "true", "--slices", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: ")
    assert message in error


def test_the_release_that_is_meant_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["select", "device.attributes.`dra.example.com`.cores == 8", "--slices", write(tmp_path, SLICE)]
    assert main(arguments) == 0
    assert main([*arguments, "--kubernetes", "1.36"]) == 2
    assert "unsupported syntax" in capsys.readouterr().err
