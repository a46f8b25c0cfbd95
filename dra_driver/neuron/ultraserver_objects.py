"""UltraServers as objects of the API server, and the workloads that get them: AWS's kinds, with AWS's fields.

``NeuronUltraServer`` is written by the placer, in the driver's namespace. ``NeuronUltraServerWorkload`` is written by
tenants, its status by the placer. So whatever is kept of either has bounds (``in_short``): a tenant may make many, each
of which has 1.5 MB, and a definition of somebody else's may have none of the bounds of ours
(``ultraserver.definitions``).

What the API server requires has a default here all the same, and is always written: an object that lacks it does not
keep the others from being read.

Sources: the definitions of AWS's chart (aws-neuron/neuron-helm-charts, ``templates/ultraserver-operator``) and
aws-neuron-sdk ``deploy/eks/ultraserver-operator``.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta, ObservedCondition

T = TypeVar("T")

GROUP: Final = "neuron.aws.com"
VERSIONS: Final = ("v1beta1", "v1")
"""The first is stored, and the only one of AWS's definitions; AWS's documents write the other. They are the same."""

FINALIZER: Final = "neuron.aws.com/ultraserver"
"""On both kinds: whoever deletes such an object waits until what was allocated is given back."""
WORKLOAD_UIDS: Final = "neuron.aws.com/workload-uids"
"""Annotation of a NeuronUltraServer: ``namespace/name`` of each workload in ``status.allocations`` to its UID, as JSON,
since an allocation has no field for it."""
RELEASED_MARKS: Final = "neuron.aws.com/released-marks"
"""Annotation of a NeuronUltraServer: by node, the UIDs of workloads that live and had it reserved and taken back, each
with the Unix time, as JSON: its driver may say for a while that the node is that one's."""
LEFT_OUT: Final = "neuron.aws.com/left-out"
"""Annotation of a NeuronUltraServer: nodes that said that they were a workload's, and were not, each with the workload
as ``namespace/name UID``, as JSON. They get nothing until somebody removes the annotation."""
ACCEPTED_SPEC: Final = "neuron.aws.com/accepted-spec"
"""Annotation of a NeuronUltraServerWorkload: the ``spec`` that servers are allocated for, as JSON."""

BOUND: Final = "Bound"
"""The phase of an allocation whose workload has all its servers; before it is ``Pending``."""

MAX_NAME_CHARACTERS: Final = 253
"""Of the name of an object, and of an instance type."""
MAX_WORD_CHARACTERS: Final = 1024
"""Of a condition's type and reason, and of other words."""
MAX_TEXT_CHARACTERS: Final = 4096
"""Of a condition's message, and of an annotation."""
MAX_NOTE_CHARACTERS: Final = 4 * MAX_TEXT_CHARACTERS
"""Of an annotation of a server, which no tenant writes."""
MAX_CONDITIONS: Final = 32
MAX_FINALIZERS: Final = 100
"""Of a server."""
OVERHEAD: Final = 64
"""Bytes that each text takes beside its characters."""
MAX_WORKLOAD_FINALIZERS_SIZE: Final = 2048
"""Of all finalizers of a workload; see ``_size``."""
OTHERS: Final = ""
"""Among the finalizers of a workload: stands for those that are not kept. Who changes some writes all of them."""
MAX_ACCEPTED_SPEC_SIZE: Final = 2048
"""The placer's own has an instance type of a node, of at most 63 characters, and the name of a template."""
MAX_COMPARED_SIZE: Final = 256
"""Of a text that is only compared: of a longer one a digest is kept."""
MAX_STRATEGY_CHARACTERS: Final = 61
"""One more than is shown of what is none."""
MAX_WORKLOAD_CONDITIONS: Final = 12
"""The placer writes fewer."""
MAX_RECORDED: Final = 128
MAX_RECORDED_SIZE: Final = 4096
"""Of the names of a workload's servers in its status: what comes after these is only compared."""
MAX_MANAGERS: Final = 64
MAX_MEMBERS: Final = 64
"""Of a server, of which the largest have four; and so of the allocations of one, and of the nodes of each of these."""


