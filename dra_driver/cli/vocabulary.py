"""The words that the commands share: how a command is declared, and the options that mean the same in each of them.

A command is declared by ``add_command`` and takes its options from the functions below; what they mean:

=====================================  ================================================================================
``-f FILE``, ``FILE...``               what is read: files, the manifests of a directory, or ``-``, standard input
``--instance-type TYPE[=N]``           emulated nodes of an EC2 type (``--node`` where there may be several)
``--host-root DIR``                    a host, or a directory made by emulate-host
``--node-name NAME``                   a node by its name; several where the option is repeatable
``--from-cluster``                     read from the cluster that kubectl would talk to, without changing it
``--kubeconfig FILE``                  with --from-cluster: another kubeconfig
``--context NAME``                     with --from-cluster: another context of it
``-n NAME``, ``-A``                    a namespace (default: that of the context, or else ``default``), or all of them
``-o FORMAT``                          text, wide, json, yaml, svg: those that make sense
``-w``                                 print again whenever something changes
``--kubernetes RELEASE``               release to simulate
=====================================  ================================================================================

Former spellings are declared by ``add_renamed``: they work, and a warning on standard error gives the present one.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from dra_driver.util.errors import UsageError

Options = argparse.ArgumentParser | argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it
Format = Literal["text", "wide", "json", "yaml", "svg"]

KUBECTL: Final = "kubectl neuron"
"""The program's name as a plugin of kubectl; then --from-cluster is implied."""
RELEASES: Final = ("1.36", "1.37")
"""The releases of ``cel.RELEASES``, repeated because its import would slow ``--help``."""
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


def add_command(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    *,
    about: str,
    examples: Sequence[str],
    done: str,
    refused: str,
    notes: str = "",
    summary: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        subparsers: of the program, or of a command with actions.
        name: as it is typed.
        about: what it does; paragraphs are separated by blank lines and are wrapped.
        examples: command lines after the program's name, without it: ``topology trn2.48xlarge``; a pipeline is
            written with ``{}`` where the program's name belongs.
        done: what exit status 0 means.
        refused: what exit status 1 means.
        notes: paragraphs to follow the options.
        summary: for the list of actions of a command (default: the first sentence).
    """
    prog = subparsers._prog_prefix.split()  # noqa: SLF001 - argparse has no public way to ask
    program = KUBECTL if prog[:2] == KUBECTL.split() else "dra-driver"
    if program == KUBECTL:
        of_cluster = [line.replace(" --from-cluster", "") for line in examples if "--from-cluster" in line]
        examples = of_cluster or examples
    lines = [line.replace("{}", program) if "{}" in line else f"{program} {line}" for line in examples]
    parts = [
        notes.strip("\n"),
        "\n".join([f"example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)]),
        exit_statuses(done, refused),
    ]
    return subparsers.add_parser(
        name,
        help=summary or about.partition(". ")[0].rstrip("."),
        description=about,
        epilog="\n\n".join(filter(None, parts)),
        formatter_class=HelpFormatter,
    )


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"warning: {text}", file=sys.stderr)


class _Renamed(argparse.Action):
    """A former spelling of an option: says what it is now, and does that."""

    def __init__(self, *args: Any, now: str, sets: Mapping[str, Any], several: bool, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._now, self._sets, self._several = now, sets, several

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Warn, and store the value as the option of today would."""
        warn(f"{option_string} is now {self._now}; the next release takes only that")
        for name, value in self._sets.items():
            setattr(namespace, name, value)
        if self.nargs != 0:
            setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), values] if self._several else values)


def add_renamed(
    parser: Options,
    *old: str,
    now: str,
    dest: str,
    metavar: str | None = "VALUE",
    several: bool = False,
    sets: Mapping[str, Any] | None = None,
    type: Any = None,  # noqa: A002 - argparse's word
) -> None:
    """Accept a former spelling of an option, hidden in the help.

    Args:
        parser: where to add it.
        old: its former spellings.
        now: how it is written today, for the warning.
        dest: the attribute that the option of today sets.
        metavar: None for an option without a value.
        several: whether the attribute is a list, to which the value is added.
        sets: further attributes, and what the old spelling makes them.
        type: as for ``add_argument``.
    """
    parser.add_argument(
        *old,
        action=_Renamed,
        dest=dest,
        metavar=metavar,
        nargs=0 if metavar is None else None,
        type=type,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
        now=now,
        sets=sets or {},
        several=several,
    )


def renamed_value(option: str, value: str, values: Mapping[str, str]) -> str:
    """A value of an option, or today's word for a former one, with a warning."""
    if value not in values:
        return value
    warn(f"{option} {value} is now {option} {values[value]}; the next release takes only that")
    return values[value]


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
            raise UsageError(f"{name}: no {', '.join(MANIFESTS)} is in this directory", remedy="give the files")
        found += [f"{name.rstrip('/')}/{entry}" for entry in here]
    return found


