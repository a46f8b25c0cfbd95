"""Entry point of ``dra-driver``: finds the command, runs it, and turns errors into text and an exit status.

Exit statuses of every command: 0 success, 1 refused or not possible (the text gives the reason), 2 invalid input,
including a kubeconfig with which no API server can be reached.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dra_driver.cli import vocabulary
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import quoted
from dra_driver.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: Final = {
    "top": "show which pods hold which chips of a cluster, and the chips' health",
    "topology": "show the devices of an instance type, host or node, and their links",
    "simulate": "show which devices pods would get",
    "explain": "explain why claims of pods fit or do not fit",
    "health": "show what is wrong with the chips of a cluster or of a node",
    "slices": "print the ResourceSlices that would be published",
    "template": "describe a node that does not exist yet to an autoscaler (Karpenter, cluster-autoscaler, kwok)",
    "plan": "show what containers with an allocated claim would get",
    "select": "test a CEL device selector",
    "migrate": "convert pod specs with Neuron limits to pods with claims",
    "report": "collect what a bug report needs into one archive",
    "emulate_host": "write the files of a Neuron host into a directory",
    "verify_host": "check that a host is as the driver assumes, and write a report to send in",
    "completion": "print the completion script of a shell",
    "help": "show the help of a command",
    "version": "print the version",
}
"""For people, in the order of the help: a module of this package with ``register(entry)`` and ``run(args)``,
and what it is for."""
DAEMONS: Final = {
    "kubelet_plugin": "run the node agent (started by the DaemonSet)",
    "placer": "assign UltraServers to groups of pods (started by the Deployment of --placer)",
    "recover": "drain unhealthy nodes and request their repair (started by the chart's npd.nodeRecovery)",
    "extender": "choose devices for kube-scheduler, in clusters without DRA",
    "device_plugin": "offer aws.amazon.com/neuron and neuroncore to kubelet, in clusters without DRA",
    "node_problem_detector": "report faults in the kernel log to the node's driver (the chart's npd.enabled)",
    "check_unused": "check that no pod uses the driver's devices (before helm uninstall)",
    "rank": "find this pod's rank in a group on UltraServers (for init containers)",
}
"""What containers run, in the same form."""
WITHOUT_EXTRAS: Final = (
    "kubelet_plugin",
    "placer",
    "device_plugin",
    "node_problem_detector",
    "check_unused",
    "rank",
)
"""What needs no extra of the distribution, and so has an environment of its own in the image."""
EXTRAS: Final = {
    "aiohttp": ("extender", "the extender cannot run"),
    "kubernetes": ("cli", "no kubeconfig can be read"),
    "rich": ("cli", "nothing can be drawn"),
    "shtab": ("cli", "completion scripts cannot be written"),
}
"""By package: the extra that brings it, and what cannot be done without it; of boto3 and lark, their rooms say so."""
NO_MEMORY: Final = DriverError(
    "there is not enough memory for this",
    consequence="the answer is not complete",
    remedy="run it where more memory is free, or give it less to read: fewer files, or nodes with --node-name",
)
EXIT_STATUSES: Final = vocabulary.exit_statuses("done", "refused, or not possible; see COMMAND --help")
EXIT_DONE, EXIT_REFUSED, EXIT_BAD_INPUT = 0, 1, 2


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviated options; each command reports unknown arguments itself, with its own usage."""

    heading = "commands"
    commands: Mapping[str, str] = MappingProxyType({})
    """What the help lists below the heading, with what each is for; none: it lists actions as argparse does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # argparse's
        """Reports unknown arguments here: argparse would pass those of a command on to the parent parser.

        Files may stand on both sides of options, of which argparse takes only the first.
        """
        found, unknown = super().parse_known_args(args, namespace)
        for several in (getattr(found, name) for name in ("files", "items") if hasattr(found, name)):
            if not any(word.startswith("-") and word != "-" for word in unknown):
                several.extend(unknown)
                return found, []
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One line, as for all other errors; argparse would print the usage above it."""
        unknown = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        guess = _meant(unknown, known, 0.7) if message.startswith("unrecognized") and unknown.startswith("--") else ""
        guess = _INSTEAD.get(unknown, "") or guess
        self.exit(EXIT_BAD_INPUT, f"error: {message}{guess}; see {self.prog} --help\n")

    def format_help(self) -> str:
        """With the commands that people are to see: argparse lists all that there are."""
        if not self.commands:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, [])
        formatter.add_text(self.description)
        formatter.start_section(self.heading)
        formatter.add_arguments(
            [argparse.Action([], name, metavar=_command(name), help=text) for name, text in self.commands.items()]
        )
        formatter.end_section()
        if options := [action for action in self._actions if action.option_strings]:
            formatter.start_section("options")
            formatter.add_arguments(options)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = sys.argv[1:] if argv is None else argv
    chosen = _chosen(given)
    _start_in_its_environment(chosen)
    parser = _program(chosen)
    args = parser.parse_args(given or ["--help"], argparse.Namespace(main=main))
    return guarded(lambda: _checked(args))


def _other_python() -> Path:
    """The Python of the image's environment for what needs extras. The node's environment names it; no other does."""
    from pathlib import Path  # a fifth of the time that --help takes

    return Path(sys.prefix, "commands/bin/python")


def _start_in_its_environment(chosen: str | None) -> None:
    """In the image's environment for nodes, continue a command that needs extras in the other environment."""
    if chosen and chosen.replace("-", "_") not in WITHOUT_EXTRAS and _other_python().exists():
        os.execv(_other_python(), [str(_other_python()), *sys.orig_argv[1:]])  # noqa: S606 - the same program