class FieldManager(ApiObject, frozen=True):
    """``metadata.managedFields[]`` without the fields: who has written the object, or its ``status``."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""


class UltraServerMeta(ObjectMeta, frozen=True, kw_only=True):
    """``metadata`` of both kinds; the generation counts changes of ``spec``."""

    generation: int = 0
    managed_fields: tuple[FieldManager, ...] = ()


# Servers


class ServerMember(ApiObject, frozen=True, omit_defaults=False):
    """``spec.topology[]``: a node, its position in the mesh, and whether its links are ``up`` or ``down``."""

    node_name: str = ""
    node_id: int = 0
    link_status_horizontal: str = ""
    link_status_vertical: str = ""


class UltraServerSpec(ApiObject, frozen=True, omit_defaults=False):
    """``spec``; the instance type never changes."""

    instance_type: str = ""
    topology: tuple[ServerMember, ...] = ()


class Allocation(ApiObject, frozen=True, omit_defaults=False):
    """``status.allocations[]``: a workload's nodes of this server.

    The rank of a node is ``ultraserver_index * node_count`` plus its position among ``allocated_nodes``, which are in
    the order of the kernel's ids for a set of so many nodes.
    """

    workload_ref: str = ""
    """``namespace/name``: see ``WORKLOAD_UIDS``."""
    allocated_nodes: tuple[str, ...] = ()
    node_count: int = 0
    leader_node_name: str = ""
    """The node of rank 0 of the workload, whichever server it is of."""
    ultraserver_index: int = 0
    """Which one of the workload's servers this is, from 0."""
    phase: str = ""
    """``Pending`` (reserved) or ``Bound``."""
    allocated_at: str = ""


class UltraServerStatus(ApiObject, frozen=True, omit_defaults=False):
    """``status``; a server without allocations is free."""

    state: str = ""
    """``Ready`` or ``Degraded``."""
    observed_generation: int = 0
    conditions: tuple[ObservedCondition, ...] = ()
    """Ready, Degraded, Allocated."""
    allocations: tuple[Allocation, ...] = ()


class NeuronUltraServer(ApiObject, frozen=True):
    """An UltraServer."""

    metadata: UltraServerMeta
    spec: UltraServerSpec = UltraServerSpec()
    status: UltraServerStatus = UltraServerStatus()

    @property
    def in_short(self) -> NeuronUltraServer:
        """The server as far as the placer makes it."""
        spec, status = self.spec, self.status
        return NeuronUltraServer(
            _meta_in_short(self.metadata, MAX_NOTE_CHARACTERS, WORKLOAD_UIDS, RELEASED_MARKS, LEFT_OUT),
            UltraServerSpec(_name(spec.instance_type), tuple(map(_member_in_short, spec.topology[:MAX_MEMBERS]))),
            UltraServerStatus(
                _word(status.state),
                status.observed_generation,
                _conditions_in_short(status.conditions),
                tuple(map(_allocation_in_short, status.allocations[:MAX_MEMBERS])),
            ),
        )


def workload_uids(server: NeuronUltraServer) -> dict[str, str]:
    """The UID of each workload in its status, by ``namespace/name``, as far as it says."""
    return _note(server, WORKLOAD_UIDS, dict[str, str])


def released_marks(server: NeuronUltraServer) -> dict[str, dict[str, float]]:
    """By node and UID: see ``RELEASED_MARKS``."""
    return _note(server, RELEASED_MARKS, dict[str, dict[str, float]])


def left_out(server: NeuronUltraServer) -> dict[str, str]:
    """By node: see ``LEFT_OUT``."""
    return _note(server, LEFT_OUT, dict[str, str])


def _note(server: NeuronUltraServer, name: str, kind: type[dict[str, T]]) -> dict[str, T]:
    """An annotation; nothing if it is not there, or not what the placer writes."""
    try:
        return msgspec.json.decode(server.metadata.annotations.get(name) or "{}", type=kind)
    except (msgspec.DecodeError, RecursionError):
        return {}


