"""Every fault of a chip can be rehearsed: how it is written, and what the host then shows."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.faults import (
    FAULTS_FILE,
    HINTS,
    SIGNS,
    EmulatedFault,
    Moment,
    host_with,
    legal,
    moved,
    parse,
    parse_file,
    template,
)
from dra_driver.neuron.emulation.options import ECC_FILES, EmulationOptions
from dra_driver.neuron.emulation.running import EmulatedHost
from dra_driver.neuron.emulation.tree import Entry, TextFile
from dra_driver.neuron.emulation.writer import host_writer, write_host
from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS, HealthMemory, assess
from dra_driver.neuron.health.faults import FAULTS
from dra_driver.neuron.health.hints import read_hints
from dra_driver.neuron.host.discover import EMULATION_MARKER, boot_id, discover
from dra_driver.neuron.host.signals import SignalReader
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.util.errors import DriverError
from tests.eventually import eventually
from tests.golden import golden, golden_error

pytestmark = pytest.mark.slow

TRN2, TRN2U, TRN1, INF1 = (
    INSTANCE_TYPES[name] for name in ("trn2.48xlarge", "trn2u.48xlarge", "trn1.32xlarge", "inf1.24xlarge")
)
EMULATED = [kind for kind in INSTANCE_TYPES.values() if kind.devices is not None]
HEALTHY = EmulationOptions()
DEVICE = "sys/devices/virtual/neuron_device/neuron3"
STATUS = f"{DEVICE}/stats/hardware/health_status"


def test_every_fault_of_the_table_can_be_rehearsed_and_nothing_else() -> None:
    assert tuple(SIGNS) == tuple(FAULTS)


@pytest.mark.parametrize("code", SIGNS)
def test_a_sign_is_the_signal_of_its_fault(code: str) -> None:
    sign, signal = SIGNS[code], str(FAULTS[code].signal)
    unnamed = {"gone": "no directory of the device", "modes": "UltraServer modes", "unlinked": "connected_devices"}
    where = {"a_new_part": "a name that this driver does not know"}.get(sign.where, sign.where)
    assert unnamed.get(sign.how, where) in signal


def shown(kind: InstanceType, *faults: str, moment: Moment | None = None) -> dict[str, str | None]:
    """The files that differ from a healthy host's, with their new contents; None: gone."""
    parsed = [fault for text in faults for fault in parse(text, kind, HEALTHY)]
    before, after = (host_with(kind, HEALTHY, some, moment or Moment()) for some in ((), parsed))
    return {path: text(after, path) for path in {**before, **after} if before.get(path) != after.get(path)}


def text(tree: dict[str, Entry], path: str) -> str | None:
    entry = tree.get(path)
    return entry.text if isinstance(entry, TextFile) else None


@pytest.mark.parametrize(
    ("fault", "files"),
    [
        (
            "hbm-uncorrectable@3",
            {f"{DEVICE}/stats/hardware/mem_ecc_uncorrected": "1\n", f"{STATUS}/hw_error_event": "1\n"},
        ),
        (
            "sram-uncorrectable@3=7",
            {f"{DEVICE}/stats/hardware/sram_ecc_uncorrected": "7\n", f"{STATUS}/hw_error_event": "1\n"},
        ),
        ("sram-corrected-rising@3=5", {f"{DEVICE}/stats/hardware/sram_ecc_corrected": "5\n"}),
        (
            "link-efa-unhealthy@3",
            {f"{STATUS}/unhealthy_components": "link_efa\n", f"{STATUS}/hw_error_event": "1\n"},
        ),
        (
            "component-unhealthy@3=warp_core",
            {f"{STATUS}/unhealthy_components": "warp_core\n", f"{STATUS}/hw_error_event": "1\n"},
        ),
        ("device-invalid@3", {f"{DEVICE}/reset": "2\n"}),
        ("link-lost@3=7", {f"{DEVICE}/connected_devices": "2, 15, 0\n"}),
        ("core-dma-abort@3", {f"{DEVICE}/neuron_core0/stats/status/hw_dma_abort_error/total": "1\n"}),
    ],
)
def test_a_fault_changes_the_files_that_a_real_host_would_show_it_in(fault: str, files: dict[str, str]) -> None:
    assert shown(TRN2, fault) == files


