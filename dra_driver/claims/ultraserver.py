"""UltraServerConfig: how many nodes of an UltraServer work together, as the Neuron runtime takes it.

A node is in one mode at a time, so the configuration is for claims of the whole node only. It is compared with what the
kernel driver offers when the claim is prepared: before, nobody could know, since nodes elect their servers at boot. The
variables and the choice of the mode are those of AWS's own init script (aws-neuron-sdk,
``src/k8/k8s-ultraserver-init-script.sh``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.claims.values import Plan, PrepareError
from dra_driver.host.inventory import Membership, NodeInventory
from dra_driver.kube.types import DeviceRequestAllocationResult
from dra_driver.names import NODE_DEVICE
from dra_driver.topology.ultraserver import Mode, mode_for

MODE = "NEURON_RT_ULTRASERVER_MODE"
SERVER_ID = "NEURON_RT_ULTRASERVER_SERVER_ID"
NODE_ID = "NEURON_RT_ULTRASERVER_NODE_ID"

_NOT_PREPARED = "the claim is not prepared"


def environment(
    inventory: NodeInventory, results: Sequence[DeviceRequestAllocationResult], requested: Mapping[str, int | None]
) -> dict[str, str]:
    """Variables for the containers of a claim; none without UltraServerConfig.

    Args:
        inventory: the node.
        results: what is allocated to the claim on it.
        requested: for each request of the claim the configured number of nodes, or None.

    Raises:
        PrepareError: the configuration is not for this device, or not for this node now.
    """
    asked = {request: nodes for request, nodes in requested.items() if nodes is not None}
    if not asked:
        return {}
    _check_devices(results, asked)
    if len(set(asked.values())) > 1:
        listed = ", ".join(f"{request[:63]}: {nodes}" for request, nodes in asked.items())
        raise PrepareError(
            f"the requests of the claim have different ultraserverMode values ({listed})",
            consequence=f"a node is in one mode at a time; {_NOT_PREPARED}",
            remedy="use one value for all requests",
        )
    nodes = next(iter(asked.values()))
    member = inventory.ultraserver
    mode = _mode(inventory, member, nodes)
    if member is None or mode.nodes == 1:
        return {MODE: str(mode.value)}
    server = member.set_for(nodes)
    if server is None:
        raise PrepareError(
            f"ultraserverMode {nodes} is asked for, but the kernel driver tells no server id for {nodes} nodes here",
            consequence=_NOT_PREPARED,
            remedy="look at the driver's log on this node for the state of the UltraServer; delete the pod to get "
            "another node",
        )
    return {MODE: str(mode.value), SERVER_ID: server.server_id, NODE_ID: str(server.node_id)}


def outdated(prepared: Plan, inventory: NodeInventory) -> str:
    """What of the UltraServer has changed since the claim was prepared, for its containers to be restarted; or "".

    A prepared claim keeps its variables until the node is booted, since containers may have been told them.
    """
    number, member = prepared.env.get(MODE), inventory.ultraserver
    if number is None or member is None or member.electing or not member.modes:
        return ""
    mode = next((mode for mode in Mode if str(mode.value) == number), None)
    if mode is None or mode not in member.modes:
        return f"mode {mode or number} is not offered any more (offered: {_offered(member)})"
    given = prepared.env.get(SERVER_ID), prepared.env.get(NODE_ID)
    server = member.set_for(mode.nodes) if mode.nodes > 1 else None
    now = (server.server_id, str(server.node_id)) if server is not None else (None, None)
    if given == now:
        return ""
    place = f"node {now[1]} of server {now[0]}" if server is not None else f"part of no server of {mode.nodes} nodes"
    return f"its containers were told node {given[1]} of server {given[0]}, but the host is now {place}"


def _check_devices(results: Sequence[DeviceRequestAllocationResult], asked: Mapping[str, int]) -> None:
    for result in results:
        if result.request in asked and result.device != NODE_DEVICE:
            raise PrepareError(
                f"UltraServerConfig (ultraserverMode {asked[result.request]}) is set for request "
                f"{result.request[:63]}, but its device {result.device[:63]} is not a whole node",
                consequence=_NOT_PREPARED,
                remedy="select resourceType 'neuron_node' in the request; or name in the configuration's requests "
                "those that do; or remove it to use the chips without the links to other nodes",
            )


def _mode(inventory: NodeInventory, member: Membership | None, nodes: int) -> Mode:
    asked = f"ultraserverMode {nodes} is asked for"
    if member is None:
        raise PrepareError(
            f"{asked}, but {inventory.instance_type or 'this node'} is no part of an UltraServer",
            consequence=_NOT_PREPARED,
            remedy="remove the UltraServerConfig, or select a node of an UltraServer",
        )
    if member.electing:
        raise PrepareError(
            f"{asked}, but the nodes of this UltraServer are still finding each other, which can take ten minutes",
            consequence="no mode can be used until then",
            remedy="kubelet tries again, nothing is to be done",
        )
    mode = mode_for(nodes, member.modes)
    if mode is None:
        raise PrepareError(
            f"{asked}, but this node offers {_offered(member)}: {_reason(member, nodes)}",
            consequence=f"{_NOT_PREPARED}; kubelet tries again",
            remedy="delete the pod to get another node, or ask for fewer nodes; the driver's log on this node has more",
        )
    return mode


def _offered(member: Membership) -> str:
    return ", ".join(f"{mode} ({mode.nodes} node{'s' * (mode.nodes > 1)})" for mode in member.modes) or "no mode"


def _reason(member: Membership, nodes: int) -> str:
    """Why a mode of so many nodes is not there."""
    if not member.modes:
        return "the kernel driver does not tell its modes"
    if nodes > 1 and member.set_for(nodes) is None:
        return f"it is part of no server of {nodes} nodes"
    return "the links to the others do not work" if nodes > 1 else "the kernel driver does not list it"
