"""What a claim's containers are given: variables, device nodes and files, as the ``containerEdits`` of a CDI spec.

The variables are what the claim's parameters, those of its class, and the node decide together. ``NeuronConfig`` sets
the logical core size; the node's chips say what is possible. ``UltraServerConfig`` sets how many nodes of an
UltraServer work together. A node is in one mode at a time, so the latter is for claims of the whole node only, and it
is compared with what the kernel driver offers when the claim is prepared: nodes elect their servers at boot, so it
cannot be known earlier. The variables and the choice of the mode are those of AWS's own init script (aws-neuron-sdk,
``src/k8/k8s-ultraserver-init-script.sh``).

Each allocated device is a CDI device with its nodes, the claim's variables and, for cores, which of them its containers
are to use. The same variables stand in each device that a container uses, and nodes and variables replace what has the
same path or name, so it does no harm when a runtime is handed a device twice, as some kubelet versions do after a
restart.

The name of a CDI device is ``<claim UID>-<device>-<digest>``, the digest being over what the allocation decides: chips
and cores, their numbers in the container, parameters. So a name never stands for two allocations: not for another
claim's, and not for the next one of the same claim object. What the host decides is no part of it, neither the numbers
that the kernel gives a chip nor the variables: they change in a reboot, when kubelet still passes the old names, and
then the old content would be wrong.

Nodes carry type, major and minor, hence a runtime neither needs nor looks at a node on the host
(cncf-tags/container-device-interface, ``pkg/cdi/container-edits_unix.go``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from dra_driver.driver.claims.model import DEVICE_PATH, ChipNode, Plan, PlannedDevice, PrepareError, Shown
from dra_driver.kube.cdi import CdiDevice, ContainerEdits, DeviceNode, Mount, Spec, minimum_version
from dra_driver.kube.objects.resource import (
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    PartialResourceClaim,
)
from dra_driver.neuron.host.inventory import Membership, NodeInventory, chips_of
from dra_driver.neuron.names import CDI_KIND, DRIVER_NAME, LOGICAL_CORE_VARIABLES
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode, mode_for

# Variables

MODE = "NEURON_RT_ULTRASERVER_MODE"
SERVER_ID = "NEURON_RT_ULTRASERVER_SERVER_ID"
NODE_ID = "NEURON_RT_ULTRASERVER_NODE_ID"

_NOT_PREPARED = "the claim is not prepared"


def _core_sizes(
    inventory: NodeInventory, requested: Mapping[str, int | None], in_force: Mapping[str, int]
) -> dict[str, int]:
    """Physical cores in a logical one by request; empty where the hardware has no logical cores.

    Args:
        inventory: the node.
        requested: for each request of the claim the configured size, or None.
        in_force: see ``environment``.

    Raises:
        PrepareError: a size is configured that this hardware does not have.
    """
    hardware, default = inventory.chip, inventory.logical_core_size
    node = inventory.instance_type or "this node's hardware"
    asked = {request: size for request, size in requested.items() if size is not None}
    if hardware is None or default is None:
        if not asked:
            return {}
        known = "is not known to this version of the driver" if hardware is None else "has no logical NeuronCores"
        raise PrepareError(
            f"NeuronConfig sets logicalNeuronCore {next(iter(asked.values()))}, but {node} {known}",
            consequence="the claim is not prepared",
            remedy="leave logicalNeuronCore out, or select Trainium2 or later in the request",
            reason="InvalidParameters",
        )
    illegal = sorted(set(asked.values()).difference(hardware.lnc_values))
    if illegal:
        legal = ", ".join(map(str, hardware.lnc_values))
        raise PrepareError(
            f"NeuronConfig sets logicalNeuronCore {illegal[0]}, but {node} has only {legal}", reason="InvalidParameters"
        )
    return {request: asked.get(request, in_force.get(request, default)) for request in requested}


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
            reason="InvalidParameters",
        )
    nodes = next(iter(asked.values()))
    member = inventory.ultraserver
    mode = _mode(inventory, member, nodes)
    if member is None or mode.nodes == 1:
        return {MODE: str(mode.value)}
    server = member.set_for(nodes)
    if server is None:
        raise PrepareError(
            f"the claim requests ultraserverMode {nodes}, but the kernel driver reports no server id for {nodes} nodes",
            consequence=_NOT_PREPARED,
            remedy="look at the driver's log on this node for the state of the UltraServer; delete the pod to get "
            "another node",
            reason="UltraServerMode",
        )
    return {MODE: str(mode.value), SERVER_ID: server.server_id, NODE_ID: str(server.node_id)}


def outdated_ultraserver(prepared: Plan, inventory: NodeInventory) -> str:
    """What of the UltraServer has changed since the claim was prepared, for its containers to be restarted; or "".

    A prepared claim keeps its variables until the node is booted, since containers may have been told them.
    """
    number, member = prepared.env.get(MODE), inventory.ultraserver
    if number is None or member is None or member.electing or not member.modes:
        return ""
    mode = next((mode for mode in Mode if str(mode.value) == number), None)
    if mode is None or mode not in member.modes:
        return f"mode {mode or number} is no longer offered (offered: {_offered(member)})"
    given = prepared.env.get(SERVER_ID), prepared.env.get(NODE_ID)
    server = member.set_for(mode.nodes) if mode.nodes > 1 else None
    now = (server.server_id, str(server.node_id)) if server is not None else (None, None)
    if given == now:
        return ""
    place = f"node {now[1]} of server {now[0]}" if server is not None else f"not part of a server of {mode.nodes} nodes"
    return f"its containers were given node {given[1]} of server {given[0]}, but the host is now {place}"


def _check_devices(results: Sequence[DeviceRequestAllocationResult], asked: Mapping[str, int]) -> None:
    for result in results:
        if result.request in asked and result.device != NODE_DEVICE:
            raise PrepareError(
                f"UltraServerConfig (ultraserverMode {asked[result.request]}) is set for request "
                f"{result.request[:63]}, but its device {result.device[:63]} is not a whole node",
                consequence=_NOT_PREPARED,
                remedy="select resourceType 'neuron_node' in the request; or name in the configuration's requests "
                "those that do; or remove it to use the chips without the links to other nodes",
                reason="InvalidParameters",
            )


def _mode(inventory: NodeInventory, member: Membership | None, nodes: int) -> Mode:
    asked = f"the claim requests ultraserverMode {nodes}"
    if member is None:
        raise PrepareError(
            f"{asked}, but {inventory.instance_type or 'this node'} is not part of an UltraServer",
            consequence=_NOT_PREPARED,
            remedy="remove the UltraServerConfig, or select a node of an UltraServer",
            reason="UltraServerMode",
        )
    if member.electing:
        raise PrepareError(
            f"{asked}, but the nodes of this UltraServer are still electing their ids, which can take ten minutes",
            consequence="no mode is available until then",
            remedy="kubelet tries again; no action is needed",
            reason="UltraServerElecting",
        )
    mode = mode_for(nodes, member.modes)
    if mode is None:
        raise PrepareError(
            f"{asked}, but this node offers {_offered(member)}: {_reason(member, nodes)}",
            consequence=f"{_NOT_PREPARED}; kubelet tries again",
            remedy="delete the pod to get another node, or request fewer nodes; the driver's log on this node has more",
            reason="UltraServerMode",
        )
    return mode


def _offered(member: Membership) -> str:
    return ", ".join(f"{mode} ({mode.nodes} node{'s' * (mode.nodes > 1)})" for mode in member.modes) or "no mode"


def _reason(member: Membership, nodes: int) -> str:
    """Why a mode of so many nodes is not there."""
    if not member.modes:
        return "the kernel driver does not report its modes"
    if nodes > 1 and member.set_for(nodes) is None:
        return f"it is not part of a server of {nodes} nodes"
    return "the links to the others do not work" if nodes > 1 else "the kernel driver does not list it"


_COMPARED = (LOGICAL_CORE_VARIABLES[0], MODE)


def environment(
    claim: PartialResourceClaim,
    results: Sequence[DeviceRequestAllocationResult],
    inventory: NodeInventory,
    in_force: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, dict[str, str]]:
    """Variables by request, for every container that uses a device of it.

    Args:
        claim: allocated.
        results: its allocation results of this driver.
        inventory: the node.
        in_force: logical core sizes that hold where none is configured, by request, instead of the node's.

    Raises:
        ConfigError: the configuration is not legal. PrepareError: it is not for this node or these devices.
    """
    requests = list(dict.fromkeys(result.request for result in results))
    sizes: dict[str, int | None] = dict.fromkeys(requests)
    nodes: dict[str, int | None] = dict.fromkeys(requests)
    if _own(_config(claim)):
        from dra_driver.neuron.opaque_config import effective  # pydantic: most claims do not need it

        for request, value in effective(_config(claim), requests, DRIVER_NAME).items():
            sizes[request], nodes[request] = value.logical_neuron_core, value.ultraserver_mode
    told, of_server = _core_sizes(inventory, sizes, in_force), _ultraserver_variables(inventory, results, nodes)
    return {
        request: (dict.fromkeys(LOGICAL_CORE_VARIABLES, str(told[request])) if told else {}) | of_server
        for request in requests
    }


def with_environment(plan: Plan, variables: Mapping[str, Mapping[str, str]]) -> Plan:
    """The plan with the variables of ``environment``.

    Those that all requests have stand in the plan, the others with the devices of their request.
    """
    # In their order, so that equal claims give equal files.
    first, *others = variables.values()
    common = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    devices = tuple(
        replace(
            device,
            env={name: value for name, value in device.env.items() if name not in LOGICAL_CORE_VARIABLES}
            | {name: value for name, value in variables[device.request].items() if name not in common},
        )
        for device in plan.devices
    )
    return replace(plan, env=common, devices=devices)


def parameters(claim: PartialResourceClaim) -> str:
    """Digest of the opaque parameters for this driver in the claim's allocation, from claim and class; "" without."""
    own = _own(_config(claim))
    return hashlib.sha256(msgspec.json.encode(own, order="deterministic")).hexdigest() if own else ""


