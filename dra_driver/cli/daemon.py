"""Shared by the long-running commands: options that can also be set as environment variables, and signals."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeVar

from dra_driver.cli import vocabulary
from dra_driver.util.errors import UsageError, blaming_usage
from dra_driver.util.options import Option, Ports, T, Table, read_table, settings_of
from dra_driver.util.watchdog import LOOK_SECONDS, Watchdog

if TYPE_CHECKING:
    from dra_driver.kube.api.client import Transport
    from dra_driver.kube.kubelet.health import Check
    from dra_driver.neuron.emulation.running import EmulatedHost
    from dra_driver.util.metrics import Collector


_M_MMAP_THRESHOLD: Final = -3
"""Of mallopt(3), in glibc's malloc.h."""


LOG_FORMAT: Final = Option("--log-format", "log format: text or json", "text", made_of=".logFormat")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every program of a cluster takes that speaks to the API server."""

    kubeconfig: Annotated[str, Option("--kubeconfig", "kubeconfig file (default: the pod's service account)")]
    log_format: Annotated[Literal["text", "json"], LOG_FORMAT]


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """Hardware that a node agent emulates."""

    instance_type: Annotated[
        str,
        Option(
            "--emulate",
            "run on emulated hardware of this type, e.g. trn2.48xlarge",
            variable="NEURON_DRA_DRIVER_EMULATION_MODE",
            made_of="emulate",
        ),
    ]
    """"": none, it runs on what there is."""
    driver_version: Annotated[
        str | None,
        Option(
            "--emulated-driver-version", "kernel driver version of the emulated host", chart="emulatedDriverVersion"
        ),
    ]
    root: Annotated[
        Path | None,
        Option("--emulation-root", "directory for the files of the emulated host (default: a temporary directory)"),
    ]
    faults: Annotated[
        str,
        Option(
            "--emulated-faults",
            "faults of emulated chips, such as 'device-lost@3 hbm-repairable@0-1'; to change them, edit `faults` there",
            chart="emulatedFaults",
        ),
    ]


def identity(variable: str) -> Option:
    """By which a replica with a lease tells itself from the others."""
    text = "unique name of this process in the lease (default: host name and a random suffix)"
    return Option("--identity", text, variable=variable, parse=lambda name: name or _new_identity())


def _new_identity() -> str:
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


def add_options(parser: argparse.ArgumentParser, *tables: type[Table]) -> None:
    """Add the options of tables, and the one for verbosity."""
    for option in (setting.option for setting in settings_of(*tables)):
        default = f" (default: {option.default})" if option.default else ""
        parser.add_argument(option.flag, help=f"{option.help}{default} [${option.variable}]")
    parser.add_argument("-v", "--v", type=int, default=0, metavar="LEVEL", help="verbosity as in klog; 4 is debug")


def read(table: type[T], given: Mapping[str, Any], environment: Mapping[str, str]) -> T:
    """A table's values: see ``read_table``. Raises UsageError for one that is invalid, or no name."""
    settings = read_table(table, given, environment)
    vocabulary.check_names({item.option.name: getattr(settings, item.field) for item in settings_of(table)})
    return settings


class Logging(Table, Protocol):
    """A table that says how the log is written."""

    @property
    def log_format(self) -> Literal["text", "json"]:
        """How."""


L = TypeVar("L", bound=Logging)


def begin(table: type[L], args: argparse.Namespace) -> L:
    """The values of a program's table, by which its log is written from now on. Raises UsageError as ``read``."""
    from dra_driver.util.logs import configure

    settings = read(table, vars(args), os.environ)
    configure(settings.log_format, args.v)
    return settings


def check_node(node_name: str, emulation: Emulation) -> None:
    """Raise UsageError where options that all node agents share do not go together."""
    if not node_name:
        raise UsageError(
            "no node name is given", remedy="set NODE_NAME from the pod's spec.nodeName, or use --node-name"
        )
    if emulation.faults and not emulation.instance_type:
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
    with blaming_usage():
        return Transport.from_kubeconfig(kubeconfig, place=place)


@contextmanager
def emulated(emulation: Emulation, node_name: str, ultraservers: str = "") -> Iterator[Path | None]:
    """Provide the emulated host, if one is requested, and keep it in motion; yields where its files are.

    UsageError if there can be no such host; ``ultraservers``: see ``emulated_host``.
    """
    # Only then: a driver of real hardware must start even where nothing is writable and when the disk is full.
    if not emulation.instance_type:
        yield None
        return
    with ExitStack() as ended:
        root = emulation.root
        if root is None:
            root = Path(ended.enter_context(tempfile.TemporaryDirectory(prefix="neuron-emulation-"))) / "host"
        host = emulated_host(replace(emulation, root=root), node_name, ultraservers)
        host.start()
        ended.callback(host.stop)
        yield root


def emulated_host(emulation: Emulation, node_name: str, ultraservers: str) -> EmulatedHost:
    """The emulated host that the options describe, written; UsageError if there can be no such host.

    Args:
        emulation: with a root.
        node_name: says which place of its UltraServer it has.
        ultraservers: those that the nodes form, such as ``2x4``; "": none.
    """
    from dra_driver.neuron.emulation.options import EmulationOptions
    from dra_driver.neuron.emulation.running import EmulatedHost
    from dra_driver.neuron.emulation.ultraservers import Servers, node_number
    from dra_driver.neuron.topology.instance_types import resolve_emulation

    with blaming_usage():
        kind = resolve_emulation(emulation.instance_type)
        options = EmulationOptions(driver_version=emulation.driver_version)
        if ultraservers:
            options = Servers.parse(ultraservers).options(kind, node_number(node_name), options)
        host = EmulatedHost(emulation.root or Path(), kind, options)
        # A file of faults from before holds what was edited since; an option holds what was meant before that.
        host.write(host.parse(emulation.faults.split()), keep_file=True, counters=False)
    return host


@contextmanager
def open_ports(settings: Ports, checks: Mapping[str, Check], collector: Collector) -> Iterator[None]:
    """Answer probes and show metrics within the block; DriverError if a port cannot be had.

    Args:
        settings: where.
        checks: as of ``HealthServer``.
        collector: has the metrics.
    """
    from dra_driver.kube.kubelet.health import HealthServer
    from dra_driver.util.door import Door, own_addresses
    from dra_driver.util.metrics import serve

    door = Door(own_addresses(settings.node_address))
    try:
        if settings.metrics_port >= 0:
            serve(door, collector, settings.metrics_address, settings.metrics_port)
        HealthServer(settings.health_port, settings.health_address, checks, door=door).start()
        yield
    finally:
        door.stop()


class Runnable(Protocol):
    """A service that runs until it is stopped."""

    def start(self) -> None:
        """Start."""

    def stop(self) -> object:
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
