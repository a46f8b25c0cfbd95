"""What the host says, reading by reading, and which faults follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_driver.neuron.health.assess import HealthMemory, Hint, assess, clear, undecided
from dra_driver.neuron.health.faults import ActiveFault, NodeHealth
from dra_driver.neuron.health.memory import decoded, encoded
from dra_driver.neuron.health.policy import HealthPolicy, Rule
from dra_driver.neuron.host.signals import COMPONENTS, HARDWARE, HEARTBEAT, ChipReading, HostReading
from tests.builders.chips import SERIALS, Host
from tests.golden import golden


class Node:
    """A host and what is known of it."""

    def __init__(self) -> None:
        self.host = Host()
        self.chip = self.host.chip
        self.hints: list[Hint] = []
        self.memory = HealthMemory()

    def read(self, times: int = 2, seconds: float = 10.0) -> NodeHealth:
        for _ in range(times):
            self.host.uptime += seconds
            self.memory, self.said = assess(self.memory, self.host.reading(), self.hints)
        return self.said

    def faults(self, times: int = 2, seconds: float = 10.0, *, chip: int = 0) -> list[str]:
        return [fault.code for fault in self.active(times, seconds, chip=chip)]

    def active(self, times: int = 2, seconds: float = 10.0, *, chip: int = 0) -> tuple[ActiveFault, ...]:
        found = self.read(times, seconds).chip(chip)
        assert found is not None
        return found.faults

    def clear(self, chip: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
        self.memory, cleared, kept = clear(self.memory, chip, self.host.now)
        return cleared, kept


@pytest.fixture
def node() -> Node:
    made = Node()
    made.read()
    return made


def test_a_signal_counts_when_it_was_seen_twice_and_is_worth_another_look_when_seen_once(node: Node) -> None:
    node.chip.counters["mem_ecc_uncorrected"] = 3
    assert node.faults(1) == []
    assert undecided(node.memory)
    (fault,) = node.active(1)
    assert (fault.code, fault.detail) == ("hbm-uncorrectable", "3 errors")
    assert fault.since == node.host.now - 10, "it began when it was seen first"
    assert not undecided(node.memory)


def test_a_glitch_is_no_fault(node: Node) -> None:
    node.chip.counters["mem_ecc_uncorrected"] = 3
    node.read(1)
    node.chip.counters["mem_ecc_uncorrected"] = 0
    assert node.faults(1) == []
    node.chip.counters["mem_ecc_uncorrected"] = 3
    assert node.faults(1) == []


def test_a_fault_keeps_when_it_began_over_restarts_and_boots_while_the_host_says_it(node: Node) -> None:
    node.chip.counters["sram_ecc_uncorrected"] = 1
    (before,) = node.active()
    node.memory = decoded(encoded(node.memory))
    node.host.reboot()
    (after,) = node.active()
    assert after == replace(before, uptime=15.0), "and how long it has lasted is counted from the boot"


def test_a_component_is_over_after_five_minutes_and_what_cannot_be_told_starts_them_anew(node: Node) -> None:
    node.chip.components = {"hbm"}
    assert node.faults() == ["hbm-unhealthy"]
    node.chip.components = set()
    assert node.faults(30) == ["hbm-unhealthy"]
    node.chip.unusable = {COMPONENTS}
    assert node.faults(1) == ["hbm-unhealthy"]
    node.chip.unusable = set()
    assert "hbm-unhealthy" in node.faults(30)
    assert node.faults(2) == []


def test_corrected_errors_count_while_they_rise_and_for_an_hour(node: Node) -> None:
    node.chip.counters["mem_ecc_corrected"] = 7
    assert node.faults() == ["hbm-corrected-rising"]
    assert node.faults(58, 60.0) == ["hbm-corrected-rising"]
    node.chip.counters["mem_ecc_corrected"] = 8
    assert node.faults(59, 60.0) == ["hbm-corrected-rising"]
    assert node.faults(5, 60.0) == []


def test_corrected_errors_from_before_the_driver_came_are_no_fault() -> None:
    node = Node()
    node.chip.counters["mem_ecc_corrected"] = 1000
    assert node.faults(5) == []


def test_corrected_errors_that_keep_rising_change_nothing_that_others_are_told(node: Node) -> None:
    told = set()
    for count in range(1, 40):
        node.chip.counters["sram_ecc_corrected"] = count * 3
        told.add(node.active(1))
    assert len(told) == 2, "healthy, and then one and the same fault"


@pytest.mark.parametrize(("count", "detail"), [(1, "1 error"), (9, "9 errors"), (65535, "10,000 errors or more")])
def test_many_errors_are_told_by_their_order_of_magnitude(node: Node, count: int, detail: str) -> None:
    node.chip.counters["sram_ecc_uncorrected"] = count
    assert node.active()[0].detail == detail


def test_errors_of_a_core_stay_until_the_boot_though_the_driver_was_reloaded(node: Node) -> None:
    node.chip.core_errors["hw_nc_ue_error"] = 2
    (fault,) = node.active()
    assert (fault.code, fault.detail) == ("core-uncorrectable", "neuron_core2")
    node.chip.core_errors["hw_nc_ue_error"] = 0
    assert node.faults() == ["core-uncorrectable"]
    node.host.reboot()
    assert node.faults(1) == []


def test_errors_of_cores_from_before_the_driver_came_count() -> None:
    node = Node()
    node.chip.core_errors["hw_dma_abort_error"] = 1
    assert node.faults() == ["core-dma-abort"]


def test_cleared_errors_of_cores_do_not_come_back_by_themselves_and_new_ones_do(node: Node) -> None:
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    assert node.clear() == (("core-uncorrectable",), ())
    assert node.faults() == []
    node.chip.core_errors["hw_nc_ue_error"] = 3
    assert node.faults() == ["core-uncorrectable"]


def test_after_a_reload_of_the_driver_a_first_error_counts_though_more_were_cleared(node: Node) -> None:
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    node.clear()
    node.chip.core_errors["hw_nc_ue_error"] = 0
    node.read()
    node.chip.core_errors["hw_nc_ue_error"] = 1
    assert node.faults() == ["core-uncorrectable"]


def test_counters_add_up_over_reloads_and_a_glitch_adds_nothing(node: Node) -> None:
    def total() -> int:
        chip = node.memory.chip(0)
        assert chip is not None
        return chip.counters["mem_ecc_corrected"].total

    for value, expected in ((5, 5), (1_000_000, 5), (6, 6), (0, 6), (6, 6), (2, 8), (4, 10)):
        node.chip.counters["mem_ecc_corrected"] = value
        node.read(1 if value in {1_000_000, 0} else 2)
        assert total() == expected


def test_what_the_host_still_says_cannot_be_cleared_and_what_it_denies_can(node: Node) -> None:
    node.chip.components = {"hbm", "sram"}
    node.read()
    node.chip.components = {"hbm"}
    node.read(1)
    assert node.clear() == (("sram-unhealthy",), ("hbm-unhealthy",))
    assert node.faults() == ["hbm-unhealthy"]


def test_what_cannot_be_told_cannot_be_cleared(node: Node) -> None:
    node.chip.components = {"hbm"}
    node.read()
    node.chip.unusable = {COMPONENTS}
    node.read()
    assert node.clear() == ((), ("hbm-unhealthy", "unreadable"))


def test_nothing_is_cleared_of_a_chip_that_nobody_knows(node: Node) -> None:
    assert node.clear(7) == ((), ())


def test_another_chip_under_the_same_number_starts_afresh(node: Node) -> None:
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    node.chip.serial = "0e300000000000ff"
    node.chip.core_errors["hw_nc_ue_error"] = 0
    assert node.faults(1) == []


def test_a_chip_of_another_architecture_starts_afresh_and_need_not_have_the_files_of_the_former(node: Node) -> None:
    node.chip.architecture = "Trainium2"
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    node.chip.architecture = "Inferentia2"
    node.chip.core_errors["hw_nc_ue_error"] = 0
    node.chip.absent = {HEARTBEAT}
    assert node.faults(1) == []


def test_a_chip_whose_architecture_cannot_be_read_for_once_is_the_same(node: Node) -> None:
    node.chip.architecture = "Trainium2"
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    node.chip.architecture = None
    node.chip.core_errors["hw_nc_ue_error"] = 0
    node.read()
    node.chip.architecture = "Trainium2"
    assert node.faults() == ["core-uncorrectable"]


def test_a_chip_whose_serial_number_cannot_be_read_for_once_is_the_same(node: Node) -> None:
    node.chip.core_errors["hw_nc_ue_error"] = 2
    node.read()
    node.chip.serial = None
    node.chip.core_errors["hw_nc_ue_error"] = 0
    node.read()
    node.chip.serial = SERIALS[0]
    assert node.faults() == ["core-uncorrectable"]


def test_a_heartbeat_that_never_moved_is_no_sign(node: Node) -> None:
    assert node.faults(100) == []


def test_a_heartbeat_that_stands_still_for_a_minute_and_then_moves_for_one(node: Node) -> None:
    node.chip.heartbeat += 1
    assert node.faults(6) == []
    assert node.faults(2) == ["heartbeat-stalled"]
    for _ in range(6):
        node.chip.heartbeat += 1
        assert node.faults(1) == ["heartbeat-stalled"]
    node.chip.heartbeat += 1
    assert node.faults(1) == []


def test_after_a_boot_a_heartbeat_that_used_to_move_and_does_not_is_a_fault(node: Node) -> None:
    node.chip.heartbeat += 1
    node.read()
    node.host.reboot()
    assert node.faults(8) == ["heartbeat-stalled"]


def test_a_step_of_the_clock_does_not_stop_a_heartbeat_nor_end_a_fault(node: Node) -> None:
    node.chip.heartbeat += 1
    node.chip.components = {"hbm"}
    node.read()
    node.chip.components = set()
    node.read(2, 1.0)
    node.host.booted_at += 86_400
    assert node.faults(2, 1.0) == ["hbm-unhealthy"]


@pytest.mark.parametrize("step", [86_400, -86_400])
def test_setting_the_clock_ends_no_grace_time_and_begins_none_anew(node: Node, step: int) -> None:
    """Nor does a restart of the driver after it. The end of a grace time evicts pods."""
    table = HealthPolicy(rules=(Rule("NoExecute", "hbm-uncorrectable", grace_seconds=60),))

    def effect() -> str:
        (fault,) = node.active(1)
        return table.taint(fault, None, node.host.uptime).effect

    node.chip.counters["mem_ecc_uncorrected"] = 3
    node.read(1)
    node.host.booted_at += step
    node.memory = decoded(encoded(node.memory))
    assert [effect() for _ in range(7)] == [*["NoSchedule"] * 5, "NoExecute", "NoExecute"]
    node.host.reboot()
    assert effect() == "NoSchedule", "no pod of before runs"


def test_a_lost_chip_keeps_its_faults_and_comes_back(node: Node) -> None:
    node.chip.counters["sram_ecc_uncorrected"] = 1
    node.read()
    node.chip.there = False
    assert node.faults() == ["sram-uncorrectable", "device-lost"]
    node.chip.there = True
    assert node.faults() == ["sram-uncorrectable"]


def test_a_chip_that_was_there_in_this_boot_is_lost_though_the_type_is_unknown(node: Node) -> None:
    node.chip.there = False

    def read() -> list[str]:
        node.host.uptime += 10
        reading = node.host.reading()
        bare = HostReading(reading.read_at, reading.uptime, reading.boot_id, "2.30", reading.chips)
        node.memory, said = assess(node.memory, bare)
        return [f"{chip.index}:{fault.code}" for chip in said.chips for fault in chip.faults]

    read()
    assert read() == ["0:device-lost"]
    node.host.reboot()
    assert read() == []
    assert [chip.index for chip in node.memory.chips] == [1]


def test_without_a_kernel_driver_no_chip_is_lost_and_none_is_healthy(node: Node) -> None:
    node.host.driver_version = None
    (fault,) = node.active()
    assert fault.code == "unreadable"
    golden(fault.detail)
    assert node.faults(chip=1) == ["unreadable"]


def test_a_kernel_driver_without_the_counters_says_nothing_of_health() -> None:
    node = Node()
    node.chip.absent = {f"{HARDWARE}/mem_ecc_uncorrected"}
    (fault,) = node.active()
    assert (fault.code, fault.detail) == ("unreadable", "stats/hardware/mem_ecc_uncorrected is missing")


def test_a_kernel_driver_without_the_newer_files_is_no_fault() -> None:
    node = Node()
    node.chip.absent = {COMPONENTS, HEARTBEAT, *(f"{HARDWARE}/{name}_ecc_corrected" for name in ("sram", "mem"))}
    assert node.faults() == []


def test_a_file_that_was_there_and_is_gone_says_nothing_until_another_driver_is_loaded(node: Node) -> None:
    node.chip.components = {"hbm"}
    node.read()
    node.chip.absent = {COMPONENTS}
    assert node.faults() == ["hbm-unhealthy", "unreadable"]
    assert "hbm-unhealthy" in node.faults(60)
    node.host.driver_version = "2.24.7.0"
    assert node.faults(2) == ["hbm-unhealthy"]
    assert node.faults(35) == []


def test_a_chip_whose_directory_comes_and_goes_during_the_reading_keeps_what_it_has(node: Node) -> None:
    for _ in range(3):
        node.host.uptime += 10
        whole = node.host.reading()
        half = HostReading(
            whole.read_at, whole.uptime, whole.boot_id, "2.30.2.0", whole.chips[1:], frozenset({0}), whole.expected
        )
        node.memory, said = assess(node.memory, half)
        assert [chip.state for chip in said.chips] == ["healthy", "healthy"]


def test_links_that_are_lost_are_named(node: Node) -> None:
    node.chip.missing_links = (1, 4)
    (fault,) = node.active()
    assert (fault.code, fault.detail) == ("link-lost", "to neuron1, neuron4")


def test_links_to_other_servers_that_are_down_degrade_every_chip(node: Node) -> None:
    node.host.server_links_down = True
    assert [chip.state for chip in node.read().chips] == ["degraded", "degraded"]


def test_an_unknown_component_is_named(node: Node) -> None:
    node.chip.components = {"hbm", "flux_capacitor"}
    assert [(fault.code, fault.detail) for fault in node.active()] == [
        ("hbm-unhealthy", ""),
        ("component-unhealthy", "flux_capacitor"),
    ]


# Hints of the kernel log


def test_a_hint_is_about_the_chip_with_its_serial_number_whatever_device_it_names(node: Node) -> None:
    node.hints = [node.host.hint("DMA_ERROR", device=1, core=3)]
    (fault,) = node.active()
    assert (fault.code, fault.detail, fault.since) == ("log-dma", "neuron_core3", node.hints[0].seen)
    assert node.faults(chip=1) == []


@pytest.mark.parametrize("serial", ["", "0000000000000000"])
def test_a_hint_without_a_serial_number_is_about_the_device_it_names(node: Node, serial: str) -> None:
    node.hints = [node.host.hint("DMA_ERROR", device=1, serial=serial)]
    assert node.faults() == []
    assert node.faults(chip=1) == ["log-dma"]


@pytest.mark.parametrize(
    "other",
    [
        {"serial": "00000000deadbeef", "device": 0},
        {"serial": "", "device": 9},
        {"serial": "", "device": None},
        {"boot_id": "boot-0"},
        {"kind": "NO_SUCH_ERROR"},
        {"seen": 1 << 39},
    ],
)
def test_a_hint_that_fits_no_chip_or_another_boot_is_ignored(node: Node, other: dict[str, object]) -> None:
    fields = {"boot_id": "boot-1", "kind": "DMA_ERROR", "seen": node.host.now, "serial": SERIALS[0]} | other
    node.hints = [Hint(**fields)]  # type: ignore[arg-type]
    assert node.faults() == node.faults(chip=1) == []


def test_a_hint_about_a_chip_that_was_replaced_is_not_about_the_new_one(node: Node) -> None:
    node.chip.serial = "0e300000000000ff"
    node.hints = [node.host.hint("DMA_ERROR", device=0)]
    assert node.faults() == node.faults(chip=1) == []


def test_on_chips_without_serial_numbers_the_device_decides() -> None:
    node = Node()
    node.host.chip.serial = node.host.other.serial = None
    node.hints = [node.host.hint("DMA_ERROR", device=1, serial="0e30000000000000")]
    assert node.faults(chip=1) == ["log-dma"]


def test_a_hint_is_remembered_when_its_file_is_gone_until_it_is_cleared_or_the_node_boots(node: Node) -> None:
    node.hints = [node.host.hint("DMA_ERROR")]
    node.read()
    hints, node.hints = node.hints, []
    assert node.faults() == ["log-dma"]
    assert node.clear() == (("log-dma",), ())
    node.hints = hints
    assert node.faults() == []
    node.hints = [node.host.hint("DMA_ERROR", seen=node.host.now + 1)]
    assert node.faults() == ["log-dma"]
    node.host.reboot()
    assert node.faults(1) == []


YEARS = 10 * 365 * 86400


@pytest.mark.parametrize("boots", [0, 1])
def test_what_was_cleared_by_a_clock_that_was_ahead_keeps_no_later_line_from_the_chip(node: Node, boots: int) -> None:
    """Else no line would count for years. Those of before count again: the fault can be cleared once more."""
    node.host.booted_at += YEARS
    node.hints = [node.host.hint("DMA_ERROR")]
    node.read()
    assert node.clear() == (("log-dma",), ())
    node.host.booted_at -= YEARS
    for _ in range(boots):
        node.host.reboot()
    node.hints = [node.host.hint("DMA_ERROR")]
    assert node.faults() == ["log-dma"]
    assert node.clear() == (("log-dma",), ())
    assert node.faults() == []


def test_what_is_not_read_is_told_by_nobody() -> None:
    """A chip of which no file could be read at all."""
    memory = HealthMemory()
    for uptime in (1.0, 2.0):
        memory, said = assess(memory, HostReading(uptime, uptime, "b", "2.30", (ChipReading(0),)))
    assert [fault.code for fault in said.chips[0].faults] == ["unreadable"]
