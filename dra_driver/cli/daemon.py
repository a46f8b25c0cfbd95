"""Shared by the long-running commands: options that can also be set as environment variables, and signals."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dra_driver.cli import vocabulary
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.watchdog import LOOK_SECONDS, Watchdog

if TYPE_CHECKING:
    from dra_driver.kube.api.client import Transport
    from dra_driver.neuron.emulation.running import EmulatedHost


_M_MMAP_THRESHOLD: Final = -3
"""Of mallopt(3), in glibc's malloc.h."""


SWITCH: Final = ("on", "off")
"""Choices of an option whose value is a bool."""


class Option(NamedTuple):
    """An option of a daemon, and the environment variable that sets it as well."""

    flag: str
    variable: str
    default: str | None
    """None, "": nothing is set."""
    help: str
    choices: tuple[str, ...] = ()
    """Its legal values; (): any text."""
    bounds: tuple[int, int] | tuple[float, float] | None = None
    """The least and the greatest value of a number, which is whole if they are."""

    @property
    def name(self) -> str:
        """Its key among the values that ``read_options`` returns, such as ``node_name``."""
        return self.flag.removeprefix("--").replace("-", "_")

    def read(self, text: str | None) -> Any:
        """The value of a text; raises UsageError for an illegal one."""
        subject = f"{self.flag} (${self.variable}) is {text!r}"
        if self.choices and text not in self.choices:
            raise UsageError(subject, remedy=f"use one of: {', '.join(self.choices)}")
        if self.choices is SWITCH:
            return text == "on"
        if self.bounds is None or (not text and not self.default):
            return text
        least, most = self.bounds
        try:
            value = type(least)(text or "")
        except ValueError:
            value = most + 1
        if not least <= value <= most:
            raise UsageError(subject, remedy=f"give a number from {least:.10g} to {most:.10g}")
        return value


def port(flag: str, default: str, text: str) -> Option:
    """A port that a negative number turns off."""
    variable = flag.removeprefix("--").replace("-", "_").upper()
    return Option(flag, variable, default, f"{text}; a negative port disables them", bounds=(-65535, 65535))


NODE_ADDRESS: Final = Option(
    "--node-address",
    "NODE_ADDRESS",
    "",
    "address of this node: connections from there, and from the pod's gateway, have places of their own, since "
    "kubelet's probes come from one of both",
)


def probes(number: str, address: str) -> tuple[Option, ...]:
    """Where the health services are."""
    return (
        port("--healthcheck-port", number, "gRPC health services `liveness` and `readiness`"),
        Option("--healthcheck-address", "HEALTHCHECK_ADDRESS", address, "address of the health service"),
        NODE_ADDRESS,
    )


def identity(variable: str) -> Option:
    """Of a controller with a lease."""
    text = "unique name of this process in the lease (default: host name and a random suffix)"
    return Option("--identity", variable, "", text)