def one_file(args: argparse.Namespace, what: str) -> str:
    """The only file of ``add_files``; raises UsageError unless there is one."""
    given = files(args)
    if len(given) != 1:
        raise UsageError(
            f"{len(given) or 'no'} files are given, but {what} is read from one", remedy="give one FILE, or - for stdin"
        )
    return given[0]


def add_cluster(parser: argparse.ArgumentParser, what: str, *, namespaces: str | None = None) -> None:
    """Add the options that select a live cluster, for ``clusterinput.asking`` and ``from_cluster``.

    Args:
        parser: where to add them.
        what: what is read, for the help of --from-cluster.
        namespaces: what the namespace is for, to add ``-n`` and ``-A`` too.
    """
    group = parser.add_argument_group("live cluster")
    group.add_argument("--from-cluster", action="store_true", help=f"read {what} from a cluster, without changing it")
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="with --from-cluster: kubeconfig file (default: as for kubectl)"
    )
    group.add_argument(
        "--context", metavar="NAME", help="with --from-cluster: context of the kubeconfig (default: the current one)"
    )
    if namespaces is not None:
        add_namespaces(group, namespaces)


def add_namespaces(parser: Options, what: str) -> None:
    """Add ``-n`` and ``-A``; ``clusterinput.namespace`` says which is meant."""
    exclusive = parser.add_mutually_exclusive_group()
    exclusive.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"namespace of {what} (default: that of the context, or else default)",
    )
    exclusive.add_argument("-A", "--all-namespaces", action="store_true", help="the same for all namespaces")


def from_cluster(args: argparse.Namespace) -> bool:
    """Whether a live cluster is to be read. --kubeconfig alone used to select it, and still does, with a warning.

    Raises UsageError for --context without --from-cluster.
    """
    if args.from_cluster:
        return True
    if args.kubeconfig is not None:
        warn("--kubeconfig alone no longer selects the cluster: write --from-cluster --kubeconfig FILE")
        args.from_cluster = True
    elif args.context is not None:
        raise UsageError("--context is given without --from-cluster", remedy="write --from-cluster --context NAME")
    return bool(args.from_cluster)


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
        add_renamed(parser, "--node", now="--node-name", dest="node_name", metavar="NAME", several=True)
    else:
        parser.add_argument("--node-name", metavar="NAME", default=default, help=what)


def add_nodes(parser: Options) -> None:
    """Add ``--instance-type TYPE[=N]`` and ``--node``, both repeatable; the list is ``args.node``."""
    parser.add_argument(
        "--instance-type",
        "--node",
        metavar="TYPE[=N]",
        action="append",
        default=[],
        dest="node",
        help="one or N emulated nodes of this EC2 instance type (repeatable)",
    )


def add_instance_type(parser: Options, what: str, *, required: bool = False) -> None:
    """Add ``--instance-type TYPE`` of a command that is about one node."""
    parser.add_argument("--instance-type", metavar="TYPE", required=required, help=what)


def add_offer(parser: Options) -> None:
    """Add ``--devices`` and ``--ultraserver-layout``: what nodes offer, as in the driver's options."""
    parser.add_argument(
        "--devices",
        metavar="CUTS",
        help="what a node offers, as in the driver's option: one or more of chip, core, group, group4 (or another "
        "size), node, such as chip,core (default: chips, and what --ultraserver-layout says)",
    )
    parser.add_argument(
        "--ultraserver-layout",
        choices=("node", "chips", "both"),
        default="node",
        help="what nodes of UltraServers offer, without --devices (default: %(default)s)",
    )


def add_kubernetes(parser: Options, default: str = "the cluster's, or else") -> None:
    """Add ``--kubernetes``."""
    text = f"release to simulate (default: {default} {RELEASES[-1]})"
    parser.add_argument("--kubernetes", choices=RELEASES, help=text)


def add_output(
    parser: argparse.ArgumentParser,
    *formats: Format,
    former: Mapping[str, str] | None = None,
) -> None:
    """Add ``-o``; the first format is the default.

    Args:
        parser: where to add it.
        formats: those that the command has.
        former: former words for a format, and those of today.
    """

    def word(value: str) -> str:
        return renamed_value("-o", value, former or {})

    parser.add_argument(
        "-o",
        "--output",
        choices=formats,
        type=word,
        default=formats[0],
        help="output format (default: %(default)s)",
    )


def add_watch(parser: Options) -> None:
    """Add ``-w``."""
    parser.add_argument("-w", "--watch", action="store_true", help="print again whenever something changes")
