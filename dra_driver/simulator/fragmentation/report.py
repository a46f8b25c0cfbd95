"""Summary of several runs: means over the seeds, with the policies side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any

from dra_driver.simulator.fragmentation.cluster import POLICIES
from dra_driver.simulator.fragmentation.record import Moment, Outcome, Run
from dra_driver.simulator.fragmentation.scenario import Workload

STRETCHES = 12
"""Number of lines of the table over time."""
BAR = 30
"""Length of a full bar in characters."""


@dataclass(frozen=True, slots=True)
class Report:
    """Runs of one workload on one cluster: the same ascending, contiguous seeds for each policy."""

    file: str
    workload: Workload
    nodes: int
    chips: int
    runs: tuple[Run, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies in the order of the runs."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in the order of the runs."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def of(self, policy: str) -> tuple[Run, ...]:
        """The runs under one policy."""
        return tuple(run for run in self.runs if run.policy == policy)

    def curve(self, policy: str) -> tuple[Moment, ...]:
        """The means over the seeds."""
        return tuple(
            Moment(
                moments[0].hour,
                fmean(moment.utilisation for moment in moments),
                fmean(moment.fragmentation for moment in moments),
            )
            for moments in zip(*(run.moments for run in self.of(policy)), strict=True)
        )


def refused_with_chips_free(run: Run) -> int:
    """Pods of all kinds that were refused although as many chips were free in the cluster."""
    return sum(item.refused_with_chips_free for item in run.outcomes.values())


def document(report: Report) -> dict[str, Any]:
    """Everything, as plain objects. Shares are 0 to 1, times are hours."""
    workload = report.workload
    return {
        "workload": report.file,
        "nodes": report.nodes,
        "chips": report.chips,
        "arrivalsPerHour": workload.per_hour,
        "lengthHours": workload.length,
        "warmUpHours": workload.warm_up,
        "policies": [{"name": name, "meaning": POLICIES[name].meaning} for name in report.policies],
        "runs": [_run(run) for run in report.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "seed": run.seed,
        "placed": run.placed,
        "refused": run.refused,
        "refusedWithChipsFree": refused_with_chips_free(run),
        "utilisation": round(run.utilisation, 6),
        "fragmentation": round(run.fragmentation, 6),
        "fragmentationBySize": {str(size): round(value, 6) for size, value in run.outside.items()},
        "kinds": [
            {
                "name": name,
                "placed": item.placed,
                "refused": item.refused,
                "refusedWithChipsFree": item.refused_with_chips_free,
                "withSeveralChipsOrDevices": item.several,
                "connected": item.connected,
                "linked": item.linked,
                "error": run.reasons.get(name),
            }
            for name, item in run.outcomes.items()
        ],
        "overTime": [
            {
                "hour": round(item.hour, 6),
                "utilisation": round(item.utilisation, 6),
                "fragmentation": round(item.fragmentation, 6),
            }
            for item in run.moments
        ],
    }


def text(report: Report) -> str:
    """The summary for a terminal, without a final newline."""
    workload, seeds = report.workload, report.seeds
    several = f"means over the seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    head = [
        f"{report.file}: {nodes(report)}, {workload.per_hour:g} pods an hour for "
        f"{hours(workload.length)}" + (f", the first {hours(workload.warm_up)} left out" if workload.warm_up else ""),
        f"{several}; fragmentation: free chips that no free set of 4, 8 or 16 can use",
    ]
    parts = ["\n".join(head), _figures(report), _kinds(report), *_connected(report)]
    if len(report.policies) == 1:
        parts.append(_over_time(report.curve(report.policies[0])))
    parts += [_errors(report)] if any(run.reasons for run in report.runs) else []
    return "\n\n".join(parts)


def nodes(report: Report) -> str:
    """The size of the cluster."""
    plural = "s" if report.nodes != 1 else ""
    return f"{report.nodes} node{plural} with {report.chips} chips"


def hours(value: float) -> str:
    """A duration for people."""
    return f"{value / 24:g} d" if value >= 48 else f"{value:g} h"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.1f} %"


def number(value: float) -> str:
    """A mean of whole numbers."""
    return f"{value:.1f}".removesuffix(".0")


_COLUMNS: tuple[tuple[str, Callable[[Run], float], Callable[[float], str]], ...] = (
    ("placed", lambda run: run.placed, number),
    ("refused", lambda run: run.refused, number),
    ("with chips free", refused_with_chips_free, number),
    ("utilisation", lambda run: run.utilisation, percent),
    ("fragmentation", lambda run: run.fragmentation, percent),
)


def _figures(report: Report) -> str:
    """One line per policy."""
    sizes = tuple(report.runs[0].outside)
    heads = ["policy", *(name for name, _, _ in _COLUMNS), *(f"no {size}-set" for size in sizes)]
    several = len(report.policies) > 1 and len(report.seeds) > 1
    lines = [[*heads, "fewer refused in"] if several else heads]
    first = report.of(report.policies[0])
    for name in report.policies:
        runs = report.of(name)
        cells = [name, *(show(fmean(value(run) for run in runs)) for _, value, show in _COLUMNS)]
        cells += [percent(fmean(run.outside[size] for run in runs)) for size in sizes]
        if several:
            better = sum(run.refused < other.refused for run, other in zip(runs, first, strict=True))
            cells.append("" if runs == first else f"{better} of {len(runs)} seeds")
        lines.append(cells)
    return table(lines)


def _kinds(report: Report) -> str:
    """The share of refused pods: one line per policy, one column per kind."""
    lines = [["refused of kind", *(kind.name for kind in report.workload.kinds)]]
    for name in report.policies:
        runs = report.of(name)
        lines.append([name, *(_share_refused(runs, kind.name) for kind in report.workload.kinds)])
    return table(lines)


def _connected(report: Report) -> list[str]:
    """How often the chips of kinds that do not ask for it are connected: one line per policy, one column per kind."""
    loose = [kind.name for kind in report.workload.kinds if kind.device or kind.claims]
    names = [name for name in loose if any(run.outcomes[name].several for run in report.runs)]
    if not names:
        return []
    measures: tuple[tuple[str, Callable[[Outcome], int]], ...] = (
        ("connected set of kind", lambda item: item.connected),
        ("linked of kind", lambda item: item.linked),
    )
    return [
        table([[title, *names], *([policy, *_shares(report.of(policy), names, count)] for policy in report.policies)])
        for title, count in measures
    ]


def _shares(runs: Sequence[Run], names: Sequence[str], count: Callable[[Outcome], int]) -> Iterator[str]:
    for name in names:
        found = [run.outcomes[name] for run in runs]
        several = sum(item.several for item in found)
        yield percent(sum(map(count, found)) / several) if several else "none came"


def _share_refused(runs: Sequence[Run], kind: str) -> str:
    refused = sum(run.outcomes[kind].refused for run in runs)
    arrived = refused + sum(run.outcomes[kind].placed for run in runs)
    return percent(refused / arrived) if arrived else "none came"


def _over_time(curve: Sequence[Moment]) -> str:
    """Utilisation and fragmentation of one policy, with bars."""
    width = max(1, len(curve) // STRETCHES)
    lines = [["until", "utilisation", "", "fragmentation", ""]]
    for start in range(0, len(curve), width):
        part = curve[start : start + width]
        used, broken = fmean(item.utilisation for item in part), fmean(item.fragmentation for item in part)
        bars = [f"{'#' * round(BAR * value):{BAR}}" for value in (used, broken)]
        lines.append([hours(round(part[-1].hour, 1)), percent(used), bars[0], percent(broken), bars[1]])
    return table(lines)


def _errors(report: Report) -> str:
    found = {f"{name}: {text}" for run in report.runs for name, text in run.reasons.items()}
    return "\n".join(["errors that ended the scheduling of a pod:", *(f"  {line}" for line in sorted(found))])


def table(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width; the first one and bars are left-aligned, numbers right-aligned."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def cells(line: Sequence[str]) -> Iterator[str]:
        for column, cell in enumerate(line):
            left = column == 0 or cell.startswith("#")
            yield f"{cell:<{widths[column]}}" if left else f"{cell:>{widths[column]}}"

    return "\n".join("  ".join(cells(line)).rstrip() for line in lines)


_STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#16202e}
.head{font-size:22px;font-weight:650}.sub{font-size:13.5px;fill:#5b6778}.name{font-size:13.5px;font-weight:600}
.caption{font-size:12.5px;fill:#7b8798}.end{text-anchor:end}.middle{text-anchor:middle}
.page{fill:#fff}.card{fill:#f7f9fc;stroke:#e1e7ef}.grid{stroke:#dfe5ee;stroke-width:1}
.warm{fill:#e9eef5}.curve{fill:none;stroke-width:2.4;stroke-linejoin:round;stroke-linecap:round}
""".strip().replace("\n", "")
_STROKES = (
    ("#0b3d91", ""),
    ("#f08c00", "9 4"),
    ("#2b8a3e", "2 4"),
    ("#862e9c", "9 4 2 4"),
    ("#c2255c", "14 5"),
    ("#5b6778", "5 3"),
    ("#0c8599", "1 5"),
    ("#5c940d", "16 4 2 4"),
)
"""Colour and dash pattern of each policy."""
_WIDTH, _EDGE, _HEAD, _LEGEND = 960.0, 24.0, 76.0, 26.0
_PANEL, _GAP = 210.0, 46.0
_LEFT, _RIGHT = 64.0, 20.0
"""Distances from the card's edges to the plot area."""