# Workloads


class AllocationPolicy(ApiObject, frozen=True, omit_defaults=False):
    """``spec.allocationPolicy``: what happens when an allocated node becomes unavailable."""

    failure_strategy: str = "NoOp"
    """``NoOp``, ``RestartAll`` or ``MigrateAffected``."""


class WorkloadConfig(ApiObject, frozen=True, omit_defaults=False):
    """``spec.config``: of the claims."""

    logical_neuron_core: int = 2


class TemplateName(ApiObject, frozen=True, omit_defaults=False):
    """``spec.resourceClaimTemplate``: what the template is called that is made for the workload."""

    name: str = ""
    """"": as the workload."""


class WorkloadSpec(ApiObject, frozen=True):
    """``spec``: so many servers of a type, and how many nodes of each."""

    instance_type: str = ""
    server_count: int = 0
    """As large as 64 bits can say, whatever a cluster has."""
    topology_size: int = 0
    """1, 2 or 4; the API server takes 3 as well."""
    allocation_policy: AllocationPolicy = AllocationPolicy()
    config: WorkloadConfig = WorkloadConfig()
    resource_claim_template: TemplateName = TemplateName()


class WorkloadStatus(ApiObject, frozen=True, omit_defaults=False):
    """``status``."""

    state: str = "Pending"
    """Pending, Allocating, Allocated, PartiallyAllocated, Failed or Deallocating."""
    allocated_ultra_servers: tuple[str, ...] = ()
    """Names of ``NeuronUltraServer`` objects, in the order of ``ultraserverIndex``."""
    allocated_at: str | None = None
    observed_generation: int = 0
    conditions: tuple[ObservedCondition, ...] = ()
    """Ready, Progressing, Degraded."""

    @property
    def in_short(self) -> WorkloadStatus:
        """The status as far as the placer needs it of what it wrote: two have the same only if they are the same."""
        return WorkloadStatus(
            _compared(self.state),
            servers_in_short(self.allocated_ultra_servers),
            self.allocated_at and _compared(self.allocated_at),
            self.observed_generation,
            tuple(map(_condition_in_short, self.conditions[:MAX_WORKLOAD_CONDITIONS])),
        )


class NeuronUltraServerWorkload(ApiObject, frozen=True):
    """What a tenant asks for."""

    metadata: UltraServerMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def in_short(self) -> NeuronUltraServerWorkload:
        """The workload as far as it can mean something: names that are longer are those of nothing."""
        meta, spec = self.metadata, self.spec
        accepted = meta.annotations.get(ACCEPTED_SPEC, "")
        return NeuronUltraServerWorkload(
            UltraServerMeta(
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                annotations={ACCEPTED_SPEC: accepted} if accepted and _size(accepted) <= MAX_ACCEPTED_SPEC_SIZE else {},
                finalizers=_finalizers_in_short(meta.finalizers),
                deletion_timestamp=meta.deletion_timestamp,
                creation_timestamp=meta.creation_timestamp,
                generation=meta.generation,
            ),
            replace(
                spec,
                instance_type=_name(spec.instance_type),
                allocation_policy=AllocationPolicy(spec.allocation_policy.failure_strategy[:MAX_STRATEGY_CHARACTERS]),
                resource_claim_template=TemplateName(_name(spec.resource_claim_template.name)),
            ),
            self.status.in_short,
        )


