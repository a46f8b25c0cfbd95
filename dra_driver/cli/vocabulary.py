"""The words that the commands share: how a command is declared, and the options that mean the same in each of them.

A command is declared by ``Entry.command`` and takes its options from the functions below; what they mean:

=====================================  ================================================================================
``-f FILE``, ``FILE...``               what is read: files, the manifests of a directory, or ``-``, standard input
``--instance-type TYPE[=N]``           emulated nodes of an EC2 type
``--partitions WORDS``                 what a node offers
``--host-root DIR``                    a host, or a directory made by emulate-host
``--node-name NAME``                   a node by its name; several where the option is repeatable
``--from-cluster``                     read from the cluster that kubectl would talk to, without changing it
``--kubeconfig FILE``                  another kubeconfig
``--context NAME``                     another context of it
``-n NAME``, ``-A``                    a namespace (default: that of the context, or else ``default``), or all of them
``-o FORMAT``                          text, wide, json, yaml, svg: those that make sense
``-w``                                 print again whenever something changes
``--kubernetes RELEASE``               release to simulate
=====================================  ================================================================================
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import lines_to_print

if TYPE_CHECKING:
    from dra_driver.neuron.topology.partitions import Partitions

Options = argparse.ArgumentParser | argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it
Format = Literal["text", "wide", "json", "yaml", "svg"]

KUBECTL: Final = "kubectl neuron"
"""The program's name as a plugin of kubectl; then the cluster is read unless something else is given."""
RELEASES: Final = ("1.33", "1.34", "1.35", "1.36", "1.37")
"""The releases on which the driver runs. Those of ``cel.RELEASES`` are simulated; of others, what differs is said."""
BEFORE_1_36: Final = RELEASES[:3]
PARTITIONS: Final = "--partitions"
MANIFESTS: Final = (".json", ".yaml", ".yml")
INVALID: Final = "the input is invalid, or the cluster cannot be reached"
"""Exit status 2, the same for all commands."""


EXIT_STATUS: Final = "exit status:"