def test_components_of_one_chip_are_one_list_and_an_unreachable_chip_lists_nothing_else() -> None:
    faults = ("hbm-unhealthy@3", "link-host-unhealthy@3")
    assert shown(TRN2, *faults)[f"{STATUS}/unhealthy_components"] == "hbm,link_host\n"
    assert shown(TRN2, *faults, "device-unreachable@3")[f"{STATUS}/unhealthy_components"] == "device_unreachable\n"


def test_an_unreadable_chip_has_no_counters_and_works_otherwise() -> None:
    gone = shown(TRN2, "unreadable@3")
    assert set(gone.values()) == {None}
    assert all(path.startswith(f"{DEVICE}/stats/hardware/") for path in gone)
    assert {f"{DEVICE}/stats/hardware/{name}" for name in ECC_FILES.values()} < set(gone)


def test_a_line_of_the_kernel_log_is_a_hint_of_the_boot_with_chip_and_serial_number() -> None:
    (hint,) = shown(TRN2, "log-hbm@3", moment=Moment(now=1000, boot_id="b")).items()
    assert hint[0] == "run/neuron-health/HBM_UNCORRECTABLE_ERROR-3.json"
    assert json.loads(hint[1] or "") == {
        "version": 1,
        "bootId": "b",
        "kind": "HBM_UNCORRECTABLE_ERROR",
        "device": 3,
        "serial": "0e30000000000003",
        "core": 0,
        "seen": 1000,
    }


def test_the_scan_of_the_host_finds_what_the_faults_say(tmp_path: Path) -> None:
    def findings(kind: InstanceType, *faults: str) -> list[str]:
        host = EmulatedHost(tmp_path / kind.name, kind)
        host.write(host.parse(faults))
        return [finding.code for finding in discover(host.root).findings]

    assert findings(TRN2) == []
    assert findings(TRN2, "device-lost@3", "hbm-uncorrectable@3") == ["devices-missing"]
    assert findings(TRN2, "device-invalid@3") == ["device-invalid"]
    assert findings(TRN2, "link-lost@3") == ["connected-mismatch"]
    assert findings(TRN2U, "server-link-lost@0") == ["ultraserver-link-down"]
    assert findings(TRN2) == []


def test_a_host_of_another_type_in_place_of_the_former_is_healthy(tmp_path: Path) -> None:
    """As where an installation emulates another type: the driver's record of the former chips is still there."""
    memory = HealthMemory()
    for kind in (TRN2, TRN1, TRN2, INF1):
        host = EmulatedHost(tmp_path / kind.name, kind)
        host.write(host.parse(()))
        with closing(SignalReader(host.root, HARDWARE_COUNTERS, CORE_COUNTERS)) as reader:
            for _ in range(3):  # a fault is one that two readings say
                memory, health = assess(memory, reader.read(discover(host.root)))
        assert [chip for chip in health.chips if chip.faults] == [], kind.name


def test_growing_counters_grow_and_heartbeats_move_where_somebody_moves_them() -> None:
    fault = EmulatedFault("hbm-corrected-rising", 3, "2")
    counter, heartbeat = f"{DEVICE}/stats/hardware/mem_ecc_corrected", f"{STATUS}/healthcheck_heartbeat"

    def at(now: int, *, started: int | None) -> tuple[str | None, str | None]:
        tree = host_with(TRN2, HEALTHY, [fault], Moment(now, started, {fault: 100}))
        return text(tree, counter), text(tree, heartbeat)

    assert at(100, started=None) == ("2\n", "1\n")
    assert at(100, started=90) == ("2\n", "100\n")
    assert at(111, started=90) == ("6\n", "111\n")


def test_a_heartbeat_that_stands_still_moved_before() -> None:
    fault = EmulatedFault("heartbeat-stalled", 3)
    heartbeats = [
        text(host_with(TRN2, HEALTHY, [fault], Moment(now, 100, {fault: 100})), f"{STATUS}/healthcheck_heartbeat")
        for now in (100, 120, 130, 200)
    ]
    assert heartbeats == ["100\n", "120\n", "130\n", "130\n"]


