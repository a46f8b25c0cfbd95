"""Commands that print what would happen: slices and plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.cli.main import main
from tests.builders.documents import document as parsed
from tests.builders.yamlfiles import as_yaml
from tests.generators.effort import examples
from tests.golden import golden

UID = "11111111-1111-1111-1111-111111111111"


def claim(devices: list[str], config: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    results = [
        {"request": "neurons", "driver": "neuron.aws.com", "pool": "node-1", "device": device} for device in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim", "namespace": "default", "uid": UID},
        "status": {"allocation": {"devices": {"results": results, "config": config or []}}},
    }


def neuron_config(**parameters: object) -> list[dict[str, Any]]:
    content = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", **parameters}
    return [{"source": "FromClaim", "opaque": {"driver": "neuron.aws.com", "parameters": content}}]


def write(path: Path, document: object) -> str:
    path.write_text(as_yaml(document))
    return str(path)


CLAIM = "kind: ResourceClaim\napiVersion: resource.k8s.io/v1beta1\nmetadata: {name: c}\n"
ROW = [f"neuron-device-{index}" for index in (4, 5, 6, 7)]


def test_plan_prints_the_documented_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "claim.yaml", claim(ROW, neuron_config(logicalNeuronCore=1)))
    assert main(["plan", "--instance-type", "trn2.48xlarge", "-f", file, "-o", "json"]) == 0
    (document,) = parsed(capsys.readouterr().out)["items"]
    assert document["claim"] == {"namespace": "default", "name": "claim", "uid": UID}
    assert document["deviceNodes"][0] == {
        "request": "neurons",
        "device": "neuron-device-4",
        "hostPath": "/dev/neuron4",
        "containerPath": "/dev/neuron0",
    }
    assert document["environment"] == {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}
    assert document["cdi"]["kind"] == "k8s.neuron.aws.com/claim"


def test_plan_reads_what_kubectl_prints_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "plan", "--instance-type", "trn1.32xlarge", "-f", "-"],
        check=False,
        input=json.dumps(claim(["neuron-device-0"])),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "/dev/neuron0" in done.stdout


def test_a_refused_claim_is_exit_status_1_with_kubelets_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "claim.yaml", claim(ROW, neuron_config(logicalNeuronCoreCount=1)))
    assert main(["plan", "--instance-type", "trn2.48xlarge", "-f", file]) == 1
    captured = capsys.readouterr()
    golden(captured.err)
    assert captured.out == ""


def test_an_unconnected_set_is_planned_with_a_warning_and_refused_by_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "claim.yaml", claim(["neuron-device-1", "neuron-device-3"]))
    common = ["plan", "--instance-type", "trn2.48xlarge", "-f", file]
    assert main(common) == 0
    golden(capsys.readouterr().err)
    assert main([*common, "--contiguity", "refuse"]) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1, 2]",
        "a: [",
        "a: &x [*x]",
        "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {}",
        "kind: ResourceClaim\napiVersion: v1",
        "kind: ResourceClaim\napiVersion: resource.k8s.io/v1\nmetadata: {name: 3}",
        "kind: ResourceClaim\napiVersion: resource.k8s.io/v9\nmetadata: {name: c}",
        f"{CLAIM}spec: {{}}\nstatsu: {{}}\n",
        f"{CLAIM}status: {{allocation: {{devices: {{result: []}}}}}}\n",
        f"{CLAIM}metadata: {{}}\n",
        "\x00",
        "a: !!bool maybe",
        "a: !!int ''",
        "a: !!timestamp soon",
    ],
)
def test_a_file_that_is_no_claim_is_exit_status_2(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(content)
    assert main(["plan", "--instance-type", "trn2.48xlarge", "-f", str(file)]) == 2
    error = capsys.readouterr().err
    golden(error)
    assert str(file) in error


def test_missing_files_hosts_and_types_are_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "claim.yaml", claim(ROW))
    for arguments in (
        ["plan", "--instance-type", "trn2.48xlarge", "-f", str(tmp_path / "nowhere")],
        ["plan", "--host-root", str(tmp_path / "nowhere"), "-f", file],
        ["plan", "--instance-type", "p5.48xlarge", "-f", file],
        ["slices", "--instance-type", "p5.48xlarge"],
        ["slices", "--host-root", str(tmp_path / "nowhere")],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An emulated host, made once."""
    root = tmp_path_factory.mktemp("host") / "root"
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", str(root)]) == 0
    return root


