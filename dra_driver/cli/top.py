"""``dra-driver top``: nodes, chips, pods and health of a cluster, kept up to date by watches."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import asking, check_nodes, namespace
from dra_driver.util.text import first_of, printable, shorten

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from dra_driver.operations.overview.following import Followed
    from dra_driver.operations.overview.view import ChipRow, Frame, HolderOfChip, NodeRow

MIN_PAUSE: Final = 0.5
"""Seconds between two frames, at least; a frame of a large cluster takes part of a second itself."""
IDLE_SECONDS: Final = 30.0
"""The screen is drawn again after that time without news: the terminal may have been resized."""
PRINTED_ROWS: Final = 100
"""Rows of a table that are printed without a terminal; -o wide, json and yaml have all."""
MAX_ROWS: Final = 100_000
LONG: Final = frozenset({"OFFERS", "SICK", "TAINTS", "ULTRASERVER", "DEVICES", "ASKS FOR", "REASON"})
"""Columns that a narrow terminal partitions off first."""
MIN_WIDTH, MAX_WIDTH = 8, 32
"""Characters that such a column has at least, and that others have at least where they need that many."""
FREE, HELD, PARTLY = ".", "#", "+"
LEGEND: Final = (
    f"{FREE} free  {HELD} allocated  {PARTLY} some cores allocated  of free chips: x unhealthy  ! tainted  ? unknown  "
    "~ degraded"
)
EXAMPLES: Final = (
    "top",
    "top -A --sort sick --node-name node-7 --node-name node-8",
    "top --once -o json -n my-team",
    "{} top -w -o json | jq .pending",
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "top",
        about="Show the Neuron nodes of a cluster: which chips are free, which pods have the others, what is wrong "
        "with chips, and what pods wait for. Reads Nodes, ResourceSlices, DeviceTaintRules, ResourceClaims and Pods, "
        "and changes nothing. On a terminal, what is shown follows the cluster until Ctrl-C.",
        examples=EXAMPLES,
        done="shown, also when ended with Ctrl-C",
        refused="the packages to draw with are not installed",
        notes="What the user may not list is left out, with a warning: without claims and pods of all namespaces, "
        "those of one are shown, and how many chips are free is not known.\n\n"
        "-w without a terminal prints everything again on every change; with -o json, one document per line; "
        "with -o yaml, one document after the other.",
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
    vocabulary.add_watch(follow)
    vocabulary.add_output(parser, "text", "wide", "json", "yaml")
    vocabulary.add_cluster(parser, "nodes, devices, claims and pods (implied)", namespaces="the pods that are listed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the cluster once, or until Ctrl-C."""
    import rich  # noqa: F401 - before the cluster is asked: nothing can be drawn without it

    from dra_driver.operations.overview.following import Followed, listed, readable
    from dra_driver.operations.overview.view import view

    # What the watches would log, the status line says.
    logging.getLogger("dra_driver").addHandler(logging.NullHandler())
    args.from_cluster = True
    of = "" if args.all_namespaces else namespace(args)
    shown = Shown(args.sort, of, frozenset(args.node_name), args.output)
    with asking(args) as transport:
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


