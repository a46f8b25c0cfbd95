"""``dra-driver node-problem-detector``: the only part that reads the kernel log, and that has no other right."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import DriverError
from dra_driver.util.options import Option, Ports

if TYPE_CHECKING:
    from dra_driver.neuron.health.detector import Detector

MIN_SECONDS, MAX_SECONDS = 1.0, 60.0
"""Between readings: a hint is written at most once a second, and a line is seen within a minute."""

MAX_LOOKBACK_SECONDS = 365 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Settings(Ports):
    """What an administrator sets for the detector."""

    host_root: Annotated[Path, Option("--host-root", "directory with the host's /proc", "/")]
    health_hints_dir: Annotated[
        Path,
        Option("--health-hints-dir", "directory of the hints, which the node's driver reads", "/run/neuron-health"),
    ]
    kernel_log: Annotated[
        Path | None,
        Option(
            "--kernel-log",
            "for trials: a file with lines as `dmesg --raw` prints them, read in place of the kernel's log",
        ),
    ]
    lookback_seconds: Annotated[
        float | None,
        Option(
            "--lookback-seconds",
            "ignore lines that are older than this at the start (default: take all of this boot)",
            bounds=(0.0, MAX_LOOKBACK_SECONDS),
            chart="lookbackSeconds",
        ),
    ]
    rescan_seconds: Annotated[
        float,
        Option(
            "--rescan-seconds",
            "interval between readings of the log; a hint is written once in each",
            "5",
            bounds=(MIN_SECONDS, MAX_SECONDS),
            chart="rescanSeconds",
        ),
    ]
    log_format: Annotated[Literal["text", "json"], daemon.LOG_FORMAT]


TABLES = (Settings,)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Read the kernel log, and keep its NEURON_HW_ERR lines as one small file for each chip and kind of "
        "error. The node's driver or device plugin takes them as hints. Needs root with the capability SYSLOG; "
        "changes nothing but its own directory.",
        examples=["node-problem-detector --health-hints-dir /tmp/hints --healthcheck-port -1"],
    )
    daemon.add_options(parser, *TABLES)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0)."""
    from dra_driver.util.metrics import Collector

    settings = daemon.begin(Settings, args)
    running = detector(settings)
    checks = {"liveness": running.not_alive, "readiness": running.not_ready}
    text = "Time to read the kernel log once."
    collector = Collector(running.operations, running.samples, "kernel_log_seconds", text)
    with daemon.stopped_by_signals() as stop, daemon.open_ports(settings, checks, collector):
        daemon.run_until(stop, running, running.not_alive)
    return 0


def detector(settings: Settings) -> Detector:
    """The detector that the options describe; raises DriverError when the boot has no id."""
    from functools import partial

    from dra_driver.neuron.health.detector import Detector, read_log_file, read_system_log

    return Detector(
        read_system_log if settings.kernel_log is None else partial(read_log_file, settings.kernel_log),
        settings.health_hints_dir,
        boot_id(settings.host_root),
        interval=settings.rescan_seconds,
        lookback=settings.lookback_seconds,
    )


def boot_id(root: Path) -> str:
    """Identity of the boot of the host with that root directory; raises DriverError."""
    from dra_driver.neuron.host.discover import BOOT_ID
    from dra_driver.util.files import read_file

    path = root / BOOT_ID
    try:
        found = (read_file(path) or b"").decode().strip()
    except (OSError, ValueError) as error:
        raise DriverError(f"{path} cannot be read: {error}", remedy="give the host's root as --host-root") from error
    if not found:
        raise DriverError(
            f"{path} is missing or empty",
            consequence="hints of this boot cannot be distinguished from those of another",
            remedy="give the host's root as --host-root",
        )
    return found
