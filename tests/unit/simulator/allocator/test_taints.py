"""Taints and tolerations of devices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.allocator import (
    claim,
    device,
    devices,
    every,
    first_of,
    offered,
    refusal,
    request,
    results,
    subrequest,
    world,
)

TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def tainted(name: str = "bad", **changes: str) -> dict[str, Any]:
    return device(name, taints=[{**TAINT, **changes}])


@pytest.mark.parametrize(
    ("effect", "blocks"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("Unheard", False)]
)
def test_a_taint_keeps_claims_away_by_its_effect(effect: str, blocks: bool) -> None:
    cluster = world(offered(tainted(effect=effect), device("good")))
    assert devices(cluster, claim(request())) == ["good" if blocks else "bad"]


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "key": "k"}, True),
        ({"operator": "Exists", "key": "other"}, False),
        ({"operator": "Exists", "key": "k", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "key": "k", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "key": "k", "value": "v"}, True),
        ({"operator": "Equal", "key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k"}, False),
        ({"operator": "Near", "key": "k", "value": "v"}, False),
    ],
)
def test_a_toleration_matches_by_operator_key_value_and_effect(toleration: dict[str, str], tolerates: bool) -> None:
    cluster = world(offered(tainted(), device("good")))
    assert devices(cluster, claim(request(tolerations=[toleration]))) == ["bad" if tolerates else "good"]


def test_every_taint_of_a_device_has_to_be_tolerated() -> None:
    both = device("bad", taints=[TAINT, {**TAINT, "key": "l"}])
    cluster = world(offered(both))
    assert not refusal(cluster, claim(request(tolerations=[{"key": "k", "operator": "Exists"}]))).fatal
    exists = [{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists"}]
    assert devices(cluster, claim(request(tolerations=exists))) == ["bad"]


def test_all_fails_on_a_tainted_device() -> None:
    cluster = world(offered(tainted(), device("good")))
    assert not refusal(cluster, claim(every())).fatal
    assert devices(cluster, claim(every(tolerations=[{"operator": "Exists"}]))) == ["bad", "good"]


def test_an_administrator_has_to_tolerate_taints_too() -> None:
    assert not refusal(world(offered(tainted())), claim(request(adminAccess=True))).fatal


def test_a_subrequest_tolerates_for_itself_only() -> None:
    cluster = world(offered(tainted()))
    wanted = first_of("r", subrequest("strict"), subrequest("lenient", tolerations=[{"operator": "Exists"}]))
    (result,) = results(cluster, claim(wanted))
    (found,) = result.devices.results
    assert found.request == "r/lenient"
    assert [item.operator for item in found.tolerations] == ["Exists"]