def test_only_what_moved_is_written_again() -> None:
    fault = EmulatedFault("core-dma-abort", 3)
    tree = host_with(TRN2, HEALTHY, [fault], Moment(100, None, {fault: 100}))
    assert moved(tree, [fault], Moment(104, None, {fault: 100})) == {}
    (path,) = moved(tree, [fault], Moment(105, None, {fault: 100}))
    assert path.endswith("hw_dma_abort_error/total")


@pytest.mark.parametrize(
    ("chips", "indexes"), [("3", [3]), ("3,7", [3, 7]), ("0-3", [0, 1, 2, 3]), ("7,0-1,7", [0, 1, 7]), ("1, 2", [1, 2])]
)
def test_chips_are_numbers_and_ranges(chips: str, indexes: list[int]) -> None:
    assert [fault.chip for fault in parse(f"device-lost@{chips}", TRN2, HEALTHY)] == indexes


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (TRN2, "hbm-uncorrectable"),
        (TRN2, "hbm@3"),
        (TRN2, "hbm-uncorrectable@16"),
        (TRN2, "hbm-uncorrectable@3-1"),
        (TRN2, "hbm-uncorrectable@3=-1"),
        (TRN2, "hbm-uncorrectable@3=18446744073709551616"),
        (TRN2, "device-lost@3=1"),
        (TRN2, "component-unhealthy@3=A,B"),
        (TRN2, "link-lost@3=5"),
        (TRN2, "server-link-lost@0"),
        (TRN1, "heartbeat-stalled@0"),
        (INF1, "hbm-corrected-rising@0"),
    ],
)
def test_a_fault_that_the_host_cannot_have_is_refused_with_what_it_can(kind: InstanceType, fault: str) -> None:
    with golden_error(DriverError):
        parse(fault, kind, HEALTHY)


@pytest.mark.parametrize("kind", EMULATED, ids=lambda kind: kind.name)
def test_each_type_can_show_all_that_its_file_of_faults_lists(kind: InstanceType) -> None:
    page = template(kind, HEALTHY)
    listed = [line.split()[1] for line in page.splitlines() if "@3 " in line]
    assert [entry.removesuffix("@3") for entry in listed] == list(legal(kind, HEALTHY))
    for code in legal(kind, HEALTHY):
        assert parse_file(f"{page}{code}@0 # rehearsed\n", kind, HEALTHY) == (EmulatedFault(code, 0),)
        assert code.startswith("heartbeat") or shown(kind, f"{code}@0")


def test_a_wrong_line_of_the_file_is_named() -> None:
    with golden_error(DriverError):
        parse_file("# mine\nhbm-uncorrectable@3\ndevice-lost@99\n", TRN2, HEALTHY)


@given(st.text(max_size=200))
def test_any_text_is_a_file_of_faults_or_refused(content: str) -> None:
    try:
        faults = parse_file(content, TRN2, HEALTHY)
    except DriverError:
        return
    assert parse_file("\n".join(map(str, faults)), TRN2, HEALTHY) == faults


# The command


def test_the_command_writes_sick_hosts_and_lists_all_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "emulate-host",
        "--instance-type",
        "trn2",
        "--fault",
        "hbm-uncorrectable@3",
        "--fault",
        "device-lost@4,5",
    ]
    assert main([*arguments, str(tmp_path / "host")]) == 0
    golden(capsys.readouterr().out)
    assert (tmp_path / "host" / DEVICE / "stats/hardware/mem_ecc_uncorrected").read_text() == "1\n"
    assert (tmp_path / "host" / FAULTS_FILE).read_text().endswith("hbm-uncorrectable@3\ndevice-lost@4\ndevice-lost@5\n")
    assert main([*arguments[:3], str(tmp_path / "host")]) == 0
    assert (tmp_path / "host" / DEVICE / "stats/hardware/mem_ecc_uncorrected").read_text() == "0\n"
    assert not (tmp_path / "host" / FAULTS_FILE).read_text().endswith("@5\n")