def servers_in_short(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a workload's servers, or the first of them with one that is none and stands for all."""
    if len(names) <= MAX_RECORDED and sum(map(_size, names)) <= MAX_RECORDED_SIZE:
        return names
    digest = sha256(msgspec.json.encode(names)).hexdigest()
    most, size = [], 0
    for name in names[: MAX_RECORDED - 1]:
        size += _size(name)
        if size > MAX_RECORDED_SIZE:
            break
        most.append(name)
    return (*most, digest)


# Bounds


def _name(text: str) -> str:
    """One character more is kept than a name can have, so that what was cut off is none."""
    return text[: MAX_NAME_CHARACTERS + 1]


def _word(text: str) -> str:
    return text[:MAX_WORD_CHARACTERS]


def _size(text: str) -> int:
    """Bytes that it takes at most: CPython keeps up to four of each character as soon as one is not ASCII."""
    return len(text) if text.isascii() else 4 * len(text)


def _compared(text: str) -> str:
    return text if _size(text) <= MAX_COMPARED_SIZE else sha256(text.encode(errors="surrogatepass")).hexdigest()


def _condition_in_short(condition: ObservedCondition) -> ObservedCondition:
    return replace(
        condition,
        type=_compared(condition.type),
        status=_compared(condition.status),
        reason=_compared(condition.reason),
        message=_compared(condition.message),
        last_transition_time=_compared(condition.last_transition_time),
    )


def _finalizers_in_short(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    if sum(_size(one) + OVERHEAD for one in finalizers) <= MAX_WORKLOAD_FINALIZERS_SIZE:
        return finalizers
    return (FINALIZER, OTHERS) if FINALIZER in finalizers else (OTHERS,)


def _meta_in_short(meta: UltraServerMeta, most: int, *annotations: str) -> UltraServerMeta:
    notes = {name: meta.annotations[name][:most] for name in annotations if name in meta.annotations}
    return UltraServerMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations=notes,
        finalizers=meta.finalizers[: MAX_FINALIZERS + 1],
        deletion_timestamp=meta.deletion_timestamp,
        creation_timestamp=meta.creation_timestamp,
        generation=meta.generation,
        managed_fields=tuple(map(_manager_in_short, meta.managed_fields[:MAX_MANAGERS])),
    )


def _manager_in_short(entry: FieldManager) -> FieldManager:
    return FieldManager(_word(entry.manager), _word(entry.operation), _word(entry.subresource))


def _member_in_short(member: ServerMember) -> ServerMember:
    return ServerMember(
        _name(member.node_name),
        member.node_id,
        _word(member.link_status_horizontal),
        _word(member.link_status_vertical),
    )


def _allocation_in_short(allocation: Allocation) -> Allocation:
    return replace(
        allocation,
        workload_ref=_word(allocation.workload_ref),
        allocated_nodes=tuple(map(_name, allocation.allocated_nodes[:MAX_MEMBERS])),
        leader_node_name=_name(allocation.leader_node_name),
        phase=_word(allocation.phase),
        allocated_at=_word(allocation.allocated_at),
    )


def _conditions_in_short(conditions: Iterable[ObservedCondition]) -> tuple[ObservedCondition, ...]:
    return tuple(
        replace(
            condition,
            type=_word(condition.type),
            status=_word(condition.status),
            reason=_word(condition.reason),
            message=condition.message[:MAX_TEXT_CHARACTERS],
            last_transition_time=_word(condition.last_transition_time),
        )
        for condition in tuple(conditions)[:MAX_CONDITIONS]
    )


# Where they are served

_GROUP_VERSIONS: Final = tuple(f"{GROUP}/{version}" for version in VERSIONS)
_WITHOUT_DEFINITIONS: Final = (
    "no UltraServer is allocated to a workload",
    "install the CustomResourceDefinitions: ultraserverOperator.enabled in the chart, or --ultraserver-operator",
)

ULTRASERVERS: Final = Resource(
    NeuronUltraServer,
    "NeuronUltraServer",
    "neuronultraservers",
    _GROUP_VERSIONS,
    lambda item, _: item.in_short,
    None,
    NeuronUltraServer,
    _WITHOUT_DEFINITIONS,
)
ULTRASERVER_WORKLOADS: Final = Resource(
    NeuronUltraServerWorkload,
    "NeuronUltraServerWorkload",
    "neuronultraserverworkloads",
    _GROUP_VERSIONS,
    lambda item, _: item.in_short,
    None,
    NeuronUltraServerWorkload,
    _WITHOUT_DEFINITIONS,
)
