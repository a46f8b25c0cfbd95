"""What can be wrong with a chip: one row a fault, and the values in which everything speaks of health.

A new fault is a new row: its taint, the text in the pod's status, the Event, the metric, ``dra-driver health`` and
``docs/reference/faults.md`` follow from the row. Sources: aws-neuron-sdk ``neuron-runtime/nrt-troubleshoot.rst``,
``neuron-runtime/api/nrt_status.rst`` and ``src/k8/neuron-problem-detector``; the files of the Neuron kernel driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.host.findings import LOAD_DRIVER

Severity = Literal["unhealthy", "unknown", "degraded"]
"""Value of the taint. ``unknown``: the host does not say whether the chip works; ``degraded``: it works."""

State = Literal["healthy", "degraded", "unknown", "unhealthy"]
"""State of a chip: that of its gravest fault. Unhealthy is graver than unknown, and unknown than degraded."""

Effect = Literal["None", "NoSchedule", "NoExecute"]
"""Effect of a taint of a device, as in resource.k8s.io."""

Remedy = Literal["nothing", "driver-reload", "reboot", "replacement"]
"""The least that mends a fault: each of these also does what those before it do."""

TAINT_DOMAIN: Final = "health.neuron.aws.com"
"""Domain of the taints' keys; an administrator may set another. AWS's own keys are not public."""

BOOT: Final = None
"""``quiet_seconds`` of a fault that only the driver remembers: a boot ends it, or ``dra-driver health clear``."""


class Positive(NamedTuple):
    """A counter of the chip is not 0."""

    counter: str

    def __str__(self) -> str:
        return f"stats/hardware/{self.counter} > 0"


class Growing(NamedTuple):
    """A counter of the chip grows."""

    counter: str

    def __str__(self) -> str:
        return f"stats/hardware/{self.counter} grows"


class Component(NamedTuple):
    """The firmware names a component among the unhealthy ones."""

    name: str
    verb: str = "lists"

    def __str__(self) -> str:
        return f"stats/hardware/health_status/unhealthy_components {self.verb} {self.name}"


class CoreCounter(NamedTuple):
    """An error counter of a core grew."""

    counter: str

    def __str__(self) -> str:
        return f"neuron_core*/stats/status/{self.counter}/total grew"


class LogLine(NamedTuple):
    """The kernel log has a line of this kind."""

    kind: str

    def __str__(self) -> str:
        return f"the kernel log has NEURON_HW_ERR={self.kind}"


Signal = Positive | Growing | Component | CoreCounter | LogLine | str
"""File below the device's sysfs directory (or another source) and condition; as text, it is for people. The fault of a
plain text has a rule of its own in ``assess``."""


class Fault(NamedTuple):
    """A row: one thing that can be wrong with a chip."""

    code: str
    """A DNS label: name of the fault everywhere, and of the taint's key in its domain."""
    signal: Signal
    """What shows it."""
    severity: Severity
    remedy: Remedy
    quiet_seconds: int | None
    """How long the signal must be gone until the fault is over (0: on two reads); ``BOOT``: see there."""
    text: str
    """What is wrong; ``detail`` of the active fault follows in parentheses."""
    reason: str
    """Reason of the Event and of the Node's condition ``NeuronHealth``; the first four are the detector's of AWS."""
    strongest: Effect = "NoExecute"
    """The strongest effect that an administrator may give it: a source that pods can forge must not evict pods."""


def _component(name: str, text: str, remedy: Remedy = "replacement") -> Fault:
    """A row for one name in ``unhealthy_components``."""
    return Fault(
        code=name.replace("_", "-") + "-unhealthy",
        signal=Component(name),
        severity="unhealthy",
        remedy=remedy,
        quiet_seconds=300,
        text=text,
        reason=f"NeuronHasError_UNHEALTHY_{name.upper()}",
    )


def _core(code: str, counter: str, text: str, remedy: Remedy, reason: str, severity: Severity = "unhealthy") -> Fault:
    """A row for an error counter of the cores, which the Neuron runtime raises when an execution fails.

    The kernel driver adds up what each process has written to memory that it shares with it (aws-neuron-driver,
    ``neuron_ds.c``), so that a process with the device open can raise it without a failure.
    """
    return Fault(code, CoreCounter(counter), severity, remedy, BOOT, text, reason, "NoSchedule")


def _kernel_log(code: str, kind: str, text: str) -> Fault:
    """A row for a line of the kernel log. Any process that may open the device can have it written."""
    return Fault(
        code,
        LogLine(kind),
        "unhealthy",
        "replacement",
        BOOT,
        text,
        f"NeuronHasError_{kind}",
        "NoSchedule",
    )