def _config(claim: PartialResourceClaim) -> Sequence[DeviceAllocationConfiguration]:
    allocation = claim.status.allocation
    return allocation.devices.config if allocation is not None else ()


def _own(config: Sequence[DeviceAllocationConfiguration]) -> list[DeviceAllocationConfiguration]:
    return [entry for entry in config if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME]


def shared_pod_warnings(plan: Plan, others: Sequence[Plan]) -> tuple[str, ...]:
    """Warnings about claims that the same pods use; one container with both gets the variables of only one."""
    return tuple(
        f"claim {other.reference} of the same pod has {name}={theirs}, this one {mine}; "
        "a container that uses both gets only one of the values; use them in different containers"
        for other in others
        for name in _COMPARED
        if (mine := _values(plan, name)) and (theirs := _values(other, name)) and mine != theirs
    )


def _values(plan: Plan, name: str) -> str:
    """What containers with devices of the plan are told under a name."""
    found = {(plan.env | device.env).get(name) for device in plan.devices}
    return " and ".join(sorted(value for value in found if value is not None))


# The CDI spec

_ANYBODY_READS_AND_WRITES = 0o666
_DIGEST_LENGTH = 10


def cdi_spec(plan: Plan) -> Spec:
    """The CDI spec of a plan, with the lowest CDI version that suffices."""
    # One device may stand in several results (a request with admin access beside an ordinary one, which counts).
    results = sorted(plan.devices, key=lambda device: not device.admin)
    devices = {device.cdi_name: _container_edits(plan, device) for device in results}
    spec = Spec(
        cdi_version="",
        kind=CDI_KIND,
        devices=tuple(CdiDevice(name, content) for name, content in sorted(devices.items())),
    )
    return replace(spec, cdi_version=minimum_version(spec))


