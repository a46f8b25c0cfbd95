"""DeviceClasses of the installation: which devices each selects, and the file that is made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import yaml

from dra_driver.driver.deviceclasses import DEVICE_CLASSES, manifest
from dra_driver.simulator.cel import RELEASES, CelDevice, compile_for
from tests.paths import DOCS

DRIVER = "neuron.aws.com"


def published(kind: str, **attributes: int | str) -> CelDevice:
    return CelDevice(DRIVER, {DRIVER: {"resourceType": kind, **attributes}}, {})


KINDS: Mapping[str, CelDevice] = {
    "chip": published("neuron_device", deviceId=3),
    "node": published("neuron_node"),
    "core": published("neuron_core", deviceId=3, coreId=1),
    **{f"group of {size}": published("neuron_group", size=size) for size in (2, 3, 4, 8)},
    "another driver's": CelDevice("gpu.example.com", {"gpu.example.com": {"resourceType": "neuron_device"}}, {}),
    "another driver's without attributes": CelDevice("nic.example.com", {}, {}),
}


MARKED: Mapping[str, CelDevice] = {
    kind: CelDevice(device.driver, {**device.attributes, DRIVER: {**device.attributes[DRIVER], "workloadUID": "u"}}, {})
    for kind, device in KINDS.items()
    if device.driver == DRIVER
}
"""On a node that a workload has."""


@pytest.mark.parametrize(
    ("name", "selected"),
    [
        ("neuron.aws.com", {"chip", "node"}),
        ("chip.neuron.aws.com", {"chip"}),
        ("core.neuron.aws.com", {"core"}),
        ("group.neuron.aws.com", {"group of 2", "group of 3", "group of 4", "group of 8"}),
        ("group2.neuron.aws.com", {"group of 2"}),
        ("group4.neuron.aws.com", {"group of 4"}),
        ("group8.neuron.aws.com", {"group of 8"}),
        ("node.neuron.aws.com", {"node"}),
        ("ultraserver.neuron.aws.com", {"node of a workload"}),
        ("admin.neuron.aws.com", {"chip", "node", "chip of a workload", "node of a workload"}),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_a_class_selects_its_kind_of_device_and_fails_on_none(name: str, selected: set[str], release: str) -> None:
    (expression,) = [row.expression for row in DEVICE_CLASSES if row.name == name]
    program = compile_for(release)(expression)
    devices = {**KINDS, **{f"{kind} of a workload": device for kind, device in MARKED.items()}}
    assert {kind for kind, device in devices.items() if program.matches(device)} == selected


def test_the_class_of_workloads_serves_no_limit() -> None:
    """Whoever may make a pod could write one."""
    assert [row.extended_resource for row in DEVICE_CLASSES if row.nodes != "of nobody"] == [None, None]


def test_no_two_classes_have_a_name_or_an_extended_resource_in_common() -> None:
    resources = [row.extended_resource for row in DEVICE_CLASSES if row.extended_resource]
    assert len({row.name for row in DEVICE_CLASSES}) == len(DEVICE_CLASSES)
    assert len(set(resources)) == len(resources), "a scheduler would take one of the two classes"


LABELS = {"app.kubernetes.io/name": "neuron-dra-driver", "app.kubernetes.io/component": "dra-driver"}


def test_the_file_says_what_the_table_says() -> None:
    assert list(yaml.safe_load_all(manifest())) == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": row.name, "labels": LABELS},
            "spec": {"selectors": [{"cel": {"expression": row.expression}}]}
            | ({"extendedResourceName": row.extended_resource} if row.extended_resource else {}),
        }
        for row in DEVICE_CLASSES
    ]


def test_the_page_lists_the_limits_that_the_classes_serve() -> None:
    page = (DOCS / "use/limits.md").read_text()
    rows = re.findall(r"(?m)^\| `(aws\.amazon\.com/[a-z0-9-]+): N` \| `([a-z0-9.-]+)` \|", page)
    assert rows == [(row.extended_resource, row.name) for row in DEVICE_CLASSES if row.extended_resource]