PROBED_BY_KUBELET: Final = probes("51515", "0.0.0.0")  # noqa: S104 - kubelet probes the pod's address
METRICS: Final = (
    port("--metrics-port", "-1", "port of the Prometheus metrics (HTTP)"),
    Option("--metrics-address", "METRICS_ADDRESS", "127.0.0.1", "address of the metrics server"),
)
NODE_NAME: Final = Option("--node-name", "NODE_NAME", None, "name of this node's Node object (required)")
HOST_ROOT: Final = Option("--host-root", "HOST_ROOT", "/", "directory with the host's /sys, /proc, /dev and /opt")
HEALTH_HINTS: Final = Option(
    "--health-hints-dir",
    "HEALTH_HINTS_DIR",
    "/run/neuron-health",
    "directory in which the node problem detector writes faults from the kernel log",
)
RESCAN: Final = Option(
    "--rescan-seconds", "RESCAN_SECONDS", "10", "interval between scans of the host", bounds=(0.1, 3600.0)
)
"""A scan takes 2 ms of CPU."""
KUBECONFIG: Final = Option("--kubeconfig", "KUBECONFIG", "", "kubeconfig file (default: the pod's service account)")
LOG_FORMAT: Final = Option("--log-format", "LOG_FORMAT", "text", "log format: text or json", choices=("text", "json"))
EMULATE: Final = Option(
    "--emulate",
    "NEURON_DRA_DRIVER_EMULATION_MODE",
    "",
    "run on emulated hardware of this type, e.g. trn2.48xlarge",
)
EMULATED_VERSION: Final = Option(
    "--emulated-driver-version", "EMULATED_DRIVER_VERSION", "", "kernel driver version of the emulated host"
)
EMULATED_HOST: Final = (
    Option(
        "--emulation-root",
        "EMULATION_ROOT",
        "",
        "directory for the files of the emulated host (default: a temporary directory)",
    ),
    Option(
        "--emulated-faults",
        "EMULATED_FAULTS",
        "",
        "faults of emulated chips, such as 'device-lost@3 hbm-repairable@0-1'; to change them, edit `faults` there",
    ),
)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options, and the one for verbosity."""
    for option in options:
        default = f" (default: {option.default})" if option.default else ""
        parser.add_argument(option.flag, help=f"{option.help}{default} [${option.variable}]")
    parser.add_argument("-v", "--v", type=int, default=0, metavar="LEVEL", help="verbosity as in klog; 4 is debug")


def read_options(options: Iterable[Option], given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options by name (``node_name``): the command line wins over the environment, which wins over the default.

    Args:
        options: all options.
        given: values from the command line, by name; None for options that were not given.
        environment: environment variables.

    Raises:
        UsageError: an invalid value.
    """
    values: dict[str, Any] = {}
    for option in options:
        text = given.get(option.name)
        values[option.name] = option.read(
            text if text is not None else environment.get(option.variable) or option.default
        )
    vocabulary.check_names(values)
    return values


def check_node_options(values: Mapping[str, Any]) -> None:
    """Raise UsageError where options that all node agents share do not go together."""
    if not values["node_name"]:
        raise UsageError(
            "no node name is given", remedy="set NODE_NAME from the pod's spec.nodeName, or use --node-name"
        )
    if values["emulated_faults"] and not values["emulate"]:
        raise UsageError(
            "--emulated-faults ($EMULATED_FAULTS) is given without --emulate",
            remedy="also give the type of the emulated node, such as --emulate trn2.48xlarge",
        )


def transport(kubeconfig: str, place: str = "here") -> Transport:
    """Access to the API server, with a kubeconfig (UsageError if unusable) or, if "", the pod's service account.

    ``place``: where this is, for errors that are read elsewhere.
    """
    from dra_driver.kube.api.client import Transport

    if not kubeconfig:
        return Transport.in_cluster(place=place)
    try:
        return Transport.from_kubeconfig(kubeconfig, place=place)
    except DriverError as error:
        raise UsageError(str(error)) from error


@contextmanager
def emulation(values: dict[str, Any]) -> Iterator[None]:
    """Provide the emulated host at ``emulation_root``, if one is requested, and keep it in motion.

    UsageError if there can be no such host.
    """
    # Only then: a driver of real hardware must start even where nothing is writable and when the disk is full.
    if not values["emulate"]:
        yield
        return
    with ExitStack() as ended:
        if not values["emulation_root"]:
            scratch = ended.enter_context(tempfile.TemporaryDirectory(prefix="neuron-emulation-"))
            values["emulation_root"] = str(Path(scratch) / "host")
        host = emulated_host(values)
        host.start()
        ended.callback(host.stop)
        yield