def cdi_device_name(uid: str, device: str, nodes: Sequence[ChipNode], decided: str) -> str:
    """Name of the CDI device for an allocated device; ``decided`` is the digest of the claim's ``parameters``."""
    digest = hashlib.sha256("\n".join([*map(_shown, nodes), decided]).encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{uid}-{device}-{digest}"


def _shown(node: ChipNode) -> str:
    cores = f":{','.join(map(str, node.cores))}" if node.cores else ""
    return f"{node.container_path}={node.host_path}{cores}"


def shown_in(spec: Spec, uid: str) -> Shown | None:
    """What the spec of claim ``uid`` shows; None when it was not written by this driver."""
    shown: set[tuple[int, int]] = set()
    for device in spec.devices:
        nodes = device.container_edits.device_nodes
        found = [(_number(node.host_path or node.path), _number(node.path)) for node in nodes]
        seen = tuple(chip for chip, _ in found if chip is not None)
        # A whole node is made of what it shows: at the time of writing those were all chips of the host.
        chips = chips_of(device.name.removeprefix(f"{uid}-").rpartition("-")[0], seen)
        if chips is None or not device.name.startswith(f"{uid}-") or tuple(chip for chip, _ in found) != chips:
            return None
        for chip, number in found:
            if chip is None or number is None:
                return None
            shown.add((number, chip))
    return frozenset(shown)


def _number(path: str) -> int | None:
    digits = path.removeprefix(DEVICE_PATH)
    return int(digits) if digits != path and digits.isascii() and digits.isdecimal() and len(digits) < 6 else None


def _container_edits(plan: Plan, device: PlannedDevice) -> ContainerEdits:
    return ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in sorted((plan.env | device.env).items())),
        device_nodes=tuple(map(_device_node, device.nodes)),
        mounts=_mounts(plan, device.cdi_name) if plan.metadata else (),
    )


