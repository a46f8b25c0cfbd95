"""How an emulated host may differ from a healthy new one, and which combinations are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError

ECC_FILES = {
    "sram": "sram_ecc_uncorrected",
    "mem": "mem_ecc_uncorrected",
    "repairable": "mem_ecc_repairable_uncorrected",
    "sram-corrected": "sram_ecc_corrected",
    "mem-corrected": "mem_ecc_corrected",
}
"""Short name -> file below ``stats/hardware``. Kernel drivers before 2.30 lack the corrected ones."""

ECC_FILES_OF_OLD_DRIVERS = ("sram", "mem", "repairable")

NEW_FILES_SINCE = (2, 30)
"""First kernel driver version known to have health files, corrected counts and both UltraServer forms."""

_DEFAULT_DRIVER_VERSION = "2.30.2.0"
_LAST_DRIVER_VERSION = {"inf1": "2.24.7.0"}
"""Instance families that newer driver versions no longer support."""

_VERSION = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){1,3}")
_SERVER_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class EmulationOptions:
    """Differences from a healthy, fully populated host; by default there are none.

    The ids of an UltraServer are keyed by its number of nodes, 2 or 4. Missing ids are derived from the given ones, as
    on a node of a healthy server with four nodes.
    """

    driver_version: str | None = None
    """Kernel driver version; None: the newest known one that supports the type."""
    missing: frozenset[int] = frozenset()
    """Indexes of missing devices."""
    ecc: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Device index -> counters by the names in ``ECC_FILES``."""
    logical_nc_config: int | None = None
    """Node-wide default logical core size, 1 or 2; None: the file does not exist."""
    ultraserver_modes: tuple[Mode, ...] | None = None
    """Modes that the node supports; empty: none."""
    server_ids: Mapping[int, str] = field(default_factory=dict)
    """16 hexadecimal digits; on machines without an election the id for 4 nodes is the reservation id."""
    node_ids: Mapping[int, int] = field(default_factory=dict)
    """0 to 3, or -1: not part of such a server."""
    node_count: int | None = None
    """Number of nodes of the server, on machines without an election; None: as many as a complete server has."""
    busy: bool = False
    """Whether the election of the UltraServer's ids is still running."""


def driver_version(kind: InstanceType, options: EmulationOptions) -> str:
    """The version of the emulated kernel driver."""
    return options.driver_version or _LAST_DRIVER_VERSION.get(kind.family, _DEFAULT_DRIVER_VERSION)


def release(version: str) -> tuple[int, ...]:
    """A version as a tuple of numbers, for comparison."""
    return tuple(map(int, version.split(".")))


def check(kind: InstanceType, options: EmulationOptions) -> None:
    """Raise a DriverError that names the option and its valid values if this type cannot have these options."""
    if kind.devices is None:
        raise DriverError(
            f"a host of type {kind.name} cannot be emulated: its number of devices is not public",
            remedy="emulate another type, see 'dra-driver emulate-host --help'",
        )
    version = driver_version(kind, options)
    if not _VERSION.fullmatch(version):
        raise DriverError(f"{version[:60]!r} is not a version of the kernel driver", remedy="give one such as 2.30.2.0")
    if options.logical_nc_config not in {None, 1, 2}:
        raise DriverError(f"a logical core size of {options.logical_nc_config} does not exist", remedy="give 1 or 2")
    _check_indexes(kind, kind.devices, options)
    _check_ecc(options, version)
    _check_ultraserver(kind, options)


def _check_indexes(kind: InstanceType, devices: int, options: EmulationOptions) -> None:
    for index in (*options.missing, *options.ecc):
        if not 0 <= index < devices:
            raise DriverError(f"{kind.name} has no device {index}", remedy=f"indexes go from 0 to {devices - 1}")
    for index in sorted(options.missing & options.ecc.keys()):
        raise DriverError(f"device {index} cannot have ECC counters if it is missing", remedy="remove one of the two")


def _check_ecc(options: EmulationOptions, version: str) -> None:
    legal = ECC_FILES if release(version) >= NEW_FILES_SINCE else ECC_FILES_OF_OLD_DRIVERS
    for counters in options.ecc.values():
        for name, value in counters.items():
            if name not in legal:
                raise DriverError(
                    f"kernel driver {version} has no ECC counter {name[:60]!r}",
                    remedy=f"its counters are {', '.join(legal)}",
                )
            if not 0 <= value < 1 << 64:
                raise DriverError(f"an ECC counter cannot be {value}", remedy="give 0 to 2^64 - 1")


def _check_ultraserver(kind: InstanceType, options: EmulationOptions) -> None:
    asked = options.ultraserver_modes is not None or options.server_ids or options.node_ids or options.busy
    if asked and kind.ultraserver is None:
        raise DriverError(f"{kind.name} is not part of an UltraServer", remedy="leave the UltraServer options out")
    if options.busy and kind.ultraserver is not None and kind.ultraserver.files != "elected":
        raise DriverError(f"{kind.name} has no election that can be busy", remedy="leave that option out")
    _check_ultraserver_ids(options)


def _check_ultraserver_ids(options: EmulationOptions) -> None:
    for size in (*options.server_ids, *options.node_ids):
        if size not in {2, 4}:
            raise DriverError(f"there are no UltraServers of {size} nodes", remedy="give ids for 2 or 4 nodes")
    for server_id in options.server_ids.values():
        if not _SERVER_ID.fullmatch(server_id):
            raise DriverError(f"{server_id[:60]!r} is not a server id", remedy="give 16 digits of 0-9a-f")
    for node_id in options.node_ids.values():
        if not -1 <= node_id <= 3:
            raise DriverError(f"{node_id} is not a node id", remedy="give 0 to 3, or -1 for none")
