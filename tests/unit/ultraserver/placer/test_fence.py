"""What is said of classes and policy that let others in, or keep pods of workloads out."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES, DeviceClassRow
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from dra_driver.neuron.names import ADMIN_CLASS, CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.ultraserver.placer.fence import BINDINGS, POLICIES, PolicyOrBinding, gaps_of
from tests.golden import golden

BOTH = (POLICIES.kind, BINDINGS.kind)
BINDING = msgspec.convert(
    {"metadata": {"name": CLASSES_POLICY}, "spec": {"policyName": CLASSES_POLICY, "validationActions": ["Deny"]}},
    PolicyOrBinding,
)


def device_class(row: DeviceClassRow, expression: str = "", serves: str | None = None) -> DeviceClass:
    selector = DeviceSelector(CELDeviceSelector(expression or row.expression.replace("&& ", "&&\n  ")))
    return DeviceClass(ObjectMeta(name=row.name), DeviceClassSpec((selector,), extended_resource_name=serves))


INSTALLED = {row.name: device_class(row) for row in DEVICE_CLASSES}
ROWS = {row.name: row for row in DEVICE_CLASSES}


def gaps(*changes: DeviceClass, without: str = "") -> list[str]:
    classes = INSTALLED | {item.metadata.name: item for item in changes}
    return list(gaps_of([item for name, item in classes.items() if name != without], BOTH, BINDING))


def test_what_is_installed_with_the_driver_has_no_gap() -> None:
    assert gaps() == []
    assert gaps(DeviceClass(ObjectMeta(name="gpu.example.com"))) == [], "a class that may be of anything"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_class_of_another_release_is_named(name: str) -> None:
    old = device_class(ROWS[name], "device.driver == 'neuron.aws.com'")
    assert bool(gaps(old)) is (name != ADMIN_CLASS)
    assert all(name in text for text in gaps(old))
    golden("\n".join(gaps(old)))
    assert bool(gaps(without=name)) is (name in (ADMIN_CLASS, WORKLOAD_CLASS))


def test_the_class_of_workloads_is_for_them_alone_and_serves_no_limit() -> None:
    row = ROWS[WORKLOAD_CLASS]
    assert gaps(device_class(row, ROWS["node.neuron.aws.com"].expression))
    assert gaps(device_class(row, serves="aws.amazon.com/x")) == [
        "the DeviceClass ultraserver.neuron.aws.com serves aws.amazon.com/x"
    ]


@pytest.mark.parametrize("kinds", [(), BOTH[:1], BOTH[1:]])
def test_policy_and_binding_are_both_needed(kinds: tuple[str, ...]) -> None:
    (text,) = gaps_of(INSTALLED.values(), kinds, BINDING if BINDINGS.kind in kinds else None)
    assert CLASSES_POLICY in text
    assert all((kind in text.split()) is (kind not in kinds) for kind in BOTH)


@pytest.mark.parametrize("spec", [{"policyName": "x", "validationActions": ["Deny"]}, {"policyName": CLASSES_POLICY}])
def test_a_binding_that_denies_nothing_is_a_gap(spec: dict[str, object]) -> None:
    binding = msgspec.convert({"metadata": {"name": CLASSES_POLICY}, "spec": spec}, PolicyOrBinding)
    (text,) = gaps_of(INSTALLED.values(), BOTH, binding)
    assert "does not deny" in text
    golden(text)
