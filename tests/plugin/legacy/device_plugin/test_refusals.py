"""What the device plugin logs, in this process."""

from __future__ import annotations

import grpc
import pytest

from dra_driver.version import VERSION
from tests.builders.device_plugin import NEURON, MakeNode, admit
from tests.eventually import eventually
from tests.golden import golden, logged

pytestmark = pytest.mark.slow


def test_what_is_logged_from_start_to_stop(make: MakeNode, log: pytest.LogCaptureFixture) -> None:
    node = make()
    with node.plugin():
        admit(node, node.chosen("first", NEURON, range(4)))
    parts = ("neuron-dra-driver", "can be used", "EMULATED", "stopping; running", " gets ")
    golden(text.replace(VERSION, "VERSION") for text in sorted(logged(log, *parts)))


def test_without_devices_the_resources_wait(make: MakeNode, log: pytest.LogCaptureFixture) -> None:
    node = make(emulated=False)
    node.host.mkdir()
    with node.plugin(ready=False):
        eventually(lambda: "no Neuron device so far" in log.text)
    golden(sorted(logged(log, "so far")))


def test_a_kubelet_that_does_not_list_its_pods(make: MakeNode, log: pytest.LogCaptureFixture) -> None:
    node = make()
    with node.plugin():
        node.manager.resources_fault = grpc.StatusCode.UNAVAILABLE
        admit(node, node.chosen("first", NEURON, range(4)))
    golden(sorted(logged(log, "which pods have which", "found by age")))
