"""Entry point of ``dra-driver``: finds the command, runs it, and turns errors into text and an exit status.

Exit statuses of every command: 0 success, 1 refused or not possible (the text gives the reason), 2 invalid input,
including a kubeconfig with which no API server can be reached.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from dra_driver.util.errors import DriverError, UsageError
from dra_driver.version import VERSION

COMMANDS: Final = {
    "kubelet_plugin": "run the node agent (started by the DaemonSet)",
    "placer": "assign UltraServers to groups of pods (started by the Deployment of --placer)",
    "recover": "drain sick nodes and have them mended (started by the chart's npd.nodeRecovery)",
    "extender": "choose devices for kube-scheduler, in clusters without DRA",
    "device_plugin": "offer aws.amazon.com/neuron and neuroncore to kubelet, in clusters without DRA",
    "node_problem_detector": "hand what the kernel log says of chips to the node's driver (npd.enabled of the chart)",
    "topology": "show the devices of an instance type and their links",
    "emulate_host": "write the files of a Neuron host into a directory",
    "verify_host": "check that a host is as the driver assumes, and write a report to send in",
    "slices": "print the ResourceSlices that would be published",
    "health": "show what is wrong with the chips of a node",
    "plan": "show what containers with an allocated claim would get",
    "rank": "find this pod's rank in a group on UltraServers (for init containers)",
    "select": "test a CEL device selector",
    "simulate": "show which devices pods would get, without a cluster",
    "explain": "explain why claims of pods fit or do not fit",
    "fragmentation": "simulate the fragmentation of a cluster by a stream of pods",
    "migrate": "convert pod specs with Neuron limits to pods with claims",
}
"""Module of this package with ``register(subparsers)`` -> help text of its command, in the order of the help."""

EXIT_DONE, EXIT_REFUSED, EXIT_BAD_INPUT = 0, 1, 2


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviated options; each command reports unknown arguments itself, with its own usage."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # argparse's
        """Reports unknown arguments here: argparse would pass those of a command on to the parent parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = Parser(
        prog="dra-driver",
        description="Kubernetes Dynamic Resource Allocation for AWS Trainium and Inferentia.",
        epilog="example: dra-driver topology trn2.48xlarge --devices 4,5,6,7",
    )
    parser.add_argument("--version", action="version", version=f"dra-driver {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    given = sys.argv[1:] if argv is None else argv
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, text in COMMANDS.items():
        command = name.replace("_", "-")
        if command == chosen:
            import_module(f"dra_driver.cli.{name}").register(subparsers)
        else:
            # Only the help mentions this command; its module is not imported.
            subparsers.add_parser(command, help=text, add_help=False)
    args = parser.parse_args(given)
    return guarded(lambda: args.run(args))


def kubelet_plugin_main() -> int:
    """Entry point of ``k8s-neuron-dra-driver``, the vendor image's command: ``dra-driver kubelet-plugin``."""
    return main(["kubelet-plugin", *sys.argv[1:]])


def guarded(run: Callable[[], int]) -> int:
    """Run a command; no input causes a traceback, and output that could not be written is a failure."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A claim may contain characters that the terminal's encoding cannot represent.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = run()
        sys.stdout.flush()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except DriverError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except BrokenPipeError:
        # The reader of our output (`| head`) has closed the pipe.
        _discard_output()
        return EXIT_DONE
    except OSError as error:
        _discard_output()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    else:
        return status


def _discard_output() -> None:
    """Drop buffered output that cannot be written; a second error about it at interpreter exit would only confuse."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