def emulated_host(values: Mapping[str, Any]) -> EmulatedHost:
    """The emulated host that the options describe, written; UsageError if there can be no such host."""
    from dra_driver.neuron.emulation.options import EmulationOptions
    from dra_driver.neuron.emulation.running import EmulatedHost
    from dra_driver.neuron.emulation.ultraservers import Servers, node_number
    from dra_driver.neuron.topology.instance_types import resolve_emulation

    servers = values.get("emulated_ultraservers")
    try:
        kind = resolve_emulation(values["emulate"])
        options = EmulationOptions(driver_version=values["emulated_driver_version"] or None)
        if servers:
            options = Servers.parse(servers).options(kind, node_number(values["node_name"]), options)
        host = EmulatedHost(Path(values["emulation_root"]), kind, options)
        # A file of faults from before holds what was edited since; an option holds what was meant before that.
        host.write(host.parse(values["emulated_faults"].split()), keep_file=True, counters=False)
    except DriverError as error:
        raise UsageError(str(error)) from error
    return host


class Runnable(Protocol):
    """A service that runs until it is stopped."""

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Stop; also after an incomplete start."""


class Stop:
    """Whether the program is to end; may be set by any thread and by signal handlers.

    Implemented with a socket, because Python runs signal handlers only between two bytecode instructions: a signal that
    arrives just before a thread blocks on a lock, an Event or a queue would be handled only after that wait.
    """

    def __init__(self) -> None:
        self._told, self._teller = socket.socketpair()
        self._teller.setblocking(False)

    def set(self) -> None:
        """Request the end of the program."""
        with suppress(OSError):  # already signalled often enough, or no longer awaited
            self._teller.send(b"\0")

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it is set, for at most so many seconds; whether it is."""
        self._told.settimeout(seconds)
        try:
            self._told.recv(1)
        except TimeoutError:
            return False
        return True

    @contextmanager
    def set_by_signals(self) -> Iterator[None]:
        """Set it on SIGTERM and SIGINT within the block; the previous handlers are restored afterwards."""
        with self._told, self._teller, ExitStack() as before:
            for number_ in (signal.SIGTERM, signal.SIGINT):
                before.callback(signal.signal, number_, signal.signal(number_, lambda _number, _frame: None))
            woken = signal.set_wakeup_fd(self._teller.fileno(), warn_on_full_buffer=False)
            before.callback(signal.set_wakeup_fd, woken)
            before.enter_context(stacks_on_signal())
            yield


@contextmanager
def stacks_on_signal() -> Iterator[None]:
    """Within the block, SIGUSR2 has what every thread is doing written beside the log.

    Not by a handler in Python, which would wait for the main thread: it may be the one that hangs.
    """
    faulthandler.register(signal.SIGUSR2, file=2)  # stderr, whatever sys.stderr is
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR2)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """A Stop that SIGTERM and SIGINT set within the block."""
    stop = Stop()
    with stop.set_by_signals():
        yield stop


def return_freed_memory() -> None:
    """Have the C library give blocks of 128 KiB and more back to the system as soon as they are freed.

    By default (mallopt(3)) it keeps as much as the largest block so far took, in each of several areas for threads: a
    driver that prepared sixteen claims of 8.5 MB at once had 181 MiB then, and has 76 so.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


def run_until(stop: Stop, running: Runnable, liveness: Callable[[], list[str]] = list) -> None:
    """Start the service, watch it, and stop it once ``stop`` is set.

    Args:
        stop: when to stop.
        running: the service.
        liveness: says what is wrong with it that a restart may mend.

    Raises:
        DriverError: such problems have lasted; the service was stopped.
    """
    return_freed_memory()
    watchdog = Watchdog(liveness)
    watchdog.start()
    try:
        running.start()
        # All that was imported stays to the end: the garbage collector need not look through it again.
        gc.collect()
        gc.freeze()
        watchdog.look()
        while not stop.wait(LOOK_SECONDS):
            watchdog.look()
    finally:
        # Also after an incomplete start: kubelet would keep trying to connect to a socket without a process behind it.
        running.stop()
        watchdog.stop()
