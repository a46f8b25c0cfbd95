"""``dra-driver emulate-host`` as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.options import ECC_FILES
from dra_driver.neuron.host.discover import discover
from tests.golden import golden

HARDWARE = "sys/devices/virtual/neuron_device/neuron5/stats/hardware"


def test_the_host_is_written_and_the_next_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "a host"
    assert main(["emulate-host", "--instance-type", "ml.trn2.48xlarge", str(directory)]) == 0

    lines = capsys.readouterr().out.splitlines()
    golden(lines[0])
    golden(lines[1])
    golden(lines[2])
    golden(lines[3])
    assert len(discover(directory).devices) == 16


def test_all_options_reach_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--instance-type trn2u --emulated-driver-version 2.30.9.0 --missing 3,7 --ecc 5:sram=1,mem=2 "
        "--ecc 5:repairable=3 --logical-core-size 1 --ultraserver-modes X2H,X1 --server-id 2=00000000000000aa "
        "--node-id 2=1"
    )
    assert main(["emulate-host", *arguments.split(), str(tmp_path)]) == 0

    inventory = discover(tmp_path)
    assert (inventory.instance_type, inventory.driver_version) == ("trn2u.48xlarge", "2.30.9.0")
    assert (len(inventory.devices), inventory.device(3), inventory.default_lnc) == (14, None, 1)
    names = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")
    assert [(tmp_path / HARDWARE / name).read_text() for name in names] == ["1\n", "2\n", "3\n"]
    files = ("ultraserver_mode", "server_id_2", "node_id_2", "node_id_4")
    values = [(tmp_path / "sys/class/neuron_device" / name).read_text() for name in files]
    assert values == ["2,4\n", "00000000000000aa\n", "1\n", "-1\n"]
    golden(capsys.readouterr().out)


def test_the_help_names_every_counter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["emulate-host", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"ECC counters of device N: {', '.join(ECC_FILES)} (repeatable)" in said


def test_a_negative_node_id_and_an_empty_mode_list_are_values(tmp_path: Path) -> None:
    arguments = ["--instance-type", "trn2u", "--ultraserver-modes", "", "--node-id", "4=-1", str(tmp_path)]
    assert main(["emulate-host", *arguments]) == 0

    assert (tmp_path / "sys/class/neuron_device/ultraserver_mode").read_text() == "\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--instance-type", "trn9"],
        ["--instance-type", "trn2p.48xlarge"],
        ["--instance-type", "trn2", "--missing", "x"],
        ["--instance-type", "trn2", "--missing", "1,,2"],
        ["--instance-type", "trn2", "--missing", "99"],
        ["--instance-type", "trn2", "--missing", "1," * 300],
        ["--instance-type", "trn2", "--missing", "٣"],
        ["--instance-type", "trn2", "--ecc", "5"],
        ["--instance-type", "trn2", "--ecc", "5:sram"],
        ["--instance-type", "trn2", "--ecc", "5:sram=a"],
        ["--instance-type", "trn2", "--ecc", "5:dram=1"],
        ["--instance-type", "trn2", "--logical-core-size", "3"],
        ["--instance-type", "trn2", "--logical-core-size", "two"],
        ["--instance-type", "trn2", "--emulated-driver-version", "new"],
        ["--instance-type", "trn2", "--busy"],
        ["--instance-type", "trn2u", "--node-id", "4"],
        ["--instance-type", "trn2u", "--ultraserver-modes", "X4,1"],
        ["--instance-type", "trn2u", "--server-id", "4=xyz"],
    ],
)
def test_bad_input_is_exit_status_2_with_a_text_and_writes_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate-host", *arguments, str(tmp_path / "host")]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    golden(captured.err)
    assert not (tmp_path / "host").exists()


def test_a_directory_of_someone_elses_is_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("mine")
    assert main(["emulate-host", "--instance-type", "trn2", str(tmp_path)]) == 2

    golden(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
