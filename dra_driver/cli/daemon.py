"""Shared by the long-running commands: options that can also be set as environment variables, and signals."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import signal
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dra_driver.cli import vocabulary
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from dra_driver.kube.api.client import Transport
    from dra_driver.neuron.emulation.running import EmulatedHost

Option = tuple[str, str, str | None, str]
"""Option, environment variable, default, help."""

MIN_RESCAN_SECONDS, MAX_RESCAN_SECONDS = 0.1, 3600.0
"""Interval between scans of the host; a scan takes 2 ms of CPU."""


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options, and the one for verbosity."""
    for option, variable, default, text in options:
        suffix = f" [${variable}]" if default in (None, "") else f" (default: {default}) [${variable}]"
        parser.add_argument(option, help=text + suffix)
    parser.add_argument("-v", "--v", type=int, default=0, metavar="LEVEL", help="verbosity as in klog; 4 is debug")


def read_options(
    options: Iterable[Option],
    choices: Mapping[str, tuple[str, ...]],
    given: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Options by name (``node_name``): the command line wins over the environment, which wins over the default.

    Args:
        options: all options.
        choices: valid values of options that are restricted to a set.
        given: values from the command line, by name; None for options that were not given.
        environment: environment variables.

    Raises:
        UsageError: an invalid value.
    """
    values: dict[str, Any] = {}
    for option, variable, default, _ in options:
        name = option.removeprefix("--").replace("-", "_")
        value = given.get(name)
        values[name] = value if value is not None else environment.get(variable) or default
        if name in choices and values[name] not in choices[name]:
            legal = ", ".join(choices[name])
            raise UsageError(f"{option} (${variable}) is {values[name]!r}", remedy=f"use one of: {legal}")
    vocabulary.check_names(values)
    return values


def check_node_options(values: dict[str, Any]) -> None:
    """Convert the numbers among the options that all node agents share; raises UsageError for an invalid one."""
    if not values["node_name"]:
        raise UsageError(
            "no node name is given", remedy="set NODE_NAME from the pod's spec.nodeName, or use --node-name"
        )
    if values["emulated_faults"] and not values["emulate"]:
        raise UsageError(
            "--emulated-faults ($EMULATED_FAULTS) is given without --emulate",
            remedy="also give the type of the emulated node, such as --emulate trn2.48xlarge",
        )
    for name in ("healthcheck_port", "metrics_port"):
        values[name] = int(number(f"--{name.replace('_', '-')}", values[name], -65535, 65535))
    rescan = values["rescan_seconds"]
    values["rescan_seconds"] = number("--rescan-seconds", rescan, MIN_RESCAN_SECONDS, MAX_RESCAN_SECONDS)


def number(option: str, text: str, least: float, most: float, variable: str = "") -> float:
    """A number within bounds; UsageError, which names the option and its variable (default: that of its name)."""
    try:
        value = float(text)
    except ValueError:
        value = most + 1
    if not least <= value <= most:
        variable = variable or option.removeprefix("--").replace("-", "_").upper()
        raise UsageError(f"{option} (${variable}) is {text!r}", remedy=f"give a number from {least:g} to {most:g}")
    return value


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

    def wait(self) -> None:
        """Block until it is set."""
        self._told.recv(1)

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


def run_until(stop: Stop, running: Runnable) -> None:
    """Start the service, and stop it once ``stop`` is set."""
    try:
        running.start()
        # All that was imported stays to the end: the garbage collector need not look through it again.
        gc.collect()
        gc.freeze()
        stop.wait()
    finally:
        # Also after an incomplete start: kubelet would keep trying to connect to a socket without a process behind it.
        running.stop()