def svg(report: Report) -> str:
    """Draw the means over the seeds for each policy: an SVG document with a final newline.

    Equal reports give equal bytes.
    """
    curves = [(name, report.curve(name)) for name in report.policies]
    card = 2 * (_PANEL + _GAP) + 14
    height = _HEAD + card + 20 + _LEGEND * len(curves) + _EDGE
    size = f'width="{_WIDTH:.0f}" height="{height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" {size}'
    inside = _WIDTH - 2 * _EDGE
    parts = [
        f'{opening} role="img" aria-labelledby="title description">',
        '<title id="title">Utilisation and fragmentation over time</title>',
        f'<desc id="description">{escape(_description(report))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" {size}/>',
        _words("head", _EDGE, 36, "Utilisation and fragmentation over time"),
        _words("sub", _EDGE, 58, _subtitle(report)),
        f'<rect class="card" x="{_EDGE}" y="{_HEAD}" width="{inside}" height="{card}" rx="14"/>',
        *_panel(report, curves, "chips in use", lambda moment: moment.utilisation, _HEAD + 38),
        *_panel(
            report,
            curves,
            "free chips that no free set of 4, 8 or 16 can use",
            lambda moment: moment.fragmentation,
            _HEAD + 38 + _PANEL + _GAP,
        ),
        *(
            line
            for place, (name, _) in enumerate(curves)
            for line in _legend(place, name, report.of(name), _HEAD + card + 30 + _LEGEND * place)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _words(style: str, x: float, y: float, words: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _subtitle(report: Report) -> str:
    workload, seeds = report.workload, report.seeds
    several = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{nodes(report)} · {workload.per_hour:g} pods an hour for {hours(workload.length)} · {several}"


def _means(runs: Sequence[Run]) -> str:
    used = sum(run.utilisation for run in runs) / len(runs)
    broken = sum(run.fragmentation for run in runs) / len(runs)
    refused = sum(run.refused for run in runs) / max(1, sum(run.refused + run.placed for run in runs))
    return (
        f"{percent(used)} in use, {percent(broken)} of the free ones broken up, {percent(refused)} of the pods refused"
    )


def _description(report: Report) -> str:
    return " ".join(f"{name} ({POLICIES[name].meaning}): {_means(report.of(name))}." for name in report.policies)


def _panel(
    report: Report,
    curves: Sequence[tuple[str, tuple[Moment, ...]]],
    title: str,
    value: Callable[[Moment], float],
    top: float,
) -> Iterator[str]:
    """Grid, scales and curves of one quantity."""
    left, right = _EDGE + _LEFT, _WIDTH - _EDGE - _RIGHT
    bottom, length = top + _PANEL - 28, report.workload.length
    per_hour = (right - left) / length
    yield _words("name", left, top - 12, title)
    if report.workload.warm_up:
        width = report.workload.warm_up * per_hour
        yield (
            f'<rect class="warm" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}">'
            "<title>warm-up, left out of the figures</title></rect>"
        )
    for quarter in range(5):
        y = bottom - (bottom - top) * quarter / 4
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _words("caption end", left - 8, y + 4, f"{25 * quarter} %")
        yield _words("caption middle", left + (right - left) * quarter / 4, bottom + 19, hours(length * quarter / 4))
    for place, (name, curve) in enumerate(curves):
        colour, dashes = _STROKES[place % len(_STROKES)]
        points = [(left + moment.hour * per_hour, bottom - (bottom - top) * value(moment)) for moment in curve]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield f'<path class="curve" data-policy="{escape(name)}" stroke="{colour}"{dashed} d="M{path}"/>'


def _legend(place: int, name: str, runs: Sequence[Run], y: float) -> Iterator[str]:
    colour, dashes = _STROKES[place % len(_STROKES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    yield f'<path class="curve" stroke="{colour}"{dashed} d="M{_EDGE:.1f} {y - 4.5:.1f}h36"/>'
    yield _words("name", _EDGE + 48, y, name)
    yield _words("sub", _EDGE + 250, y, _means(runs))
