"""Dashboard and alerts against a real Prometheus that scrapes a real driver on an emulated host."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, World, agent, free_port, node, scraped
from tests.builders.prometheus import NEURON_MONITOR, PROMETHEUS, WITHOUT, Server, asked, prometheus, served
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.eventually import eventually
from tests.paths import ROOT

pytestmark = pytest.mark.slow

DASHBOARD = json.loads((ROOT / "deploy/grafana/neuron-dra-driver.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = ROOT / "charts/neuron-helm-chart/files/alerts.yaml"
PREFIX = "neuron_dra_driver_"


def prepare(world: World, resources: DeviceManager) -> None:
    devices = [("neurons", f"neuron-device-{index}") for index in (4, 5)]
    wanted = world.add_claim("team", "claim", devices=devices, pods=[("train", "u")])
    world.kubelet.prepare("pod", [wanted])
    held = tuple((DRIVER_NAME, device) for _, device in devices)
    resources.pods["u"] = KnownPod("team", "train", "u", (Container("main"),), held)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Prometheus, with a node whose chip 4 is sick and in use."""
    if not PROMETHEUS:
        pytest.skip(WITHOUT)
    port = free_port()
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="a-"))
        world = stack.enter_context(node(Path(name)))
        resources = stack.enter_context(DeviceManager(world.root / "kubelet"))
        options = (
            "--metrics-port",
            str(port),
            "--emulated-faults",
            "hbm-uncorrectable@4 device-lost@9",
            "--health-hints-dir",
            "",
        )
        running = stack.enter_context(agent(world, *options))
        running.ready()
        monitor = stack.enter_context(served(NEURON_MONITOR))
        driver = {"node": NODE, "namespace": "neuron-dra-driver", "pod": "neuron-dra-driver-x", "container": "driver"}
        targets = {f"127.0.0.1:{port}": driver, f"127.0.0.1:{monitor}": {"node": NODE}}
        rules = Path(name) / "rules.yaml"
        rules.write_text(RULES.read_text().replace("interval: 1m", "interval: 1s"))
        found = stack.enter_context(prometheus(targets, rules))
        prepare(world, resources)
        sick = f'{PREFIX}chip_health{{state="unhealthy"}}'
        used = f'{PREFIX}chip_allocation{{container="main"}}'
        record = f"node_namespace_pod:{PREFIX}chips:count"
        news = (sick, used, record)
        eventually(lambda: all(map(found.query, news)), what="the fault, the container and what is recorded of it")
        time.sleep(2.1)  # for rates, which need two scrapes
        yield found


def test_every_query_of_every_panel_and_every_variable_has_data(server: Server) -> None:
    queries = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    assert len(queries) > len(PANELS)
    assert [query for query in queries if not server.query(asked(query[1]))] == []
    variables = [item for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    assert [item["name"] for item in variables] == ["node", "namespace"]
    for variable in variables:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        assert server.get(f"label/{label}/values", **{"match[]": metric})


def test_the_pod_is_the_one_that_uses_the_chip_and_not_the_drivers(server: Server) -> None:
    (chip,) = server.query(f'{PREFIX}chip_allocation{{device="neuron4"}}')
    told = {name: chip["metric"][name] for name in ("node", "namespace", "pod", "container", "claim")}
    assert told == {"node": NODE, "namespace": "team", "pod": "train", "container": "main", "claim": "claim"}
    (info,) = server.query(f"{PREFIX}info")
    assert info["metric"]["pod"] == "neuron-dra-driver-x"


def test_a_sick_chip_in_use_becomes_an_alert_with_the_pods_name(server: Server) -> None:
    pending = 'ALERTS{alertname="NeuronUnhealthyChipInUse"}'
    eventually(lambda: server.query(pending), what="the alert")
    (alert,) = server.query(pending)
    assert (alert["metric"]["namespace"], alert["metric"]["pod"], alert["metric"]["device"]) == (
        "team",
        "train",
        "neuron4",
    )


def test_no_panel_overlaps_another_and_their_ids_are_unique() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (column, line)
        for at in places
        for column in range(at["x"], at["x"] + at["w"])
        for line in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(at["x"] + at["w"] <= 24 for at in places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


EVENTFUL = {f"{PREFIX}recovery_waiting_nodes", f"{PREFIX}recovery_actions_total"}
"""Shown from the first such event on, which takes a cluster."""


@contextmanager
def program(name: str, *options: str) -> Iterator[int]:
    """A command with metrics; gives their port once it is open."""
    port = free_port()
    command = [sys.executable, "-m", "dra_driver", name, *options, "--metrics-port", str(port)]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as running:

        def listens() -> bool:
            log.seek(0)
            assert running.poll() is None, log.read().decode()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            eventually(listens, what=f"the metrics of {name}")
            yield port
        finally:
            running.kill()


def metrics_of_rules() -> set[str]:
    """Those of this project; Prometheus' own and those of kube-state-metrics are left out."""
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return set(re.findall(rf"\b{PREFIX}\w+", " ".join(rules)))


def of_the_driver(metric: str) -> bool:
    return not re.match(rf"{PREFIX}(extender|recovery|node_problem_detector|device_plugin)_", metric)


def test_every_metric_of_the_rules_that_is_the_drivers_is_scraped_from_it(server: Server) -> None:
    assert set(filter(of_the_driver, metrics_of_rules())) <= server.metric_names()


def test_every_metric_of_the_rules_that_is_anothers_is_shown_by_that_program(tmp_path: Path) -> None:
    wanted = {metric for metric in metrics_of_rules() if not of_the_driver(metric)} - EVENTFUL
    log = tmp_path / "kernel.log"
    log.write_text("<6>[    0.000000] Linux version 6\n")
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="a-"))
        world = stack.enter_context(node(Path(name)))
        stack.enter_context(DeviceManager(Path(name) / "plugin"))
        kubeconfig = ("--kubeconfig", str(world.kubeconfig()))
        health = ("--healthcheck-port", "-1")
        detector = ("--health-hints-dir", str(tmp_path / "hints"), "--kernel-log", str(log))
        plugin = ("--node-name", NODE, "--kubelet-directory", f"{name}/plugin", "--emulate", "trn2.48xlarge")
        directories = ("--emulation-root", f"{name}/host", "--state-dir", f"{name}/state", "--cdi-root", f"{name}/cdi")
        ports = [
            stack.enter_context(program("extender", "--port", "0", *kubeconfig, "--no-leader-elect")),
            stack.enter_context(program("recover", *kubeconfig, *health)),
            stack.enter_context(program("node-problem-detector", *detector, *health)),
            stack.enter_context(program("device-plugin", *plugin, *directories, *kubeconfig, *health)),
        ]

        def missing() -> set[str]:
            return wanted - {metric for port in ports for metric in re.findall(r"^\w+", scraped(port), re.MULTILINE)}

        eventually(lambda: not missing(), what="every metric of the rules")


def test_the_metrics_that_only_events_of_a_cluster_show_are_recoverys() -> None:
    recovery = (ROOT / "dra_driver/operations/recovery/controller.py").read_text()
    shown = {f"{PREFIX}{name}" for name in re.findall(r'Sample\("(\w+)"', recovery)}
    assert {metric.removesuffix("_total") for metric in EVENTFUL} <= shown
