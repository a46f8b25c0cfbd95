"""All that is said of a simulation, as plain values: what ``-o json`` prints, and what the text is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.explain import Explanation, obstacles
from dra_driver.simulator.hardware import MEANINGS, number_of, resource_of
from dra_driver.simulator.manifests import Manifests, PodWithClaims
from dra_driver.simulator.objects import key
from dra_driver.simulator.own_variables import own_variables
from dra_driver.simulator.placement import Outcome, Simulation, free_devices
from dra_driver.simulator.preparation import NodeDrivers, Prepared, StoredObjects, containers, prepared_on_nodes
from dra_driver.simulator.taints import listed

Key = tuple[str, str]


def report(
    simulation: Simulation, manifests: Manifests, drivers: NodeDrivers, explained: Explanation | None = None
) -> dict[str, Any]:
    """``summary``, ``pods``, ``claims``, ``nodes``, ``obstacles`` and ``notConsidered``.

    Args:
        simulation: that is reported.
        manifests: what was simulated.
        drivers: of its nodes.
        explained: of what was to be placed first, if it was not.
    """
    stored = StoredObjects.of(simulation.outcomes)
    found = prepared_on_nodes(simulation.outcomes, stored, drivers)
    placed = sum(outcome.placed for outcome in simulation.outcomes)
    refused = sum(bool(item.problem) for item in found.values())
    rows = claims(simulation)
    for row in rows:
        item = found.get((row["namespace"], row["name"]))
        row |= {"plan": item.document if item else {}, "refusal": item.problem if item else ""}
    return {
        "summary": {
            "status": _status(placed, len(simulation.outcomes), refused),
            "placed": placed,
            "total": len(simulation.outcomes),
            "refusedClaims": refused,
        },
        "pods": [
            _pod(outcome.pod, outcome, stored.pods, found, drivers)
            for outcome in simulation.outcomes
            if outcome.pod is not None
        ],
        "claims": rows,
        "nodes": [_node(simulation, node, drivers) for node in simulation.nodes],
        "obstacles": {"subject": explained.subject, "nodes": obstacles(explained)} if explained is not None else None,
        "notConsidered": list(manifests.not_considered),
    }


def _status(placed: int, total: int, refused: int) -> str:
    if placed < total:
        return "partly placed" if placed else "not placed"
    return "refused" if refused else "placed"


def claims(simulation: Simulation) -> list[dict[str, Any]]:
    """One entry each, in the order in which they were tried.

    A claim shared by several pods appears where it was allocated, whatever the outcome for the other pods.
    """
    rows: dict[Key, dict[str, Any]] = {}
    for outcome in simulation.outcomes:
        for claim in outcome.claims:
            allocation = claim.status.allocation
            before = rows.get(key(claim))
            if before is not None and before["node"] is not None:
                continue
            rows[key(claim)] = {
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "node": outcome.node if allocation is not None else None,
                "allocation": msgspec.to_builtins(allocation) if allocation is not None else None,
                "nodeChoice": outcome.choice if allocation is not None else None,
                "reason": outcome.reason,
            }
    return list(rows.values())


def _pod(
    pod: PodWithClaims,
    outcome: Outcome,
    pods: Mapping[Key, Pod],
    found: Mapping[Key, Prepared],
    drivers: NodeDrivers,
) -> dict[str, Any]:
    own = [found[key(claim)] for claim in outcome.claims if key(claim) in found]
    rows = containers(pods[pod.namespace, pod.name], own) if outcome.placed else []
    kind = drivers.hardware(outcome.node).kind if outcome.node is not None else None
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "controller": pod.controller,
        "node": outcome.node,
        "nodeChoice": outcome.choice,
        "reason": outcome.reason,
        "claims": [claim.metadata.name for claim in outcome.claims],
        "containers": rows,
        "warnings": list(own_variables(pod.written.get("spec") or {}, rows, kind)),
    }


def _node(simulation: Simulation, node: NodeView, drivers: NodeDrivers) -> dict[str, Any]:
    """What is left on a node, which devices of this driver claims hold, and what taints say."""
    world = simulation.world
    pools = world.pools.pools(node)
    free = free_devices(simulation, node)
    offers = [offer for pool in pools for offer in pool.offers if offer.driver == DRIVER_NAME]
    own = [offer.device for offer in offers]
    kind = drivers.hardware(node.name).kind
    return {
        "name": node.name,
        "instanceType": kind.name if kind is not None else None,
        "pools": [
            {
                "driver": pool.key[0],
                "pool": pool.key[1],
                "devices": len(pool.offers),
                "free": free[pool.key],
                "kinds": list(_kinds(own, free[pool.key])) if pool.key[0] == DRIVER_NAME else [],
            }
            for pool in pools
        ],
        "inUse": [offer.device.name for offer in offers if world.usage.exclusive(offer.id)],
        "taints": list(listed(own)),
    }


def _kinds(devices: Sequence[Device], free: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Where a node offers several kinds of devices: what each is called, how many there are, and which are free."""
    names: dict[tuple[str, str], list[str]] = {}
    for device in devices:
        kind = resource_of(device)
        one, several = MEANINGS[kind] if kind is not None else ("other device", "other devices")
        of_size = f" of {number_of(device, 'size')}" if kind == "neuron_group" else ""
        names.setdefault((f"{one}{of_size}", f"{several}{of_size}"), []).append(device.name)
    available = set(free)
    for (one, several), found in names.items() if len(names) > 1 else ():
        yield {
            "kind": one if len(found) == 1 else several,
            "devices": len(found),
            "free": [name for name in found if name in available],
        }
