"""All that is said of a simulation, as plain values: what ``-o json`` prints, and what the text is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.health.taints import lines as taint_lines
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.node_hardware import MEANINGS, number_of, resource_of
from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.explain import Explanation, plain
from dra_driver.simulator.manifests import Manifests
from dra_driver.simulator.own_variables import own_variables
from dra_driver.simulator.placement import Outcome, Simulation, free_devices
from dra_driver.simulator.preparation import NodeDrivers, Prepared, StoredObjects, containers, prepared_on_nodes
from dra_driver.util.envelope import envelope, reference

Key = tuple[str, str]


def report(
    simulation: Simulation, manifests: Manifests, drivers: NodeDrivers, explained: Explanation | None = None
) -> dict[str, Any]:
    """Pods, and claims that no pod uses, as ``items``; ``summary``, ``claims``, ``nodes`` and so on beside them.

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
        row |= {"plan": (item.document if item else None) or None, "refusal": (item.problem if item else None) or None}
    return envelope(
        "Simulation",
        [
            _item(outcome, stored.pods, found, drivers)
            for outcome in sorted(simulation.outcomes, key=lambda outcome: outcome.pod is None)
        ],
        summary={
            "result": _result(placed, len(simulation.outcomes), refused),
            "placed": placed,
            "total": len(simulation.outcomes),
            "refusedClaims": refused,
        },
        claims=rows,
        nodes=[_node(simulation, node, drivers) for node in simulation.nodes],
        explanation=None if explained is None else plain(explained),
        notConsidered=list(manifests.not_considered),
    )


def _result(placed: int, total: int, refused: int) -> str:
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
            before = rows.get(claim.metadata.key)
            if before is not None and before["node"] is not None:
                continue
            rows[claim.metadata.key] = {
                **reference(*claim.metadata.key),
                "node": outcome.node if allocation is not None else None,
                "allocation": msgspec.to_builtins(allocation) if allocation is not None else None,
                "nodeChoice": outcome.choice if allocation is not None else None,
                "reason": outcome.reason or None,
            }
    return list(rows.values())


def _item(
    outcome: Outcome, pods: Mapping[Key, Pod], found: Mapping[Key, Prepared], drivers: NodeDrivers
) -> dict[str, Any]:
    pod = outcome.pod
    placed = {
        "node": outcome.node,
        "nodeChoice": outcome.choice,
        "reason": outcome.reason or None,
        "claims": [reference(*claim.metadata.key) for claim in outcome.claims],
    }
    if pod is None:
        return {"pod": None, **placed, "controller": None, "containers": [], "warnings": []}
    own = [found[claim.metadata.key] for claim in outcome.claims if claim.metadata.key in found]
    rows = containers(pods[pod.namespace, pod.name], own) if outcome.placed else []
    kind = drivers.hardware(outcome.node).kind if outcome.node is not None else None
    return {
        "pod": reference(pod.namespace, pod.name),
        **placed,
        "controller": pod.controller or None,
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
        "node": node.name,
        "instanceType": kind.name if kind is not None else None,
        "pools": [
            {
                "driver": pool.key[0],
                "pool": pool.key[1],
                "total": len(pool.offers),
                "freeDevices": free[pool.key],
                "offers": list(_offers(own, free[pool.key])) if pool.key[0] == DRIVER_NAME else [],
            }
            for pool in pools
        ],
        "allocatedDevices": [offer.device.name for offer in offers if world.usage.exclusive(offer.id)],
        "taints": list(taint_lines(own)),
    }


def _offers(devices: Sequence[Device], free: Sequence[str]) -> Iterator[dict[str, Any]]:
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
            "description": one if len(found) == 1 else several,
            "total": len(found),
            "freeDevices": [name for name in found if name in available],
        }
