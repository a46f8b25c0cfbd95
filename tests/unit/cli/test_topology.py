"""``dra-driver topology``: facts, picture, judgement of a set, and what it does with bad input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.cli import topology
from dra_driver.cli.main import guarded, main
from dra_driver.cli.vocabulary import Entry
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.builders.documents import document as parsed
from tests.golden import golden


def command(*arguments: str) -> int:
    """Run the command as ``dra-driver`` does and return its exit status."""
    parser = argparse.ArgumentParser(prog="dra-driver")
    topology.register(Entry(parser.add_subparsers(), "topology"))
    args = parser.parse_args(["topology", *arguments])
    return guarded(lambda: topology.run(args))


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert command(*arguments, "-o", "json") == 0
    (found,) = parsed(capsys.readouterr().out)["items"]
    return found


def normal(text: str) -> str:
    """One blank between words, so that columns do not matter."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", INSTANCE_TYPES)
@pytest.mark.parametrize("output", ["text", "json"])
def test_every_type_can_be_shown(name: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(name, "-o", output) == 0
    shown = capsys.readouterr()
    assert name in shown.out
    assert shown.err == ""
    assert all(len(line) <= 102 for line in shown.out.splitlines())


def test_a_row_of_the_torus_is_shown_with_its_facts_picture_and_judgement(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ml.trn2.48xlarge", "--devices", "4,5,6,7") == 0
    shown = capsys.readouterr().out
    assert "[* 4*]===[* 5*]===[* 6*]===[* 7*]" in shown
    words = normal(shown)
    for fact in (
        "devices 16, Trainium2",
        "cores 8 physical each, 128 in all",
        "logical cores 4 a device (logical core size 1 or 2, default 2)",
        "memory 96 GiB each, 1536 GiB in all",
        "fabric 4x4 2D torus",
        "connected yes device group resource.aws.com/devicegroup4_id 671622785349fddf host indexes one run",
    ):
        assert fact in words
    assert words.index("[* 4*]") < words.index("devices 16"), "the picture is first"
    assert "4-7=671622785349fddf" not in words
    assert command("ml.trn2.48xlarge", "-o", "wide") == 0
    assert "4-7=671622785349fddf" in normal(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("trn2.48xlarge", "0,5"),
        ("trn2.48xlarge", "0,4"),
        ("trn2.48xlarge", "0,4"),
        ("trn2.48xlarge", "4,5"),
        ("inf2.48xlarge", "11,0"),
        ("trn3.48xlarge", "1,9"),
        ("trn2en.24xlarge", "1,2"),
        ("trn2.3xlarge", "0"),
    ],
)
def test_a_set_of_devices_is_judged(name: str, devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(name, "--devices", devices) == 0
    golden(normal(capsys.readouterr().out))


def test_what_was_concluded_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn3e.24xlarge", "-o", "wide") == 0
    golden(capsys.readouterr().out)


def test_json_gives_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, "trn2u.48xlarge", "--devices", "4-7")
    assert shown["instanceType"] == "trn2u.48xlarge"
    assert [chip["index"] for chip in shown["chips"]] == list(range(16))
    assert (shown["coresPerChip"], shown["memoryBytesPerChip"]) == (8, 103079215104)
    assert (shown["logicalCoreSizes"], shown["defaultLogicalCoreSize"]) == ([1, 2], 2)
    assert shown["fabric"]["type"] == "torus2d"
    eights = [members for members in shown["fabric"]["connectedSets"] if len(members) == 8]
    assert eights == [list(range(8)), list(range(8, 16))]
    assert shown["ultraserver"] == {"nodeCount": 4, "usableNodeCounts": [1, 2, 4], "links": "ring"}
    nothing = {"pciAddress": None, "numaNode": None, "state": None}
    assert shown["chips"][0] == {"index": 0, "neighbours": [1, 3, 4, 12], **nothing}
    assert shown["chosen"] == {
        "indexes": [4, 5, 6, 7],
        "connected": True,
        "vendorSet": True,
        "run": True,
        "group": {"attribute": "resource.aws.com/devicegroup4_id", "id": "671622785349fddf", "complete": True},
        "named": [],
    }


def test_json_says_null_for_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, "trn2p.48xlarge")
    assert (shown["chips"], shown["fabric"]["connectedSets"], shown["chosen"]) == (None, [], None)
    assert shown["deviceGroups"] == []


