"""What real clusters answered, asked of the whole way from files to the printed list of claims.

``test_simulator_cases`` asks the allocator alone; here the objects are read, checked and placed as by the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.simulator.manifests import ManifestError, read_manifests
from dra_driver.simulator.placement import simulate
from dra_driver.simulator.report import claims as claims_of
from dra_driver.util.envelope import plain
from tests.generators.simulator_cases import Object
from tests.oracles.simulator_cases import normal
from tests.paths import DATA

FILES = sorted((DATA / "simulator-cases").glob("*.json"))
ROWS = [(file.stem, number) for file in FILES for number in range(len(json.loads(file.read_text())))]
DRA = "resource.k8s.io/v1"


def typed(version: str, kind: str, item: Object) -> Object:
    return {"apiVersion": version, "kind": kind, **item}


def legal(item: Object, kubernetes: str) -> bool:
    """Whether the object alone is read; the API server has said so of each."""
    try:
        read_manifests([("object", json.dumps(item))], kubernetes)
    except ManifestError:
        return False
    return True


def not_simulated(item: Object, kubernetes: str) -> bool:
    """Whether a selector of it needs a library of CEL that no device has a use for."""
    try:
        read_manifests([("object", json.dumps(item))], kubernetes)
    except ManifestError as error:
        return "the simulator does not have" in str(error)
    return False


def pod_object(pod: Object) -> Object:
    """A pod that may run on the nodes where the recorded one might."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in pod["nodes"]]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    claims = [
        {"name": f"c{number}", "resourceClaimName": claim["metadata"]["name"]}
        for number, claim in enumerate(pod["claims"])
    ]
    spec = {"containers": [{"name": "main"}], "resourceClaims": claims, "affinity": {"nodeAffinity": required}}
    return typed("v1", "Pod", {"metadata": {"name": pod["name"]}, "spec": spec})


def answers(row: Object, kubernetes: str) -> Iterator[tuple[Object, Object, list[Object] | None]]:
    """Pod, recorded answer, and the printed claims of the pod; None for claims that are refused on reading."""
    case = row["case"]
    world = [typed("v1", "Node", item) for item in case["nodes"]]
    world += [typed(DRA, "ResourceSlice", item) for item in case["slices"]]
    world += [typed(DRA, "DeviceTaintRule", item) for item in case.get("taintRules", ())]
    world += [item for one in case["classes"] if legal(item := typed(DRA, "DeviceClass", one), kubernetes)]
    for pod, answer in zip(case["pods"], row["answers"], strict=True):
        claims = [typed(DRA, "ResourceClaim", claim) for claim in pod["claims"]]
        if any(not_simulated(claim, kubernetes) for claim in claims):
            # What follows depends on what this pod got.
            return
        if not all(legal(claim, kubernetes) for claim in claims):
            yield pod, answer, None
            continue
        listed = typed("v1", "List", {"items": [*world, *claims, pod_object(pod)]})
        try:
            simulation = simulate(read_manifests([("world", json.dumps(listed))], kubernetes), kubernetes)
        except ManifestError as error:
            # A class that the API server refused too.
            yield pod, answer, [{"node": None, "allocation": None, "reason": str(error)} for _ in claims]
            continue
        printed = {item.name: plain(item) for item in claims_of(simulation)}
        yield pod, answer, [printed[claim["metadata"]["name"]] for claim in claims]
        given = zip(claims, answer.get("allocations", ()), strict=False)
        world += [claim | {"status": {"allocation": allocation}} for claim, allocation in given]


@pytest.mark.parametrize(("name", "number"), ROWS)
def test_a_recorded_cluster_is_answered_as_it_answered(name: str, number: int) -> None:
    file = next(file for file in FILES if file.stem == name)
    row = json.loads(file.read_text())[number]
    kubernetes = ".".join(row["kubernetes"].split(".")[:2])
    for pod, answer, claims in answers(row, kubernetes):
        assert (claims is None) == bool(answer.get("refused")), pod["name"]
        if claims is None:
            continue
        found: list[Any] = [claim["allocation"] and normal(claim["allocation"]) for claim in claims]
        if answer["node"] is None:
            assert found == [None] * len(claims), pod["name"]
        elif claims[0]["node"] == answer["node"]:
            assert found == [normal(item) for item in answer["allocations"]], pod["name"]
        else:
            # The scheduler scores nodes; the simulator takes the first that fits.
            assert claims[0]["node"] is not None, pod["name"]
            assert claims[0]["node"] < answer["node"], pod["name"]
