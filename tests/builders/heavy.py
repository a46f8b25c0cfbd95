"""Claims of a node, and pods of theirs, whose objects take many times their size once they are decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle

from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import World
from tests.builders.claims import neuron_config
from tests.doubles.apiserver.store import Object
from tests.doubles.kubelet import Claim

NAMESPACES = ("tenant", "other")
"""Those of one namespace would leave room for others, and not be prepared all at once."""
MOST, SMALL = 32, 24
"""Configurations of a claim: the most that the API server accepts, and those of a claim of less than 256 KiB, which
the driver does not read one at a time."""
POD_SECONDS = 2.0
"""Until the API server answers about a pod: so long is what is known of each claim kept, of all claims at once."""


def nested() -> Object:
    """10 KiB of lists in lists: the most that the API server accepts as parameters of a driver."""
    return {"a": [json.loads("[" * 100 + "]" * 100)] * 50}


def claims_with_parameters(world: World, driver: str, count: int, configs: int) -> list[Claim]:
    """Claims of two cores, with a pod each, and with so many configurations, all but one for that driver."""
    world.server.delay(POD_SECONDS, count, method="GET", path="/pods/")
    own = {"requests": ["b"], "opaque": {"driver": DRIVER_NAME, "parameters": neuron_config(2)}}
    others = {"requests": ["a"], "opaque": {"driver": driver, "parameters": nested()}}
    config = [{"source": "FromClaim", **entry} for entry in [own, *[others] * (configs - 1)]]
    return [
        world.add_claim(namespace, name, devices, config=config, pods=[_pod(world, namespace, name, {})])
        for (name, devices), namespace in zip(_pairs(world, count), cycle(NAMESPACES), strict=False)
    ]


def claim_of_pods_with_mappings(world: World, pods: int, mappings: int) -> list[Claim]:
    """A claim of pods whose status names so many requests for one extended resource each."""
    entry = {"containerName": "main", "resourceName": "e.co/r"}
    many = [{**entry, "requestName": f"{number:x}"} for number in range(mappings)]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": many}}
    ((name, devices),) = _pairs(world, 1)
    made = [_pod(world, NAMESPACES[0], f"pod-{number}", status, name) for number in range(pods)]
    return [world.add_claim(NAMESPACES[0], name, devices, pods=made)]


def claims_with_devices(world: World, conditions: int, message: int) -> list[Claim]:
    """Claims of each core but one of which somebody has said so much; what the driver says is refused.

    Of each message, CPython keeps four bytes of each character.
    """
    world.server.fail(403, 1_000_000, method="PATCH", path="resourceclaims", message="denied the request")
    said = {"type": "", "status": "True", "reason": "x", "message": "m" * message + "\U0001f9e0"}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    claims = []
    for number, (device, namespace) in enumerate(zip(world.offered()[:-1], cycle(NAMESPACES), strict=False)):
        name = f"claim-{number}"
        claims.append(world.add_claim(namespace, name, [("a", device)], pods=[(name, name)]))
        stored = world.server.store.get("resourceclaims", f"{namespace}/{name}")
        (result,) = stored["status"]["allocation"]["devices"]["results"]
        entry = {key: result[key] for key in ("driver", "pool", "device")}
        many = [{**said, "type": f"T{place}"} for place in range(conditions)]
        stored["status"]["devices"] = [{**entry, "data": nested(), "conditions": many}]
        world.server.store.update("resourceclaims", f"{namespace}/{name}", stored)
    return claims


def _pairs(world: World, count: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Names of claims, each with two of the node's cores."""
    cores = world.offered()
    return ((f"c{at}", [("a", cores[2 * at]), ("b", cores[2 * at + 1])]) for at in range(count))


def _pod(world: World, namespace: str, name: str, status: Object, claim: str = "") -> tuple[str, str]:
    """Store a pod of a claim, of the pod's name without one; returns its name and UID."""
    container = {"name": "main", "resources": {"claims": [{"name": "x"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimName": claim or name}]}
    meta = {"namespace": namespace, "name": name, "uid": name}
    world.server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending", **status}})
    return name, name