class Cell(NamedTuple):
    """A text of any origin, and its style in terms of rich."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the user wants to see."""

    sort: Any
    namespace: str
    nodes: frozenset[str]
    output: str

    @property
    def selection(self) -> dict[str, Any]:
        """Arguments of ``view``."""
        return {"sort": self.sort, "namespace": self.namespace, "nodes": self.nodes}

    def text(self, frame: Frame, server: str, *, indent: int | None = 2) -> str:
        """A frame for a file or a pipe."""
        document = {"server": server, **frame.document()}
        if self.output == "json":
            return json.dumps(document, indent=indent)
        if self.output == "yaml":
            import yaml

            return f"---\n{yaml.safe_dump(document, sort_keys=False)}"
        import io

        from rich.console import Console

        most = MAX_ROWS if self.output == "wide" else PRINTED_ROWS
        # Wide enough for any row: lines are not broken where nobody knows how wide they may be.
        console = Console(file=io.StringIO(), width=4000, no_color=True, highlight=False)
        with console.capture() as captured:
            console.print(self.picture(frame, server, most=most))
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"

    def picture(
        self, frame: Frame, server: str, notes: Sequence[Cell] = (), *, rows: int = 0, most: int = MAX_ROWS
    ) -> Group:
        """A frame, in at most so many lines (0: any number), with at most so many rows in each table."""
        from rich.console import Group
        from rich.text import Text

        parts = tuple(sections(frame, wide=self.output == "wide"))
        wanted = [min(len(part.rows), most) for part in parts]
        # Beside its rows, each table takes a line of titles, one that says how many more there are, and one between.
        shares = share(rows - 3 - len(notes) - 3 * len(parts), wanted) if rows else wanted
        all_ = " (-A: all)" if frame.whole else ""
        pods = f"pods of namespace {self.namespace}{all_}" if self.namespace else "pods of all namespaces"
        lines: list[Text | Table] = [Text(printable(f"Neuron devices of {server}, {pods}"), style="bold")]
        lines += [Text(printable(note.text), style=note.style, no_wrap=True, overflow="ellipsis") for note in notes]
        for part, count in zip(parts, shares, strict=True):
            lines += [Text(), _table(part, count)]
            if count < len(part.rows):
                lines.append(Text(f"and {len(part.rows) - count} more {part.title}", style="dim"))
            if part.title == "nodes":
                lines.append(Text(LEGEND, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


def share(lines: int, wanted: Sequence[int]) -> list[int]:
    """So many lines shared out: those who want little get all, the rest gets equal parts; each gets one at least."""
    given = [min(count, 1) for count in wanted]
    left = lines - sum(given)
    while left > 0 and given != list(wanted):
        open_ = [place for place, count in enumerate(wanted) if given[place] < count]
        each = max(1, left // len(open_))
        for place in open_:
            more = min(each, wanted[place] - given[place], left)
            given[place] += more
            left -= more
    return given


def _table(section: Section, count: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = section.rows[:count]
    for place, column in enumerate(section.columns):
        width = max([len(column), *(len(row[place].text) for row in shown)])
        least = MIN_WIDTH if column in LONG else min(width, MAX_WIDTH)
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in shown:
        table.add_row(*(Text(printable(cell.text), style=cell.style) for cell in row))
    if not section.rows:
        table.add_row(Text("none", style="dim"))
    return table


def sections(frame: Frame, *, wide: bool = False) -> Iterator[Section]:
    """The tables of a frame: types, nodes, who has devices, and who waits for some."""
    if frame.with_slices:
        yield from _of_nodes(frame, wide=wide)
    yield Section(
        ("NAMESPACE", "POD", "CLAIM", "NODE", "DEVICES", "STATUS"),
        tuple(
            (
                Cell(row.namespace),
                Cell(row.pod or "-"),
                Cell(row.claim or "-"),
                Cell(row.node),
                Cell(row.devices + (f" ({'; '.join(row.sick)})" if row.sick else ""), "bold red" if row.sick else ""),
                Cell(_status(row), "yellow" if row.doubt or row.phase != "Running" else ""),
            )
            for row in frame.holders
        ),
        "holders of devices",
    )
    if frame.pending:
        rows = (
            (Cell(row.namespace), Cell(row.pod), Cell(row.asks or "-"), Cell(row.reason, "yellow"))
            for row in frame.pending
        )
        yield Section(("NAMESPACE", "PENDING POD", "ASKS FOR", "REASON"), tuple(rows), "pending pods")


def _status(row: HolderOfChip) -> str:
    since = f" since {row.since}" if row.since else ""
    return row.doubt or f"{row.phase}{since}" + (f": {row.problem}" if row.problem else "") or "-"


def _of_nodes(frame: Frame, *, wide: bool) -> Iterator[Section]:
    yield Section(
        ("TYPE", "NODES", "CHIPS", "FREE", "ALLOCATED", "SICK"),
        tuple(
            (
                Cell(row.instance_type or "not known"),
                *(Cell("-" if count is None else str(count)) for count in (row.nodes, row.chips, row.free, row.held)),
                Cell(str(row.sick), "bold red" if row.sick else ""),
            )
            for row in frame.types
        ),
        "types",
    )
    more = ("TAINTS", "ULTRASERVER") if wide else ()
    yield Section(
        ("NODE", "TYPE", "STATUS", "DRIVER", "OFFERS", "FREE", "CHIPS", "SICK", *more),
        tuple(_node_row(row, wide=wide) for row in frame.nodes),
        "nodes",
    )


def _node_row(row: NodeRow, *, wide: bool) -> tuple[Cell, ...]:
    status = row.status + ",KubeletUnsupported" * bool(row.kubelet_problem) + ",DevicePlugin" * bool(row.held_back)
    bad = status not in ("Ready", "-")
    servers = ", ".join(f"{server} ({size} nodes)" for size, server in row.servers)
    more = (Cell(first_of(row.taints, 4) or "-"), Cell(servers or "-")) if wide else ()
    kind = row.instance_type or "-"
    return (
        Cell(row.name),
        Cell(kind if wide or not row.servers else f"{kind} in {row.servers[0][1]}"),
        Cell(status if wide or not row.taints else f"{status},Tainted", "yellow" if bad or row.taints else ""),
        Cell(row.serving.word, "bold red" if row.serving.problem else ""),
        Cell(_offers(row)),
        Cell(f"{'-' if row.free is None else row.free}/{len(row.chips)}"),
        Cell("".join(_sign(chip, whole=row.whole) for chip in row.chips)),
        Cell(_sick(row), "bold red" if row.sick or row.condition else ""),
        *more,
    )


def _offers(row: NodeRow) -> str:
    offers = ", ".join(f"{count} {what.removeprefix('aws.amazon.com/')}" for what, count in row.offers)
    since = f" (since {row.serving.since})" if row.serving.since else ""
    return (offers or "nothing") + (f": {row.serving.problem}{since}" if row.serving.problem else "")


def _sign(chip: ChipRow, *, whole: bool) -> str:
    from dra_driver.neuron.topology.drawing import SIGNS

    if chip.held:
        return HELD if chip.held >= chip.cores else PARTLY
    state = "tainted" if chip.blocked and chip.known and not chip.faults else chip.state
    if state == "healthy" and not whole:
        state = "unknown"
    return next((sign for kind, sign in SIGNS.items() if kind == state), FREE)


def _sick(row: NodeRow) -> str:
    found = [
        f"neuron{chip.index}: {', '.join(fault.code for fault in chip.faults)}" for chip in row.chips if chip.faults
    ]
    return first_of(found, 3) or row.condition or "-"
