"""A chip gets sick under real pods: who is told, what is kept from it, and that it comes back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from lab.cluster import Cluster

from dra_driver.neuron.health.faults import DEFAULT_EFFECTS, FAULTS
from dra_driver.neuron.topology.partitions import device_name
from tests.cluster.lib.health import (
    SEEN_SECONDS,
    SickHost,
    condition,
    has_taints,
    healthy_host,
    node_events,
    resource_health,
    wait_taints,
)
from tests.cluster.lib.installation import EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import (
    SliceWatch,
    Stopwatch,
    keep_emulated_host,
    kill_driver,
    restart_count,
    set_boot_id,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, pod, request, template

NODE = "node-1"
CHIPS = 16
METRICS_PORT = "9464"
METRICS = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{METRICS_PORT}/metrics').read().decode())"
INDEX = f"device.attributes['{DRIVER}'].deviceId"
ALONE = {"unreadable", "device-lost", "link-lost", "server-link-lost", "heartbeat-stalled", "component-unhealthy"}
"""Faults that hide others, that need all chips to be there, or that take more than a line."""
TOGETHER = [code for code in FAULTS if not code.startswith("log-") and code not in ALONE]


def _chip(number: int, **more: object) -> Object:
    """A request for one chip by its number."""
    found = request(selectors=[f"{INDEX} == {number}"])
    found["exactly"] |= more
    return found


def _effect(code: str) -> str:
    return str(DEFAULT_EFFECTS[FAULTS[code].severity])


def _with_metrics(daemonset: Object) -> None:
    keep_emulated_host(daemonset)
    daemonset["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "METRICS_PORT", "value": METRICS_PORT}
    )


@pytest.fixture
def sick_host(lab: Cluster, installation: Installation) -> SickHost:
    """The emulated host of ``NODE``, healthy before and after the test, with a driver that was started for it."""
    installation.vary("a host whose chips can fail", _with_metrics)
    return healthy_host(lab, installation, NODE)


@pytest.mark.kubernetes("1.37", "1.36")
def test_a_chip_fails_under_a_pod_and_is_well_again(
    sick_host: SickHost, kube: Kube, namespace: Namespace, installation: Installation, figures: list[str]
) -> None:
    namespace.apply(template("third", _chip(3)), pod("holder", templates={"neurons": "third"}, node=NODE))
    namespace.wait_ready("holder")
    eventually("kubelet to know", lambda: resource_health(namespace.pod("holder")) == [("Healthy", "")], SEEN_SECONDS)
    well = condition(kube, NODE)
    assert well is not None
    assert (well["status"], well["reason"]) == ("False", "NeuronHasNoError")
    clock = Stopwatch()

    sick_host.fail("hbm-uncorrectable@3")
    wait_taints(kube, NODE, {device_name(3): {"hbm-uncorrectable": "NoSchedule"}}, SEEN_SECONDS)
    clock.lap("the chip has its taint")

    def unhealthy() -> bool:
        found = resource_health(namespace.pod("holder"))
        return len(found) == 1 and found[0][0] == "Unhealthy" and "uncorrectable" in found[0][1]

    eventually("the pod's status to say so", unhealthy, SEEN_SECONDS)
    clock.lap("the pod's status says so")
    sick = eventually(
        "the condition to say so",
        lambda: (found := condition(kube, NODE)) and found["status"] == "True" and found,
        SEEN_SECONDS,
    )
    assert sick["reason"] == FAULTS["hbm-uncorrectable"].reason
    assert sick["message"].startswith("neuron3: hbm-uncorrectable")
    assert any("neuron3" in event["message"] and event["type"] == "Warning" for event in node_events(kube, NODE))
    shown = 'neuron_dra_driver_chip_fault{device="neuron3",fault="hbm-uncorrectable"'
    eventually(
        "the metrics to say so",
        lambda: shown in installation.exec(NODE, "python3", "-c", METRICS, check=False),
        SEEN_SECONDS,
    )

    # The holder goes on; nobody else is given the chip but who tolerates the taint.
    (holder,) = namespace.wait_ready("holder")
    assert restart_count(holder) == 0
    namespace.delete_pod("holder")
    tolerant = _chip(3, tolerations=[{"key": "health.neuron.aws.com/hbm-uncorrectable", "operator": "Exists"}])
    namespace.apply(
        template("tolerant", tolerant),
        pod("waits", templates={"neurons": "third"}, node=NODE),
        pod("diagnoses", templates={"neurons": "tolerant"}, node=NODE),
    )
    namespace.wait_ready("diagnoses")
    text = namespace.wait_event("waits", "cannot allocate all claims", 30)
    figures.append(f"a pod that waits for a tainted chip is told: {text}")
    steadily("the other pod waits", lambda: namespace.phase("waits") == "Pending", 5)
    namespace.delete_pod("diagnoses")

    sick_host.mend()
    wait_taints(kube, NODE, {}, 60)
    namespace.wait_ready("waits", within=90)
    eventually("kubelet to know", lambda: resource_health(namespace.pod("waits")) == [("Healthy", "")], SEEN_SECONDS)
    eventually("the condition to clear", lambda: (condition(kube, NODE) or {}).get("status") == "False", SEEN_SECONDS)


@pytest.mark.kubernetes("1.37", "1.36")
def test_every_fault_becomes_its_taint_and_goes_with_one_write_of_slices_for_all(
    sick_host: SickHost, kube: Kube
) -> None:
    """All chips fail at once, each in several ways."""
    chips = {code: place % (CHIPS - 2) for place, code in enumerate(TOGETHER)} | {"unreadable": 14, "device-lost": 15}
    faults = [f"{code}@{chip}" for code, chip in chips.items()]
    wanted: dict[str, dict[str, str]] = {}
    for code, chip in chips.items():
        wanted.setdefault(device_name(chip), {})[code] = _effect(code)
    with SliceWatch(kube) as watch:
        sick_host.fail(*faults)
        wait_taints(kube, NODE, wanted, 90)
        assert len(watch.events(NODE)) <= 2
    told = eventually(
        "the condition to say so",
        lambda: (found := condition(kube, NODE)) and found["status"] == "True" and found,
        SEEN_SECONDS,
    )
    assert all(f"neuron{chip}:" in told["message"] for chip in range(3))
    # A boot ends at once what only the driver remembers, and all else that the host does not say any more.
    sick_host.mend()
    eventually("the emulated host to be mended", sick_host.is_mended, 20)
    set_boot_id(sick_host.root, str(uuid.uuid4()))
    wait_taints(kube, NODE, {}, 90)


@pytest.mark.kubernetes("1.37", "1.36")
def test_a_driver_that_is_killed_never_takes_a_fault_back_that_the_host_still_says(
    sick_host: SickHost, kube: Kube, installation: Installation
) -> None:
    sick_host.fail("sram-uncorrectable@5")
    wanted = {device_name(5): {"sram-uncorrectable": "NoSchedule"}}
    wait_taints(kube, NODE, wanted, SEEN_SECONDS)
    with SliceWatch(kube) as watch:
        before = kill_driver(installation, NODE)
        wait_driver_ready(installation, NODE, restarts=restart_count(before) + 1)
        steadily("the taint stays", lambda: has_taints(kube, NODE, wanted), 15)
        assert watch.events(NODE) == []


def _evicting(daemonset: Object) -> None:
    keep_emulated_host(daemonset)
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "HEALTH_POLICY", "value": "/etc/neuron-dra-driver/health-policy.yaml"})


POLICY: Mapping[str, object] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "neuron-dra-driver-health-policy", "namespace": NAMESPACE},
    "data": {"health-policy.yaml": "rules:\n- fault: sram-uncorrectable\n  effect: NoExecute\n  graceSeconds: 10\n"},
}


@pytest.mark.kubernetes("1.37", "1.36")
def test_where_an_administrator_says_so_pods_are_evicted_after_the_grace_time(
    lab: Cluster, installation: Installation, kube: Kube, namespace: Namespace
) -> None:
    installation.ensure("--emulate", EMULATED)  # the namespace of the table
    kube.apply(dict(POLICY))
    installation.vary("evicts", _evicting)
    host = healthy_host(lab, installation, NODE)
    namespace.apply(
        template("one", _chip(1)),
        template("two", _chip(2)),
        pod("goes", templates={"neurons": "one"}, node=NODE),
        pod("stays", templates={"neurons": "two"}, node=NODE),
    )
    namespace.wait_ready("goes", "stays")
    host.fail("sram-uncorrectable@1", "hbm-uncorrectable@2")
    wait_taints(
        kube,
        NODE,
        {device_name(1): {"sram-uncorrectable": "NoSchedule"}, device_name(2): {"hbm-uncorrectable": "NoSchedule"}},
        SEEN_SECONDS,
    )
    assert namespace.phase("goes") == "Running"
    eventually("the pod to be evicted", lambda: namespace.phase("goes") != "Running", 90)
    assert namespace.phase("stays") == "Running"


@pytest.mark.kubernetes("1.34")
def test_a_server_without_taints_is_not_offered_a_sick_chip_that_nobody_holds(
    sick_host: SickHost, kube: Kube, namespace: Namespace
) -> None:
    def offered() -> set[str]:
        return {device["name"] for item in kube.slices(NODE) for device in item["spec"].get("devices") or ()}

    everything = {device_name(chip) for chip in range(CHIPS)}
    namespace.apply(template("third", _chip(3)), pod("holder", templates={"neurons": "third"}, node=NODE))
    namespace.wait_ready("holder")
    sick_host.fail("hbm-uncorrectable@3", "hbm-uncorrectable@4")
    eventually("the free chip to be withdrawn", lambda: offered() == everything - {device_name(4)}, SEEN_SECONDS)
    steadily("the held chip stays", lambda: device_name(3) in offered(), 5)
    sick_host.mend()
    eventually("the chip to be back", lambda: offered() == everything, 90)