_ROWS: Final = (
    Fault(
        "sram-uncorrectable",
        Positive("sram_ecc_uncorrected"),
        "unhealthy",
        "replacement",
        0,
        "uncorrectable errors in the chip's SRAM",
        "NeuronHasError_SRAM_UNCORRECTABLE_ERROR",
    ),
    Fault(
        "hbm-uncorrectable",
        Positive("mem_ecc_uncorrected"),
        "unhealthy",
        "replacement",
        0,
        "uncorrectable errors in the chip's memory",
        "NeuronHasError_HBM_UNCORRECTABLE_ERROR",
    ),
    Fault(
        "hbm-repairable",
        Positive("mem_ecc_repairable_uncorrected"),
        "unhealthy",
        "driver-reload",
        0,
        "uncorrectable errors in the chip's memory that a reload of the kernel driver repairs",
        "NeuronHasError_HBM_REPAIRABLE_ERROR",
    ),
    Fault(
        "sram-corrected-rising",
        Growing("sram_ecc_corrected"),
        "degraded",
        "nothing",
        3600,
        "the number of corrected errors in the chip's SRAM is growing",
        "NeuronSRAMCorrectedErrors",
    ),
    Fault(
        "hbm-corrected-rising",
        Growing("mem_ecc_corrected"),
        "degraded",
        "nothing",
        3600,
        "the number of corrected errors in the chip's memory is growing",
        "NeuronHBMCorrectedErrors",
    ),
    _component("hbm", "the firmware finds the chip's memory unhealthy"),
    _component("sram", "the firmware finds the chip's SRAM unhealthy"),
    _component("firmware_service_api", "the firmware's service interface is unhealthy", "reboot"),
    _component("firmware_service_processor", "the firmware's service processor is unhealthy", "reboot"),
    _component("link_intraserver", "links to other chips of the node are unhealthy"),
    _component("link_host", "the link to the host is unhealthy"),
    _component("link_efa", "the link to the network devices is unhealthy"),
    _component("link_interserver", "links to other nodes of the UltraServer are unhealthy"),
    _component("link_switch", "links to the switch are unhealthy"),
    _component("axi_fabric", "the chip's internal fabric is unhealthy"),
    Fault(
        "component-unhealthy",
        "stats/hardware/health_status/unhealthy_components lists a name that this driver does not know",
        "unhealthy",
        "replacement",
        300,
        "the firmware finds a part of the chip unhealthy",
        "NeuronHasError_UNHEALTHY_COMPONENT",
    ),
    Fault(
        "device-unreachable",
        Component("device_unreachable", "says"),
        "unhealthy",
        "reboot",
        300,
        "the kernel driver cannot reach the chip",
        "NeuronHasError_DEVICE_UNREACHABLE",
    ),
    Fault(
        "heartbeat-stalled",
        "stats/hardware/health_status/healthcheck_heartbeat, once seen to grow, does not change for a minute",
        "unhealthy",
        "reboot",
        60,
        "the firmware's health check has stopped",
        "NeuronHasError_HEARTBEAT_STALLED",
    ),
    Fault(
        "device-invalid",
        "reset says 2 (INVALID)",
        "unhealthy",
        "driver-reload",
        0,
        "the kernel driver failed to bring up the chip, so no program can open it",
        "NeuronHasError_DEVICE_INVALID",
    ),
    Fault(
        "device-lost",
        "sysfs has no directory of the device, which the instance type or an earlier reading says must be there",
        "unhealthy",
        "reboot",
        0,
        "the chip has vanished from the host",
        "NeuronHasError_DEVICE_LOST",
    ),
    Fault(
        "link-lost",
        "connected_devices lacks a neighbour that the instance type has, while all chips are there",
        "unhealthy",
        "replacement",
        300,
        "links to other chips of the node are missing",
        "NeuronHasError_LINK_LOST",
    ),
    Fault(
        "server-link-lost",
        "the kernel driver offers fewer UltraServer modes than the elected nodes allow",
        "degraded",
        "replacement",
        300,
        "links to other nodes of the UltraServer do not work",
        "NeuronServerLinkLost",
    ),
    _core(
        "core-hbm-uncorrectable",
        "hw_hbm_ue_error",
        "an execution failed on an uncorrectable memory error",
        "replacement",
        "NeuronHasError_CORE_HBM_UNCORRECTABLE_ERROR",
    ),
    _core(
        "core-hbm-repairable",
        "hw_repairable_hbm_ue_error",
        "an execution failed on a memory error that a reload of the kernel driver repairs",
        "driver-reload",
        "NeuronHasError_CORE_HBM_REPAIRABLE_ERROR",
    ),
    _core(
        "core-uncorrectable",
        "hw_nc_ue_error",
        "an execution failed on an uncorrectable error of a core",
        "replacement",
        "NeuronHasError_CORE_UNCORRECTABLE_ERROR",
    ),
    _core(
        "core-dma-abort",
        "hw_dma_abort_error",
        "an execution failed on an aborted DMA transfer",
        "replacement",
        "NeuronHasError_CORE_DMA_ABORT",
    ),
    _core(
        "core-collectives-error",
        "hw_collectives_error",
        "a collective operation hung; the culprit may be another worker",
        "nothing",
        "NeuronCollectivesError",
        "degraded",
    ),
    _kernel_log("log-sram", "SRAM_UNCORRECTABLE_ERROR", "the runtime reported uncorrectable errors in the chip's SRAM"),
    _kernel_log("log-core", "NC_UNCORRECTABLE_ERROR", "the runtime reported an uncorrectable error of a core"),
    _kernel_log("log-hbm", "HBM_UNCORRECTABLE_ERROR", "the runtime reported uncorrectable errors in the chip's memory"),
    _kernel_log("log-dma", "DMA_ERROR", "the runtime reported a failed DMA transfer"),
    Fault(
        "unreadable",
        "files of stats/hardware that every kernel driver has are missing, hang, or cannot be read",
        "unknown",
        "nothing",
        0,
        "the host does not report the chip's health",
        "NeuronHealthUnknown",
    ),
)

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({row.code: row for row in _ROWS})
"""Code to its row, in the order of the table."""

