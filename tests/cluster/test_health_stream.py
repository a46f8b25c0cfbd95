"""Health in the pod's status: what real kubelets make of the driver's stream, old ones included."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import eventually
from tests.cluster.lib.lifecycle import (
    Stopwatch,
    driver_absent,
    driver_log,
    emulated_root,
    kill_driver,
    process_of,
    registrations,
    renew_driver,
    restart_count,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod, request, template

pytestmark = pytest.mark.nightly

NODE = "node-1"
CHIP = 3
STATUS_SECONDS = 120
"""kubelet computes a pod's status anew every minute or so, and at once only for news from the stream."""


def _chip(namespace: Namespace, name: str) -> None:
    """A pod that holds the chip, running."""
    selector = f"device.attributes['neuron.aws.com'].deviceId == {CHIP}"
    namespace.apply(template("chip", request(selectors=[selector])))
    namespace.apply(pod(name, templates={"neurons": "chip"}, node=NODE))
    namespace.wait_ready(name)


def _health(namespace: Namespace, name: str) -> tuple[str, str] | None:
    """Health and message of the pod's only device, as its status has them."""
    found = namespace.pod(name)
    assert found is not None
    (status,) = found["status"]["containerStatuses"]
    resources = [item for entry in status.get("allocatedResourcesStatus", ()) for item in entry["resources"]]
    if not resources:
        return None
    (device,) = resources
    return device["health"], device.get("message", "")


def wait_health(namespace: Namespace, name: str, health: str, within: float = STATUS_SECONDS) -> str:
    """Wait until the status has this health; returns the message."""

    def probe() -> tuple[str] | None:
        found = _health(namespace, name)
        return (found[1],) if found is not None and found[0] == health else None

    return eventually(f"the device of {name} to be {health}", probe, within)[0]


SetErrors = Callable[[int], None]


@pytest.fixture
def set_errors(driver: Installation, lab: Cluster) -> Iterator[SetErrors]:
    """Sets the chip's count of errors in its memory; there are none after the test."""

    def write(errors: int) -> None:
        chip = emulated_root(lab, driver, NODE) / f"sys/devices/virtual/neuron_device/neuron{CHIP}"
        (chip / "stats/hardware/mem_ecc_uncorrected").write_text(f"{errors}\n")

    yield write
    write(0)


@pytest.mark.kubernetes("1.37", "1.36")
def test_a_fault_shows_in_the_status_of_the_pod_that_holds_the_chip_and_goes_again(
    driver: Installation, set_errors: SetErrors, namespace: Namespace
) -> None:
    renew_driver(driver, NODE)
    _chip(namespace, "holder")
    clock = Stopwatch()
    assert wait_health(namespace, "holder", "Healthy") == ""
    clock.lap("healthy")
    set_errors(2)
    message = wait_health(namespace, "holder", "Unhealthy", within=30)
    clock.lap(f"unhealthy: {message}")
    assert message.startswith(f"neuron{CHIP}: uncorrectable errors")
    assert message.endswith("replace the instance")
    set_errors(0)
    assert wait_health(namespace, "holder", "Healthy", within=30) == ""
    clock.lap("healthy again")


@pytest.mark.kubernetes("1.37", "1.36")
def test_without_the_driver_the_health_is_unknown_and_the_next_driver_tells_it_again(
    driver: Installation, lab: Cluster, namespace: Namespace
) -> None:
    del lab  # the driver's process is of this machine
    renew_driver(driver, NODE)
    _chip(namespace, "holder")
    wait_health(namespace, "holder", "Healthy")
    clock = Stopwatch()
    kill_driver(driver, NODE)
    with driver_absent(driver, NODE):
        assert wait_health(namespace, "holder", "Unknown") == ""
        clock.lap("unknown, with the driver killed")
    wait_health(namespace, "holder", "Healthy", within=30)
    clock.lap("healthy, with the driver back")


@pytest.mark.kubernetes("1.37", "1.36")
def test_a_killed_driver_has_its_stream_back_as_soon_as_it_is_ready_again(
    driver: Installation, set_errors: SetErrors, namespace: Namespace
) -> None:
    fresh = renew_driver(driver, NODE)
    _chip(namespace, "holder")
    wait_health(namespace, "holder", "Healthy")
    os.kill(process_of(fresh), 9)
    clock = Stopwatch()
    wait_driver_ready(driver, NODE, restarts=restart_count(fresh) + 1)
    clock.lap("the driver is ready")
    set_errors(1)
    wait_health(namespace, "holder", "Unhealthy", within=30)
    clock.lap("its stream brings the fault of a chip")


@pytest.mark.kubernetes("1.34", "1.33")
def test_kubelets_without_health_register_the_driver_as_before(
    driver: Installation, lab: Cluster, namespace: Namespace
) -> None:
    renew_driver(driver, NODE)
    _chip(namespace, "holder")
    assert registrations(lab, driver, NODE) == 1
    assert "refused" not in driver_log(lab, driver, NODE)
    assert _health(namespace, "holder") is None
