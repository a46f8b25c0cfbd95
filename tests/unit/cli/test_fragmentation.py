from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.fragmentation import POLICY_NAMES
from dra_driver.cli.main import main
from dra_driver.simulator.fragmentation import POLICIES
from tests.builders.workload import TEXT
from tests.paths import EXAMPLES

SHORT = TEXT.replace("length: 10d", "length: 3d")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "workload.yaml"
    path.write_text(SHORT)
    return str(path)


def test_the_names_in_the_help_are_those_of_the_policies() -> None:
    assert tuple(POLICIES) == POLICY_NAMES


def test_a_workload_is_simulated_and_shown_as_text(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fragmentation", file]) == 0
    output, errors = capsys.readouterr()
    assert output.startswith(f"{file}: 2 nodes with 32 chips, 6 pods an hour for 3 d, the first 24 h left out\nseed 1;")
    assert not errors


def test_one_seed_gives_one_outcome(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in ("5", "5", "6"):
        assert main(["fragmentation", file, "--seed", seed, "-o", "json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_json_and_yaml_say_the_same_of_all_policies_and_seeds(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fragmentation", file, "--seed", "1-2", "--policy", "all"]
    assert main([*arguments, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main([*arguments, "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == found
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [(n, s) for n in POLICY_NAMES for s in (1, 2)]


def test_svg_draws_the_policies(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    policies = ["--policy", "broken-sets-first", "--policy", "lowest-id"]
    assert main(["fragmentation", file, *policies, "-o", "svg"]) == 0
    root = ET.fromstring(capsys.readouterr().out)
    names = [path.attrib["data-policy"] for path in root.iter() if "data-policy" in path.attrib]
    assert names == ["broken-sets-first", "lowest-id"] * 2


def test_nodes_of_the_command_line_take_the_place_of_the_files(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ["--node", "trn1.32xlarge", "--node", "trn2.48xlarge=3", "--node", "trn2u.48xlarge=4"]
    assert main(["fragmentation", file, *nodes, "--ultraserver-layout", "chips", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["chips"]) == (8, 128)


CUTS = """\
nodes: {trn2.48xlarge: 2}
devices: chip,core
pods:
- {name: one, weight: 3, device: chip}
- {name: four, weight: 1, device: chip, count: 4}
- {name: pair, weight: 2, device: core, count: 2}
arrivals: {perHour: 6}
duration: {exponential: {mean: 4h}}
length: 3d
"""


def test_what_nodes_offer_is_in_the_file_or_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cuts.yaml"
    path.write_text(CUTS)
    assert main(["fragmentation", str(path)]) == 0
    titles = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if " of kind " in line]
    assert titles == ["refused of kind", "connected set of kind", "linked of kind"]
    assert main(["fragmentation", str(path), "-o", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    found = {
        kind["name"]: (kind["connected"], kind["linked"], kind["withSeveralChipsOrDevices"]) for kind in run["kinds"]
    }
    assert found["one"] == (0, 0, 0)
    assert 0 < found["four"][0] <= found["four"][1] < found["four"][2]
    assert main(["fragmentation", str(path), "--devices", "chip"]) == 2
    assert "kind pair finds no room even while all chips are free" in capsys.readouterr().err


def test_claims_of_a_kind_are_allocated_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two chips of the second row: a node has room for two such pods, and four free chips are left in it for none."""
    claim = {
        "requests": [
            {
                "name": "chips",
                "exactly": {
                    "deviceClassName": "neuron.aws.com",
                    "count": 2,
                    "selectors": [{"cel": {"expression": "device.attributes['neuron.aws.com'].topology_x == 1"}}],
                },
            }
        ]
    }
    document = {
        "pods": [{"name": "pair", "weight": 1, "claims": [{"devices": claim}]}],
        "arrivals": {"perHour": 50},
        "duration": {"fixed": "1000d"},
        "length": "10h",
        "warmUp": "1h",
    }
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(document))
    assert main(["fragmentation", str(path), "--node", "trn2.48xlarge=3", "-o", "json"]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["utilisation"] == 0.25
    assert run["placed"] == 0
    assert run["refused"] == run["refusedWithChipsFree"] > 300
    assert run["fragmentation"] == 0
    assert run["fragmentationBySize"] == {"4": 0, "8": pytest.approx(1 / 3, abs=1e-4), "16": 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "1"], "--seed and --policy go with --workload"),
        (["--policy", "all"], "--seed and --policy go with --workload"),
        (["--workload", "{file}", "pod.yaml"], "FILE does not go with --workload"),
        (["--workload", "{file}", "--objects", "-"], "--objects does not go with --workload"),
        (["--workload", "{file}", "--from-cluster"], "--from-cluster does not go with --workload"),
        (["--workload", "{file}", "--kubeconfig", "x"], "--kubeconfig does not go with --workload"),
    ],
)
def test_the_old_spelling_takes_what_it_took(
    arguments: list[str], says: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *(text.replace("{file}", file) for text in arguments)]) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith(f"error: {says}")
    assert errors.count("\n") == 1


def test_the_old_spelling_does_the_same_with_a_warning(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fragmentation", file, "--seed", "2", "-o", "json"]) == 0
    shown = capsys.readouterr().out
    assert main(["simulate", "--workload", file, "--seed", "2", "-o", "json"]) == 0
    old = capsys.readouterr()
    assert old.out == shown
    assert old.err.startswith("warning: simulate --workload FILE is now dra-driver fragmentation FILE")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{file}", "--seed", "one"], "--seed cannot be read: 'one'; give a number, or a range such as"),
        (["{file}", "--seed", "8-1"], "--seed 8-1: 1 to 100 ascending seeds"),
        (["{file}", "--seed", "1-101"], "--seed 1-101: 1 to 100 ascending seeds"),
        (["{file}", "--seed", "9999999999999999"], "--seed 9999999999999999: 1 to 100 ascending"),
        (["{file}", "--policy", "best"], "--policy 'best' is not known; give one of lowest-id,"),
        (["{file}", "--node", "trn9"], "unknown instance type 'trn9'"),
        (["{file}", "--node", "trn2u"], "node node-1 offers itself as one device"),
        (
            ["{file}", "--node", "inf2"],
            "{file}:12: pods[2]: kind half: count 8: no node has connected sets",
        ),
        (["{file}.none"], "{file}.none: No such file or directory"),
        (["\0"], "embedded null byte"),
    ],
)
def test_what_cannot_be_used_is_one_message_and_exit_status_2(
    arguments: list[str], says: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fragmentation", *(text.replace("{file}", file) for text in arguments)]) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert says.replace("{file}", file) in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("trn2.48xlarge", "trn9.48xlarge", "{file}:2: nodes.trn9.48xlarge: unknown instance type 'trn9.48xlarge'"),
        (
            "nodes:\n  trn2.48xlarge: 2\n",
            "",
            "{file}: nodes is missing; write nodes: {trn2.48xlarge: 4}, or give --node",
        ),
        ("48xlarge: 2", "48xlarge: 10000\n  trn1.32xlarge: 10000\n  inf2.48xlarge: 1", "{file}: nodes: 20001 nodes"),
        ("count: 4", "count: 5", "{file}:7: pods[1]: kind row: count 5: no node has connected sets of this size"),
        ("count: 4", "count: four", "{file}:9: pods[1].count: Expected `int | null`, got `str`"),
        (
            "count: 4",
            "claims: [{devices: {requests: [{name: x, exactly: {deviceClassName: none}}]}}]",
            "{file}:7: pods[1]: kind row finds no room even while all chips are free: claim row-0, request x",
        ),
    ],
)
def test_a_wrong_file_is_one_message_with_its_place_and_exit_status_2(
    before: str, after: str, says: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text(SHORT.replace(before, after, 1))
    assert main(["fragmentation", file]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {says.replace('{file}', file)}")
    assert errors.count("\n") == 1


def test_the_examples_can_be_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = EXAMPLES / "workloads"
    files = sorted(folder.glob("*.yaml"))
    assert files
    for path in files:
        short = tmp_path / path.name
        short.write_text(path.read_text().replace("length: 30d", "length: 2d"))
        assert main(["fragmentation", str(short)]) == 0
        assert "2 d" in capsys.readouterr().out