SEVERITIES: Final[tuple[Severity, ...]] = ("unhealthy", "unknown", "degraded")
"""The gravest first."""

DEFAULT_EFFECTS: Final[Mapping[Severity, Effect]] = MappingProxyType(
    {"unhealthy": "NoSchedule", "unknown": "None", "degraded": "None"}
)

REMEDIES: Final[Mapping[Remedy, str]] = MappingProxyType(
    {
        "nothing": "no action is needed, but keep watching it",
        "driver-reload": "drain the node and reload the Neuron kernel driver, or reboot the node",
        "reboot": "drain and reboot the node; replace the instance if that does not help",
        "replacement": "drain the node and replace the instance",
    }
)
"""What to do, as a clause."""

NOT_LOADED: Final = "the kernel driver is not loaded"
"""Detail of ``unreadable`` on a host without its kernel driver: a fault of the host, not of its chips (``of_host``)."""


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault that a chip has now."""

    code: str
    """A key of ``FAULTS``."""
    since: int
    """When it began, in whole seconds of Unix time; kept across restarts of the driver."""
    detail: str = ""
    """What was seen, such as ``3 errors``; one line of at most 200 characters, printable."""
    uptime: float | None = None
    """Seconds since boot at which it was first seen in this boot; None: not known. How long it has lasted follows from
    this alone: the clock may be set."""

    @property
    def fault(self) -> Fault:
        """Its row."""
        return FAULTS[self.code]

    @property
    def of_host(self) -> bool:
        """Whether it says of the whole host that the kernel driver is not loaded: told once, not for each chip."""
        return self.code == "unreadable" and self.detail == NOT_LOADED

    @property
    def text(self) -> str:
        """What is wrong and what to do, for pods and people."""
        seen = f" ({self.detail})" if self.detail else ""
        return f"{self.fault.text}{seen}; {LOAD_DRIVER if self.of_host else REMEDIES[self.fault.remedy]}"


@dataclass(frozen=True, slots=True)
class ChipHealth:
    """One chip."""

    index: int
    """N of ``/dev/neuronN`` on the host."""
    faults: tuple[ActiveFault, ...] = ()
    """The gravest first, then in the order of the table."""

    @property
    def state(self) -> State:
        """That of the gravest fault."""
        return self.faults[0].fault.severity if self.faults else "healthy"

    @property
    def own(self) -> tuple[ActiveFault, ...]:
        """Its faults but the one that the whole host has."""
        return tuple(fault for fault in self.faults if not fault.of_host)

    @property
    def text(self) -> str:
        """All faults in one line, "" when there are none."""
        return "; ".join(f"neuron{self.index}: {fault.text}" for fault in self.faults)


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """All chips of a node at one time."""

    chips: tuple[ChipHealth, ...] = ()
    """Ascending. Chips that were lost are among them."""
    read_at: float = 0.0
    """Unix time of the last good reading; 0: none yet."""

    @property
    def not_loaded(self) -> ActiveFault | None:
        """The fault of the whole host, if its kernel driver is not loaded; since it began."""
        faults = [fault for chip in self.chips for fault in chip.faults if fault.of_host]
        return min(faults, key=lambda fault: fault.since, default=None)

    def chip(self, index: int) -> ChipHealth | None:
        """Health of one chip; None when nothing is known of it."""
        return next((chip for chip in self.chips if chip.index == index), None)


_PLACE: Final = {code: place for place, code in enumerate(FAULTS)}


def gravity(fault: ActiveFault) -> tuple[int, int]:
    """Sorts faults: the gravest first, then in the order of the table."""
    return SEVERITIES.index(fault.fault.severity), _PLACE[fault.code]


def in_order(faults: Iterable[ActiveFault]) -> tuple[ActiveFault, ...]:
    """The order of ``ChipHealth.faults``."""
    return tuple(sorted(faults, key=gravity))
