"""Random histories of signals: the faults are those that the table defines, whenever the driver is restarted.

And all who are told of them are told the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.cli.health import document
from dra_driver.cli.hostinput import HostHealth
from dra_driver.driver.device_health import device_health
from dra_driver.driver.resourceslices.devices import offer
from dra_driver.kube.objects import limits
from dra_driver.legacy.device_plugin import devices as device_plugin
from dra_driver.legacy.rules import NeuronResource
from dra_driver.neuron.health.assess import (
    CORE_COUNTERS,
    HARDWARE_COUNTERS,
    RULES,
    HealthMemory,
    Hint,
    assess,
    clear,
    health,
)
from dra_driver.neuron.health.condition import condition, parse
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.health.memory import decoded, encoded
from dra_driver.neuron.health.policy import HealthPolicy
from dra_driver.neuron.health.watch import aged, chip_samples
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.host.signals import COMPONENTS, CONNECTED, HARDWARE, HEARTBEAT, RESET
from dra_driver.neuron.topology.partitions import CHIPS_AND_NODE, NODE_DEVICE, device_name
from tests.builders.chips import Host, codes
from tests.generators.effort import examples
from tests.oracles.health import Moment, latch_is_active, level_is_active

pytestmark = pytest.mark.slow

ECC: Final = {
    "sram-uncorrectable": "sram_ecc_uncorrected",
    "hbm-uncorrectable": "mem_ecc_uncorrected",
    "hbm-repairable": "mem_ecc_repairable_uncorrected",
}
COMPONENT: Final = {
    "hbm-unhealthy": "hbm",
    "sram-unhealthy": "sram",
    "firmware-service-api-unhealthy": "firmware_service_api",
    "firmware-service-processor-unhealthy": "firmware_service_processor",
    "link-intraserver-unhealthy": "link_intraserver",
    "link-host-unhealthy": "link_host",
    "link-efa-unhealthy": "link_efa",
    "link-interserver-unhealthy": "link_interserver",
    "link-switch-unhealthy": "link_switch",
    "axi-fabric-unhealthy": "axi_fabric",
    "component-unhealthy": "flux_capacitor",
    "device-unreachable": "device_unreachable",
}
CORE: Final = {
    "core-hbm-uncorrectable": "hw_hbm_ue_error",
    "core-hbm-repairable": "hw_repairable_hbm_ue_error",
    "core-uncorrectable": "hw_nc_ue_error",
    "core-dma-abort": "hw_dma_abort_error",
    "core-collectives-error": "hw_collectives_error",
}
LOG: Final = {
    "log-sram": "SRAM_UNCORRECTABLE_ERROR",
    "log-core": "NC_UNCORRECTABLE_ERROR",
    "log-hbm": "HBM_UNCORRECTABLE_ERROR",
    "log-dma": "DMA_ERROR",
}
FILE: Final = {
    **{code: f"{HARDWARE}/{name}" for code, name in ECC.items()},
    **dict.fromkeys(COMPONENT, COMPONENTS),
    "device-invalid": RESET,
    "link-lost": CONNECTED,
    "heartbeat-stalled": HEARTBEAT,
}
SWITCHED: Final = (*ECC, *COMPONENT, "device-invalid", "link-lost", "server-link-lost", "device-lost")
"""Faults whose signal is on or off as the step says."""
RISING: Final = ("sram-corrected-rising", "hbm-corrected-rising")
"""Tested by examples: what is risen depends on what was taken note of."""
SECONDS: Final = (0.5, 10.0, 29.0, 31.0, 59.0, 61.0, 150.0, 301.0)
STEP: Final = 3
"""Bytes: what happens, to which signal, how long after the step before."""
TYPE: Final = "trn2u.48xlarge"
CHIPS: Final = 16
OFFERED: Final = tuple(NeuronDevice(index, 240, index, None, 8, None, None, None, None, None) for index in range(CHIPS))
INVENTORY: Final = NodeInventory(TYPE, "2.30.2.0", OFFERED, expected_devices=CHIPS)
KUBELET: Final = {"unhealthy": "unhealthy", "unknown": "unknown", "degraded": "healthy", "healthy": "healthy"}


def test_every_row_of_the_table_has_a_rule_and_is_in_the_histories() -> None:
    assert set(RULES) == set(FAULTS)
    assert {*SWITCHED, *CORE, *LOG, *RISING, "heartbeat-stalled", "unreadable"} == set(FAULTS)
    assert set(CORE.values()) == set(CORE_COUNTERS)
    assert {*ECC.values(), "sram_ecc_corrected", "mem_ecc_corrected"} == set(HARDWARE_COUNTERS)


@dataclass
class Story:
    """A host with what happened to it, and what each reading said of each signal."""

    theme: int
    """What most steps are about, so that more than one of them is about the same signal."""
    host: Host = field(default_factory=Host)
    on: set[str] = field(default_factory=set)
    hints: dict[str, Hint] = field(default_factory=dict)
    cleared_at: int = 0
    core_base: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CORE, 0))
    core_read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CORE_COUNTERS, 0))
    """As read last."""
    beats: list[tuple[int, float, int]] = field(default_factory=list)
    """Boot, uptime and value, of each heartbeat that could be read."""
    histories: dict[str, list[Moment]] = field(default_factory=lambda: {code: [] for code in FAULTS})
    memory: HealthMemory = field(default_factory=HealthMemory)
    said: NodeHealth = field(default_factory=NodeHealth)

    def __post_init__(self) -> None:
        self._read()

    def step(self, what: int, which: int, when: int) -> None:
        self.host.uptime += SECONDS[when % len(SECONDS)]
        events: tuple[Callable[[int], None], ...] = (
            self._switch,
            self._switch,
            self._switch,
            self._break_file,
            self._core_error,
            self._log,
            self._beat,
            self._skip_cores,
            self._reboot,
            lambda _: None,
        )
        events[what % len(events)](which if which % 4 == 0 else self.theme)
        self._read()
        if what >= 220:
            self._clear()
        if what % 2:
            self.memory = decoded(encoded(self.memory))

    def _switch(self, which: int) -> None:
        code = SWITCHED[which % len(SWITCHED)]
        self.on ^= {code}
        chip, on = self.host.chip, code in self.on
        if code in ECC:
            chip.counters[ECC[code]] = which + 1 if on else 0
        elif code in COMPONENT:
            chip.components ^= {COMPONENT[code]}
        elif code == "device-invalid":
            chip.state = 2 if on else 1
        elif code == "link-lost":
            chip.missing_links = (1,) if on else ()
        elif code == "server-link-lost":
            self.host.server_links_down = on
        else:
            chip.there = not on

    def _break_file(self, which: int) -> None:
        code = SWITCHED[which % len(SWITCHED)]
        self.host.chip.unusable ^= {FILE.get(code, HEARTBEAT)}

    def _core_error(self, which: int) -> None:
        self.host.chip.core_errors[list(CORE.values())[which % len(CORE)]] += 1

    def _log(self, which: int) -> None:
        code = list(LOG)[which % len(LOG)]
        self.hints[code] = self.host.hint(LOG[code], seen=self.host.now - which % 3)

    def _beat(self, which: int) -> None:
        self.host.chip.heartbeat += which + 1

    def _skip_cores(self, _: int) -> None:
        self.host.chip.cores_read = not self.host.chip.cores_read

    def _reboot(self, _: int) -> None:
        self.host.reboot()
        self.host.chip.core_errors = dict.fromkeys(CORE_COUNTERS, 0)
        self.host.chip.heartbeat = 1
        self.core_base, self.core_read = dict.fromkeys(CORE, 0), dict.fromkeys(CORE_COUNTERS, 0)
        self.hints.clear()

    def _read(self) -> None:
        if self.host.chip.there and self.host.chip.cores_read:
            self.core_read = dict(self.host.chip.core_errors)
        for code, history in self.histories.items():
            history.append(Moment(self.host.uptime, self._told(code), self.host.boot))
        self.memory, self.said = assess(self.memory, self.host.reading(), list(self.hints.values()))

    def _clear(self) -> None:
        for history in self.histories.values():
            last = history[-1]
            history[-1] = Moment(last.uptime, last.present, last.boot, cleared=True)
        for code, name in CORE.items():
            self.core_base[code] = self.core_read[name]
        self.cleared_at = max([self.host.now, *(hint.seen for hint in self.hints.values())])
        self.memory, cleared, kept = clear(self.memory, 0, float(self.host.now))
        self.said = health(self.memory, float(self.host.now))
        assert not set(cleared) & set(kept)
        assert set(kept) == set(self.faults())

    def faults(self) -> list[str]:
        chip = self.said.chip(0)
        assert chip is not None
        return codes(chip.faults)

    def _told(self, code: str) -> bool | None:
        """What this reading says of a signal."""
        chip = self.host.chip
        if code == "server-link-lost":
            return self.host.server_links_down
        if code in LOG:
            return code in self.hints and self.hints[code].seen > self.cleared_at
        if code == "device-lost":
            return not chip.there
        if not chip.there or FILE.get(code) in chip.unusable:
            return None
        if code in CORE:
            return chip.core_errors[CORE[code]] > self.core_base[code] if chip.cores_read else None
        if code == "unreadable":
            return any(path.startswith(HARDWARE) for path in chip.unusable)
        if code == "heartbeat-stalled":
            return self._stalled()
        return code in self.on

    def _stalled(self) -> bool | None:
        self.beats.append((self.host.boot, self.host.uptime, self.host.chip.heartbeat))
        here = [(uptime, value) for boot, uptime, value in self.beats if boot == self.host.boot]
        began = next(uptime for uptime, value in here if value == here[-1][1])
        moved = any(one != here[0][1] for _, one in here)
        moves = any(one[0] == two[0] and one[2] < two[2] for one, two in zip(self.beats, self.beats[1:], strict=False))
        if moves and self.host.uptime - began >= 60:
            return True
        return False if moved or not moves else None

    def expected_of_the_other(self) -> set[str]:
        """It has no fault of its own, and nobody clears any of it."""
        history = [Moment(m.uptime, m.present, m.boot) for m in self.histories["server-link-lost"]]
        return {"server-link-lost"} if level_is_active(history, 300) else set()

    def expected(self, code: str) -> bool:
        quiet, history = FAULTS[code].quiet_seconds, self.histories[code]
        return latch_is_active(history) if quiet is None else level_is_active(history, quiet)


@settings(max_examples=examples(1_000))
@given(st.binary(min_size=1 + STEP, max_size=1 + STEP * 14))
def test_the_faults_are_those_that_the_table_defines(history: bytes) -> None:
    story = Story(history[0])
    for start in range(1, len(history) - STEP + 1, STEP):
        story.step(*history[start : start + STEP])

        found = story.faults()
        assert set(found) == {code for code in FAULTS if story.expected(code)}
        said_twice = [
            code
            for code, moments in story.histories.items()
            if len(moments) > 1
            and moments[-1].present
            and moments[-2].present
            and moments[-1].boot == moments[-2].boot
            and (FAULTS[code].quiet_seconds is not None or not moments[-1].cleared)
            and not (moments[-2].cleared and FAULTS[code].quiet_seconds is None)
        ]
        assert set(said_twice) <= set(found)
        assert story.said.chips[0].state == (FAULTS[found[0]].severity if found else "healthy")
        assert set(codes(story.said.chips[1].faults)) == story.expected_of_the_other()


@settings(max_examples=examples(1_000))
@given(st.binary(min_size=1 + STEP, max_size=1 + STEP * 14))
def test_scheduler_pod_node_dashboards_command_and_device_plugin_are_told_the_same(history: bytes) -> None:
    story = Story(history[0])
    # Of one chip's history, a node full of chips: each is as the first one was some steps ago.
    past: deque[ChipHealth] = deque(maxlen=CHIPS)
    for start in range(1, len(history) - STEP + 1, STEP):
        before = story.said.chips
        story.step(*history[start : start + STEP])
        past.appendleft(story.said.chips[0])
        if story.said.chips != before:
            assert_all_say_the_same(story.said, story.memory)
    told = NodeHealth(tuple(ChipHealth(index, chip.faults) for index, chip in enumerate(past)), story.said.read_at)
    has_grown_old = history[0] % 2
    if has_grown_old:
        told = aged(told, int(told.read_at), "", INVENTORY.chip_indexes)
    assert_all_say_the_same(told, story.memory)


def assert_all_say_the_same(health: NodeHealth, memory: HealthMemory) -> None:
    """What each consumer makes of a node's health, with the default table of effects."""
    policy, now = HealthPolicy.default(), health.read_at
    sick = {chip.index for chip in health.chips if chip.state == "unhealthy"}
    faults = {chip.index: codes(chip.faults) for chip in health.chips if chip.faults}
    severities = {index: {code: FAULTS[code].severity for code in found} for index, found in faults.items()}
    named = {device_name(index) for index in sick} | ({NODE_DEVICE} if sick else set())

    # The scheduler: taints in the slices.
    offered = {device.name: device.taints for device in offer(INVENTORY, CHIPS_AND_NODE, health, policy, now).devices}
    assert set(offered) == {*map(device_name, range(CHIPS)), NODE_DEVICE}
    for effect in ("NoSchedule", "NoExecute"):
        tainted = {name for name, taints in offered.items() if any(taint.effect == effect for taint in taints)}
        assert tainted == (named if effect == "NoSchedule" else set())
    by_chip = {index: {t.key.split("/")[1]: t.value for t in offered[device_name(index)]} for index in range(CHIPS)}
    assert {index: found for index, found in by_chip.items() if found} == severities
    assert all(
        taint.effect == ("NoSchedule" if taint.value == "unhealthy" else "None")
        for taints in offered.values()
        for taint in taints
    )
    union = in_order({code: ActiveFault(code, 0) for found in faults.values() for code in found}.values())
    assert [taint.key.split("/")[1] for taint in offered[NODE_DEVICE]] == codes(union)[: limits.MAX_TAINTS]

    # The driver itself, when it prepares a claim.
    blocking = policy.blocking(health.chips, TYPE, now)
    assert {index: [fault.taint.key.split("/")[1] for fault in found] for index, found in blocking.items()} == {
        index: [code for code in faults[index] if FAULTS[code].severity == "unhealthy"] for index in sick
    }

    # The pod: kubelet's stream.
    stream = {item.device: item for item in device_health(health, INVENTORY.chip_indexes, [NODE_DEVICE], "node")}
    assert set(stream) == set(offered)
    assert {name for name, item in stream.items() if item.health == "unhealthy"} == named
    for chip in health.chips:
        told = stream[device_name(chip.index)]
        assert (told.health, told.message) == (KUBELET[chip.state], chip.text)
        assert chip.text in stream[NODE_DEVICE].message

    # The Node: its condition, and what recovery reads in it.
    found = condition(health)
    unknown = any(chip.state == "unknown" for chip in health.chips)
    assert found.status == ("True" if sick else "Unknown" if unknown else "False")
    read = {index: list(said) for index, said in parse(found.reason, found.message).items()}
    if found.message.endswith(" more"):
        assert read.items() < faults.items()
    else:
        assert read == faults

    # Dashboards: metrics.
    samples = [(sample.name, dict(sample.labels)) for sample in chip_samples(health, memory, {})]
    states = {labels["device"]: labels["state"] for name, labels in samples if name == "chip_health"}
    assert states == {f"neuron{chip.index}": chip.state for chip in health.chips}
    measured = [tuple(labels.values()) for name, labels in samples if name == "chip_fault"]
    assert measured == [(f"neuron{n}", code, severity) for n in faults for code, severity in severities[n].items()]

    # Who is on the node: the command.
    (node,) = document(HostHealth(health, TYPE), policy)["items"]
    printed = node["chips"]
    assert {f"neuron{item['index']}": item["state"] for item in printed} == states
    for chip, item in zip(health.chips, printed, strict=True):
        effects = {taint.key.split("/")[1]: taint.effect for taint in offered[device_name(chip.index)]}
        assert {fault["code"]: fault["effect"] for fault in item["faults"]} == effects

    # Nodes without DRA: the device plugin.
    plugin = device_plugin.offer(INVENTORY, None, device_plugin.unhealthy(health))
    assert plugin is not None
    assert (set(plugin.unusable), set(plugin.sick)) == (sick, sick)
    for resource, each in ((NeuronResource.DEVICE, 1), (NeuronResource.CORE, plugin.hardware.cores_per_device)):
        units = device_plugin.plugin_devices(plugin, resource)
        assert {int(unit.id) // each for unit in units if not unit.healthy} == sick
        assert {int(unit.id) // each for unit in units if unit.healthy} == set(range(CHIPS)) - sick
