"""Emulated hosts that know nothing of each other make up whole UltraServers."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.cli.daemon import emulated_host
from dra_driver.cli.kubelet_plugin import read_settings
from dra_driver.cli.main import main
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.running import EmulatedHost
from dra_driver.neuron.emulation.tree import TextFile, host_files
from dra_driver.neuron.emulation.ultraservers import Servers, node_number
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.inventory import Membership, ServerSet
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError, UsageError
from tests.golden import golden, golden_error

TRN2U, TRN3, TRN2 = (INSTANCE_TYPES[name] for name in ("trn2u.48xlarge", "trn3.48xlarge", "trn2.48xlarge"))


def member(
    servers: str, number: int, kind: str = "trn2u.48xlarge", options: EmulationOptions | None = None
) -> Membership:
    """What a driver reads on that host; of the host only the files that matter are written."""
    row = INSTANCE_TYPES[kind]
    tree = host_files(row, Servers.parse(servers).options(row, number, options))
    with tempfile.TemporaryDirectory() as directory:
        for path, entry in tree.items():
            parts = path.split("/")
            if isinstance(entry, TextFile) and (parts[1] != "devices" or "dmi" in parts):
                (Path(directory) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(directory) / path).write_text(entry.text)
        inventory = discover(Path(directory))
    assert inventory.ultraserver is not None
    assert {finding.code for finding in inventory.findings} <= {"no-devices", "ultraserver-incomplete"}
    return inventory.ultraserver


def test_eight_nodes_are_two_servers_of_two_pairs_each() -> None:
    found = [member("2x4", number) for number in range(1, 9)]
    assert all(one.modes == (Mode.X4, Mode.X2V, Mode.X1) for one in found)
    fours = [(one.server_id, one.node_id) for of in found if (one := of.set_for(4))]
    pairs = [(one.server_id, one.node_id) for of in found if (one := of.set_for(2))]
    first, second = "1a2b3c4d5e6f7081", "1a2b3c4d5e6f7091"
    assert fours == [(first, 0), (first, 1), (first, 2), (first, 3), (second, 0), (second, 1), (second, 2), (second, 3)]
    below_first, below_second = "1a2b3c4d5e6f7080", "1a2b3c4d5e6f7090"
    assert [server for server, _ in pairs] == [first] * 2 + [below_first] * 2 + [second] * 2 + [below_second] * 2
    assert [node for _, node in pairs] == [0, 1] * 4


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(1, 4), st.sampled_from([2, 4]), st.sampled_from(["trn2u.48xlarge", "trn3.48xlarge"]))
def test_every_set_is_complete_and_of_its_own_id(servers: int, nodes: int, kind: str) -> None:
    places: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number in range(1, servers * nodes + 1):
        for one in member(f"{servers}x{nodes}", number, kind).sets:
            places[one.nodes, one.server_id].append(one.node_id)
    assert all(ids == list(range(size)) for (size, _), ids in places.items())
    assert sum(size == nodes for size, _ in places) == servers


def test_what_is_said_of_a_place_already_stays() -> None:
    given_ = EmulationOptions(driver_version="2.26.10.0", ultraserver_modes=(Mode.X1,), node_ids={4: -1})
    options = Servers(2, 4).options(TRN2U, 6, given_)
    assert (options.driver_version, options.ultraserver_modes, options.node_ids) == ("2.26.10.0", (Mode.X1,), {4: -1})
    assert options.server_ids == {}


@pytest.mark.parametrize(
    ("modes", "number", "sets"),
    [
        ((Mode.X2V, Mode.X1), 5, (ServerSet(2, "1a2b3c4d5e6f7091", 0),)),
        ((Mode.X2H, Mode.X1), 8, (ServerSet(2, "1a2b3c4d5e6f7090", 1),)),
        ((Mode.X1,), 8, ()),
    ],
)
def test_a_node_may_be_one_of_a_server_that_is_not_whole(
    modes: tuple[Mode, ...], number: int, sets: tuple[ServerSet, ...]
) -> None:
    found = member("2x4", number, options=EmulationOptions(ultraserver_modes=modes))
    assert (found.modes, found.sets) == (modes, sets)


@pytest.mark.parametrize(
    "text", ["", "2x3", "0x4", "x4", "2x", "2X4", "2x4x2", "2x4\n", "-2x4", "٢x4", "99999x4", "2x1"]
)
def test_other_forms_are_refused(text: str) -> None:
    with golden_error(DriverError):
        Servers.parse(text)


@pytest.mark.parametrize("number", [-1, 0, 9, 10**6])
def test_a_number_beyond_the_servers_is_refused(number: int) -> None:
    with golden_error(DriverError):
        Servers(2, 4).options(TRN2U, number)


def test_a_type_that_is_no_part_of_an_ultraserver_is_refused() -> None:
    with golden_error(DriverError):
        Servers(2, 4).options(TRN2, 1)


@pytest.mark.parametrize(("name", "number"), [("node-1", 1), ("lab-n12", 12), ("007", 7), ("a.b-3", 3)])
def test_a_nodes_number_ends_its_name(name: str, number: int) -> None:
    assert node_number(name) == number


@pytest.mark.parametrize("name", ["", "node", "node-1a", "1-node", "node-٣", "node-1\n"])
def test_a_name_without_number_has_no_place(name: str) -> None:
    with golden_error(DriverError):
        node_number(name)


def test_the_command_writes_one_node_of_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["emulate-host", "--instance-type", "trn2u", "--emulated-ultraservers", "2x4", "--node-number", "7"]
    assert main([*arguments, str(tmp_path)]) == 0
    place = (
        "UltraServer: modes X4, X2V, X1; node 0 of 2 in server 1a2b3c4d5e6f7090; node 2 of 4 in server 1a2b3c4d5e6f7091"
    )
    assert place in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--emulated-ultraservers", "2x4"],
        ["--node-number", "1"],
        ["--emulated-ultraservers", "2x4", "--node-number", "9"],
        ["--emulated-ultraservers", "2by4", "--node-number", "1"],
        ["--emulated-ultraservers", "2x4", "--node-number", "one"],
    ],
)
def test_bad_places_are_exit_status_2_and_write_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate-host", "--instance-type", "trn2u", *arguments, str(tmp_path / "host")]) == 2
    golden(capsys.readouterr().err)
    assert not (tmp_path / "host").exists()


def agents_host(node_name: str, root: Path) -> EmulatedHost:
    given = {"emulate": "trn2u.48xlarge", "emulated_ultraservers": "2x4", "emulation_root": str(root)}
    settings, emulation = read_settings({"node_name": node_name, **given}, {})
    return emulated_host(emulation, settings.node_name, emulation.ultraservers)


def test_the_node_agent_takes_its_place_from_its_nodes_name(tmp_path: Path) -> None:
    host = agents_host("node-8", tmp_path / "host")
    assert discover(host.root).ultraserver == member("2x4", 8)


def test_the_node_agent_refuses_a_place_that_is_not_there(tmp_path: Path) -> None:
    with golden_error(UsageError):
        agents_host("worker", tmp_path / "host")
    with golden_error(UsageError):
        read_settings({"node_name": "node-1"}, {"EMULATED_ULTRASERVERS": "2x4"})
