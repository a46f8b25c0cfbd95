"""Utilisation and fragmentation over time as SVG: a file that needs no font, script or style from elsewhere.

Every policy has a colour and a dash pattern of its own, so that the curves can be told apart in print and by any eye;
``<title>`` and ``<desc>`` say in words what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from dra_driver.simulator.workload.policies import POLICIES
from dra_driver.simulator.workload.record import Moment, Run
from dra_driver.simulator.workload.report import Report, hours, nodes, percent

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
"""Colour and dashes of each policy."""
_WIDTH, _EDGE, _HEAD, _LEGEND = 960.0, 24.0, 76.0, 26.0
_PANEL, _GAP = 210.0, 46.0
_LEFT, _RIGHT = 64.0, 20.0
"""From the card's edges to the area of the curves."""


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
