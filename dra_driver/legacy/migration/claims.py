"""From a number of chips to the claim that requests them, connected as the extender would choose them.

A device group, a segment or a row of the torus is one ``matchAttribute``. Runs of other lengths have no attribute; each
of them becomes an alternative, of which Kubernetes takes the first that is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.slices.attributes import SEGMENT_SIZES
from dra_driver.topology.fabric import GROUP_SIZES, Chain, IndexSet, Ring, Torus2D
from dra_driver.topology.instance_types import INSTANCE_TYPES, InstanceType

REQUEST: Final = "neurons"
MAX_ALTERNATIVES: Final = 8
"""Of one request (Kubernetes API, ``firstAvailable``)."""
_ATTRIBUTE: Final = f"device.attributes['{DRIVER_NAME}']"


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate; equal ones in a namespace become one object."""

    name: str
    devices: dict[str, Any]
    """``spec.spec.devices``."""
    differences: tuple[str, ...]
    """How a pod's devices differ from before, as messages."""

    def document(self, namespace: str | None) -> dict[str, Any]:
        """The object."""
        metadata = {"name": self.name} | ({"namespace": namespace} if namespace else {})
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": {"devices": self.devices}},
        }


def template(count: int, row: InstanceType | None) -> Template | None:
    """The claim for a number of chips of one node.

    Args:
        count: chips; one that the rules of ``row`` allow.
        row: the nodes' type; None for any type, which permits only sizes of device groups.

    Returns:
        None if the type has to be known.
    """
    attribute = _attribute(count, row)
    suffix = f"-{row.name.replace('.', '-')}" if row else ""
    name = f"{REQUEST}-{count}{suffix}"
    whole = row is not None and count == row.devices
    if attribute is None and count > 1 and not whole:
        return None if row is None else _alternatives(name, count, row)
    if row is not None and whole and row.ultraserver is not None:
        return Template(name, {"requests": [_whole_server(count, row)]}, ())
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": exactly(count, selector(row))}]}
    if attribute is not None:
        devices["constraints"] = [{"requests": [REQUEST], "matchAttribute": attribute}]
    return Template(name, devices, (*_narrower(count, attribute, row), *_layout(row)))


def selector(row: InstanceType | None) -> str:
    """A CEL expression that selects chips (not whole nodes of UltraServers), of a type."""
    parts = [f"{_ATTRIBUTE}.resourceType == 'neuron_device'"]
    if row is not None:
        parts.append(f"{_ATTRIBUTE}.instanceType == '{row.name}'")
    return " && ".join(parts)


def exactly(count: int, *expressions: str) -> dict[str, Any]:
    """The ``exactly`` of a request; Kubernetes evaluates an expression only if those before it are true."""
    return {
        "deviceClassName": DRIVER_NAME,
        "selectors": [{"cel": {"expression": expression}} for expression in expressions],
        "allocationMode": "ExactCount",
        "count": count,
    }


def _attribute(count: int, row: InstanceType | None) -> str | None:
    """The attribute that the chips of one connected set, and no others, have in common."""
    if count == 1:
        return None
    if count in GROUP_SIZES and (row is None or row.efa_pairing is not None):
        return f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{count}_id"
    if row is None or count == row.devices:
        return None
    if isinstance(row.fabric, Torus2D):
        return f"{DRIVER_NAME}/topology{count}_id"
    if isinstance(row.fabric, Ring | Chain) and count in SEGMENT_SIZES and row.fabric.size % count == 0:
        return f"{DRIVER_NAME}/segment{count}_id"
    return None


def _alternatives(name: str, count: int, row: InstanceType) -> Template:
    """Runs without an attribute: aligned ones first, since they break the fewest larger runs."""
    runs = sorted(row.fabric.usable_sets(count), key=lambda run: (run[0] % count != 0, run[0]))
    tried = runs[:MAX_ALTERNATIVES]
    entries = [{"name": f"from-{run[0]}", **exactly(count, selector(row), _within(run))} for run in tried]
    left_out = len(runs) - len(tried)
    difference = (
        f"of the {len(runs)} runs of {count} devices on {row.name} the claim tries those that begin at "
        f"{', '.join(str(run[0]) for run in tried)}: Kubernetes allows {MAX_ALTERNATIVES} alternatives"
    )
    return Template(name, {"requests": [{"name": REQUEST, "firstAvailable": entries}]}, (difference,) * bool(left_out))


def _within(run: IndexSet) -> str:
    return f"{_ATTRIBUTE}.deviceId >= {run[0]} && {_ATTRIBUTE}.deviceId <= {run[-1]}"


def _whole_server(count: int, row: InstanceType) -> dict[str, Any]:
    """All chips of an UltraServer's node, which the driver offers as one device, as chips, or as both."""
    node = f"{_ATTRIBUTE}.resourceType == 'neuron_node' && {_ATTRIBUTE}.instanceType == '{row.name}'"
    entries = [{"name": "node", **exactly(1, node)}, {"name": "chips", **exactly(count, selector(row))}]
    return {"name": REQUEST, "firstAvailable": entries}


def _narrower(count: int, attribute: str | None, row: InstanceType | None) -> tuple[str, ...]:
    """How the attribute is narrower than the extender's choice."""
    if attribute is None:
        return ()
    if row is None:
        types = ", ".join(name for name, known in INSTANCE_TYPES.items() if known.efa_pairing is not None)
        text = f"{attribute} exists on {types}; on other nodes the claim finds nothing (see --instance-type)"
        return (text,)
    if isinstance(row.fabric, Ring | Chain):
        aligned = f"0-{count - 1} and {count}-{2 * count - 1}"
        return (f"any run of {count} devices was possible, such as 1-{count}; the claim takes {aligned} and so on",)
    return ()


def _layout(row: InstanceType | None) -> tuple[str, ...]:
    if row is None or row.ultraserver is None:
        return ()
    text = (
        f"UltraServer nodes ({row.name}) offer single devices only with ULTRASERVER_LAYOUT=chips or both of the driver"
    )
    return (text,)