def test_the_picture_is_printed_as_svg(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn1.32xlarge", "--devices", "8-11", "-o", "svg") == 0
    marked = ET.fromstring(capsys.readouterr().out).iterfind(".//*[@class='device marked']")
    assert [group.attrib["data-device"] for group in marked] == ["8", "9", "10", "11"]


@pytest.mark.parametrize(
    "arguments",
    [
        (["trn2.48xlrge"], "did you mean trn2.48xlarge"),
        (["p5.48xlarge"], "unknown instance type 'p5.48xlarge'"),
        (["trn2.48xlarge", "--devices", "16"], "device indexes go from 0 to 15"),
        (["trn2.48xlarge", "--devices", "0-9999"], "device indexes go from 0 to 15"),
        (["trn2.48xlarge", "--devices", "4,4"], "device 4 is named more than once"),
        (["trn2.48xlarge", "--devices", "7-4"], "write 4-7"),
        (["trn2.48xlarge", "--devices", ""], "cannot be read at ''"),
        (["trn2.48xlarge", "--devices", "4,,5"], "cannot be read at ''"),
        (["trn2.48xlarge", "--devices", "--4"], "expected one argument"),
        (["trn2.48xlarge", "--devices=-4"], "cannot be read at '-4'"),
        (["trn2.48xlarge", "--devices", "four"], "give indexes and ranges: 4,5,6,7 or 4-7"),
        (["trn2.48xlarge", "--devices", "\N{ARABIC-INDIC DIGIT FOUR}"], "cannot be read"),
        (["trn2.48xlarge", "--devices", "0," * 5000], "cannot be read"),
        (["trn2p.48xlarge", "--devices", "0"], "not public"),
    ],
)
def test_bad_input_ends_with_status_2_and_says_what_is_legal(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = command(*arguments)
    except SystemExit as exit_of_argparse:
        status = int(str(exit_of_argparse.code))
    shown = capsys.readouterr()
    assert status == 2
    golden(shown.err)
    assert shown.out == ""
    assert len(shown.err) < 2500


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=20), devices=st.text(max_size=20))
def test_no_input_ends_in_a_traceback(name: str, devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    real = name if name in INSTANCE_TYPES else "inf2.48xlarge"
    assert command("-o=text", f"--devices={devices}", "--", real) in (0, 2)
    assert command("-o=text", "--", name) in (0, 2)
    capsys.readouterr()


@given(st.lists(st.integers(0, 15), min_size=1, unique=True))
def test_devices_are_read_as_written(indexes: list[int]) -> None:
    assert topology.parse_devices(",".join(map(str, indexes))) == tuple(indexes)
    assert topology.parse_devices(" , ".join(f"{index}-{index}" for index in indexes)) == tuple(indexes)


def test_the_help_text_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command("--help")
    assert caught.value.code == 0
    golden(capsys.readouterr().out)


# Sick chips


@pytest.fixture(scope="module")
def sick_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sick") / "host"
    faults = ("--fault", "hbm-uncorrectable@3", "--fault", "hbm-unhealthy@5")
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", *faults, str(root)]) == 0
    return root


def test_a_host_is_drawn_with_its_sick_chips_and_what_is_wrong(
    sick_host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["topology", "--host-root", str(sick_host), "--devices", "4-7"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("trn2.48xlarge\n")
    golden(shown)

    assert main(["topology", "--host-root", str(sick_host), "-o", "json"]) == 0
    (node,) = parsed(capsys.readouterr().out)["items"]
    states = {chip["index"]: chip["state"] for chip in node["chips"]}
    assert states == dict.fromkeys(range(16), "healthy") | {3: "unhealthy", 5: "unhealthy"}
    assert main(["topology", "--host-root", str(sick_host), "-o", "svg"]) == 0
    assert '<g class="device unhealthy" data-device="3">' in capsys.readouterr().out


def test_a_node_is_drawn_by_the_taints_of_its_slices(
    sick_host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["slices", "--host-root", str(sick_host), "--node-name", "node-1"]) == 0
    file = tmp_path / "slices.yaml"
    file.write_text(capsys.readouterr().out)
    forged = file.read_text().replace("nodeName: node-1", "nodeName: evil")
    file.write_text(f"{file.read_text()}---\n{forged}")
    assert main(["topology", "-f", str(file)]) == 0, "a node in whose name there are only slices of another one's pool"
    shown = capsys.readouterr().out
    golden(shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trn2.48xlarge", "-f", "FILE"],
        ["-f", "FILE", "--node-name", "other"],
        ["-f", "EMPTY"],
        ["--host-root", "NOWHERE"],
    ],
)
def test_a_node_that_cannot_be_drawn_is_said(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", "node-1"]) == 0
    (tmp_path / "FILE").write_text(capsys.readouterr().out)
    (tmp_path / "EMPTY").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    given = [str(tmp_path / one) if one.isupper() else one for one in arguments]
    assert main(["topology", *given]) == 2
    golden(capsys.readouterr().err)


# Cores and groups


def test_what_a_node_offers_is_listed_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn2.48xlarge", "--partitions", "chip.core.group.node") == 0
    words = normal(capsys.readouterr().out)
    for row in (
        "offered with --partitions chip.core.group.node groups of 4 neuron-group4-0 (0-3), neuron-group4-1 (4-7)",
        "groups of 8 neuron-group8-0 (0-7), neuron-group8-1 (8-15)",
        "chips neuron-device-0 to 15",
        "whole node neuron-node",
        "cores 4 on each device (logical core size 2): neuron-core-0-0 to 3, neuron-core-1-0 to 3",
        "in all 87 devices; devices that share hardware exclude each other",
    ):
        assert row in words
    assert command("inf2.48xlarge", "--partitions", "core") == 0
    golden(normal(capsys.readouterr().out))
    assert command("inf2.48xlarge", "--partitions", "group3") == 0
    golden(normal(capsys.readouterr().out))


def test_a_picture_has_the_cores_and_aligned_groups_that_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn2.48xlarge", "--partitions", "core.group", "-o", "svg") == 0
    root = ET.fromstring(capsys.readouterr().out)
    outlined = [group.attrib["data-group"] for group in root.iter() if "data-group" in group.attrib]
    assert sorted(outlined) == [*(f"neuron-group4-{row}" for row in range(4)), "neuron-group8-0", "neuron-group8-1"]
    assert sum(box.attrib.get("class") == "core" for box in root.iter()) == 64 + 1, "the cores and the legend's"
    assert command("trn2.48xlarge", "--partitions", "core") == 0
    assert capsys.readouterr().out.count("          ....     ....     ....     ....\n") == 4


def test_devices_are_marked_and_judged_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn2.48xlarge", "--devices", "neuron-core-3-1,neuron-group4-1,0") == 0
    shown = capsys.readouterr().out
    assert "[* 0*]---(  1 )---(  2 )---[+ 3+]" in shown
    assert "[* 4*]===[* 5*]===[* 6*]===[* 7*]" in shown
    words = normal(shown)
    golden(words)
    item = as_json(capsys, "trn2.48xlarge", "--devices", "neuron-core-3-1", "--partitions", "group8")
    assert item["chosen"]["named"] == [
        {"device": "neuron-core-3-1", "resourceType": "neuron_core", "chips": [{"index": 3, "cores": [2, 3]}]}
    ]
    assert [device["device"] for device in item["offered"]] == ["neuron-group8-0", "neuron-group8-1"]
    assert item["offered"][0]["chips"][0] == {"index": 0, "cores": None}
    assert item["chosen"]["indexes"] == [3]


@pytest.mark.parametrize(
    "devices",
    [
        "neuron-core-3-4",
        "neuron-device-16",
        "neuron-group2-0",
        "neuron-",
        "chips",
        "group1",
    ],
)
def test_devices_that_a_type_does_not_have_are_refused(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trn2.48xlarge", "--devices", devices) == 2
    golden(capsys.readouterr().err)


def test_a_node_is_drawn_with_what_claims_hold_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", "n", "--partitions", "chip.core.group"]) == 0
    )
    results = [
        {"request": "r", "driver": "neuron.aws.com", "pool": pool, "device": device, "adminAccess": admin}
        for pool, device, admin in (
            ("n", "neuron-core-1-2", False),
            ("n", "neuron-group4-2", False),
            ("n", "neuron-device-15", True),
            ("other", "neuron-device-14", False),
        )
    ]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}]}
        },
        "status": {"allocation": {"devices": {"results": results}}},
    }
    file = tmp_path / "objects.yaml"
    file.write_text(f"{capsys.readouterr().out}---\n{json.dumps(claim)}\n")
    assert main(["topology", "-f", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "(  0 )---[+ 1+]---(  2 )---(  3 )" in shown
    assert "          ....     ..#.     ....     ....\n" in shown
    assert "[* 8*]===[* 9*]===[*10*]===[*11*]" in shown
    assert "( 12 )---( 13 )---( 14 )---( 15 )" in shown
    golden(shown)
    assert main(["topology", "-f", str(file), "-o", "json"]) == 0
    assert parsed(capsys.readouterr().out)["items"][0]["allocatedDevices"] == ["neuron-core-1-2", "neuron-group4-2"]
    assert main(["topology", "-f", str(file), "--partitions", "core"]) == 2
    golden(capsys.readouterr().err)
