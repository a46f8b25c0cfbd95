"""What the class files of both platforms mean, in every state in which a host can show them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.tree import TextFile, host_files
from dra_driver.neuron.host import sysfs
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.ultraserver import PREFERENCE, Mode, mode_for, parse_modes
from dra_driver.util.errors import DriverError
from tests.generators.effort import examples
from tests.golden import golden, golden_error

CLASS = "sys/class/neuron_device"
SERIAL, BELOW, NONE = "1a2b3c4d5e6f7081", "1a2b3c4d5e6f7080", "0" * 16
HEALTHY = {
    "node_id_2": "0",
    "node_id_4": "2",
    "server_id_2": BELOW,
    "server_id_4": SERIAL,
    "ultraserver_mode": "1,3,4",
}
BUSY = {"node_id_2": "busy", "node_id_4": "busy", "server_id_2": NONE, "server_id_4": NONE, "ultraserver_mode": "busy"}
ALONE = {"node_id_2": "-1", "node_id_4": "-1", "server_id_2": NONE, "server_id_4": NONE, "ultraserver_mode": "4"}
RESERVED = {"node_id": "3", "node_cnt": "4", "reservation_id": SERIAL, "ultraserver_mode": "1,3,4"}
RENAMED = {**HEALTHY, "node_id_4": "3", "server_id_4": "00000000000000aa", "server_id_2": "00000000000000a9"}
PAIR, FOUR = ServerSet(2, BELOW, 0), ServerSet(4, SERIAL, 2)
MEMBER = Membership((Mode.X4, Mode.X2V, Mode.X1), (PAIR, FOUR), elected=True)


def write(root: Path, files: Mapping[str, str | bytes], kind: str = "trn2u.48xlarge") -> None:
    """A host of which only type, kernel driver and class files are there."""
    others = {"sys/devices/virtual/dmi/id/product_name": kind, "sys/module/neuron/version": "2.30.2.0"}
    for path, content in {**others, **{f"{CLASS}/{name}": text for name, text in files.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def member(inventory: NodeInventory) -> Membership:
    assert inventory.ultraserver is not None
    return inventory.ultraserver


def findings(inventory: NodeInventory) -> dict[str, str]:
    """Code to text of what is said about the UltraServer."""
    return {one.code: one.text for one in inventory.findings if one.code.startswith("ultraserver-")}


def read(root: Path, files: Mapping[str, str | bytes], kind: str = "trn2u.48xlarge") -> NodeInventory:
    write(root, files, kind)
    return discover(root)


def test_a_node_of_a_healthy_server_knows_pair_and_four(tmp_path: Path) -> None:
    inventory = read(tmp_path, HEALTHY)
    assert member(inventory) == MEMBER
    assert findings(inventory) == {}
    assert not inventory.settling


@pytest.mark.parametrize(
    ("files", "modes", "sets", "said"),
    [
        (ALONE, (Mode.X1,), (), {"ultraserver-incomplete"}),
        (dict.fromkeys(HEALTHY, ""), (), (), {"ultraserver-incomplete"}),
        (
            {**ALONE, "node_id_2": "1", "server_id_2": SERIAL, "ultraserver_mode": "3,4"},
            (Mode.X2V, Mode.X1),
            (ServerSet(2, SERIAL, 1),),
            {"ultraserver-incomplete"},
        ),
        (
            {**ALONE, "node_id_2": "1", "server_id_2": SERIAL, "ultraserver_mode": "2,4"},
            (Mode.X2H, Mode.X1),
            (ServerSet(2, SERIAL, 1),),
            {"ultraserver-incomplete"},
        ),
        ({**HEALTHY, "ultraserver_mode": "1,4"}, (Mode.X4, Mode.X1), (PAIR, FOUR), {"ultraserver-link-down"}),
        ({**HEALTHY, "ultraserver_mode": "4"}, (Mode.X1,), (PAIR, FOUR), {"ultraserver-link-down"}),
        ({**HEALTHY, "ultraserver_mode": "0,4,1, 3"}, MEMBER.modes, (PAIR, FOUR), set()),
        ({**HEALTHY, "server_id_4": SERIAL.upper()}, MEMBER.modes, (PAIR, FOUR), set()),
    ],
)
def test_each_result_of_an_election_is_told(
    files: dict[str, str], modes: tuple[Mode, ...], sets: tuple[ServerSet, ...], said: set[str], tmp_path: Path
) -> None:
    inventory = read(tmp_path, files)
    assert member(inventory) == Membership(modes, sets, elected=True)
    assert findings(inventory).keys() == said
    assert not inventory.settling


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("content", ["-2", "4x", "99999", "1,2,3,", "zzzz", b"\xff\xfe", b"9" * 70000, "٣", "7"])
def test_what_cannot_be_used_counts_as_not_there_and_is_said(name: str, content: str | bytes, tmp_path: Path) -> None:
    inventory = read(tmp_path, {**HEALTHY, name: content})
    odd = findings(inventory)["ultraserver-value-odd"]
    assert name in odd
    assert len(odd) < 600
    size = int(name[-1]) if name[-1].isdigit() else 0
    assert member(inventory).sets == tuple(one for one in (PAIR, FOUR) if one.nodes != size)
    assert member(inventory).modes == (() if size == 0 else MEMBER.modes)


def test_ids_that_contradict_each_other_are_no_server(tmp_path: Path) -> None:
    inventory = read(tmp_path, {**HEALTHY, "server_id_4": NONE})
    assert member(inventory).sets == (PAIR,)
    golden(findings(inventory)["ultraserver-value-odd"])


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    inventory = read(tmp_path, {name: text for name, text in HEALTHY.items() if name != "node_id_4"})
    assert member(inventory).sets == (PAIR,)
    golden(findings(inventory)["ultraserver-value-odd"])


def test_no_file_at_all_means_that_the_server_is_not_known(tmp_path: Path) -> None:
    inventory = read(tmp_path, {})
    assert member(inventory) == Membership((), (), elected=True)
    assert findings(inventory).keys() == {"ultraserver-files-missing"}
    assert member(read(tmp_path, {}, "trn3.48xlarge")) == Membership((), (), elected=False)


def test_without_kernel_driver_nothing_more_is_said(tmp_path: Path) -> None:
    write(tmp_path, HEALTHY)
    (tmp_path / "sys/module/neuron/version").unlink()
    inventory = discover(tmp_path)
    assert member(inventory) == Membership((), (), elected=True)
    assert findings(inventory) == {}


@pytest.mark.parametrize(
    ("files", "modes", "sets", "said"),
    [
        (RESERVED, MEMBER.modes, (ServerSet(4, SERIAL, 3),), set()),
        (
            {**RESERVED, "node_cnt": "2", "node_id": "1", "ultraserver_mode": "3,4"},
            (Mode.X2V, Mode.X1),
            (ServerSet(2, SERIAL, 1),),
            {"ultraserver-incomplete"},
        ),
        ({**RESERVED, "node_cnt": "36", "node_id": "35"}, MEMBER.modes, (ServerSet(36, SERIAL, 35),), set()),
        ({**RESERVED, "node_cnt": "1", "node_id": "0"}, MEMBER.modes, (), {"ultraserver-incomplete"}),
        ({**RESERVED, "node_cnt": "0"}, MEMBER.modes, (), {"ultraserver-incomplete"}),
        ({**RESERVED, "node_id": "-1", "reservation_id": NONE}, MEMBER.modes, (), {"ultraserver-incomplete"}),
        ({**RESERVED, "node_id": "4"}, MEMBER.modes, (), {"ultraserver-incomplete", "ultraserver-value-odd"}),
        ({**RESERVED, "ultraserver_mode": ""}, (), (ServerSet(4, SERIAL, 3),), set()),
    ],
)
def test_the_firmware_tells_one_set(
    files: dict[str, str], modes: tuple[Mode, ...], sets: tuple[ServerSet, ...], said: set[str], tmp_path: Path
) -> None:
    inventory = read(tmp_path, files, "trn3.48xlarge")
    assert member(inventory) == Membership(modes, sets, elected=False)
    assert findings(inventory).keys() == said


def test_a_part_of_the_firmwares_server_goes_by_its_ids(tmp_path: Path) -> None:
    found = member(read(tmp_path, RESERVED, "trn3.48xlarge"))
    assert found.set_for(2) == found.set_for(4) == ServerSet(4, SERIAL, 3)
    assert MEMBER.set_for(2) == PAIR
    assert replace(MEMBER, sets=(FOUR,)).set_for(2) is None


@pytest.mark.parametrize(
    ("kind", "files", "elected"), [("trn3.48xlarge", HEALTHY, True), ("trn2u.48xlarge", RESERVED, False)]
)
def test_the_other_form_is_read_where_only_that_is_there(
    kind: str, files: dict[str, str], elected: bool, tmp_path: Path
) -> None:
    found = member(read(tmp_path, files, kind))
    assert found.elected is elected
    assert found.set_for(4) is not None


def test_with_both_forms_the_instance_type_decides(tmp_path: Path) -> None:
    assert member(read(tmp_path, HEALTHY | RESERVED, "trn3.48xlarge")).sets == (ServerSet(4, SERIAL, 3),)


@pytest.mark.parametrize("kind", ["trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "trn9.48xlarge"])
@pytest.mark.parametrize("files", [HEALTHY, ALONE, BUSY, dict.fromkeys(HEALTHY, ""), RESERVED])
def test_files_on_a_host_that_is_no_ultraserver_mean_nothing(kind: str, files: dict[str, str], tmp_path: Path) -> None:
    inventory = read(tmp_path, files, kind)
    assert inventory.ultraserver is None
    assert findings(inventory) == {}
    assert not inventory.settling


@pytest.mark.parametrize("name", HEALTHY)
def test_an_election_shows_no_modes_and_keeps_the_sets_of_before(name: str, tmp_path: Path) -> None:
    before = read(tmp_path, HEALTHY)
    write(tmp_path, {**HEALTHY, name: "busy"})
    during = discover(tmp_path, {}, before)
    assert member(during) == Membership((), (PAIR, FOUR), elected=True, electing=True)
    assert during.settling
    assert findings(during).keys() == {"ultraserver-electing"}

    still = discover(tmp_path, {}, during)
    assert still == during

    write(tmp_path, ALONE)
    after = discover(tmp_path, {}, still)
    assert member(after) == Membership((Mode.X1,), (), elected=True)
    assert not after.settling


def test_an_election_at_start_has_no_sets(tmp_path: Path) -> None:
    assert member(read(tmp_path, BUSY)) == Membership((), (), elected=True, electing=True)


@pytest.mark.parametrize(("first", "then"), [(HEALTHY, BUSY), (BUSY, HEALTHY), (BUSY, ALONE), (HEALTHY, RENAMED)])
@pytest.mark.parametrize("after", range(12))
def test_a_change_in_the_midst_of_a_scan_is_never_mixed_up(
    first: dict[str, str], then: dict[str, str], after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel driver's state changes at once, after some of the files have been read."""
    before = read(tmp_path, HEALTHY)
    states = [member(read(tmp_path, state)) for state in (first, then)]
    whole = [replace(state, sets=(PAIR, FOUR)) if state.electing else state for state in states]
    write(tmp_path, first)
    really, reads = sysfs._read_all, 0

    def counting(path: str) -> bytes:
        nonlocal reads
        reads += CLASS in path
        if reads == after:
            write(tmp_path, then)
        return really(path)

    monkeypatch.setattr(sysfs, "_read_all", counting)
    scanned = discover(tmp_path, {}, before)
    monkeypatch.undo()
    assert member(scanned) in (*whole, Membership((), (PAIR, FOUR), elected=True, electing=True))
    assert scanned.settling == member(scanned).electing


