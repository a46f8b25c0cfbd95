"""Tolerations and requirements of selectors, as Kubernetes matches them."""

from __future__ import annotations

from itertools import product

import pytest

from dra_driver.kube.matching import OPERATORS, tolerates
from dra_driver.kube.objects.core import Taint, Toleration
from dra_driver.kube.objects.resource import DeviceTaint, DeviceToleration

TOLERATED = [
    (("", "Exists", "", ""), True),
    (("k", "Exists", "", ""), True),
    (("k", "Exists", "", "NoSchedule"), True),
    (("k", "Exists", "", "NoExecute"), False),
    (("other", "Exists", "", ""), False),
    (("k", "Equal", "v", ""), True),
    (("k", "", "v", ""), True),
    (("k", "Equal", "w", ""), False),
    (("k", "", "", ""), False),
    (("k", "Someday", "v", ""), False),
]
KINDS = [(DeviceToleration, DeviceTaint), (Toleration, Taint)]


@pytest.mark.parametrize(("kinds", "case"), list(product(KINDS, TOLERATED)))
def test_a_taint_is_tolerated_as_the_scheduler_does_it(
    kinds: tuple[type, type], case: tuple[tuple[str, str, str, str], bool]
) -> None:
    (key, operator, value, effect), tolerated = case
    toleration = kinds[0](key=key, operator=operator, value=value, effect=effect)
    assert tolerates(toleration, kinds[1](key="k", value="v", effect="NoSchedule")) is tolerated


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ("5", "7"), {"5"}),
        ("NotIn", ("5", "7"), {None, "6", "x"}),
        ("Exists", (), {"5", "6", "x"}),
        ("DoesNotExist", (), {None}),
        ("Gt", ("5",), {"6"}),
        ("Lt", ("6",), {"5"}),
        ("Gt", ("x",), set()),
    ],
)
def test_a_label_meets_a_requirement_or_not(operator: str, values: tuple[str, ...], matching: set[str | None]) -> None:
    assert {value for value in (None, "5", "6", "x") if OPERATORS[operator](value, values)} == matching
