"""The page ``docs/reference/metrics.md``, from what a running driver answers to Prometheus.

``scripts/generate metrics`` writes it. The driver runs on an emulated node on which as much is wrong as makes it show
all of its metrics.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.neuron.emulation.writer import write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.metrics import PREFIX
from tests.builders.agent import NODE, THIRD, TRN2U, agent_on_host, free_port, scraped, third_of_four
from tests.doubles.kubelet import Claim
from tests.eventually import eventually

CHIP: Final = "sys/devices/virtual/neuron_device/neuron3"
SHOWN_LAST: Final = (
    "tainted_devices",
    "chip_errors",
    "node_events",
    "host_finding",
    "claim_operation_seconds",
    "device_allocation",
    "chip_allocation",
)
"""Metrics that a driver shows only once something has happened."""

INTRODUCTION: Final = (
    "The metrics of the driver of a node (`METRICS_PORT`, `METRICS_ADDRESS`), with their labels. "
    "[Monitoring](../operate/monitoring.md) has alerts, which say what to watch, and a dashboard. Those of the "
    "other programs are on their pages: [device plugin](../operate/without-dra.md#health-service-and-metrics), "
    "[extender](../operate/without-dra.md#health-and-metrics), [recovery](../operate/health.md#events-and-metrics)."
)


def families() -> list[Metric]:
    """The metrics of a driver on a node with an unhealthy chip, and a prepared claim for another one."""
    with third_of_four() as world:
        write_host(world.host, TRN2U, replace(THIRD, missing=frozenset({7})))
        (world.host / CHIP / "stats/hardware/mem_ecc_uncorrected").write_text("1\n")
        port = free_port()
        with agent_on_host(world, "--metrics-port", str(port), "--partitions", "chip") as running:
            running.ready()
            stored = world.server.add_claim(
                "team", "claim", devices=[("neurons", "neuron-device-4")], node=NODE, pods=[("train", "u")]
            )
            world.kubelet.prepare("pod", [Claim("team", "claim", stored["metadata"]["uid"], (DRIVER_NAME,))])

            def complete() -> bool:
                text = scraped(port)
                return all(f"{PREFIX}_{name}" in text for name in SHOWN_LAST)

            eventually(complete, what="all metrics")
            text = scraped(port)
    return list(text_string_to_metric_families(text))


def page(found: Iterable[Metric]) -> str:
    """The page about these metrics."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made by `scripts/generate metrics`; do not edit. -->",
        "",
        *textwrap.wrap(INTRODUCTION, 120, break_on_hyphens=False, break_long_words=False),
        "",
    ]
    for family in sorted(found, key=lambda item: item.name):
        labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        notes = ", ".join([family.type, *(f"`{label}`" for label in labels)])
        lines += textwrap.wrap(
            f"- `{name}` ({notes}): {family.documentation}",
            118,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines) + "\n"
