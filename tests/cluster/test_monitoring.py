"""On a real cluster: containers in the metrics, files about devices in containers, and the way to an alert."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.builders.agent import free_port
from tests.builders.prometheus import PROMETHEUS, Server, needs_prometheus, started
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.installation import NAMESPACE as DRIVER_NAMESPACE
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, IMAGE, SLEEP, container, pod, request, template
from tests.cluster.lib.release import CHART, DRA, Release
from tests.manifests.pages import Command, commands_of, is_shown, listings
from tests.paths import DOCS, ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.kubernetes("1.37")]

NODE = "node-1"
SETTINGS = {**DRA, "draDriver.metricsPort": "9100", "draDriver.deviceMetadata": "true"}
SCRAPE = (
    "import os, urllib.request as r; "
    "print(r.urlopen('http://' + os.environ['METRICS_ADDRESS'] + ':9100/metrics').read().decode())"
)
FILE = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/neurons/chips/neuron.aws.com-metadata.json"


def test_metrics_name_the_containers_and_containers_see_what_their_devices_are(
    release: Release, installation: Installation, namespace: Namespace
) -> None:
    release.ensure(SETTINGS, EMULATED)
    users = [container("main", "neurons"), container("side", "neurons"), container("none")]
    namespace.apply(
        template("two", request("chips", 2)), pod("train", templates={"neurons": "two"}, containers=users, node=NODE)
    )
    namespace.wait_ready("train")
    claim = namespace.claim_of("train")
    found = namespace.pod("train")
    assert found is not None
    name, chips = claim["metadata"]["name"], sorted(item.chip for item in namespace.allocated(claim))

    def shown() -> set[str]:
        text = installation.exec(NODE, "python3", "-c", SCRAPE)
        return {line for line in text.splitlines() if line.startswith("neuron_dra_driver_chip_allocation{")}

    where = f'namespace="{namespace.name}",neuron_device_index="{{0}}",pod="train",pod_uid="{found["metadata"]["uid"]}"'
    wanted = {
        f'neuron_dra_driver_chip_allocation{{claim="{name}",container="{user}",device="neuron{chip}",'
        f"{where.format(chip)}}} 1.0"
        for user in ("main", "side")
        for chip in chips
    }
    eventually("both containers in the metrics", lambda: shown() == wanted)

    told = json.loads(namespace.exec("train", f"cat {FILE}", "main"))
    devices = {device["name"]: device["attributes"] for device in told["requests"][0]["devices"]}
    assert {attributes["deviceId"]["int"] for attributes in devices.values()} == set(chips)
    assert told["metadata"]["uid"] == claim["metadata"]["uid"]
    assert "Read-only" in namespace.exec("train", f"{{ echo x > {FILE}; }} 2>&1 || true", "side")
    assert namespace.exec("train", "ls /var/run/kubernetes.io 2>/dev/null || echo nothing", "none").split()[-1] in {
        "nothing",
        "serviceaccount",
    }

    namespace.delete_pod("train")
    eventually("the end of the series", lambda: not shown())


MONITOR = ROOT / "examples/health/monitor.yaml"


def test_a_monitor_on_every_node_has_all_chips_with_the_hosts_numbers_and_takes_none(
    release: Release, installation: Installation, namespace: Namespace, kube: Kube
) -> None:
    """One chip is in use, another one has a taint; the image is a stand-in. The metrics show the user's chip only."""
    release.ensure(SETTINGS, EMULATED)
    chosen = {"driver": DRIVER, "pool": NODE, "device": "neuron-device-1"}
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "monitored"},
        "spec": {"deviceSelector": chosen, "taint": {"key": "example.com/broken", "effect": "NoSchedule"}},
    }
    *objects, daemonset = yaml.safe_load_all(MONITOR.read_text())
    (main,) = daemonset["spec"]["template"]["spec"]["containers"]
    main |= {"image": IMAGE, "command": SLEEP, "args": []}
    monitors = Namespace(kube, "neuron-monitor")
    namespace.apply(template("one", request()), pod("user", templates={"neurons": "one"}, node=NODE))
    namespace.wait_ready("user")
    try:
        kube.apply(rule, *objects, daemonset)
        monitors.kubectl("rollout", "status", "daemonset/neuron-monitor", "--timeout=130s", timeout=140)
        names = [str(item["metadata"]["name"]) for item in monitors.pods()]
        assert {monitors.node_of(name) for name in names} == set(kube.nodes())
        for name in names:
            assert monitors.numbers(name) == list(range(16))
        text = installation.exec(NODE, "python3", "-c", SCRAPE)
        users = set(re.findall(r'^neuron_dra_driver_device_allocation{.*pod="([^"]*)"', text, re.MULTILINE))
        assert users == {"user"}
    finally:
        kube.kubectl("delete", "--ignore-not-found", "devicetaintrule", "monitored")
        kube.kubectl("delete", "--ignore-not-found", "-f", str(MONITOR), timeout=100)