@settings(max_examples=examples(60))
@given(data=st.binary(max_size=300))
def test_no_bytes_make_plan_fail_with_a_traceback(
    data: bytes, host: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "claim"
    file.write_bytes(data)
    assert main(["plan", "--host-root", str(host), "-f", str(file)]) == 2


@settings(max_examples=examples(40))
@given(
    parameters=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=8,
    )
)
def test_no_parameters_make_plan_fail_with_a_traceback(
    parameters: object, host: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = [{"source": "FromClaim", "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    file = tmp_path_factory.mktemp("fuzz") / "claim.json"
    file.write_text(json.dumps(claim(["neuron-device-0"], config)))
    assert main(["plan", "--host-root", str(host), "-f", str(file)]) == 1


def test_slices_prints_every_chip_of_a_type_as_kubernetes_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slices", "--instance-type", "inf2.48xlarge", "--node-name", "n", "-o", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["apiVersion"], item["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert item["spec"]["nodeName"] == item["spec"]["pool"]["name"] == "n"
    assert [device["name"] for device in item["spec"]["devices"]] == [f"neuron-device-{i}" for i in range(12)]


def test_slices_shows_any_partitions_with_their_counters(capsys: pytest.CaptureFixture[str]) -> None:
    partitions = ["--partitions", "chip.core.group3", "-o", "json"]
    assert main(["slices", "--instance-type", "inf2.24xlarge", *partitions]) == 0
    counters, item = json.loads(capsys.readouterr().out)["items"]
    (found,) = counters["spec"]["sharedCounters"]
    assert found["counters"] == {f"chip-{index}": {"value": "2"} for index in range(6)}
    assert [device["name"] for device in item["spec"]["devices"]] == [
        *(f"neuron-window3-{index}" for index in range(4)),
        *(f"neuron-device-{index}" for index in range(6)),
        *(f"neuron-core-{index}-{core}" for index in range(6) for core in range(2)),
    ]


def test_slices_says_what_a_host_cannot_be_offered_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slices", "--instance-type", "trn2.48xlarge", "--partitions", "chip.group3"]) == 0
    golden(capsys.readouterr().err)
    assert main(["slices", "--instance-type", "trn2.48xlarge", "--partitions", "ring"]) == 2
    golden(capsys.readouterr().err)


def test_slices_prints_yaml_of_an_emulated_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", "--missing", "3", str(tmp_path / "host")]) == 0
    capsys.readouterr()
    assert main(["slices", "--host-root", str(tmp_path / "host")]) == 0
    (item,) = yaml.safe_load(capsys.readouterr().out)["items"]
    assert len(item["spec"]["devices"]) == 15


def test_a_host_without_neuron_is_told_so_and_has_no_slice_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slices", "--host-root", str(tmp_path)]) == 1
    said = capsys.readouterr()
    golden(said.err)
    assert said.out == ""
    file = write(tmp_path / "claim.yaml", claim(ROW))
    assert main(["plan", "--host-root", str(tmp_path), "-f", file]) == 1
    golden(capsys.readouterr().err)


def test_what_is_odd_about_a_host_is_said_beside_its_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = str(tmp_path / "host")
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", "--missing", "3", host]) == 0
    capsys.readouterr()
    assert main(["slices", "--host-root", host]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert "neuron3" in line


def test_the_taints_of_sick_chips_are_in_the_slices_of_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host"
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", str(host)]) == 0
    capsys.readouterr()
    counter = host / "sys/devices/virtual/neuron_device/neuron3/stats/hardware/mem_ecc_uncorrected"
    counter.write_text("3\n")
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{fault: hbm-uncorrectable, effect: NoExecute}]")
    options: list[tuple[list[str], str]] = [([], "NoSchedule"), (["--health-policy", str(policy)], "NoExecute")]
    for more, effect in options:
        assert main(["slices", "--host-root", str(host), "-o", "json", *more]) == 0
        said = capsys.readouterr()
        (item,) = json.loads(said.out)["items"]
        tainted = [device for device in item["spec"]["devices"] if "taints" in device]
        assert [device["name"] for device in tainted] == ["neuron-device-3"]
        (taint,) = tainted[0]["taints"]
        assert (taint["key"], taint["effect"]) == ("health.neuron.aws.com/hbm-uncorrectable", effect)
        golden(said.err)
    policy.write_text("rules: 3")
    assert main(["slices", "--host-root", str(host), "--health-policy", str(policy)]) == 2
    golden(capsys.readouterr().err)


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("kubelet-plugin", "topology", "emulate-host", "slices", "plan"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert "example" in capsys.readouterr().out.lower()
