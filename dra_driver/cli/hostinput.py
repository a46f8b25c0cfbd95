"""The host that a command is about: one of an instance type, or one below a directory, and how well it is."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dra_driver.cli import vocabulary
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError, UsageError, blaming_usage

if TYPE_CHECKING:
    from dra_driver.neuron.health.faults import NodeHealth
    from dra_driver.neuron.host.inventory import NodeInventory

EXAMPLE_NODE_UID = "00000000-0000-0000-0000-000000000000"
"""Placeholder for the Node object's UID, which only the API server knows."""
READ_SECONDS: Final = 10.0
"""A reading takes some hundredths of a second; one that takes so long hangs in the kernel."""
_DRIVERS: Final = (
    ("KUBELET_PLUGINS_DIRECTORY_PATH", "/var/lib/kubelet/plugins", f"{DRIVER_NAME}/health"),
    ("STATE_DIR", "/var/lib/neuron-device-plugin", "health"),
)
"""Who keeps a record, the DRA driver first: its option's variable and default, and the record's directory below."""


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a host: an instance type or a directory."""
    source = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_instance_type(source, "a fully populated host of this EC2 type")
    vocabulary.add_host_root(source)


def check_host_root(root: Path) -> None:
    """Raise UsageError for what is no directory."""
    if not root.is_dir():
        way = "make one with: dra-driver emulate-host --instance-type trn2.48xlarge DIR"
        raise UsageError(f"--host-root {root} is not a directory", remedy=way)


def read_host(args: argparse.Namespace) -> NodeInventory:
    """The inventory of the host selected with ``add_host_arguments``; raises UsageError if none is.

    Warnings about the host go to standard error.
    """
    from dra_driver.neuron.host.discover import discover

    if args.host_root is not None:
        check_host_root(args.host_root)
        inventory = discover(args.host_root)
        for finding in inventory.findings:
            vocabulary.warn(finding.text)
        return inventory

    from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
    from dra_driver.neuron.topology.instance_types import resolve_emulation

    with blaming_usage():
        instance_type = resolve_emulation(args.instance_type)
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as directory:
        root = Path(directory) / "host"
        write_host(root, instance_type, EmulationOptions())
        return discover(root)


def found_state_dir(root: Path = Path("/")) -> Path:
    """Where the driver or the device plugin of the host below ``root`` keeps its record, by their options' variables.

    The driver's, unless only the other is there.
    """
    # Without leave to look: as if it were not there. Path.is_dir raises then.
    return next((path for path in state_dirs(root) if os.path.isdir(path)), state_dirs(root)[0])  # noqa: PTH112


def state_dirs(root: Path) -> tuple[Path, ...]:
    """Where the driver, then the device plugin, of the host below ``root`` keep their records."""
    return tuple(
        root / (os.environ.get(variable) or default).lstrip("/") / below for variable, default, below in _DRIVERS
    )


class HostHealth(NamedTuple):
    """How well a host is."""

    health: NodeHealth
    instance_type: str | None
    """As the driver knows it; what a fault means may depend on it."""


def read_health(root: Path, state_dir: Path) -> HostHealth:
    """The health of a host as two readings and the driver's record say; writes nothing."""
    from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS, assess
    from dra_driver.neuron.health.memory import MemoryFile
    from dra_driver.neuron.health.watch import AGAIN_SECONDS
    from dra_driver.neuron.host.discover import discover
    from dra_driver.neuron.host.signals import SignalReader
    from dra_driver.util.worker import bounded

    reader = SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS)

    def read() -> HostHealth:
        inventory = discover(root)
        memory, _ = assess(MemoryFile(state_dir).read(move_aside=False), reader.read(inventory))
        time.sleep(AGAIN_SECONDS)
        return HostHealth(assess(memory, reader.read(inventory))[1], inventory.instance_type)

    def overdue() -> DriverError:
        return DriverError(
            f"reading {reader.at or 'the host'} does not end",
            consequence="the health of the chips is not known",
            remedy="check the node's kernel log; usually the node must be rebooted",
        )

    return bounded(read, READ_SECONDS, overdue)
