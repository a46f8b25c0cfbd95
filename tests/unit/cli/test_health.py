"""``dra-driver health`` shows what the host says and what the driver remembers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_driver.cli.main import main
from dra_driver.emulation.writer import EmulationOptions, write_host
from dra_driver.health.assess import ChipMemory, Memory, Track
from dra_driver.health.memory import MemoryFile
from dra_driver.host.discover import boot_id
from dra_driver.topology.instance_types import INSTANCE_TYPES


@pytest.fixture
def host(tmp_path: Path) -> Path:
    options = EmulationOptions(ecc={1: {"mem": 3, "repairable": 1}}, driver_version="2.24.7.0")
    write_host(tmp_path / "host", INSTANCE_TYPES["inf2.24xlarge"], options)
    return tmp_path / "host"


def test_the_document_has_every_device_and_its_faults(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--host-root", str(host), "--state-dir", str(host / "none"), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [(device["device"], device["state"]) for device in found[:3]] == [
        ("neuron0", "healthy"),
        ("neuron1", "unhealthy"),
        ("neuron2", "healthy"),
    ]
    assert [{**fault, "since": ""} for fault in found[1]["faults"]] == [
        {"code": code, "severity": "unhealthy", "since": "", "effect": "NoSchedule", "remedy": remedy}
        for code, remedy in (("hbm-uncorrectable", "replacement"), ("hbm-repairable", "driver-reload"))
    ]


def test_the_table_has_a_line_for_each_fault_and_says_what_to_do(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--host-root", str(host), "--state-dir", str(host / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["DEVICE", "STATE", "FAULT", "SEVERITY", "SINCE", "EFFECT", "REMEDY"]
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["neuron1", "unhealthy", "hbm-uncorrectable"],
        ["neuron1", "unhealthy", "hbm-repairable"],
    ]
    assert lines[-2].endswith("(3 errors); drain the node and replace the instance")


def test_what_the_driver_remembers_is_shown_with_its_time_and_nothing_is_written(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    record = MemoryFile(state)
    tracks = {"log-dma": Track(1_800_000_000, 1_800_000_000)}
    record.write(Memory(boot_id(host), "2.24.7.0", (ChipMemory(0, None, tracks),)))
    before = (state / "health.json").read_bytes()
    assert main(["health", "--host-root", str(host), "--state-dir", str(state), "-o", "json"]) == 0
    (fault,) = json.loads(capsys.readouterr().out)["devices"][0]["faults"]
    assert (fault["code"], fault["since"]) == ("log-dma", "2027-01-15T08:00:00Z")
    assert (state / "health.json").read_bytes() == before
    assert [path.name for path in state.iterdir()] == ["health.json"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--host-root", "{tmp}/none"], 2, "is no directory"),
        (["--host-root", "{tmp}"], 1, "there is no Neuron device"),
        (["clear", "neuronX", "--state-dir", "{tmp}"], 2, "'neuronX' is no device"),
        (["clear", "neuron3", "--state-dir", "{tmp}/none"], 1, "cannot be used"),
    ],
)
def test_what_is_not_possible_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    assert main(["health", *(word.format(tmp=tmp_path) for word in arguments)]) == status
    assert text in capsys.readouterr().err