def _checked(args: argparse.Namespace) -> int:
    vocabulary.check_names(vars(args))
    return int(args.run(args))


def complete_program() -> Parser:
    """The parser of ``dra-driver`` with all commands and their options."""
    return _program("")


def kubectl_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``kubectl-neuron``, which kubectl finds as ``kubectl neuron``: the commands for people."""
    given = sys.argv[1:] if argv is None else argv
    chosen = _chosen(given)
    _start_in_its_environment(chosen)
    parser = program(
        chosen,
        prog=vocabulary.KUBECTL,
        description="The Neuron devices of the cluster and namespace of the current context: what nodes have, which "
        "pods hold them, what is wrong with them, and why a pod is pending. With files and --instance-type, no cluster "
        "is contacted.",
        epilog=f"example:\n  kubectl neuron explain web-0\n\n{EXIT_STATUSES}",
    )
    args = parser.parse_args(given or ["--help"], argparse.Namespace(main=kubectl_main))
    if vocabulary.of_context(args):
        args.from_cluster = True
    return guarded(lambda: _checked(args))


def _program(chosen: str | None) -> Parser:
    return program(
        chosen,
        prog="dra-driver",
        description="Kubernetes Dynamic Resource Allocation for AWS Trainium and Inferentia.",
        epilog="What the pods of an installation run: dra-driver help daemons\n\n"
        f"example:\n  dra-driver topology trn2.48xlarge --devices 4,5,6,7\n\n{EXIT_STATUSES}",
        others=DAEMONS,
    )


def program(chosen: str | None, *, others: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> Parser:
    """The parser of a program.

    Args:
        chosen: the command to be run, whose module alone is imported; "" is all of them.
        others: commands that the help leaves out.
        settings: for argparse.
    """
    parser = Parser(formatter_class=vocabulary.HelpFormatter, **settings)
    parser.commands = COMMANDS
    parser.add_argument("--version", action="version", version=f"dra-driver {VERSION}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    names = {_command(name): name for name in (*COMMANDS, *others)}
    if chosen and chosen not in names:
        parser.error(f"unknown command {quoted(chosen)}{_meant(chosen, list(names))}")
    for command, name in names.items():
        if chosen in (command, ""):
            module = import_module(f"dra_driver.cli.{name}")
            module.register(vocabulary.Entry(subparsers, command))
            subparsers.choices[command].set_defaults(run=module.run)
    return parser


def daemons() -> str:
    """The list of what containers run."""
    parser = Parser(
        prog="dra-driver", usage="dra-driver DAEMON ...", add_help=False, formatter_class=vocabulary.HelpFormatter
    )
    parser.heading, parser.commands = "daemons and init containers", DAEMONS
    return parser.format_help().rstrip()


def _command(name: str) -> str:
    return name.replace("_", "-")


def _chosen(given: Sequence[str]) -> str | None:
    return next((word for word in given if not word.startswith("-")), None)


_INSTEAD: Final = dict.fromkeys(("-w", "--watch"), "; dra-driver top follows a cluster") | dict.fromkeys(
    ("-l", "--selector", "--field-selector"), "; name a pod, or pipe what kubectl selects: kubectl get ... -o yaml"
)
"""Options of kubectl that a command does not have, and what to use."""


def _meant(word: str, words: Sequence[str], likeness: float = 0.5) -> str:
    import difflib

    near = difflib.get_close_matches(word, words, 2, likeness)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def kubelet_plugin_main() -> int:
    """Entry point of ``k8s-neuron-dra-driver``, the vendor image's command: ``dra-driver kubelet-plugin``."""
    return main(["kubelet-plugin", *sys.argv[1:]])


def guarded(run: Callable[[], int]) -> int:
    """Run a command; no input causes a traceback, and output that could not be written is a failure."""
    try:
        return _exit_status(run)
    except MemoryError:
        # To say so takes memory, too: what the command had is freed with the exception, after this block.
        pass
    vocabulary.tell(f"error: {NO_MEMORY}")
    return EXIT_REFUSED


def _exit_status(run: Callable[[], int]) -> int:
    """Run a command, and tell its errors."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A claim may contain characters that the terminal's encoding cannot represent.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = run()
        sys.stdout.flush()
    except UsageError as error:
        vocabulary.tell(f"error: {error}")
        return EXIT_BAD_INPUT
    except DriverError as error:
        vocabulary.tell(f"error: {error}")
        return EXIT_REFUSED
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        vocabulary.tell(f"error: {_without(error.name)}")
        return EXIT_REFUSED
    except BrokenPipeError:
        # The reader of our output (`| head`) has closed the pipe.
        _discard_output()
        return EXIT_DONE
    except OSError as error:
        _discard_output()
        vocabulary.tell(f"error: {error}")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130
    else:
        return status


def _without(package: str) -> DriverError:
    extra, consequence = EXTRAS[package]
    python = _other_python()
    remedy = f"pip install 'neuron-dra-driver[{extra}]'"
    if python.exists():
        remedy = f"start it with {python.parents[1].resolve()}/bin/python -I -m dra_driver, which has it"
    return DriverError(f"the package {package} is not installed", consequence=consequence, remedy=remedy)


def _discard_output() -> None:
    """Drop buffered output that cannot be written; a second error about it at interpreter exit would only confuse."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