TEXTS = st.one_of(
    st.sampled_from(["busy", "", "-1", "0", "1", "2", "3", "4", NONE, SERIAL, BELOW, "1,3,4", "3,4", "4", "9", "0x1"]),
    st.text(max_size=20),
    st.binary(max_size=20),
)
NAMES = sorted({*HEALTHY, *RESERVED})


@settings(max_examples=examples(150))
@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS),
    st.sampled_from(["trn2u.48xlarge", "trn3.48xlarge", "trn3e.24xlarge"]),
    st.booleans(),
)
def test_whatever_the_files_say_what_is_told_holds_together(
    files: dict[str, str | bytes], kind: str, after_healthy: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root, {})
        known = replace(discover(root), ultraserver=MEMBER) if after_healthy else None
        write(root, files, kind)
        inventory = discover(root, {}, known)
        again = discover(root, {}, inventory)
    found = member(inventory)
    assert again == inventory
    assert found.electing == inventory.settling
    assert list(found.modes) == [mode for mode in PREFERENCE if mode in found.modes]
    if found.electing:
        assert found.modes == ()
        assert found.sets == (MEMBER.sets if known is not None else ())
    else:
        for one in found.sets:
            assert one.nodes > 1
            assert 0 <= one.node_id < one.nodes
            assert int(one.server_id, 16) != 0
            assert len(one.server_id) == 16
        assert [one.nodes for one in found.sets] == sorted({one.nodes for one in found.sets})
    for finding in inventory.findings:
        assert "\n" not in finding.text


