"""The variables of a claim's containers: what its parameters, those of its class, and the node decide together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from dra_driver.claims import logical_cores, ultraserver
from dra_driver.claims.values import Plan
from dra_driver.host.inventory import NodeInventory
from dra_driver.kube.types import DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim
from dra_driver.names import DRIVER_NAME

_COMPARED = (logical_cores.VARIABLES[0], ultraserver.MODE)


def environment(
    claim: ResourceClaim, results: Sequence[DeviceRequestAllocationResult], inventory: NodeInventory
) -> dict[str, str]:
    """Variables for every container that uses a device of the claim.

    Args:
        claim: allocated.
        results: its allocation results of this driver.
        inventory: the node.

    Raises:
        ConfigError: the configuration is not legal. PrepareError: it is not for this node or these devices.
    """
    requests = list(dict.fromkeys(result.request for result in results))
    sizes: dict[str, int | None] = dict.fromkeys(requests)
    nodes: dict[str, int | None] = dict.fromkeys(requests)
    if _own(_config(claim)):
        from dra_driver.config import effective  # pydantic: most claims do not need it

        for request, value in effective(_config(claim), requests, DRIVER_NAME).items():
            sizes[request], nodes[request] = value.logical_neuron_core, value.ultraserver_mode
    return logical_cores.environment(inventory, sizes) | ultraserver.environment(inventory, results, nodes)


def parameters(claim: ResourceClaim) -> str:
    """Digest of the opaque parameters for this driver in the claim's allocation, from claim and class; "" without."""
    own = _own(_config(claim))
    return hashlib.sha256(msgspec.json.encode(own, order="deterministic")).hexdigest() if own else ""


def _config(claim: ResourceClaim) -> Sequence[DeviceAllocationConfiguration]:
    allocation = claim.status.allocation
    return allocation.devices.config if allocation is not None else ()


def _own(config: Sequence[DeviceAllocationConfiguration]) -> list[DeviceAllocationConfiguration]:
    return [entry for entry in config if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME]


def shared_pod_warnings(env: Mapping[str, str], others: Sequence[Plan]) -> tuple[str, ...]:
    """Warnings about claims that the same pods use; one container with both gets the variables of only one."""
    return tuple(
        f"claim {other.reference} of the same pod has {name}={other.env[name]}, this one {env[name]}; "
        "a container that uses both gets only one of the values; use them in different containers"
        for other in others
        for name in _COMPARED
        if name in env and other.env.get(name, env[name]) != env[name]
    )
