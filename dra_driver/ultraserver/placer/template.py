"""The ResourceClaimTemplate of a workload: what it says, and what is to be done about the one that is there.

Its claims fit on the nodes of the workload only: these, and no others, carry its UID. Its spec never changes, so one
with another spec is deleted and made again; claims that were made from it stay valid. Nobody but the operator may make
a template with the class of workloads, so that one with the right spec is the operator's, whatever has become of its
labels and owners. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects.meta import ApiObject, JsonObject, ObjectMeta, OwnerReference
from dra_driver.kube.objects.resource import GROUP, VERSIONS, v1
from dra_driver.neuron.names import API_VERSIONS, DRIVER_NAME, WORKLOAD_CLASS, WORKLOAD_TAINT, WORKLOAD_UID
from dra_driver.neuron.ultraserver_objects import MAX_NAME_CHARACTERS, ULTRASERVER_WORKLOADS
from dra_driver.ultraserver.placer.workload import Extent, Workload

LABEL: Final = "neuron.aws.com/workload-uid"
"""Of templates: the UID of the workload whose it is. By it the operator finds its own."""
REQUEST: Final = "node"
"""Name of the one request in it."""

NOBODY: Final = "00000000-0000-0000-0000-000000000000"
"""A UID of no workload."""

Step = Literal["make", "patch", "replace", "delete", "wait", "taken"]
"""What is to be done about the template: ``wait`` until it is gone, or nothing, since the name is ``taken``."""


class TemplateRecord(ApiObject, frozen=True):
    """A ResourceClaimTemplate as far as the operator judges it: tenants make as many and as large ones as they like."""

    metadata: ObjectMeta
    """Who it is, its version, the operator's label, and the workload that owns it."""
    digest: str
    """Of its spec."""


class _Received(ApiObject, frozen=True):
    """A ResourceClaimTemplate as it comes; what its author writes as he likes may be nested too deep, or no text."""

    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


_KIND: Final = "ResourceClaimTemplate"
_UNREADABLE: Final = ""
"""Digest of a spec that is nobody's of ours."""


def _record_of(item: _Received, version: str) -> TemplateRecord:
    meta = item.metadata
    return TemplateRecord(
        ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            labels={LABEL: meta.labels[LABEL]} if LABEL in meta.labels else {},
            owner_references=_owner_in_short(meta.owner_references, meta.labels.get(LABEL, "")),
            deletion_timestamp=meta.deletion_timestamp,
        ),
        _digest_of(item.spec, version),
    )


def _owner_in_short(owners: Iterable[OwnerReference], uid: str) -> tuple[OwnerReference, ...]:
    """The workload whose it is, if it has one: that of its label, or the first. Others mean nothing to the operator."""
    workloads = [short for owner in owners if (short := _workload_in_short(owner)) is not None]
    return tuple(sorted(workloads, key=lambda owner: owner.uid != uid)[:1])


def _workload_in_short(owner: OwnerReference) -> OwnerReference | None:
    """The API server bounds none of these texts; who has longer ones is no workload."""
    kind = ULTRASERVER_WORKLOADS
    version = next((version for version in kind.versions if version == owner.api_version), None)
    names = owner.name + owner.uid
    if version is None or owner.kind != kind.kind or len(names) > MAX_NAME_CHARACTERS + len(NOBODY):
        return None
    return msgspec.structs.replace(owner, api_version=version, kind=kind.kind) if names.isascii() else None


def _digest_of(spec: msgspec.Raw, version: str) -> str:
    try:
        return digest_of(v1({"spec": msgspec.json.decode(spec)}, _KIND, version)["spec"])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNREADABLE


def digest_of(spec: Mapping[str, Any]) -> str:
    """The same for specs that say the same; what is empty counts as absent."""
    return sha256(msgspec.json.encode(_full(spec), order="deterministic")).hexdigest()


def _full(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: full for key, item in value.items() if (full := _full(item)) not in (None, {}, [])}
    return [_full(item) for item in value] if isinstance(value, (list, tuple)) else value


def _flat(spec: JsonObject) -> JsonObject:
    """The spec of v1beta1, where a request has the fields itself that ``exactly`` has later."""
    devices = spec["spec"]["devices"]
    requests = [{"name": one["name"], **one["exactly"]} for one in devices["requests"]]
    return {**spec, "spec": {**spec["spec"], "devices": {**devices, "requests": requests}}}


class WrittenTemplate(ApiObject, frozen=True):
    """A ResourceClaimTemplate to create."""

    metadata: ObjectMeta
    spec: Any