@settings(max_examples=examples(60))
@given(st.sets(st.sampled_from(list(Mode))), st.integers(-1, 3))
def test_what_is_emulated_is_what_is_read(modes: set[Mode], four: int) -> None:
    wanted = tuple(mode for mode in PREFERENCE if mode in modes)
    options = EmulationOptions(ultraserver_modes=wanted, node_ids={4: four} if Mode.X4 in modes else {})
    tree = host_files(INSTANCE_TYPES["trn2u.48xlarge"], options)
    files = {name: entry.text for name in HEALTHY if isinstance(entry := tree[f"{CLASS}/{name}"], TextFile)}
    with tempfile.TemporaryDirectory() as directory:
        found = member(read(Path(directory), files))
    assert found.modes == wanted
    assert (found.set_for(4) is not None) == (Mode.X4 in modes and four >= 0)
    assert (found.set_for(2) is not None) == bool({Mode.X2V, Mode.X2H} & modes)


def test_modes_print_and_parse_by_name() -> None:
    for mode in Mode:
        assert parse_modes(str(mode)) == (mode,)
    assert parse_modes("X1, X2H,X4") == (Mode.X4, Mode.X2H, Mode.X1)
    assert parse_modes("") == ()
    with golden_error(DriverError):
        parse_modes("3")


@given(st.sets(st.sampled_from(list(Mode))), st.sampled_from([1, 2, 4]))
def test_a_number_of_nodes_takes_the_vertical_link_before_the_horizontal_one(modes: set[Mode], nodes: int) -> None:
    found = mode_for(nodes, tuple(modes))
    if found is None:
        assert all(mode.nodes != nodes for mode in modes)
    else:
        assert found in modes
        assert found.nodes == nodes
        assert found is not Mode.X2H or Mode.X2V not in modes


@pytest.mark.parametrize("files", [ALONE, {**HEALTHY, "node_id_4": "7"}], ids=["alone", "no such node"])
def test_what_is_said_of_a_node_without_its_server(files: Mapping[str, str], tmp_path: Path) -> None:
    golden(f"{code}: {text}" for code, text in findings(read(tmp_path, files)).items())
