"""The report in Markdown: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from bench.calls import AT_ONCE, Extent, Situation
from bench.drivers import BARE, BEFORE, OURS
from bench.figures import CallFigures, ProcessFigures
from bench.rest import SETTLE_SECONDS, RestFigures


def text(
    machine: str,
    load: float,
    kubernetes: str,
    extent: Extent,
    starts: Mapping[str, Sequence[float]],
    calls: Mapping[Situation, CallFigures],
    processes: Mapping[str, ProcessFigures],
    rest: RestFigures | None,
) -> str:
    """Return the whole report; durations in milliseconds unless noted otherwise."""
    devices = "1 device" if extent.devices == 1 else f"{extent.devices} devices"
    lines = [
        f"Machine: {machine}; load before the run {load:.1f}. Kubernetes {kubernetes}.",
        f"Medians of {extent.rounds} rounds of {extent.claims} claims with {devices} each; p99 over all their calls.",
        "",
        *_one_by_one(calls),
        "",
        f"{AT_ONCE} at once:",
        "",
        *_at_once(calls),
        "",
        "Seconds from start to slices stored:",
        "",
        *table(
            ("driver", "starts", "median", "least", "most"),
            [
                (label, str(len(values)), *(f"{number:.2f}" for number in (median(values), min(values), max(values))))
                for label, values in starts.items()
            ],
        ),
        "",
        "Resident memory of the called processes, in MB. They use a kubeconfig, whose parser costs this driver",
        "about 22 MB that it does not need in a pod:",
        "",
        *table(
            ("driver", "before the calls", "after them", "threads"),
            [
                (label, f"{found.before_mb:.1f}", f"{found.after_mb:.1f}", str(found.threads))
                for label, found in processes.items()
            ],
        ),
        *(_rest(rest) if rest else ()),
        "",
        "Targets:",
        "",
        *table(("target", "measured", ""), targets(starts, calls, rest)),
    ]
    return "\n".join(lines)


def targets(
    starts: Mapping[str, Sequence[float]], calls: Mapping[Situation, CallFigures], rest: RestFigures | None
) -> list[tuple[str, str, str]]:
    """Return each target of this driver with the measured value and whether it was met."""
    found = []
    for situation, figures in calls.items():
        if situation.label != OURS:
            continue
        kind = f"{situation.held} prepared"
        least = calls[replace(situation, label=BARE)]
        if situation.at_once == 1 and figures.above_get is not None and least.above_get is not None:
            found.append(_at_most(f"prepare p50 above GET, {kind}", figures.above_get, 2.5, "ms"))
            share = figures.above_get / least.above_get
            found.append(_at_most(f"prepare p50 above GET, {kind}", share, 1.3, f"times that of {BARE!r}"))
            found.append(_at_most(f"prepare p99, {kind}", figures.prepare_p99, 15, "ms"))
        elif situation.at_once > 1:
            pairs = figures.pairs_per_second
            what = f"pairs per second, {situation.at_once} at once, {kind}"
            found.append((f"{what}: at least 165", f"{pairs:.0f}", "met" if pairs >= 165 else "MISSED"))
            share = pairs / least.pairs_per_second
            mark = "met" if share >= 0.65 else "MISSED"
            found.append((f"{what}: at least 0.65 times those of {BARE!r}", f"{share:.2f}", mark))
    found.append(_at_most("start to slices stored", median(starts[OURS]), 1.0, "s"))
    if rest is not None:
        found.append(_at_most("start to slices stored, in its container", rest.start_seconds, 1.0, "s"))
        reads = rest.an_hour("watch") + rest.an_hour("read")
        found.append(_at_most("resident memory at rest", max(rest.resident_mb, rest.resident_later_mb), 60, "MB"))
        found.append(_at_most("CPU at rest", rest.cpu_percent, 0.5, "% of a core"))
        found.append(_at_most("API requests per hour, extrapolated", reads, 30, ""))
        found.append(_at_most("writes", float(rest.requests["write"]), 0, ""))
    return found


def _one_by_one(calls: Mapping[Situation, CallFigures]) -> list[str]:
    return table(
        ("driver", "prepared", "GET p50", "prepare p50", "above GET", "prepare p99", "unprepare p50", "p99"),
        [
            (
                situation.label,
                str(situation.held),
                _ms(found.get),
                _ms(found.prepare),
                _ms(found.above_get),
                _ms(found.prepare_p99),
                _ms(found.unprepare),
                _ms(found.unprepare_p99),
            )
            for situation, found in _of(calls, 1)
        ],
    )


def _at_once(calls: Mapping[Situation, CallFigures]) -> list[str]:
    return table(
        ("driver", "prepared", "pairs per second", "prepare p50", "prepare p99", "unprepare p50", "p99"),
        [
            (
                situation.label,
                str(situation.held),
                f"{found.pairs_per_second:.0f}",
                _ms(found.prepare),
                _ms(found.prepare_p99),
                _ms(found.unprepare),
                _ms(found.unprepare_p99),
            )
            for situation, found in _of(calls, AT_ONCE)
        ],
    )


def _rest(rest: RestFigures) -> list[str]:
    counted = ", ".join(f"{number} {kind}" for kind, number in rest.requests.items())
    reads = rest.an_hour("watch") + rest.an_hour("read")
    return [
        "",
        f"At rest, in the driver's container (Python {rest.python}):",
        "",
        f"- from process start to slices stored: {rest.start_seconds:.2f} s",
        f"- resident memory {SETTLE_SECONDS:.0f} s after it became ready: {rest.resident_mb:.1f} MB",
        f"- {rest.seconds / 60:.0f} minutes later: {rest.resident_later_mb:.1f} MB, {rest.threads} threads",
        f"- CPU: {rest.cpu_percent:.2f} % of a core over {rest.seconds:.0f} s, including kubelet's health probes",
        f"- requests that the API server counted meanwhile: {counted}",
        f"- extrapolated to an hour: {reads:.0f} watches and reads, {rest.an_hour('write'):.0f} writes",
    ]


def _of(calls: Mapping[Situation, CallFigures], at_once: int) -> list[tuple[Situation, CallFigures]]:
    chosen = [item for item in calls.items() if item[0].at_once == at_once]
    return sorted(chosen, key=lambda item: (item[0].held, item[0].label != OURS, item[0].label != BEFORE))


def _at_most(what: str, value: float, most: float, unit: str) -> tuple[str, str, str]:
    return f"{what}: at most {most:g} {unit}".rstrip(), f"{value:.2f}", "met" if value <= most else "MISSED"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table, line by line."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