def _document(item: WrittenTemplate, version: str) -> JsonObject:
    spec = _flat(item.spec) if version == "v1beta1" else item.spec
    meta = msgspec.to_builtins(item.metadata)
    return {"apiVersion": f"{GROUP}/{version}", "kind": _KIND, "metadata": meta, "spec": spec}


TEMPLATES: Final[Resource[Any]] = Resource(
    TemplateRecord,
    _KIND,
    "resourceclaimtemplates",
    tuple(f"{GROUP}/{version}" for version in VERSIONS),
    _record_of,
    _document,
    _Received,
)


def name_of(workload: Workload) -> str:
    """Of the workload's template: as it asks, else as it is called itself."""
    return workload.wants.template or workload.name


def spec_of(workload: Workload, *, tolerations: bool) -> JsonObject:
    """What the template says.

    Args:
        workload: whose it is.
        tolerations: whether the API server keeps them; where it does not, there are no taints either.
    """
    return {
        "spec": {"devices": {"requests": [_request(workload, tolerations=tolerations)], "config": _config(workload)}}
    }


def _request(workload: Workload, *, tolerations: bool) -> JsonObject:
    mark = f"device.attributes['{DRIVER_NAME}'].{WORKLOAD_UID} == '{workload.uid}'"
    exactly = {
        "deviceClassName": WORKLOAD_CLASS,
        "selectors": [{"cel": {"expression": mark}}],
        "allocationMode": "ExactCount",
        "count": 1,
    }
    own = {"key": WORKLOAD_TAINT, "operator": "Equal", "value": workload.uid, "effect": "NoSchedule"}
    return {"name": REQUEST, "exactly": exactly | ({"tolerations": [own]} if tolerations else {})}


def _config(workload: Workload) -> list[JsonObject]:
    parameters = (
        {"kind": "UltraServerConfig", "ultraserverMode": workload.wants.nodes},
        {"kind": "NeuronConfig", "logicalNeuronCore": workload.wants.core_size},
    )
    return [
        {
            "requests": [REQUEST],
            "opaque": {
                "driver": DRIVER_NAME,
                "parameters": {"apiVersion": API_VERSIONS[0], **one, "workload": workload.uid},
            },
        }
        for one in parameters
    ]


def owner_of(workload: Workload) -> OwnerReference:
    """Without it, the template goes. It holds the workload up in nothing."""
    kind = ULTRASERVER_WORKLOADS
    return OwnerReference(kind.versions[0], kind.kind, workload.name, workload.uid, controller=True)


def template_of(workload: Workload, *, tolerations: bool) -> WrittenTemplate:
    """The template to create."""
    meta = ObjectMeta(
        name=name_of(workload),
        namespace=workload.namespace,
        labels={LABEL: workload.uid},
        owner_references=(owner_of(workload),),
    )
    return WrittenTemplate(meta, spec_of(workload, tolerations=tolerations))


def probe_of(namespace: str) -> WrittenTemplate:
    """A template that is never stored: by the answer one sees whether the API server keeps tolerations."""
    return template_of(_nobody(namespace), tolerations=True)


def keeps_tolerations(answer: TemplateRecord) -> bool | None:
    """What the answer to ``probe_of`` says; None: nothing, since something else of the template was changed."""
    return {digest_of(spec_of(_nobody(), tolerations=keeps)): keeps for keeps in (True, False)}.get(answer.digest)


def _nobody(namespace: str = "") -> Workload:
    return Workload(namespace, "probe", NOBODY, 0.0, Extent("", 1, 1))


def step_to(workload: Workload, record: TemplateRecord | None, *, tolerations: bool | None) -> Step | None:
    """What is to be done about the template of the workload's name; None: it is as it should be.

    Args:
        workload: that has servers, or is being deleted and is to have no template.
        record: the template of that name; None: there is none.
        tolerations: whether the API server keeps them; None: nobody knows, and both are right.
    """
    if record is None:
        return None if workload.ending else "make"
    possible = (True, False) if tolerations is None else (tolerations,)
    is_right = record.digest in {digest_of(spec_of(workload, tolerations=keeps)) for keeps in possible}
    is_owned = owner_of(workload) in record.metadata.owner_references
    if not is_right and not any(owner.uid == workload.uid for owner in record.metadata.owner_references):
        return None if workload.ending else "taken"
    if record.metadata.deletion_timestamp is not None:
        return "wait"
    if workload.ending:
        return "delete"
    if not is_right:
        return "replace"
    return None if is_owned and record.metadata.labels == {LABEL: workload.uid} else "patch"
