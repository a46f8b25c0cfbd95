"""What a claim's containers are given, as the ``containerEdits`` of a CDI spec: device nodes, variables and files.

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
from typing import Any

import msgspec
from msgspec.structs import replace

from dra_driver.driver.claims.model import DEVICE_PATH, ChipNode, Plan, PlannedDevice, Shown
from dra_driver.kube.cdi import CdiDevice, ContainerEdits, DeviceNode, Mount, Spec, minimum_version
from dra_driver.neuron.names import CDI_KIND, DRIVER_NAME
from dra_driver.neuron.topology.partitions import chips_of

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


def with_names(plan: Plan) -> Plan:
    """The plan with the names of its CDI devices."""
    return replace(plan, devices=tuple(replace(device, cdi_name=_name(plan, device)) for device in plan.devices))


def _name(plan: Plan, device: PlannedDevice) -> str:
    text = "\n".join([*map(_node_text, device.nodes), plan.parameters])
    return f"{plan.uid}-{device.device}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def _node_text(node: ChipNode) -> str:
    cores = f":{','.join(map(str, node.cores))}" if node.cores else ""
    return f"{node.container_path}={node.host_path}{cores}"


def shown_in(spec: Spec, uid: str) -> Shown | None:
    """What the spec of claim ``uid`` shows; None when it was not written by this driver."""
    shown: set[tuple[int, int]] = set()
    for device in spec.devices:
        nodes = device.container_edits.device_nodes
        pairs = [(_number(node.host_path or node.path), _number(node.path)) for node in nodes]
        host_chips = tuple(chip for chip, _ in pairs if chip is not None)
        # A whole node is made of what it shows: at the time of writing those were all chips of the host.
        chips = chips_of(device.name.removeprefix(f"{uid}-").rpartition("-")[0], host_chips)
        if chips is None or not device.name.startswith(f"{uid}-") or tuple(chip for chip, _ in pairs) != chips:
            return None
        for chip, number in pairs:
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
    """JSON-ready values: ``claim``, ``deviceNodes``, ``environment``, ``cdi``.

    A row of cores has ``cores``, the physical ones. ``environment`` is what every container that uses the claim gets;
    a row has one of its own where containers differ.
    """
    common = dict(set.intersection(*(set(device.env.items()) for device in plan.devices)))
    return {
        "claim": {"namespace": plan.namespace, "name": plan.name, "uid": plan.uid},
        "deviceNodes": [
            {
                "request": device.request,
                "device": device.device,
                "hostPath": node.host_path,
                "containerPath": node.container_path,
            }
            | ({"cores": list(node.cores)} if node.cores else {})
            | ({"environment": dict(sorted(device.env.items()))} if device.env != common else {})
            for device in plan.devices
            for node in device.nodes
        ],
        "environment": dict(sorted((plan.env | common).items())),
        "cdi": msgspec.json.decode(msgspec.json.encode(spec)),
    }