def test_the_command_refuses_what_the_host_cannot_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["emulate-host", "--instance-type", "trn1", "--fault", "link-efa-unhealthy@3", str(tmp_path / "host")]
    assert main(arguments) == 2
    golden(capsys.readouterr().err)
    assert not (tmp_path / "host").exists()


# A running host


@pytest.fixture
def running(tmp_path: Path) -> EmulatedHost:
    host = EmulatedHost(tmp_path / "host", TRN2)
    host.write(counters=False)
    return host


def test_the_file_of_faults_is_applied_and_taken_back_on_a_running_host(
    running: EmulatedHost, caplog: pytest.LogCaptureFixture
) -> None:
    errors = running.root / DEVICE / "stats/hardware/mem_ecc_uncorrected"
    heartbeat = running.root / STATUS / "healthcheck_heartbeat"
    before = running.faults_file.read_text()
    running.start()
    try:
        eventually(lambda: heartbeat.read_text() != "1\n")
        running.faults_file.write_text(before + "hbm-uncorrectable@3\ncore-uncorrectable@3\n")
        eventually(lambda: errors.read_text() == "1\n")
        core = running.root / DEVICE / "neuron_core0/stats/status/hw_nc_ue_error/total"
        eventually(lambda: core.exists() and int(core.read_text()) >= 1)
        running.faults_file.write_text(before + "hbm-uncorrectable@33\n")
        eventually(lambda: "hbm-uncorrectable@33" in caplog.text or "not have chip 33" in caplog.text)
        assert errors.read_text() == "1\n"
        running.faults_file.write_text("device-lost@3")
        eventually(lambda: not (running.root / DEVICE).exists())
        running.faults_file.unlink()
        eventually((running.root / DEVICE).is_dir)
        assert errors.read_text() == "0\n"
        assert running.worker.problem() == ""
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe", "not UTF-8 text"), (b"#" * 70000, "longer than 65536 bytes"), (None, "not a regular file")],
)
def test_a_file_of_faults_that_is_none_changes_nothing_and_is_said(
    running: EmulatedHost, content: bytes | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    running.faults_file.unlink()
    if content is None:
        running.faults_file.mkdir()
    else:
        running.faults_file.write_bytes(content)
    running.start()
    try:
        eventually(lambda: says in caplog.text)
        assert running.faults == ()
    finally:
        running.stop()


def test_health_of_an_emulated_host_says_that_its_file_of_faults_is_wrong_until_it_is_right(
    running: EmulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        assert main(["health", "--host-root", str(running.root)]) == 0
        return capsys.readouterr().err.replace(str(running.root), "HOST")

    running.start()
    try:
        running.faults_file.write_text("hbm-uncorrectable@3\nhbm-uncorrectable@33\n")
        eventually((running.root / "faults.error").exists)
        golden(said())
        running.faults_file.write_text("hbm-uncorrectable@3\n")
        eventually(lambda: not (running.root / "faults.error").exists())
        assert said() == ""
    finally:
        running.stop()


def test_what_is_wrong_with_the_file_of_faults_is_read_whole_at_any_moment(running: EmulatedHost) -> None:
    told = running.root / "faults.error"
    running.start()
    try:
        running.faults_file.write_text("hbm-uncorrectable@33\n")
        eventually(told.exists)
        first = told.read_text()
        assert "not have chip 33" in first
        with told.open() as opened:
            running.faults_file.write_text("hbm-uncorrectable@44\n")
            eventually(lambda: told.read_text() != first)
            assert "not have chip 44" in told.read_text()
            assert opened.read() == first
    finally:
        running.stop()


def test_a_driver_that_starts_anew_finds_the_chips_as_sick_as_they_were(tmp_path: Path) -> None:
    def started(*faults: str) -> list[str]:
        host = EmulatedHost(tmp_path / "host", TRN2)
        host.write(host.parse(faults), keep_file=True)
        return list(map(str, host.faults))

    assert started("device-lost@1") == ["device-lost@1"]
    (tmp_path / "host" / FAULTS_FILE).write_text("hbm-uncorrectable@3\n")
    assert started("device-lost@1") == ["hbm-uncorrectable@3"]
    assert (tmp_path / "host" / DEVICE / "stats/hardware/mem_ecc_uncorrected").read_text() == "1\n"


# The driver's own view


def diagnosed(root: Path, *faults: str) -> dict[int, set[str]]:
    """The faults by chip that the driver finds on a trn2u.48xlarge that gets these faults while it looks."""
    host = EmulatedHost(root, TRN2U)
    host.write()
    parsed = host.parse(faults)
    writer, tree = host_writer(root), host_with(TRN2U, HEALTHY, (), Moment())
    reader, memory, boot = SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS), HealthMemory(), boot_id(root)
    now = int(time.time())
    for second in (0, 10, 20, 30, 70, 100, 110):
        shown = parsed if second >= 20 else ()
        moment = Moment(now + second, now, dict.fromkeys(parsed, now + 20), boot)
        before, tree = tree, host_with(TRN2U, HEALTHY, shown, moment)
        writer.write(tree, before)
        reading = replace(reader.read(discover(root)), uptime=1000.0 + second, read_at=float(now + second))
        memory, health = assess(memory, reading, read_hints(root / HINTS)[0])
    return {chip.index: {fault.code for fault in chip.faults} for chip in health.chips if chip.faults}


ALONE = ("device-lost", "server-link-lost")
"""Other chips notice these too."""
TOGETHER = [code for code in SIGNS if code not in ALONE]


@pytest.mark.parametrize("half", [0, 1])
def test_the_driver_finds_each_fault_that_is_rehearsed_and_no_other(half: int, tmp_path: Path) -> None:
    codes = dict(enumerate(TOGETHER[half::2]))
    found = diagnosed(tmp_path / "host", *(f"{code}@{chip}" for chip, code in codes.items()))
    assert found == {chip: {code} for chip, code in codes.items()}


def test_the_driver_misses_a_lost_chip_and_no_other(tmp_path: Path) -> None:
    assert diagnosed(tmp_path / "host", "device-lost@3") == {3: {"device-lost"}}


def test_lost_links_of_the_server_are_a_fault_of_all_chips(tmp_path: Path) -> None:
    assert diagnosed(tmp_path / "host", "server-link-lost@3") == {index: {"server-link-lost"} for index in range(16)}


def test_the_file_of_faults_says_how_to_use_it() -> None:
    golden(template(TRN2, HEALTHY))


def test_what_is_no_chip_is_refused() -> None:
    with golden_error(DriverError):
        parse("hbm-uncorrectable@3,", TRN2, HEALTHY)


def test_a_file_of_faults_that_is_none_is_explained(running: EmulatedHost, caplog: pytest.LogCaptureFixture) -> None:
    running.faults_file.write_bytes(b"\xff\xfe")
    running.start()
    try:
        eventually(lambda: "cannot be used" in caplog.text)
    finally:
        running.stop()
    golden(dict.fromkeys(caplog.messages))


def test_a_host_that_cannot_be_written_is_explained(running: EmulatedHost, tmp_path: Path) -> None:
    with golden_error(DriverError, "root"):
        write_host(Path("/"), TRN2, HEALTHY)
    golden(json.loads((running.root / EMULATION_MARKER).read_text())["comment"], "marker")
    (running.root / ".dra-driver-staging").write_text("a file in its place")
    with golden_error(DriverError, "staging"):
        host_writer(running.root).move({})


@pytest.mark.parametrize(
    "line",
    [
        "hbm-uncorrectable@3 device-lost@4",
        "hbm-uncorrectable@3\tdevice-lost@4 # both",
        "hbm-uncorrectable@3\r\n\r\ndevice-lost@4\r\n",
    ],
)
def test_faults_of_one_line_are_read_as_those_of_the_option(line: str) -> None:
    assert parse_file(line, TRN2, HEALTHY) == (
        EmulatedFault("hbm-uncorrectable", 3),
        EmulatedFault("device-lost", 4),
    )


def test_chips_of_a_line_may_have_blanks_between_them() -> None:
    assert parse_file("device-lost@3, 7 device-lost@1", TRN2, HEALTHY) == tuple(
        EmulatedFault("device-lost", chip) for chip in (3, 7, 1)
    )