EXAMPLE = ROOT / "examples/specs/1x4-connected-devices.yaml"
ALERTS = ("NeuronChipUnhealthy", "NeuronUnhealthyChipInUse")
SEEN_SECONDS = 40.0
"""From a change of the host to one of an alert: two readings of the driver, a scrape, an evaluation, and some more."""
FOR_SECONDS = 80.0
"""The rules' minute, a whole number of evaluations; and some more."""


def typed(key: str) -> list[Command]:
    """What readers of the walk type in blocks of a key."""
    page = DOCS / "operate/monitoring.md"
    return [command for block in commands_of(page) if block.key == key for command in block.commands()]


def wait_alerts(server: Server, state: str, within: float) -> None:
    """Wait until both alerts are in a state."""
    eventually(f"the alerts to be {state}", lambda: {server.alert_state(name) for name in ALERTS} == {state}, within)


@needs_prometheus
def test_a_chip_that_breaks_under_a_pod_becomes_an_alert_as_the_first_steps_say_and_a_repair_resolves_it(
    release: Release, installation: Installation, namespace: Namespace, tmp_path: Path
) -> None:
    release.ensure(SETTINGS, EMULATED)
    namespace.apply(EXAMPLE.read_text())
    namespace.wait_ready("pod0")
    node = namespace.node_of("pod0")
    drivers = {(item["spec"]["nodeName"], item["metadata"]["name"]) for item in installation.pods()}
    name = str(installation.pod(node)["metadata"]["name"])

    def shell(command: str) -> str:
        programs = f"PATH={shlex.quote(str(Path(PROMETHEUS).parent))}:$PATH"
        return release.shell(f"cd {shlex.quote(str(tmp_path))} && {programs}\n{command}")

    function, broken, repaired = [
        command.text.replace("DRIVER-POD", name) for command in typed("on a cluster") if "faults" in command.text
    ]
    prepared, run, query = typed("with Prometheus")
    (tmp_path / "prometheus.yml").write_text(listings()["prometheus.yml"])
    rules = tmp_path / CHART.relative_to(ROOT) / "files/alerts.yaml"
    rules.parent.mkdir(parents=True)
    (rule,) = release.would_make("prometheusrule", {"monitoring.prometheusRule.enabled": "true"})
    rules.write_text(yaml.safe_dump(rule["spec"]))
    shell(prepared.text)
    address = f"127.0.0.1:{free_port()}"
    _, *options = shlex.split(run.text.removesuffix("&").replace("127.0.0.1:9090", address))
    with started([PROMETHEUS, *options], tmp_path, f"http://{address}", len(drivers)) as server:
        scraped = {
            tuple(series["metric"][key] for key in ("namespace", "node", "pod")) for series in server.query("up")
        }
        assert scraped == {(DRIVER_NAMESPACE, *driver) for driver in drivers}
        wait_alerts(server, "inactive", SEEN_SECONDS)
        try:
            shell(f"{function}\n{broken}")
            wait_alerts(server, "pending", SEEN_SECONDS)
            wait_alerts(server, "firing", FOR_SECONDS)
            output = shell(query.text.replace("127.0.0.1:9090", address))
            assert is_shown(query.printed, output), output
            firing = {
                item["metric"]["alertname"]: item["metric"] for item in server.query('ALERTS{alertstate="firing"}')
            }
            sick, used = (firing[alert] for alert in ALERTS)
            assert (sick["node"], sick["device"], sick["pod"]) == (node, "neuron3", name)
            assert (used["namespace"], used["pod"], used["container"]) == (namespace.name, "pod0", "ctr0")
            assert (used["node"], used["device"]) == (node, "neuron3")
        finally:
            shell(f"{function}\n{repaired}")
        wait_alerts(server, "inactive", SEEN_SECONDS)
