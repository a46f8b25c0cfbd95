"""An overview of a cluster as text: tables of nodes, of who has devices and who waits, and of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dra_driver.cli.terminal import columns
from dra_driver.util.text import first_of, printable, ranges

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from dra_driver.operations.overview.rows import ChipRow, Frame, HolderOfChip, NodeRow, TypeRow

PRINTED_ROWS: Final = 100
"""Rows of a table that are printed without a terminal; -o wide, json and yaml have all."""
MAX_ROWS: Final = 100_000
LONG: Final = frozenset({"OFFERS", "SICK", "TAINTS", "ULTRASERVER", "DEVICES", "ASKS FOR", "REASON", "PROBLEM"})
"""Columns that a narrow terminal cuts off first."""
MIN_WIDTH, MAX_WIDTH = 8, 32
"""Characters that such a column has at least, and that others have at least where they need that many."""
FREE, HELD, PARTLY = ".", "#", "+"
LEGEND: Final = (
    f"{FREE} free  {HELD} allocated  {PARTLY} some cores allocated  of free chips: x unhealthy  ! tainted  ? unknown  "
    "~ degraded"
)

FAULT_COLUMNS: Final = ("DEVICE", "STATE", "FAULT", "SEVERITY", "SINCE", "EFFECT", "REMEDY")


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
        document = frame.document(server)
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
                Cell(_status(row), "yellow" if row.doubt or row.says or row.phase != "Running" else ""),
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
    state = row.doubt or f"{row.phase}{since}" + (f": {row.problem}" if row.problem else "")
    return "; ".join(filter(None, (state, *row.says))) or "-"


def _of_nodes(frame: Frame, *, wide: bool) -> Iterator[Section]:
    yield Section(
        ("TYPE", "NODES", "CHIPS", "FREE", "ALLOCATED", "SICK"),
        tuple(
            (
                Cell(row.instance_type or "not known"),
                *(Cell("-" if count is None else str(count)) for count in (row.nodes, row.chips, row.free, row.held)),
                Cell(_counted(row), "bold red" if row.sick or row.unknown else ""),
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
    problems = tuple(
        (Cell(row.name), Cell(item.since or "-"), Cell("; ".join(filter(None, (item.text, item.remedy)))))
        for row in frame.nodes
        for item in row.findings
    )
    if problems:
        yield Section(("NODE", "SINCE", "PROBLEM"), problems, "problems of nodes")


def _counted(row: TypeRow) -> str:
    parts = (f"{row.tainted} tainted" if row.tainted else "", f"{row.unknown} unknown" if row.unknown else "")
    return ", ".join(filter(None, (str(row.sick - row.tainted), *parts)))


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
        Cell(", ".join(f"{count} {what.removeprefix('aws.amazon.com/')}" for what, count in row.offers) or "nothing"),
        Cell(f"{'-' if row.free is None else row.free}/{len(row.chips)}"),
        Cell("".join(_sign(chip, whole=row.whole) for chip in row.chips)),
        Cell(_sick(row), "bold red" if row.sick or row.condition else ""),
        *more,
    )


def _sign(chip: ChipRow, *, whole: bool) -> str:
    from dra_driver.neuron.topology.drawing import SIGNS

    if chip.held:
        return HELD if chip.held >= chip.cores else PARTLY
    state = "tainted" if chip.blocked and chip.known and not chip.faults else chip.state
    if state == "healthy" and not whole:
        state = "unknown"
    return next((sign for kind, sign in SIGNS.items() if kind == state), FREE)


def _sick(row: NodeRow) -> str:
    alike: dict[str, list[int]] = {}
    for chip in row.chips:
        if chip.faults:
            named = (f"{fault.code} ({fault.rule})" if fault.rule else fault.code for fault in chip.faults)
            alike.setdefault(", ".join(named), []).append(chip.index)
    found = [f"neuron{ranges(indexes)}: {faults}" for faults, indexes in alike.items()]
    return first_of(found, 3) or row.condition or ("unknown" if row.unknown else "-")


def cluster_table(nodes: Sequence[NodeRow], *, every_chip: bool) -> str:
    """One line for each fault of chips, and for each healthy chip or for all; what is wrong with drivers below."""
    from dra_driver.neuron.health.faults import REMEDIES

    lines: list[tuple[str, ...]] = [("NODE", *FAULT_COLUMNS, "HOLDERS")]
    texts = []
    for node in nodes:
        driver = node.serving
        texts += ["; ".join(filter(None, (f"{node.name}: {item.text}", item.remedy))) for item in node.findings]
        if not node.offers and not every_chip:
            whole = f"all {len(node.chips)}"
            lines.append((node.name, whole, "unknown", driver.word, "-", driver.since or "-", *("-",) * 3))
            continue
        well = [chip for chip in node.chips if not chip.faults]
        alike: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for chip in node.chips if every_chip else [chip for chip in node.chips if chip.faults]:
            faults: list[tuple[str, ...]] = [
                (item.code, item.severity, item.since or "-", item.effect or "-", item.remedy or "-")
                for item in chip.faults
            ] or [("-",) * 5]
            for fault in faults:
                cells = (chip.state, *fault, first_of(chip.holders, 3) or "-")
                alike.setdefault((chip.index if every_chip else -1, cells), []).append(chip.index)
        rows = sorted(alike.items(), key=lambda item: item[1])
        lines += [(node.name, f"neuron{ranges(indexes)}", *cells) for (_, cells), indexes in rows]
        for state in dict.fromkeys(chip.state for chip in well) if not every_chip else ():
            count = sum(chip.state == state for chip in well)
            lines.append((node.name, f"{count} of {len(node.chips)}", state, *("-",) * 6))
        if node.condition and len(well) == len(node.chips):
            # Such as that of a detector that does not name the chips.
            lines.append((node.name, "-", "-", node.condition, *("-",) * 5))
    remedies = {fault.row.remedy for node in nodes for chip in node.chips for fault in chip.faults if fault.row}
    texts += [f"{remedy}: {REMEDIES[remedy]}" for remedy in sorted(remedies)]
    table = columns([[printable(cell) for cell in line] for line in lines])
    return "\n".join([table, *([""] if texts else []), *map(printable, texts)])