def _mounts(plan: Plan, cdi_name: str) -> tuple[Mount, ...]:
    """The files of the requests that a device was allocated for: see ``metadata``."""
    requests = sorted({device.base_request for device in plan.devices if device.cdi_name == cdi_name})
    return tuple(
        Mount(f"{plan.metadata}/{request}.json", metadata_path(plan, request), ("ro", "bind")) for request in requests
    )


def metadata_path(plan: Plan, request: str) -> str:
    """Where containers see the file of a request (k8s.io/dynamic-resource-allocation, ``api/metadata``)."""
    claim = f"resourceclaimtemplates/{plan.pod_claim}" if plan.pod_claim else f"resourceclaims/{plan.name}"
    return f"/var/run/kubernetes.io/dra-device-attributes/{claim}/{request}/{DRIVER_NAME}-metadata.json"


def _device_node(node: ChipNode) -> DeviceNode:
    return DeviceNode(
        path=node.container_path,
        host_path=None if node.host_path == node.container_path else node.host_path,
        type="c",
        major=node.major,
        minor=node.minor,
        # The kernel driver's udev rule opens the host's node to everybody; a host without the rule must not differ.
        file_mode=_ANYBODY_READS_AND_WRITES,
        permissions="rw",
    )


def plan_document(plan: Plan, spec: Spec) -> dict[str, Any]:
    """JSON-ready values: ``claim``, ``devices`` (one row a device node), ``environment``, ``cdi``.

    A row of cores has ``physicalCores``. ``environment`` is what every container that uses the claim gets; a row has
    one of its own where containers differ.
    """
    common = dict(set.intersection(*(set(device.env.items()) for device in plan.devices)))
    return {
        "claim": {"namespace": plan.namespace, "name": plan.name, "uid": plan.uid},
        "devices": [
            {
                "request": device.request,
                "device": device.device,
                "hostPath": node.host_path,
                "containerPath": node.container_path,
            }
            | ({"physicalCores": list(node.cores)} if node.cores else {})
            | ({"environment": dict(sorted(device.env.items()))} if device.env != common else {})
            for device in plan.devices
            for node in device.nodes
        ],
        "environment": dict(sorted((plan.env | common).items())),
        "cdi": msgspec.json.decode(msgspec.json.encode(spec)),
    }
