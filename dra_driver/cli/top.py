"""``dra-driver top``: nodes, chips, pods and health of a cluster, kept up to date by watches."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import asking, check_namespace, check_nodes, namespace
from dra_driver.cli.overviewoutput import Cell, Shown
from dra_driver.util.text import printable, shorten

if TYPE_CHECKING:
    from dra_driver.operations.overview.reading import Followed

MIN_PAUSE: Final = 0.5
"""Seconds between two frames, at least; a frame of a large cluster takes part of a second itself."""
IDLE_SECONDS: Final = 30.0
"""The screen is drawn again after that time without news: the terminal may have been resized."""
EXAMPLES: Final = (
    "top",
    "top -A --sort sick --node-name node-7 --node-name node-8",
    "top --once -o json -n my-team",
    "{} top -w -o json | jq .pending",
)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Show the Neuron nodes of a cluster: which chips are free, which pods hold the others, which chips have "
        "faults, and which pods are pending. Reads Nodes, ResourceSlices, DeviceTaintRules, ResourceClaims and Pods, "
        "and changes nothing. On a terminal, the view follows the cluster until Ctrl-C.",
        examples=EXAMPLES,
        done="shown, also when ended with Ctrl-C",
        refused="the packages for drawing are not installed",
        notes="Objects that the user may not list are left out, with a warning: without access to claims and pods of "
        "all namespaces, those of one namespace are shown, and it is not known how many chips are free.\n\n-w without "
        "a terminal prints everything again on every change; with -o json, one document per line; with -o yaml, one "
        "document after the other.",
    )
    vocabulary.add_node_name(parser, "only this node", several=True)
    parser.add_argument(
        "--sort",
        choices=("name", "free", "sick"),
        default="name",
        help="nodes by name, with the most free chips first, or with the most unhealthy chips first "
        "(default: %(default)s)",
    )
    follow = parser.add_mutually_exclusive_group()
    follow.add_argument("--once", action="store_true", help="print once and exit (default without a terminal)")
    follow.add_argument("-w", "--watch", action="store_true", help="print again whenever something changes")
    vocabulary.add_output(parser, "text", "wide", "json", "yaml")
    vocabulary.add_cluster(parser, namespaces="the pods that are listed")


def run(args: argparse.Namespace) -> int:
    """Show the cluster once, or until Ctrl-C."""
    import rich  # noqa: F401 - before the cluster is asked: nothing can be drawn without it

    from dra_driver.operations.overview.reading import Followed, listed, readable
    from dra_driver.operations.overview.view import view

    # What the watches would log, the status line says.
    logging.getLogger("dra_driver").addHandler(logging.NullHandler())
    of = "" if args.all_namespaces else namespace(args)
    shown = Shown(args.sort, of, frozenset(args.node_name), args.output)
    with asking(args) as transport:
        if args.namespace:
            check_namespace(transport, of)
        scope = readable(transport, of, devices=bool(args.node_name))
        for note in scope.notes:
            vocabulary.warn(printable(note))
        if not args.watch and (args.once or not sys.stdout.isatty()):
            frame = view(listed(transport, scope), **shown.selection)
            check_nodes(frame, args.node_name)
            print(shown.text(frame, transport.server), end="\n" if args.output == "json" else "", flush=True)
            return 0
        with Followed(transport, scope) as followed:
            followed.wait_listed()
            check_nodes(view(followed.cluster(), **shown.selection), args.node_name)
            try:
                if sys.stdout.isatty() and args.output not in ("json", "yaml"):
                    _draw(followed, shown, transport.server, scope.notes)
                else:
                    _print(followed, shown, transport.server)
            except KeyboardInterrupt:
                return 0
    return 0


def _print(followed: Followed, shown: Shown, server: str) -> None:
    """Print a frame whenever what is shown has changed."""
    from dra_driver.operations.overview.view import view

    last = ""
    while True:
        text = shown.text(view(followed.cluster(), **shown.selection), server, indent=None)
        if text != last:
            print(text, flush=True)
        last = text
        _wait(followed, MIN_PAUSE)


def _draw(followed: Followed, shown: Shown, server: str, notes: Sequence[str]) -> None:
    """Keep the terminal up to date; the notes are repeated, as the screen hides what was printed before."""
    from rich.console import Console
    from rich.live import Live

    from dra_driver.operations.overview.view import view

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            frame = view(followed.cluster(), **shown.selection)
            lines = [Cell(note, "yellow") for note in notes]
            lines += [Cell(f"not up to date: {shorten(followed.trouble, 300)}", "bold red")] if followed.trouble else []
            picture = shown.picture(frame, server, lines, rows=console.height)
            live.update(picture, refresh=True)
            # Half of the time is left to the machine, however large the cluster is.
            _wait(followed, max(MIN_PAUSE, time.monotonic() - began))


def _wait(followed: Followed, pause: float) -> None:
    time.sleep(pause)
    followed.wait_changed(IDLE_SECONDS)
