"""The variables of a claim's containers.

The variables are what the claim's parameters, those of its class, and the node decide together. ``NeuronConfig`` sets
the logical core size; the node's chips say what is possible. ``UltraServerConfig`` sets how many nodes of an
UltraServer work together. A node is in one mode at a time, so the latter is for claims of the whole node only, and it
is compared with what the kernel driver offers when the claim is prepared: nodes elect their servers at boot, so it
cannot be known earlier. The variables and the choice of the mode are those of AWS's own init script (aws-neuron-sdk,
``src/k8/k8s-ultraserver-init-script.sh``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dra_driver.driver.claims.model import NOT_PREPARED, Plan, PrepareError
from dra_driver.driver.claims.situation import Situation
from dra_driver.kube.objects.resource import DeviceRequestAllocationResult
from dra_driver.neuron.host.inventory import Membership, NodeInventory
from dra_driver.neuron.names import (
    DRIVER_NAME,
    LOGICAL_CORE_VARIABLES,
    ULTRASERVER_MODE,
    ULTRASERVER_NODE_ID,
    ULTRASERVER_SERVER_ID,
)
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode, mode_for


def with_environment(
    plan: Plan, situation: Situation, offered_sizes: Mapping[str, int], ranks: Mapping[str, str] | None = None
) -> Plan:
    """The plan with the variables of now: in ``Plan.env`` what all its containers get, else with each device.

    Which cores containers are to use, ``cores`` says: that stays.

    Args:
        plan: of the claim.
        situation: the claim and the node.
        offered_sizes: logical core sizes by request, for requests whose cores were offered at one: where none is
            configured, they count in place of the node's.
        ranks: variables of an UltraServer workload.

    Raises:
        ConfigError: the configuration is not legal. PrepareError: it is not for this node or these devices.
    """
    claim, inventory = situation.claim, situation.inventory
    requests = list(dict.fromkeys(device.request for device in plan.devices))
    sizes: dict[str, int | None] = dict.fromkeys(requests)
    node_counts: dict[str, int | None] = dict.fromkeys(requests)
    if claim.config:
        from dra_driver.neuron.opaque_config import effective  # pydantic: most claims do not need it

        for request, value in effective(claim.config, requests, DRIVER_NAME).items():
            sizes[request], node_counts[request] = value.logical_neuron_core, value.ultraserver_mode
    core_sizes = _core_sizes(inventory, sizes, offered_sizes)
    of_server = _ultraserver_variables(inventory, claim.results, node_counts)
    own = {request: dict.fromkeys(LOGICAL_CORE_VARIABLES, str(size)) for request, size in core_sizes.items()}
    common: dict[str, str] = {}
    if len(set(core_sizes.values())) == 1:
        common, own = next(iter(own.values())), {}
    devices = tuple(
        replace(device, env=_without_sizes(device.env) | own.get(device.request, {})) for device in plan.devices
    )
    # In this order, so that equal claims give equal files.
    return replace(plan, env=common | of_server | dict(ranks or {}), devices=devices)


def _without_sizes(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in LOGICAL_CORE_VARIABLES}


def outdated_ultraserver(prepared: Plan, inventory: NodeInventory) -> str:
    """What of the UltraServer has changed since the claim was prepared, for its containers to be restarted; or "".

    A prepared claim keeps its variables until the node is booted, since containers may have been told them.
    """
    number, member = prepared.env.get(ULTRASERVER_MODE), inventory.ultraserver
    if number is None or member is None or member.electing or not member.modes:
        return ""
    mode = next((mode for mode in Mode if str(mode.value) == number), None)
    if mode is None or mode not in member.modes:
        return f"mode {mode or number} is no longer offered (offered: {_mode_names(member)})"
    former = prepared.env.get(ULTRASERVER_SERVER_ID), prepared.env.get(ULTRASERVER_NODE_ID)
    server = member.set_for(mode.nodes) if mode.nodes > 1 else None
    now = (server.server_id, str(server.node_id)) if server is not None else (None, None)
    if former == now:
        return ""
    place = f"node {now[1]} of server {now[0]}" if server is not None else f"not part of a server of {mode.nodes} nodes"
    return f"its containers were given node {former[1]} of server {former[0]}, but the host is now {place}"


def _core_sizes(
    inventory: NodeInventory, requested: Mapping[str, int | None], offered_sizes: Mapping[str, int]
) -> dict[str, int]:
    """Physical cores in a logical one by request; empty where the hardware has no logical cores.

    Args:
        inventory: the node.
        requested: for each request of the claim the configured size, or None.
        offered_sizes: see ``with_environment``.

    Raises:
        PrepareError: a size is configured that this hardware does not have.
    """
    hardware, default = inventory.chip, inventory.logical_core_size
    node = inventory.instance_type or "this node's hardware"
    sizes = {request: size for request, size in requested.items() if size is not None}
    if hardware is None or default is None:
        if not sizes:
            return {}
        problem = "is not known to this version of the driver" if hardware is None else "has no logical NeuronCores"
        raise PrepareError(
            f"NeuronConfig sets logicalNeuronCore {next(iter(sizes.values()))}, but {node} {problem}",
            consequence=NOT_PREPARED,
            remedy="leave logicalNeuronCore out, or select Trainium2 or later in the request",
            reason="InvalidParameters",
        )
    illegal = sorted(set(sizes.values()).difference(hardware.lnc_values))
    if illegal:
        legal = ", ".join(map(str, hardware.lnc_values))
        raise PrepareError(
            f"NeuronConfig sets logicalNeuronCore {illegal[0]}, but {node} has only {legal}", reason="InvalidParameters"
        )
    return {request: sizes.get(request, offered_sizes.get(request, default)) for request in requested}


def _ultraserver_variables(
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
    node_counts = {request: nodes for request, nodes in requested.items() if nodes is not None}
    if not node_counts:
        return {}
    _check_devices(results, node_counts)
    if len(set(node_counts.values())) > 1:
        values = ", ".join(f"{request[:63]}: {nodes}" for request, nodes in node_counts.items())
        raise PrepareError(
            f"the requests of the claim have different ultraserverMode values ({values})",
            consequence=f"a node is in one mode at a time; {NOT_PREPARED}",
            remedy="use one value for all requests",
            reason="InvalidParameters",
        )
    nodes = next(iter(node_counts.values()))
    member = inventory.ultraserver
    mode = _mode(inventory, member, nodes)
    if member is None or mode.nodes == 1:
        return {ULTRASERVER_MODE: str(mode.value)}
    server = member.set_for(nodes)
    if server is None:
        raise PrepareError(
            f"the claim requests ultraserverMode {nodes}, but the kernel driver reports no server id for {nodes} nodes",
            consequence=NOT_PREPARED,
            remedy="look at the driver's log on this node for the state of the UltraServer; to get another node, have "
            f"the claim's request select nodes that have the attribute ultraserverServerId{nodes}",
            reason="UltraServerMode",
        )
    return {
        ULTRASERVER_MODE: str(mode.value),
        ULTRASERVER_SERVER_ID: server.server_id,
        ULTRASERVER_NODE_ID: str(server.node_id),
    }


def _check_devices(results: Sequence[DeviceRequestAllocationResult], node_counts: Mapping[str, int]) -> None:
    for result in results:
        if result.request in node_counts and result.device != NODE_DEVICE:
            raise PrepareError(
                f"UltraServerConfig (ultraserverMode {node_counts[result.request]}) is set for request "
                f"{result.request[:63]}, but its device {result.device[:63]} is not a whole node",
                consequence=NOT_PREPARED,
                remedy="select resourceType 'neuron_node' in the request; or name in the configuration's requests "
                "those that do; or remove it to use the chips without the links to other nodes",
                reason="InvalidParameters",
            )


def _mode(inventory: NodeInventory, member: Membership | None, nodes: int) -> Mode:
    what = f"the claim requests ultraserverMode {nodes}"
    if member is None:
        raise PrepareError(
            f"{what}, but {inventory.instance_type or 'this node'} is not part of an UltraServer",
            consequence=NOT_PREPARED,
            remedy="remove the UltraServerConfig, or select a node of an UltraServer",
            reason="UltraServerMode",
        )
    if member.electing:
        raise PrepareError(
            f"{what}, but the nodes of this UltraServer are still electing their ids, which can take ten minutes",
            consequence="no mode is available until then",
            remedy="kubelet tries again; no action is needed",
            reason="UltraServerElecting",
        )
    mode = mode_for(nodes, member.modes)
    if mode is None:
        raise PrepareError(
            f"{what}, but this node offers {_mode_names(member)}: {_reason(member, nodes)}",
            consequence=f"{NOT_PREPARED}; kubelet tries again",
            remedy=f"have the claim's request select nodes whose attribute ultraserverModes contains X{nodes} (without "
            f"that, the next pod may get this node again){', or request fewer nodes' * (nodes > 1)}; the driver's log "
            "on this node has more",
            reason="UltraServerMode",
        )
    return mode


def _mode_names(member: Membership) -> str:
    return ", ".join(f"{mode} ({mode.nodes} node{'s' * (mode.nodes > 1)})" for mode in member.modes) or "no mode"


def _reason(member: Membership, nodes: int) -> str:
    """Why a mode of so many nodes is not there."""
    if not member.modes:
        return "the kernel driver does not report its modes"
    if nodes > 1 and member.set_for(nodes) is None:
        return f"it is not part of a server of {nodes} nodes"
    return "the links to the others do not work" if nodes > 1 else "the kernel driver does not list it"
