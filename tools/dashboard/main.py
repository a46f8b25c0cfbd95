"""The command `scripts/render-dashboard`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dashboard.drawing import Series, dashboard, legend
from dra_driver.neuron.emulation.faults import FAULTS_FILE
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, World, agent, free_port, node
from tests.builders.prometheus import NEURON_MONITOR, PROMETHEUS, Server, asked, prometheus, served
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.doubles.kubelet import Claim
from tests.paths import DOCS, ROOT

FILE = DOCS / "operate/dashboard.svg"
DASHBOARD = json.loads((ROOT / "deploy/grafana/neuron-dra-driver.json").read_text())
RULES = ROOT / "charts/neuron-helm-chart/files/alerts.yaml"
STEP = 8.0
"""Seconds between two events of the history."""
PODS = (("research", "train", (0, 1, 2, 3)), ("serving", "llm-0", (4,)), ("serving", "llm-1", (5,)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 without a Prometheus."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/render-dashboard",
        description=f"Draw {FILE.relative_to(ROOT)}: the panels of the Grafana dashboard with what their queries give "
        "on a real Prometheus that scrapes a real driver on an emulated host for a minute. There is no Grafana in it; "
        "neuron-monitor's metrics are made up. Needs PROMETHEUS, which scripts/cluster build --prometheus builds.",
        epilog="Example: PROMETHEUS=/path/to/prometheus scripts/render-dashboard",
    )
    parser.parse_args(arguments)
    if not PROMETHEUS:
        print("error: set PROMETHEUS to the program; scripts/cluster build --prometheus prints it", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        port = free_port()
        world = stack.enter_context(node(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="a-")))))
        resources = stack.enter_context(DeviceManager(world.root / "kubelet"))
        stack.enter_context(agent(world, "--metrics-port", str(port), "--health-hints-dir", "")).ready()
        monitor = stack.enter_context(served(NEURON_MONITOR))
        targets = {f"127.0.0.1:{port}": {"node": NODE}, f"127.0.0.1:{monitor}": {"node": NODE}}
        server = stack.enter_context(prometheus(targets, RULES))
        began = time.time()
        _history(world, resources)
        data = {panel["id"]: _asked(server, panel, began) for panel in _panels()}
    seconds = time.time() - began
    sub = (
        f"Drawn from the dashboard's own queries, not by Grafana: one emulated trn2.48xlarge, {seconds:.0f} s, "
        "Prometheus 3.16. The panels with neuron-monitor show made-up numbers."
    )
    FILE.write_text(dashboard(DASHBOARD["panels"], data, DASHBOARD["title"], sub))
    print(f"{FILE.relative_to(ROOT)} was drawn")
    return 0


def _panels() -> list[Mapping[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _history(world: World, resources: DeviceManager) -> None:
    """Pods start one after another, a chip in use becomes sick, one pod ends."""
    for namespace, pod, chips in PODS:
        time.sleep(STEP)
        devices = [("neurons", f"neuron-device-{chip}") for chip in chips]
        stored = world.server.add_claim(namespace, f"{pod}-chips", devices=devices, node=NODE, pods=[(pod, pod)])
        world.kubelet.prepare(pod, [Claim(namespace, f"{pod}-chips", stored["metadata"]["uid"], (DRIVER_NAME,))])
        held = tuple((DRIVER_NAME, device) for _, device in devices)
        resources.pods[pod] = KnownPod(namespace, pod, pod, (Container("main"),), held, f"{pod}-chips")
    time.sleep(STEP)
    (world.host / FAULTS_FILE).write_text("hbm-uncorrectable@4\nsram-corrected-rising@9\n")
    time.sleep(2 * STEP)
    world.kubelet.unprepare("llm-1")
    del resources.pods["llm-1"]
    time.sleep(STEP)


def _asked(server: Server, panel: Mapping[str, Any], began: float) -> list[Series]:
    found = []
    for target in panel["targets"]:
        if panel["type"] == "timeseries":
            span = {"start": f"{began:.0f}", "end": f"{time.time():.0f}", "step": "1"}
            answers = server.get("query_range", query=asked(target["expr"]), **span)["result"]
        else:
            answers = [{**item, "values": [item["value"]]} for item in server.query(asked(target["expr"]))]
        for item in answers:
            points = [(float(at), float(text)) for at, text in item["values"] if math.isfinite(float(text))]
            if points:
                found.append(
                    Series(legend(target["legendFormat"], item["metric"], panel["title"]), item["metric"], points)
                )
    return found


if __name__ == "__main__":
    sys.exit(main())
