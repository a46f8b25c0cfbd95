"""Explanations of the random clusters that are also played on real ones: they say what the scheduler says."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings

from dra_driver.kube.objects.resource import DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice
from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Scheduler, World
from dra_driver.simulator.cel import Kubernetes
from dra_driver.simulator.cluster import selectors
from dra_driver.simulator.explain import Question, explain, plain, text
from tests.builders.allocator import allocate
from tests.generators.effort import examples, short_searches
from tests.generators.simulator_cases import Object, cases
from tests.oracles.simulator_cases import accepted


@settings(max_examples=examples(40))
@given(cases)
def test_every_pod_is_explained_as_it_is_scheduled(case: Object) -> None:
    with short_searches():
        for kubernetes in ("1.36", "1.37"):
            _check(case, kubernetes)


def _check(case: Object, kubernetes: Kubernetes) -> None:
    world = World(
        msgspec.convert(case["slices"], tuple[ResourceSlice, ...]),
        [msgspec.convert(item, DeviceClass) for item in case["classes"] if accepted(item, kubernetes)],
        selectors(kubernetes),
        kubernetes=kubernetes,
    )
    nodes = {
        item["metadata"]["name"]: NodeView(item["metadata"]["name"], item["metadata"]["labels"])
        for item in case["nodes"]
    }
    holders: list[ResourceClaim] = []
    for pod in case["pods"]:
        if all(accepted(claim, kubernetes) for claim in pod["claims"]):
            claims = msgspec.convert(pod["claims"], tuple[ResourceClaim, ...])
            on = sorted((nodes[name] for name in pod["nodes"]), key=lambda node: node.name)
            holders += _explained(Question(f"pod {pod['name']}", world, on, claims, tuple(holders)))


def _explained(question: Question) -> list[ResourceClaim]:
    """The claims that got devices, which then are in use."""
    answers = {node.name: allocate(question.claims, node, question.world) for node in question.nodes}
    found = explain(question)
    assert text(found)
    assert json.dumps(plain(found))
    for group in found.nodes:
        for name in group.nodes:
            answer = answers[name]
            wanted = "error" if isinstance(answer, Refusal) and answer.fatal else ""
            wanted = "fits" if isinstance(answer, Allocation) else wanted
            assert not wanted or group.diagnosis.step == wanted
            assert wanted or group.diagnosis.step not in ("fits", "error")
    placed = Scheduler(question.world, question.nodes).place(question.claims)
    if isinstance(placed, Refusal):
        assert (found.fits, found.error) == (False, placed.reason if placed.fatal else "")
        return []
    assert (found.fits, found.node) == (True, placed.node)
    assert [item.devices for item in found.placed] == [result.devices.results for result in placed.results]
    return [
        msgspec.structs.replace(claim, status=ResourceClaimStatus(result))
        for claim, result in zip(question.claims, placed.results, strict=True)
    ]
