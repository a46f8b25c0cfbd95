"""A report becomes an emulated host that gives the same report, names nobody, and leads nowhere if it is hostile."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.neuron.emulation.faults import legal
from dra_driver.neuron.emulation.running import EmulatedHost
from dra_driver.neuron.emulation.tree import CharacterDevice, SymbolicLink, TextFile
from dra_driver.neuron.emulation.writer import EmulationOptions, host_writer
from dra_driver.neuron.host.discover import EMULATION_MARKER, discover
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.operations.verification.assumptions import judge
from dra_driver.operations.verification.collect import collect, lines_of, listing, unanswered
from dra_driver.operations.verification.evidence import Evidence, SeenFile
from dra_driver.operations.verification.hostfiles import row_of
from dra_driver.operations.verification.replay import files_of
from dra_driver.operations.verification.report import MAX_REPORT_BYTES, document, read, written
from dra_driver.util.errors import UsageError
from tests.builders.verification import emulated, furnished, neuron_ls, on_hardware, with_files
from tests.golden import golden, golden_error
from tests.paths import DATA

pytestmark = pytest.mark.slow

DEVICES = "sys/devices/virtual/neuron_device"
TRN2 = INSTANCE_TYPES["trn2.48xlarge"]


def again(report: str, directory: Path) -> Evidence:
    """The evidence of the emulated host that a report becomes."""
    host_writer(directory).write(files_of(read(report.encode())))
    return collect(directory)


def without_server_ids(inventory: NodeInventory) -> NodeInventory:
    """Server ids are replaced in a report."""
    if inventory.ultraserver is None:
        return inventory
    sets = tuple(replace(one, server_id="") for one in inventory.ultraserver.sets)
    return replace(inventory, ultraserver=replace(inventory.ultraserver, sets=sets))


SMALL = (
    "inf1.xlarge",
    "inf1.6xlarge",
    "inf2.8xlarge",
    "inf2.24xlarge",
    "trn1.2xlarge",
    "trn2.3xlarge",
    "trn3e.24xlarge",
)


@st.composite
def emulations(draw: st.DrawFn) -> tuple[str, EmulationOptions, list[str]]:
    kind = INSTANCE_TYPES[draw(st.sampled_from(SMALL))]
    chips = kind.devices or 0
    options = EmulationOptions(
        driver_version=draw(st.sampled_from([None, "2.24.7.0", "2.28.0.0"])),
        missing=frozenset(draw(st.sets(st.integers(0, chips - 1), max_size=1))),
        logical_nc_config=draw(st.sampled_from([None, 1, 2])),
    )
    if kind.ultraserver is not None:
        options = replace(
            options,
            ultraserver_modes=draw(st.sampled_from([None, (Mode.X1,), (Mode.X2V, Mode.X1)])),
            server_ids={4: f"{draw(st.integers(0, (1 << 64) - 1)):016x}"},
            node_ids={4: draw(st.integers(-1, 3))},
            node_count=draw(st.sampled_from([None, 2, 16])),
        )
    codes = draw(st.lists(st.sampled_from(legal(kind, options)), max_size=3, unique=True))
    return kind.name, options, [f"{code}@{draw(st.integers(0, chips - 1))}" for code in codes]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(emulations())
def test_an_emulated_host_and_the_host_of_its_report_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[str, EmulationOptions, list[str]]
) -> None:
    name, options, faults = case
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    host = EmulatedHost(first, INSTANCE_TYPES[name], options)
    host.write(host.parse(faults))
    report = written(collect(first))

    assert written(again(report, second)) == report
    assert without_server_ids(discover(second)) == without_server_ids(discover(first))


@pytest.mark.parametrize("name", ["trn2u.48xlarge", "trn3-dev0.48xlarge", "inf2.48xlarge"])
def test_so_are_large_ones_with_neuron_ls_and_kernel_log(name: str, tmp_path: Path) -> None:
    report = written(collect(furnished(tmp_path / "first", name)))
    assert written(again(report, tmp_path / "second")) == report
    assert without_server_ids(discover(tmp_path / "second")) == without_server_ids(discover(tmp_path / "first"))


def test_what_differs_on_hardware_differs_on_the_emulated_host(tmp_path: Path) -> None:
    seen = on_hardware(tmp_path / "first", "trn2.48xlarge")
    strange = {
        "sys/devices/virtual/dmi/id/product_name": "trn2x.48xlarge",
        f"{DEVICES}/neuron3/core_count": "16",
        f"{DEVICES}/neuron5/connected_devices": "4;9",
        f"{DEVICES}/neuron7/reset": "ready",
        f"{DEVICES}/neuron8/info/serial_number": "0e30000000000006",
        "proc/devices": "244 neuron",
    }
    seen = with_files(seen, {**strange, f"{DEVICES}/neuron9/stats/hardware/mem_ecc_uncorrected": None})
    stale = {**seen.files, "dev/neuron2": SeenFile(kind="device", number="245:9", mode=0o666)}
    stale[f"{DEVICES}/neuron4/dev"] = SeenFile(problem="Input/output error", mode=0o444)
    seen = msgspec.structs.replace(seen, files=stale)

    replayed = again(written(seen), tmp_path / "second")
    codes = {finding.code for finding in discover(tmp_path / "second").findings}
    wanted = {
        "instance-type-unknown",
        "connected-unreadable",
        "major-mismatch",
        "device-node-stale",
        "device-numbers-unreadable",
    }
    assert codes >= wanted
    before = {line.assumption.code: line.verdict.state for line in judge(seen)}
    after = {line.assumption.code: line.verdict.state for line in judge(replayed)}
    probes = {code for code in before if code.startswith(("container-", "chips-", "heartbeat", "runtime-"))}
    assert {code: state for code, state in after.items() if code not in probes} == {
        code: state for code, state in before.items() if code not in probes
    }


@pytest.mark.parametrize("path", sorted((DATA / "host-reports").iterdir()), ids=lambda path: path.stem)
def test_a_report_that_an_older_version_wrote_is_judged_and_replayed(path: Path, tmp_path: Path) -> None:
    recorded = path.read_text()
    host = read(recorded.encode())
    verdicts = {line["code"]: line["verdict"] for line in json.loads(recorded)["items"]}
    newer = dict.fromkeys(("pcie-roots", "firmware-answers"), "not checked") | {"runtime-cdi-variables": "ok"}
    assert {line.assumption.code: line.verdict.state for line in judge(host)} == verdicts | newer
    replayed = again(recorded, tmp_path)
    assert replayed.files.keys() == host.files.keys()
    assert len(discover(tmp_path).devices) == len(host.chips)


def test_equal_hosts_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        emulated(tmp_path / name, "trn2.3xlarge")
    assert written(collect(tmp_path / "one")) == written(collect(tmp_path / "two"))


def test_the_largest_host_gives_a_report_that_can_be_sent(tmp_path: Path) -> None:
    assert len(written(on_hardware(tmp_path, "trn2.48xlarge"))) < MAX_REPORT_BYTES / 8


SECRETS = ("i-0123456789abcdef0", "ip-10-1-2-3", "10.1.2.3", "19fcda00f5ff6eb9", "123456789012", "deadbeefcafef00d")


def test_a_report_names_nobody(tmp_path: Path) -> None:
    root = furnished(tmp_path, "trn2u.48xlarge")
    leak = "i-0123456789abcdef0 ip-10-1-2-3.ec2.internal 10.1.2.3 19fcda00f5ff6eb9 123456789012"
    texts = {
        f"{DEVICES}/neuron0/info/serial_number": "19fcda00f5ff6eb9",
        f"{DEVICES}/neuron1/info/serial_number": "SN19fcda00f5ff6eb9",
        f"{DEVICES}/neuron2/core_count": leak,
        f"{DEVICES}/neuron3/connected_devices": leak,
        "sys/devices/virtual/dmi/id/product_name": leak,
        "sys/module/neuron/version": f"2.26.10.0-{leak}",
        "sys/class/neuron_device/server_id_4": "deadbeefcafef00d",
        "sys/class/neuron_device/ultraserver_mode": leak,
        "proc/devices": f"Character devices:\n  1 neuron\n 10 {leak}\n",
        "opt/aws/neuron/logical_nc_config": f"# {leak}\nexport NEURON_LOGICAL_NC_CONFIG={leak}\nTOKEN=geheim\n",
    }
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).unlink(missing_ok=True)
        (root / path).write_text(text)
    line = f"NEURON_HW_ERR=DMA_ERROR instance-id={SECRETS[0]} hostname=ip-10-1-2-3 serial-num={SECRETS[3]} {leak}"
    (root / "kernel.log").write_text(f"<3>[    1.0] secret boot line geheim\n<3>[    2.000000] {line}\n")
    report = written(collect(root))
    for secret in (*SECRETS, "geheim", "secret.py", "4711"):
        assert secret not in report


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("2.26.10.0", "ok"),
        ("2.26.10.0-dirty", "ok"),
        ("10.0.0.1", "ok"),
        ("2.26.10.0-ip-10-1-2-3", "ok"),
        ("2.26.10.0+123456789012", "ok"),
        ("2.26.10.0.5", "differs"),
        ("2.x", "differs"),
    ],
)
def test_a_version_is_judged_as_the_driver_publishes_it_whatever_it_looks_like(
    version: str, verdict: str, tmp_path: Path
) -> None:
    root = emulated(tmp_path, "trn2.3xlarge")
    file = root / "sys/module/neuron/version"
    file.unlink()
    file.write_text(f"{version}\n")
    assert discover(root).driver_version == version
    row = next(row for row in document(collect(root))["items"] if row["code"] == "kernel-driver-version")
    assert row["verdict"] == verdict
    assert "published without" not in str(row)
    assert not any(secret in str(row) for secret in SECRETS)


def test_equal_serial_numbers_and_server_ids_stay_equal(tmp_path: Path) -> None:
    root = emulated(tmp_path, "trn2u.48xlarge")
    for chip, number in ((2, "00000000000000aa"), (9, "00000000000000aa"), (4, "0" * 16), (5, "")):
        file = root / f"{DEVICES}/neuron{chip}/info/serial_number"
        file.unlink()
        file.write_text(number)
    found = collect(root)
    numbers = [found.text(f"{DEVICES}/neuron{chip}/info/serial_number") for chip in (2, 9, 4, 5, 3)]
    assert numbers[0] == numbers[1] != numbers[4]
    assert numbers[2:4] == ["0" * 16, ""]
    servers = [found.text(f"sys/class/neuron_device/server_id_{nodes}") for nodes in (2, 4)]
    assert servers[0] == servers[1] != "0" * 16


def document_of(tmp_path: Path) -> dict[str, Any]:
    return document(collect(emulated(tmp_path / "host", "trn2.3xlarge")))


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/etc/passwd",
        "sys/../../outside",
        "dev/sda",
        "dev/neuron0/../sda",
        f"{DEVICES}/neuron0/../../../../../outside",
        f"{DEVICES}/neuron0/dev\n",
        f"{DEVICES}/neuron0/dev\x00",
        f"{DEVICES}/neuron٣/dev",
        EMULATION_MARKER,
        "faults",
        "",
    ],
)
def test_a_path_that_no_report_has_is_refused(path: str, tmp_path: Path) -> None:
    hostile = document_of(tmp_path)
    hostile["evidence"]["files"][path] = {"text": "1"}
    with golden_error(UsageError):
        read(json.dumps(hostile).encode())


@pytest.mark.parametrize(
    "file",
    [
        {"text": "1", "mode": 0o4755},
        {"text": "x" * 513},
        {"text": " 8:0"},
        {"text": "8:0\u2003"},
        {"text": 5},
        {"text": "1", "owner": "root"},
        {"kind": "link", "text": "/etc/passwd"},
        {"kind": "device", "number": "8:0"},
        {"kind": "directory"},
        {"problem": "a\nb"},
        [],
        None,
    ],
    ids=str,
)
def test_so_is_a_file_of_another_form(file: Any, tmp_path: Path) -> None:
    hostile = document_of(tmp_path)
    hostile["evidence"]["files"][f"{DEVICES}/neuron0/dev"] = file
    with golden_error(UsageError):
        read(json.dumps(hostile).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"apiVersion": "neuron-dra-driver/v2", "kind": "HostReport"}',
        b" " * (MAX_REPORT_BYTES + 1),
    ],
    ids=["empty", "no report", "null", "not UTF-8", "deep", "another version", "long"],
)
def test_and_what_is_no_report(data: bytes) -> None:
    with golden_error(UsageError):
        read(data)


def test_no_device_number_of_a_report_is_ever_made(tmp_path: Path) -> None:
    seen = on_hardware(tmp_path / "host", "trn2.3xlarge")
    evil = {**seen.files, "dev/neuron0": SeenFile(kind="device", number="8:0", mode=0o666)}
    evil[f"{DEVICES}/neuron0/dev"] = SeenFile(text="8:0", mode=0o444)
    tree = files_of(read(written(msgspec.structs.replace(seen, files=evil)).encode()))
    nodes = [entry for entry in tree.values() if isinstance(entry, CharacterDevice)]
    assert {(node.major, node.minor) for node in nodes} == {(1, 3)}
    dev = tree[f"{DEVICES}/neuron0/dev"]
    assert isinstance(dev, TextFile)
    assert dev.text == "1:3\n"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40).map(str.strip)
FILES = st.dictionaries(
    st.sampled_from(
        [
            "sys/devices/virtual/dmi/id/product_name",
            "sys/module/neuron/version",
            "proc/devices",
            "opt/aws/neuron/logical_nc_config",
            *(
                f"sys/class/neuron_device/{name}"
                for name in ("ultraserver_mode", "node_id_4", "server_id_4", "node_cnt")
            ),
            *(
                f"{DEVICES}/neuron{chip}/{name}"
                for chip in (0, 1, 999)
                for name in ("dev", "core_count", "connected_devices", "reset", "info/serial_number")
            ),
            "sys/bus/pci/devices/0000:cc:00.0/device",
        ]
    ),
    st.builds(SeenFile, text=TEXTS | st.sampled_from(["trn2u.48xlarge", "busy", "1", "8:0", "0,1", "99 neuron"])),
)


@settings(max_examples=60)
@given(FILES)
def test_whatever_the_files_say_every_line_has_a_verdict_and_every_entry_is_harmless(
    files: dict[str, SeenFile],
) -> None:
    host = read(written(Evidence(files=files)).encode())
    assert len(judge(host)) == len({line.number for line in judge(host)})
    for path, entry in files_of(host).items():
        assert row_of(path.removesuffix("/.keep").removesuffix("/unreadable")) is not None
        if isinstance(entry, SymbolicLink):
            assert re.fullmatch(r"\.\./\.\./devices/virtual/neuron_device/neuron[0-9]{1,3}", entry.target)
        if path.endswith("/dev") and isinstance(entry, TextFile):
            assert not re.search(r"[0-9]\s*:\s*[0-9]", entry.text.replace("1:3", ""))


def test_links_pipes_and_foreign_devices_of_a_host_are_not_followed(tmp_path: Path) -> None:
    root = emulated(tmp_path / "host", "trn2.3xlarge")
    outside = tmp_path / "outside"
    outside.write_text("geheim")
    chip = root / DEVICES / "neuron0"
    (chip / "core_count").unlink()
    (chip / "core_count").symlink_to(outside)
    (chip / "reset").unlink()
    os.mkfifo(chip / "reset")
    found = collect(root)
    assert f"{DEVICES}/neuron0/core_count" not in found.files
    reset = found.files[f"{DEVICES}/neuron0/reset"]
    assert reset.text is None
    golden(reset.problem)


@pytest.mark.parametrize(
    "target", ["../../../../outside", "../../../devices/pci0000:00/../../outside/0000:33:00.0", "/etc", "x" * 512]
)
def test_no_link_of_a_report_leads_anywhere_but_to_a_pci_device(target: str, tmp_path: Path) -> None:
    seen = on_hardware(tmp_path / "host", "trn2.3xlarge")
    assert seen.inventory.devices[0].pcie_root == "pci0000:32"
    evil = {**seen.files, "sys/bus/pci/devices/0000:33:00.0": SeenFile(kind="link", text=target)}
    host = read(written(msgspec.structs.replace(seen, files=evil)).encode())
    assert host.inventory.devices[0].pcie_root is None
    assert not [path for path, entry in files_of(host).items() if isinstance(entry, SymbolicLink) and "pci" in path]


def test_permissions_of_files_are_kept(tmp_path: Path) -> None:
    options = EmulationOptions(driver_version="2.24.7.0")
    report = written(collect(emulated(tmp_path / "first", "trn2.3xlarge", options)))
    again(report, tmp_path / "second")
    for name, mode in (("core_count", 0o400), ("reset", 0o600), ("info/notify_delay", None)):
        file = tmp_path / "second" / DEVICES / "neuron0" / name
        assert (stat.S_IMODE(file.stat().st_mode) if file.exists() else None) == mode


def test_processes_and_ids_in_neuron_ls_are_left_out() -> None:
    listed = listing(json.dumps(neuron_ls(TRN2)))
    assert [entry.neuron_device for entry in listed] == list(range(16))
    assert (listed[13].bdf, listed[13].connected_to, listed[13].neuroncore_ids) == (
        "0000:e1:00.0",
        (1, 9, 12, 14),
        (52, 53, 54, 55),
    )
    assert "secret" not in repr(listed)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"neuron_device": "x"}]', '[{"bdf": "cc"}]', "[" * 100_000])
def test_what_is_no_output_of_neuron_ls_is_refused(text: str) -> None:
    with golden_error(UsageError):
        listing(text)


def test_lines_of_the_kernel_log_keep_kind_chip_and_core_only() -> None:
    line = (
        "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0 hostname=ip-1 nd-id=0 nc-id=0 "
        "serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE"
    )
    log = f"<6>[    1.000000] another line\n<3>[    2.000000] {line}\n[    3.000000] {line}\n".encode()
    told = (
        "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=redacted hostname=redacted nd-id=0 nc-id=0 "
        "serial-num=0000000000000001 action=TERMINATE_INSTANCE"
    )
    assert lines_of(log) == (told, told)
    assert lines_of(f"{told}\n{told}".encode()) == (told, told)
    assert len(lines_of(log * 100)) == 64
    assert unanswered(log) == ()


def test_commands_that_the_firmware_did_not_answer_are_told_once() -> None:
    lines = [
        f"[    9.{number}] neuron:fw_io_execute_request: seq: {number}, cmd: {number % 3} timed out"
        for number in range(9)
    ]
    told = unanswered("\n".join(lines).encode())
    assert told == tuple(f"neuron:fw_io_execute_request: cmd: {number} timed out" for number in range(3))
    assert unanswered("\n".join(told).encode()) == told
    assert len(unanswered("\n".join(f"fw_io_execute_request: cmd: {n} timed out" for n in range(99)).encode())) == 8
