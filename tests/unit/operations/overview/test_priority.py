"""Who of lower priority has what a pod waits for."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.operations.overview.priority import Priorities
from dra_driver.simulator.cluster import merge
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.explain import Target, explanations
from dra_driver.simulator.manifests import Manifests, read_manifests

Object = dict[str, Any]
NODE = "node-1"


def claim(name: str, count: int = 1, device: int | None = None, user: Object | None = None) -> Object:
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
    result = {"request": "r", "driver": "neuron.aws.com", "pool": NODE, "device": f"neuron-device-{device}"}
    allocation = {} if device is None else {"allocation": {"devices": {"results": [result]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "uid": name},
        "spec": {"devices": {"requests": [request]}},
        "status": {**allocation, **({"reservedFor": [user]} if user else {})},
    }


def pod(name: str, of: str, priority: int, node: str = NODE) -> Object:
    spec = {"priority": priority, "resourceClaims": [{"name": "r", "resourceClaimName": of}], "containers": []}
    spec |= {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name}, "spec": spec}


def found(own: int, wanted: int, *objects: Object) -> Any:
    items = [claim("wanted", wanted), pod("w", "wanted", own, node=""), *objects]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    manifests: Manifests = merge(emulated([("trn2.48xlarge", 1)]), read_manifests([("f", text)], in_cluster=True))
    (item,) = explanations(manifests, "1.37", target=Target("pod", "default", "w"))
    return Priorities.of(manifests).lower_holders(item)


@settings(max_examples=15)
@given(own=st.integers(-2, 3), others=st.lists(st.integers(-2, 3), max_size=6), wanted=st.sampled_from([4, 16]))
def test_all_that_have_devices_in_its_way_and_no_others_are_named(own: int, others: list[int], wanted: int) -> None:
    holders = [
        item
        for at, priority in enumerate(others)
        for item in (
            claim(f"c{at}", device=at, user={"resource": "pods", "name": f"p{at}", "uid": f"p{at}"}),
            pod(f"p{at}", f"c{at}", priority),
        )
    ]
    finding = found(own, wanted, *holders)
    lower = sorted((priority, f"default/p{at}") for at, priority in enumerate(others) if priority < own)
    if not lower or wanted == 4:
        assert finding is None
        return
    assert finding.reason == "LowerPriority"
    named = [f"{name} (priority {priority})" for priority, name in lower]
    assert all(text in finding.remedy for text in named[:4])
    assert not any(f"default/p{at} " in finding.remedy for at, priority in enumerate(others) if priority >= own)


def test_a_claim_with_one_user_of_the_same_priority_is_kept() -> None:
    shared = claim("c", device=0, user={"resource": "pods", "name": "a", "uid": "a"})
    assert found(5, 16, shared, pod("a", "c", 1)) is not None
    assert found(5, 16, shared, pod("a", "c", 1), pod("b", "c", 5)) is None


def test_of_a_group_of_pods_the_group_is_named_that_keeps_the_claim() -> None:
    user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": "g"}
    finding = found(5, 16, claim("c", device=0, user=user), pod("a", "c", 1), pod("b", "c", 1))
    assert "delete or scale down PodGroup default/workers (priority 1):" in finding.remedy