def exit_statuses(done: str, refused: str) -> str:
    """The paragraph of a help that says what each exit status means."""
    return "\n".join([EXIT_STATUS, f"  0  {done}", f"  1  {refused}", f"  2  {INVALID}"])


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs at the terminal's width ($COLUMNS); lines that are indented, to be copied, stay as they are.

    Words with hyphens, such as names of commands, are not broken.
    """

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-f, --filename FILE``, as of Python 3.13; before, argparse writes the value after each spelling."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for paragraph in text.strip("\n").split("\n\n"):
            if paragraph.startswith(EXIT_STATUS):
                for line in paragraph.split("\n"):
                    lines += textwrap.wrap(line, width, subsequent_indent=" " * 5, break_on_hyphens=False)
            elif paragraph.startswith(" ") or "\n  " in paragraph:
                lines += [indent + line for line in paragraph.split("\n")]
            else:
                lines += textwrap.wrap(
                    paragraph,
                    width,
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            lines.append("")
        return "\n".join(lines[:-1])


class Entry(NamedTuple):
    """A place for a command: in the program, or among the actions of another command."""

    subparsers: argparse._SubParsersAction[Any]
    name: str
    """As it is typed."""

    def command(
        self,
        *,
        about: str,
        examples: Sequence[str],
        done: str = "stopped by SIGTERM or SIGINT",
        refused: str = "it cannot start or continue; the log says why",
        notes: str = "",
        summary: str | None = None,
    ) -> argparse.ArgumentParser:
        """Add the command.

        Args:
            about: what it does; paragraphs are separated by blank lines and are wrapped.
            examples: command lines after the program's name, without it: ``topology trn2.48xlarge``; a pipeline is
                written with ``{}`` where the program's name belongs.
            done: what exit status 0 means; by default, of a program that runs until it is stopped.
            refused: what exit status 1 means.
            notes: paragraphs to follow the options.
            summary: for the list of actions of a command (default: the first sentence).
        """
        prog = self.subparsers._prog_prefix.split()  # noqa: SLF001 - argparse has no public way to ask
        program = KUBECTL if prog[:2] == KUBECTL.split() else "dra-driver"
        if program == KUBECTL:
            examples = [line.replace(" --from-cluster", "") for line in examples]
        lines = [line.replace("{}", program) if "{}" in line else f"{program} {line}" for line in examples]
        parts = [
            notes.strip("\n"),
            "\n".join([f"example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)]),
            exit_statuses(done, refused),
        ]
        parser: argparse.ArgumentParser = self.subparsers.add_parser(
            self.name,
            help=summary or about.partition(". ")[0].rstrip("."),
            description=about,
            epilog="\n\n".join(filter(None, parts)),
            formatter_class=HelpFormatter,
        )
        return parser


NAMES: Final = {"node_name": "subdomain", "namespace": "label", "zone": "label_value"}
"""Options whose values become, or are, names and labels of objects: what they have to be (``kube.formats``)."""


def check_names(options: Mapping[str, object]) -> None:
    """Raise UsageError for an option with a name that no API server would take; "" is as if it were not given."""
    for option, form in NAMES.items():
        given = options.get(option)
        for value in given if isinstance(given, list) else [given] if isinstance(given, str) and given else ():
            from dra_driver.kube import formats

            if problem := getattr(formats, form)(value):
                raise UsageError(f"--{option.replace('_', '-')}: {problem}")


def tell(text: str) -> None:
    """Print lines on standard error; names and messages of others in them drive no terminal."""
    print(lines_to_print(text), file=sys.stderr)


def warn(text: str) -> None:
    """Tell a warning."""
    tell(f"warning: {text}")


def add_files(parser: argparse.ArgumentParser, what: str, *, positional: bool = True) -> None:
    """Add ``-f FILE`` (repeatable) and, unless another argument has their place, positional files; see ``files``."""
    if positional:
        parser.add_argument("files", nargs="*", metavar="FILE", help=f"{what}; - is stdin")
    text = "the same, as kubectl takes it (repeatable)" if positional else f"{what}; - is stdin (repeatable)"
    parser.add_argument("-f", "--filename", metavar="FILE", action="append", default=[], dest="filenames", help=text)


def files(args: argparse.Namespace) -> list[str]:
    """The files of ``add_files``, however they were given."""
    return expanded([*args.filenames, *getattr(args, "files", ())])


def expanded(names: Sequence[str]) -> list[str]:
    """Files, and the manifests of directories as kubectl takes them: by name, without those of directories below.

    Raises UsageError for a directory without any, or one that may not be read.
    """
    found: list[str] = []
    for name in names:
        if not os.path.isdir(name):  # noqa: PTH112 - pathlib would be another import of --help
            found.append(name)
            continue
        try:
            here = sorted(entry for entry in os.listdir(name) if entry.endswith(MANIFESTS))  # noqa: PTH208
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}") from error
        if not here:
            raise UsageError(f"{name}: this directory has no {', '.join(MANIFESTS)} file", remedy="give the files")
        found += [f"{name.rstrip('/')}/{entry}" for entry in here]
    return found


def add_cluster(parser: argparse.ArgumentParser, what: str | None = None, *, namespaces: str | None = None) -> None:
    """Add the options that select a live cluster, for ``clusterinput.asking`` and ``from_cluster``.

    Args:
        parser: where to add them.
        what: what is read, for the help of --from-cluster; None: a cluster is what the command reads anyway.
        namespaces: what the namespace is for, to add ``-n`` and ``-A`` too.
    """
    group = parser.add_argument_group("live cluster")
    if what is None:
        parser.set_defaults(from_cluster=True)
    else:
        text = f"read {what} from a cluster, without changing it"
        group.add_argument("--from-cluster", action="store_true", help=text)
    group.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig file (default: as for kubectl)")
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    group.add_argument("--as", dest="as_user", metavar="USER", type=_user, help="the user to impersonate")
    group.add_argument(
        "--request-timeout",
        metavar="TIME",
        type=_seconds,
        help="how long to wait for an answer of the API server, such as 5s or 1m (default: 15s)",
    )
    if namespaces is not None:
        exclusive = group.add_mutually_exclusive_group()
        exclusive.add_argument(
            "-n",
            "--namespace",
            metavar="NAME",
            help=f"namespace of {namespaces} (default: that of the context, or else default)",
        )
        exclusive.add_argument("-A", "--all-namespaces", action="store_true", help="the same for all namespaces")


def _seconds(text: str) -> float:
    """A time as kubectl takes it, of at least a second: a number of seconds, or with the unit s, m or h."""
    found = re.fullmatch(r"([0-9]{1,6})([smh]?)", text, re.ASCII)
    seconds = int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found is not None else 0
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5s or 1m")
    return float(seconds)


def _user(text: str) -> str:
    """A name that an HTTP header can have."""
    if not (text.isascii() and text.isprintable() and text.strip() == text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a user name")
    return text


def from_cluster(args: argparse.Namespace, remedy: str = "also give --from-cluster") -> bool:
    """Whether a live cluster is to be read. Raises UsageError for --kubeconfig, --context or --as where none is."""
    for option, value in (("--kubeconfig", args.kubeconfig), ("--context", args.context), ("--as", args.as_user)):
        if value is not None and not args.from_cluster:
            raise UsageError(f"{option} is given, but no cluster is read", remedy=remedy)
    return bool(args.from_cluster)


def of_context(args: argparse.Namespace) -> bool:
    """Whether a command of ``kubectl neuron`` reads the cluster: where nothing else is said to be read."""
    if not hasattr(args, "from_cluster") or _is_type(getattr(args, "type", None)):
        return False
    places = ["instance_type", "objects", "host_root", *(() if hasattr(args, "objects") else ("filenames",))]
    return not any(getattr(args, name, None) for name in places)


def _is_type(word: str | None) -> bool:
    """Whether an argument that may be a node's name is an instance type's."""
    from dra_driver.neuron.topology.instance_types import of_family, resolve

    try:
        return word is not None and bool(of_family(word) or resolve(word))
    except DriverError:
        return False


def add_host_root(parser: Options, what: str = "", *, here: bool = False) -> None:
    """Add ``--host-root``, the root directory of a host.

    Args:
        parser: where to add it.
        what: its help, if more is to be said than what it is.
        here: whether the default is the host on which this runs ($HOST_ROOT, or /), not None.
    """
    from pathlib import Path

    text = f"root directory of {'the' if here else 'a'} host, or of one made by emulate-host"
    parser.add_argument(
        "--host-root",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("HOST_ROOT") or "/") if here else None,
        help=what or (f"{text} (default: %(default)s)" if here else text),
    )


def add_node_name(parser: Options, what: str, *, default: str | None = None, several: bool = False) -> None:
    """Add ``--node-name``, repeatable with ``several``: then the names are a list."""
    if several:
        parser.add_argument("--node-name", metavar="NAME", action="append", default=[], help=f"{what} (repeatable)")
    else:
        parser.add_argument("--node-name", metavar="NAME", default=default, help=what)


def add_instance_type(parser: Options, what: str) -> None:
    """Add ``--instance-type TYPE`` of a command that is about one node."""
    parser.add_argument("--instance-type", metavar="TYPE", help=what)


def add_partitions(
    parser: Options, what: str = "what a node offers, as in the driver's option", more: str = ""
) -> None:
    """Add ``--partitions``, for ``partitions``."""
    more = more or "default: chips, or the whole node of an UltraServer"
    parser.add_argument(
        PARTITIONS,
        metavar="WORDS",
        help=f"{what}: one or more of chip, core, group, group4 (or another size), node, joined by dots, such as "
        f"chip.core ({more})",
    )


def add_kubernetes(parser: Options) -> None:
    """Add ``--kubernetes``."""
    text = f"release to simulate (default: the cluster's, or else {RELEASES[-1]})"
    parser.add_argument("--kubernetes", choices=RELEASES, help=text)


def add_output(parser: argparse.ArgumentParser, *formats: Format) -> None:
    """Add ``-o``; the first format is the default."""
    parser.add_argument(
        "-o", "--output", choices=formats, default=formats[0], help="output format (default: %(default)s)"
    )


def partitions(text: str | None, option: str = PARTITIONS) -> Partitions | None:
    """What ``--partitions`` says; None when it is not given. UsageError for anything illegal."""
    from dra_driver.neuron.topology.partitions import Partitions

    if not text:
        return None
    try:
        return Partitions.parse(text)
    except DriverError as error:
        raise UsageError(f"{option}: {error.what}", remedy=error.remedy) from error
