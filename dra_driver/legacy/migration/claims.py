"""From what a container asks for to the claim that requests it, connected as the extender would choose it.

A device group, a segment or a row of the torus is one ``matchAttribute``, or one device of a group's class. Runs of
other lengths have no attribute; each of them becomes an alternative, of which Kubernetes takes the first that is free.
Cores of one chip have its ``deviceId`` in common, aligned runs of them a ``coreRunN_id``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dra_driver.driver.resourceslices.attributes import RUN_SIZES
from dra_driver.kube.objects import limits
from dra_driver.neuron.emulation.efa import EFA_CLASS
from dra_driver.neuron.names import API_VERSIONS, DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.neuron.topology.fabric import GROUP_SIZES, SEGMENT_SIZES, Chain, IndexSet, Ring, Torus2D
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.partitions import group_sizes

REQUEST: Final = "neurons"
EFA_REQUEST: Final = "efa"
_EFA_DRIVER: Final = (
    f"EFA devices of claims ({EFA_CLASS}) need AWS's EFA DRA driver on the nodes, in place of EFA's device plugin"
)
_SIZED_CLASSES: Final = (2, 4, 8)
"""Sizes of groups that have a class of their own; for others, the class of all groups is used with a selector."""
_ATTRIBUTE: Final = f"device.attributes['{DRIVER_NAME}']"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one claim is for: chips of one node, or some logical cores of one chip; and EFA devices."""

    chips: int = 0
    cores: int = 0
    efa: int = 0
    core_size: int | None = None
    """Logical core size that its containers choose; None: that of the node."""


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


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for Neuron devices, and what they must have in common."""

    name: str
    """Of the template, without the type."""
    request: dict[str, Any]
    attributes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def template(wanted: Wanted, row: InstanceType | None, core_size: int | None, *, groups: bool) -> Template | None:
    """The claim for chips of one node or cores of one chip.

    Args:
        wanted: chips that the rules of ``row`` allow, or fewer cores than a chip of ``row`` has.
        row: the nodes' type; None for any type, which permits only sizes of device groups.
        core_size: physical cores of a logical one, if the user says it.
        groups: whether connected chips are requested as one device.

    Returns:
        None if the type has to be known.
    """
    found = _cores(wanted.cores, row, core_size) if wanted.cores else _chips(wanted.chips, row, groups=groups)
    if found is None:
        return None
    requests, names = [found.request], [REQUEST]
    attributes, differences = found.attributes, found.differences
    name = found.name
    if wanted.efa:
        requests.append({"name": EFA_REQUEST, "exactly": _counted(EFA_CLASS, wanted.efa)})
        common, difference = _common_with_efa(wanted, row)
        if common is not None:
            names, attributes = [REQUEST, EFA_REQUEST], (common,)
        differences += (_EFA_DRIVER, *filter(None, (difference,)))
        name += f"-efa-{wanted.efa}"
    devices: dict[str, Any] = {"requests": requests}
    if attributes:
        devices["constraints"] = [{"requests": names, "matchAttribute": attribute} for attribute in attributes]
    if wanted.core_size is not None:
        parameters = {"apiVersion": API_VERSIONS[0], "kind": "NeuronConfig", "logicalNeuronCore": wanted.core_size}
        opaque = {"driver": DRIVER_NAME, "parameters": parameters}
        devices["config"] = [{"requests": [REQUEST], "opaque": opaque}]
        name += f"-lnc{wanted.core_size}"
    return Template(name + (f"-{row.name.replace('.', '-')}" if row else ""), devices, differences)


def selector(row: InstanceType | None, resource: str = "neuron_device") -> str:
    """A CEL expression that selects chips (not whole nodes of UltraServers) or other devices, of a type."""
    parts = [f"{_ATTRIBUTE}.resourceType == '{resource}'"]
    return " && ".join([*parts, *_of_type(row)])


def size_of(devices: dict[str, Any]) -> int:
    """The most devices that the requests of a claim can be given."""
    return sum(
        max(entry["count"] for entry in request.get("firstAvailable") or [request["exactly"]])
        for request in devices["requests"]
    )


def _of_type(row: InstanceType | None) -> list[str]:
    return [f"{_ATTRIBUTE}.instanceType == '{row.name}'"] if row is not None else []


def _counted(device_class: str, count: int, *expressions: str) -> dict[str, Any]:
    """The ``exactly`` of a request; Kubernetes evaluates an expression only if those before it are true."""
    made: dict[str, Any] = {"deviceClassName": device_class}
    if expressions:
        made["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return made | {"allocationMode": "ExactCount", "count": count}


def _cores(count: int, row: InstanceType | None, core_size: int | None) -> _Request:
    """Some cores of one chip: consecutive ones where an attribute says so."""
    selectors = _of_type(row)
    name = f"neuroncores-{count}"
    if core_size is not None and (row is None or len(row.lnc_values) > 1):
        selectors.append(f"{_ATTRIBUTE}.logicalCoreSize == {core_size}")
        name += f"-lnc{core_size}"
    attributes: tuple[str, ...] = ()
    differences = [_offered("cores", "core, or to chip.core")]
    if count in RUN_SIZES:
        attributes = (f"{DRIVER_NAME}/coreRun{count}_id",)
    if count > 1 and (count not in RUN_SIZES or _may_leave_the_chip(count, row, core_size)):
        attributes += (f"{DRIVER_NAME}/deviceId",)
    if count > 1 and count not in RUN_SIZES:
        differences.append(f"the {count} cores are of one chip, but need not be consecutive")
    if row is None and count > 1:
        few = [known.name for known in INSTANCE_TYPES.values() if known.devices and _width(known, core_size) < count]
        if few:
            text = f"on {', '.join(few)}, whose chips have fewer than {count} cores, the claim cannot be allocated"
            differences.append(f"{text} (see --instance-type)")
    request = {"name": REQUEST, "exactly": _counted(f"core.{DRIVER_NAME}", count, *selectors)}
    return _Request(name, request, attributes, tuple(differences))


def _offered(what: str, setting: str) -> str:
    return (
        f"only nodes that offer {what} can serve the claim: set partitions to {setting} (PARTITIONS of the driver, "
        "draDriver.partitions of the chart, or the Node label neuron.aws.com/partitions)"
    )


def _may_leave_the_chip(count: int, row: InstanceType | None, core_size: int | None) -> bool:
    """Whether an aligned run of cores, which are counted through the node, can be on two chips."""
    return any(_width(known, core_size) % count for known in ([row] if row else INSTANCE_TYPES.values()))


def _width(row: InstanceType, core_size: int | None) -> int:
    """Logical cores of a chip."""
    size = core_size if core_size in row.lnc_values else None
    return row.cores_per_device // (size or row.default_lnc)


def most_cores_of_any_type(core_size: int | None) -> int:
    """Logical cores of the largest chip that there is."""
    return max(_width(row, core_size) for row in INSTANCE_TYPES.values())


def _chips(count: int, row: InstanceType | None, *, groups: bool) -> _Request | None:
    attribute = _attribute(count, row)
    name = f"{REQUEST}-{count}"
    whole = row is not None and count == row.devices
    if groups and count > 1 and not whole and (found := _group(count, row)) is not None:
        return found
    if attribute is None and count > 1 and not whole:
        return None if row is None else _alternatives(name, count, row)
    if row is not None and whole and row.ultraserver is not None:
        return _Request(name, _whole_server(count, row))
    request = {"name": REQUEST, "exactly": _counted(DRIVER_NAME, count, selector(row))}
    differences = (*_narrower(count, attribute, row), *_layout(row))
    return _Request(name, request, () if attribute is None else (attribute,), differences)


def _attribute(count: int, row: InstanceType | None) -> str | None:
    """The attribute that the chips of one connected set, and no others, have in common."""
    if count == 1:
        return None
    if count in GROUP_SIZES and (row is None or row.efa_bdfs is not None):
        return _group_attribute(count)
    if row is None or count == row.devices:
        return None
    if isinstance(row.fabric, Torus2D):
        return f"{DRIVER_NAME}/topology{count}_id"
    if isinstance(row.fabric, Ring | Chain) and count in SEGMENT_SIZES and row.fabric.size % count == 0:
        return f"{DRIVER_NAME}/segment{count}_id"
    return None


def _group_attribute(count: int) -> str:
    return f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{count}_id"


def _group(count: int, row: InstanceType | None) -> _Request | None:
    """A connected group as one device; None if nodes have no group of this size, or it is not known whether they do."""
    sized = count in _SIZED_CLASSES
    if (not sized) if row is None else count not in group_sizes(row.fabric):
        return None
    selectors = [] if sized else [f"{_ATTRIBUTE}.size == {count}"]
    request = {
        "name": REQUEST,
        "exactly": _counted(f"group{count if sized else ''}.{DRIVER_NAME}", 1, *selectors, *_of_type(row)),
    }
    differences = [_offered("groups", f"group{count}, or to group for all sizes")]
    if row is None:
        types = ", ".join(name for name, known in INSTANCE_TYPES.items() if count in group_sizes(known.fabric))
        differences.append(f"there are groups of {count} on {types}; the claim cannot be allocated on other nodes")
    return _Request(f"{REQUEST}-group{count}", request, (), tuple(differences))


def _alternatives(name: str, count: int, row: InstanceType) -> _Request:
    """Runs without an attribute: aligned ones first, since they break the fewest larger runs."""
    runs = sorted(row.fabric.usable_sets(count), key=lambda run: (run[0] % count != 0, run[0]))
    tried = runs[: limits.MAX_SUBREQUESTS]
    entries = [{"name": f"from-{run[0]}", **_counted(DRIVER_NAME, count, selector(row), _within(run))} for run in tried]
    left_out = len(runs) - len(tried)
    difference = (
        f"of the {len(runs)} runs of {count} devices on {row.name} the claim tries those that begin at "
        f"{', '.join(str(run[0]) for run in tried)}: Kubernetes allows {limits.MAX_SUBREQUESTS} alternatives "
        "(with --groups any run can be had as one device)"
    )
    return _Request(name, {"name": REQUEST, "firstAvailable": entries}, (), (difference,) * bool(left_out))


def _within(run: IndexSet) -> str:
    return f"{_ATTRIBUTE}.deviceId >= {run[0]} && {_ATTRIBUTE}.deviceId <= {run[-1]}"


def _whole_server(count: int, row: InstanceType) -> dict[str, Any]:
    """All chips of an UltraServer's node, which the driver offers as one device, as chips, or as both."""
    entries = [
        {"name": "node", **_counted(DRIVER_NAME, 1, selector(row, "neuron_node"))},
        {"name": "chips", **_counted(DRIVER_NAME, count, selector(row))},
    ]
    return {"name": REQUEST, "firstAvailable": entries}


