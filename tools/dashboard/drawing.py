"""From panels of a Grafana dashboard and what their queries gave to a picture: values in, values out.

No Grafana: only what its JSON says of places, titles, columns and legends is taken over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

CELL, LINE, GAP, TOP, MARGIN = 50.0, 34.0, 6.0, 66.0, 14.0
COLOURS = ("#2f6fde", "#d9822b", "#2f9e68", "#b5485d", "#7a5cc7", "#5b6778", "#0f9aa8", "#b08900")
STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#16202e;font-size:11.5px}"
    ".head{font-size:19px;font-weight:650}.sub,.tick{fill:#5b6778}.tick{font-size:10px}.name{font-weight:600}"
    ".big{font-size:34px;font-weight:650;text-anchor:middle}.end{text-anchor:end}"
    ".page{fill:#fff}.card{fill:#f7f9fc;stroke:#e1e7ef}.grid{stroke:#dfe5ee}"
)


@dataclass(frozen=True)
class Series:
    """One line: what it is called, its labels, and (seconds, value) in order of time."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def legend(form: str, labels: Mapping[str, str], fallback: str) -> str:
    """The name that Grafana's ``legendFormat`` gives a series."""
    if form in ("", "__auto"):
        return ", ".join(value for name, value in sorted(labels.items()) if name != "__name__") or fallback
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form).strip()


def dashboard(panels: Sequence[Mapping[str, Any]], data: Mapping[int, Sequence[Series]], title: str, sub: str) -> str:
    """The picture as SVG; ``data`` are the series by the panels' ids."""
    height = TOP + MARGIN + max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * LINE
    width = 24 * CELL + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(sub)}</desc><style>{STYLE}</style>",
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
        _text(MARGIN, 30, title, "head"),
        _text(MARGIN, 50, sub, "sub"),
    ]
    for panel in panels:
        at = panel["gridPos"]
        x, y = MARGIN + at["x"] * CELL, TOP + at["y"] * LINE
        w, h = at["w"] * CELL - GAP, at["h"] * LINE - GAP
        if panel["type"] == "row":
            parts.append(_text(x, y + 22, panel["title"], "name sub"))
            continue
        parts.append(f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="6"/>')
        parts.append(_text(x + 10, y + 18, panel["title"], "name"))
        parts += _DRAWN[panel["type"]](panel, data[panel["id"]], x, y + 26, w, h - 26)
    return "\n".join([*parts, "</svg>", ""])


def _stat(_: Mapping[str, Any], series: Sequence[Series], x: float, y: float, w: float, h: float) -> list[str]:
    return [_text(x + w / 2, y + h / 2 + 10, _number(series[0].points[-1][1]), "big")]


def _table(panel: Mapping[str, Any], series: Sequence[Series], x: float, y: float, w: float, h: float) -> list[str]:
    options = panel["transformations"][0]["options"]
    columns = list(options["indexByName"])
    head = [options["renameByName"].get(name, name) for name in columns]
    rows = [head, *sorted([item.labels.get(name, "") for name in columns] for item in series)]
    widths = [max(len(row[place]) for row in rows) + 2 for place in range(len(columns))]
    step = (w - 20) / sum(widths)
    starts = [x + 10 + step * sum(widths[:place]) for place in range(len(columns))]
    parts = []
    for line, row in enumerate(rows[: int(h // 17)]):
        kind = "" if line else "sub"
        parts += [_text(at, y + 12 + 17 * line, text, kind) for at, text in zip(starts, row, strict=True)]
    return parts


def _lines(panel: Mapping[str, Any], series: Sequence[Series], x: float, y: float, w: float, h: float) -> list[str]:
    points = [point for item in series for point in item.points]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = max(*(value for _, value in points), 0.0) or 1.0
    left, right, upper, lower = x + 44, x + w - 12, y + 8, y + h - 34
    parts = []
    for part in (0.0, 0.5, 1.0):
        at = lower - (lower - upper) * part
        parts.append(f'<path class="grid" d="M{left:.1f} {at:.1f}H{right:.1f}"/>')
        parts.append(_text(left - 5, at + 3, _number(top * part), "tick end"))
    offset = left
    fixed = {item["matcher"]["options"]: item["properties"][0]["value"] for item in panel["fieldConfig"]["overrides"]}
    for number, item in enumerate(series):
        colour = fixed.get(item.name, {}).get("fixedColor", COLOURS[number % len(COLOURS)])
        path = " ".join(
            f"{left + (right - left) * (at - first) / ((last - first) or 1.0):.1f},"
            f"{lower - (lower - upper) * value / top:.1f}"
            for at, value in item.points
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{path}"/>')
        room = 14 + 6.2 * len(item.name) + 12
        if offset + room < right + 12:
            parts.append(f'<rect x="{offset:.1f}" y="{y + h - 19:.1f}" width="9" height="9" fill="{colour}"/>')
            parts.append(_text(offset + 13, y + h - 11, item.name, "tick"))
        offset += room
    return parts


_DRAWN = {"stat": _stat, "table": _table, "timeseries": _lines}


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.3g}" if value != int(value) else f"{int(value)}"