def _narrower(count: int, attribute: str | None, row: InstanceType | None) -> tuple[str, ...]:
    """How the attribute is narrower than the extender's choice."""
    if attribute is None:
        return ()
    if row is None:
        types = ", ".join(name for name, known in INSTANCE_TYPES.items() if known.efa_bdfs is not None)
        text = f"{attribute} exists on {types}; the claim cannot be allocated on other nodes (see --instance-type)"
        return (text,)
    if isinstance(row.fabric, Ring | Chain):
        aligned = f"0-{count - 1} and {count}-{2 * count - 1}"
        return (f"any run of {count} devices was possible, such as 1-{count}; the claim gets {aligned} and so on",)
    return ()


def _layout(row: InstanceType | None) -> tuple[str, ...]:
    if row is None or row.ultraserver is None:
        return ()
    return (
        f"UltraServer nodes ({row.name}) offer single devices only with PARTITIONS=chip or chip.node of the driver",
    )


def _common_with_efa(wanted: Wanted, row: InstanceType | None) -> tuple[str | None, str]:
    """The attribute that chips and the EFA devices next to them have in common; "" or what is to be said of it.

    AWS's EFA DRA driver publishes the same ``devicegroupN_id`` (aws-neuron-sdk,
    ``deploy/eks/ultraserver-operator.rst``).
    """
    any_of_node = "the claim gets any EFA devices of the node"
    if wanted.cores:
        return None, f"cores have no attribute in common with EFA devices: {any_of_node}"
    count = wanted.chips
    types = [known for known in ([row] if row else INSTANCE_TYPES.values()) if known.efa_bdfs is not None]
    if count not in GROUP_SIZES or not types:
        where = f"on {row.name}" if row else "without --instance-type"
        return None, f"{where} there is no group of {count} devices with EFA devices of its own: {any_of_node}"
    beside = {known.name: len(set((known.efa_bdfs or ())[:count])) for known in types}
    lacking = [name for name, found in beside.items() if found < wanted.efa]
    if len(lacking) == len(beside):
        most = max(beside.values())
        return None, f"{wanted.efa} EFA devices are more than the {most} next to {count} devices: {any_of_node}"
    text = f"on {', '.join(lacking)} there are fewer than {wanted.efa} EFA devices next to {count} devices"
    return _group_attribute(count), f"{text}: the claim cannot be allocated there" if lacking else ""
