"""From the texts of files to typed objects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final

import msgspec

from dra_driver.kube.documents import ManifestError, Origin, documents, items_of, metadata_of, named, type_of
from dra_driver.kube.objects import core, resource, scheduling
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.simulator.cel import compile_for
from dra_driver.simulator.manifests import pods as pods_of
from dra_driver.simulator.manifests import podtemplates, workloads
from dra_driver.simulator.manifests.corevalidation import check_metadata, check_node, check_pod, check_pod_group
from dra_driver.simulator.manifests.fields import BESIDE, KINDS, Kind, convert, unread_left_out
from dra_driver.simulator.manifests.forbidden import forbidden, gated
from dra_driver.simulator.manifests.idle import FINISHED, beyond, idle, waits
from dra_driver.simulator.manifests.model import Key, Manifests, Packed, PodWithClaims
from dra_driver.simulator.manifests.names import MAX_NAMES, generated
from dra_driver.simulator.manifests.podgroups import in_groups
from dra_driver.simulator.manifests.pods import MAX_PODS, pod_notes, unconsidered, with_claims
from dra_driver.simulator.manifests.slicevalidation import check_slice, check_taint_rule
from dra_driver.simulator.manifests.validation import Compile, check_claim, check_class, raise_first
from dra_driver.util.text import escaped, first_of

NAMESPACE: Final = "default"
"""Namespace of objects that do not specify one."""


def read_manifests(
    sources: Sequence[tuple[str, str]],
    kubernetes: str = "1.37",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    namespace: str = NAMESPACE,
    *,
    in_cluster: bool = False,
    resume: bool = False,
) -> Manifests:
    """Read the objects of YAML or JSON texts, each of which may have several documents or Lists.

    What is to be applied is validated as the API server does; objects that refer to each other (templates, classes,
    claims) may be in different texts, so references are checked by ``attempts``. What a cluster holds is taken as it
    is: an object with a UID, and Nodes and slices, which nobody applies, with whatever fields. What is not
    known of them, and objects of kinds that have no pods and no devices, are named in ``not_considered``.

    Args:
        sources: name (for errors) and text of each file.
        kubernetes: the release whose CEL is used.
        progress: called for each object with the number read so far and the total of its document.
        namespace: that of objects that do not specify one.
        in_cluster: whether a cluster holds all of them.
        resume: whether workloads that are suspended or scaled to zero are taken as resumed; those that wait for a
            queue always are.

    Raises:
        ManifestError: invalid input, with file, line and path. DriverError: CEL's parser is not installed.
    """
    reader = _Reader(kubernetes, namespace, in_cluster=in_cluster, resume=resume)
    for file, text in sources:
        has_object = False
        for origin, document in documents(file, text):
            has_object = True
            items = list(items_of(document, origin))
            for done, (item, at) in enumerate(items, 1):
                reader.add(item, at)
                progress(done, len(items))
        if not has_object:
            raise ManifestError(f"{file}: there is no Kubernetes object in it")
    return reader.manifests()


def read_stored(lists: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]) -> Manifests:
    """Convert the objects of a cluster, which the API server has validated.

    Fields of newer releases that the simulator does not know are ignored and named in ``not_considered``, and so are
    objects that cannot be converted: anybody may have made them, and they keep nobody from an answer about the others.

    Args:
        lists: API version, kind, and the objects of that kind as plain values, or ``packed``.

    Raises:
        ManifestError: there are more than ``MAX_PODS`` pods.
    """
    reader = _Reader("", stored=True, in_cluster=True)
    for version, kind, items in lists:
        for item in items:
            whole = item if isinstance(item, Packed) else Packed(item)
            value = {"apiVersion": version, "kind": kind, **whole.plain()}
            try:
                reader.add(value, Origin("the cluster", ""), whole)
            except ManifestError:
                reader.leave_out(kind, value)
    return reader.manifests()


def packed(value: dict[str, Any], kind: str) -> Packed:
    """An object of a cluster without what ``read_stored`` does not use of it.

    Of a pod that has ended, that is all but its name; of one that neither waits nor has claims, what runs in it.
    """
    meta = metadata_of(value)
    value = {**value, "metadata": {name: part for name, part in meta.items() if name != "managedFields"}}
    spec, status = value.get("spec"), value.get("status")
    if kind == "Pod" and isinstance(spec, dict) and isinstance(status, dict):
        if status.get("phase") in pods_of.OVER:
            names = {name: meta[name] for name in ("name", "namespace", "uid") if name in meta}
            return Packed({"metadata": names, "status": {"phase": status["phase"]}})
        if spec.get("nodeName") and not spec.get("resourceClaims") and not status.get("extendedResourceClaimStatus"):
            value["spec"] = unread_left_out(spec)
    return Packed(value)


def read_object(
    value: dict[str, Any], kind: Kind, origin: Origin, unknown: dict[str, None] | None = None
) -> tuple[Any, Origin]:
    """Convert an object in one of its kind's versions to the kind's struct; also returns its origin with its name.

    With ``unknown``, unknown fields are ignored and recorded there; without it they raise ManifestError, as wrong types
    and other versions do.
    """
    group, _, version = str(value.get("apiVersion")).rpartition("/")
    if group != kind.group or version not in kind.versions:
        raise origin.error(
            ("apiVersion",),
            f"{kind.name} of {value.get('apiVersion')!r} is not known",
            remedy=f"write {'/'.join(part for part in (kind.group, kind.versions[0]) if part)}",
        )
    origin = named(value, kind.name, origin)
    return convert(resource.v1(value, kind.name, version), kind.struct, origin, unknown), origin


_NEVER_APPLIED: Final = (core.Node, resource.ResourceSlice)
_GROUPS: Final = frozenset(group for group, _ in (*KINDS, *BESIDE) if "." not in group or group.endswith(".k8s.io"))
"""API groups of Kubernetes: a kind that they do not have is a mistake. Those of others may have any."""


_SLIP: Final = 0.85
"""Similarity (``difflib``) from which a kind is taken for a misspelt one: Config and ConfigMap have 0.8."""


def _has_uid(value: dict[str, Any]) -> bool:
    """Whether an API server has stored the object."""
    return bool(metadata_of(value).get("uid"))


def _owners(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The owners of a stored object."""
    owners = value["metadata"].get("ownerReferences") if _has_uid(value) else None
    return [owner for owner in owners if isinstance(owner, dict)] if isinstance(owners, list) else []


def _is_foreign_slice(value: dict[str, Any]) -> bool:
    spec = value.get("spec")
    return value.get("kind") == "ResourceSlice" and isinstance(spec, dict) and spec.get("driver") != DRIVER_NAME


class _Reader:
    def __init__(
        self,
        kubernetes: str,
        namespace: str = NAMESPACE,
        *,
        stored: bool = False,
        in_cluster: bool = False,
        resume: bool = False,
    ) -> None:
        self._namespace = namespace
        self._kubernetes = kubernetes
        self._stored = stored
        self._in_cluster = in_cluster
        self._resume = resume
        self._unknown: dict[str, None] = {}
        self._objects: dict[type, list[Any]] = {kind.struct: [] for kind in KINDS.values()}
        self._pods: list[PodWithClaims] = []
        self._running: list[PodWithClaims] = []
        self._without_claims: dict[tuple[str, str], str] = {}
        self._origins: dict[Key, Origin] = {}
        self._items: dict[Key, Any] = {}
        self._again: list[str] = []
        self._makers: list[tuple[Any, Origin, dict[str, Any] | Packed]] = []
        self._uids_of_makers: set[str] = set()
        self._made_by_operators: set[str] = set()
        self._count = 0
        self._beside: Counter[str] = Counter()
        self._sizes: dict[tuple[str, str], int] = {}
        self._unconsidered: dict[str, list[str]] = {}

    def manifests(self) -> Manifests:
        for owner, origin, whole in self._makers:
            value = whole.plain() if isinstance(whole, Packed) else whole
            if (number := self._sizes.get((str(value.get("kind")), owner.metadata.name))) is not None:
                value = podtemplates.resized(value, number)
                owner = self._read_again(owner, value, origin)  # noqa: PLW2901 # the same one, of another size
            if _has_uid(value) and str(value["metadata"]["uid"]) in self._uids_of_makers:
                self._unconsidered.setdefault("the objects that it creates are given, too", []).append(origin.subject)
            elif self._has_pods(value, origin):
                self._add_pods(owner, origin, value, whole)
        absent = self._sizes.keys() - {(kind, name) for kind, _, name in self._origins}
        for kind, name in sorted(absent):
            self._unconsidered.setdefault("pods of an object that is not given", []).append(f"{kind} {name}"[:80])
        objects = self._objects
        beside = [f"{kind}: {count}" for kind, count in sorted(self._beside.items())]
        parts = [f"{text}: {first_of(names, MAX_NAMES)}" for text, names in self._unconsidered.items()]
        if self._again:
            parts.append(f"given again, with the same content: {first_of(self._again, MAX_NAMES)}")
        manifests = Manifests(
            nodes=tuple(objects[core.Node]),
            slices=tuple(objects[resource.ResourceSlice]),
            taint_rules=tuple(objects[resource.DeviceTaintRule]),
            classes=tuple(objects[resource.DeviceClass]),
            templates=tuple(objects[resource.ResourceClaimTemplate]),
            claims=tuple(objects[resource.ResourceClaim]),
            pod_groups=tuple(objects[scheduling.PodGroup]),
            pods=tuple(map(self._with_operator, self._pods)),
            running=tuple(self._running),
            beside=self._without_claims,
            not_considered=(*parts, *beside, *(f"field {escaped(name)}" for name in self._unknown)),
            origins=self._origins,
        )
        return in_groups(manifests)

    def _read_again(self, owner: Any, value: dict[str, Any], origin: Origin) -> Any:
        group, kind = str(value["apiVersion"]).rpartition("/")[0], str(value["kind"])
        row = KINDS.get((group, kind))
        item: Any = (
            podtemplates.read(value, group, kind, origin, self._unknown, in_cluster=True)
            if row is None
            else read_object(value, row, origin, self._unknown)[0]
        )
        return msgspec.structs.replace(item, metadata=owner.metadata)

    def _with_operator(self, pod: PodWithClaims) -> PodWithClaims:
        makes = any(reference.template in self._made_by_operators for reference in pod.claims)
        return replace(pod, by_operator=True) if makes else pod

    def add(self, value: dict[str, Any], origin: Origin, whole: Packed | None = None) -> None:
        """Add an object; ``whole``, which a cluster's has, is remembered in its place."""
        version, name = type_of(value, origin)
        group = version.rpartition("/")[0]
        kind = KINDS.get((group, name))
        makes_pods = pods_of.makes_pods(kind.struct) if kind is not None else bool(podtemplates.find(value, origin))
        if makes_pods:
            self._note_controllers(value)
        if kind is not None:
            self._add_builtin(value, kind, origin, whole)
        elif (group, name) in BESIDE or not self._add_custom(value, group, name, origin):
            self._beside[name[:60]] += 1

    def leave_out(self, kind: str, value: dict[str, Any]) -> None:
        """Name an object that cannot be read."""
        names = (str(metadata_of(value).get(key) or "") for key in ("namespace", "name"))
        self._unconsidered.setdefault(f"{kind} that cannot be read", []).append("/".join(filter(None, names)))

    def _has_pods(self, value: dict[str, Any], origin: Origin) -> bool:
        """Whether the object as a whole makes pods, or is taken as resumed; a note says that it makes none now."""
        state = idle(value)
        taken = self._resume or (state != FINISHED and waits(value))
        if state:
            self._note_idle(state, origin.subject, taken=taken)
        return taken or not state

    def _note_idle(self, state: str, what: str, *, taken: bool) -> None:
        text = f"{state}, taken as resumed" if taken else f"{state}, so it makes no pods (--resume takes it as resumed)"
        self._unconsidered.setdefault(text, []).append(what)

    def _scales_up(self, value: dict[str, Any]) -> bool:
        """Whether what is scaled to zero is taken as resumed: not if another object says how large it is."""
        return self._resume and not any(owner.get("controller") is True for owner in _owners(value))

    def _note_controllers(self, value: dict[str, Any]) -> None:
        """Remember what has made stored pods, or what makes them, and so needs to make nothing.

        A Pod stays: LeaderWorkerSet's leader owns the StatefulSet of its workers.
        """
        for owner in _owners(value):
            # A Deployment keeps the ReplicaSets of its old revisions.
            is_old = value.get("kind") == "ReplicaSet" and podtemplates.at(value, ("spec", "replicas")) == 0
            if owner.get("controller") is True and owner.get("kind") != "Pod" and not is_old:
                self._uids_of_makers.add(str(owner.get("uid")))

    def _add_builtin(self, value: dict[str, Any], kind: Kind, origin: Origin, whole: Packed | None) -> None:
        in_cluster = self._in_cluster or _has_uid(value)
        lenient = in_cluster or kind.struct in _NEVER_APPLIED
        try:
            item, origin = read_object(value, kind, origin, self._unknown if lenient else None)
        except ManifestError:
            version = str(value["apiVersion"]).rpartition("/")[2]
            is_older = version not in kind.versions
            if _is_foreign_slice(value) and (in_cluster or is_older):
                self._beside["ResourceSlice of another driver that cannot be read"] += 1
            elif (
                is_older
                and ("alpha" in version or "beta" in version)
                and "neuron" not in json.dumps(value, default=str).lower()
            ):
                self._beside[f"{kind.name} of {value['apiVersion'][:60]}, without Neuron"] += 1
            else:
                raise
            return
        self._add(item, kind, origin, value, whole)

    def _add_custom(self, value: dict[str, Any], group: str, name: str, origin: Origin) -> bool:
        """Add an object of a kind that is known by its pod templates alone; returns whether it has any.

        Raises ManifestError for one that looks like a misspelt kind of Kubernetes, in what is to be applied.
        """
        shown = name[:60]
        origin = named(value, name, origin)
        in_cluster = self._in_cluster or _has_uid(value)
        self._made_by_operators.update(podtemplates.claim_templates(value))
        if (size := podtemplates.size_of_another(value, group, name)) is not None and not in_cluster:
            self._sizes[size.kind, size.name] = self._sizes.get((size.kind, size.name), 0) + size.number
            return True
        try:
            resume = self._scales_up(value)
            item = podtemplates.read(value, group, name, origin, self._unknown, in_cluster=in_cluster, resume=resume)
            for path, spec in pods_of.pod_specs(item) if item is not None else ():
                check_pod(spec, origin, path)
        except ManifestError:
            # Of a kind that is not known, even what looks like a pod template may be none, or may be filled in later.
            if not in_cluster and ((group, name) in podtemplates.KNOWN or podtemplates.asks(value, origin)):
                raise
            self._beside[f"{shown} with a pod template that cannot be read"] += 1
            return True
        if item is not None:
            self._add(item, Kind(shown, group, (), workloads.CustomWorkload), origin, value)
        elif group in _GROUPS and not self._in_cluster and not _has_uid(value):
            kinds = (*KINDS, *BESIDE)
            meant = get_close_matches(name, [kind for at, kind in kinds if at == group], n=1, cutoff=_SLIP)
            meant += [kind for at, kind in kinds if at == group and kind.lower() == name.lower()]
            meant += [f"{kind} of {at or 'v1'}" for at, kind in kinds if kind == name]
            if meant:
                what = f"{value['apiVersion'][:60]} has no kind {shown!r} that is known here"
                raise origin.error(("kind",), what, remedy=f"did you mean {meant[0]}?")
        return item is not None

    def _identified(self, item: Any, kind: Kind, origin: Origin) -> Any:
        """The object with its name and namespace; None if it was read before, in whatever version.

        Raises ManifestError if it has no name, or if another object has its name.
        """
        meta: ObjectMeta = item.metadata
        name, namespace = meta.name, (meta.namespace or self._namespace) if kind.namespaced else ""
        if not name:
            if not meta.generate_name:
                raise origin.error(("metadata",), "name is required")
            name = generated(meta.generate_name, str(len(self._origins)))
        key = (kind.name, namespace, name)
        meta = msgspec.structs.replace(meta, name=name, namespace=namespace)
        with_name = msgspec.structs.replace(item, metadata=meta)
        if key in self._origins:
            if with_name == self._items[key]:
                self._again.append(f"{kind.name} {name} ({origin.file})")
                return None
            before = self._origins[key]
            raise origin.error(
                ("metadata", "name"), f"{kind.name} {name} is defined twice, differently in {before.file}"
            )
        subject = f"{kind.name} {namespace}/{name}" if namespace else f"{kind.name} {name}"
        self._origins[key] = origin.at(origin.path, subject)
        self._items[key] = with_name
        return with_name

    def _add(self, item: Any, kind: Kind, origin: Origin, value: dict[str, Any], whole: Packed | None = None) -> None:
        if self._stored and isinstance(item, core.Pod):
            item = pods_of.in_short(item)
        item = self._identified(item, kind, origin)
        if item is None:
            return
        origin = self._origins[kind.name, *item.metadata.key]
        if not self._stored and not _has_uid(value):
            self._check(item, value, kind, origin)
        for text in gated(value) if kind.group == resource.GROUP else ():
            self._unconsidered.setdefault(text, []).append(f"{kind.name} {item.metadata.name}")
        if pods_of.makes_pods(kind.struct):
            for text in beyond(value):
                self._unconsidered.setdefault(text, []).append(f"{kind.name} {item.metadata.name}")
            self._makers.append((item, origin, value if whole is None else whole))
        else:
            self._objects[kind.struct].append(item)

    def _check(self, item: Any, value: Mapping[str, Any], kind: Kind, origin: Origin) -> None:
        check_metadata(item.metadata, origin)
        version = str(value["apiVersion"]).rpartition("/")[2]
        specs = list(pods_of.pod_specs(item))
        raise_first(forbidden(value, kind.name, version, (path for path, _ in specs)), origin, ())
        for path, spec in specs:
            check_pod(spec, origin, path)
        if isinstance(item, resource.DeviceClass):
            check_class(item, origin, self._compile)
        elif isinstance(item, resource.ResourceClaim):
            check_claim(item.spec.devices, origin, ("spec",), self._compile)
        elif isinstance(item, resource.ResourceClaimTemplate):
            check_metadata(item.spec.metadata, origin, ("spec", "metadata"))
            check_claim(item.spec.spec.devices, origin, ("spec", "spec"), self._compile)
        elif isinstance(item, resource.ResourceSlice):
            check_slice(item, origin)
        elif isinstance(item, resource.DeviceTaintRule):
            check_taint_rule(item, origin)
        elif isinstance(item, core.Node):
            check_node(item, origin)
        elif isinstance(item, scheduling.PodGroup):
            check_pod_group(item, origin)

    @cached_property
    def _compile(self) -> Compile:
        """Made when it is needed: CEL's parser may not be installed."""
        return compile_for(self._kubernetes)

    def _add_pods(self, owner: Any, origin: Origin, value: dict[str, Any], whole: Mapping[str, Any]) -> None:
        resume = self._scales_up(value)
        if resume or not _owners(value):
            for part, state in pods_of.without_pods(owner, owner.metadata.namespace, origin):
                self._note_idle(state, f"{origin.subject} ({part})" if part else origin.subject, taken=resume)
        is_counted = not isinstance(owner, workloads.CustomWorkload)
        others_ask = not self._stored and podtemplates.any_asks(value, origin)
        for pod in pods_of.pods(owner, owner.metadata.namespace, origin, least=int(resume)):
            if pod.ended:
                self._unconsidered.setdefault("Pod that has ended", []).append(f"{pod.namespace}/{pod.name}")
                continue
            self._count += 1
            if self._count > MAX_PODS:
                raise origin.error((), f"this object and those before it make more than {MAX_PODS} pods")
            try:
                consumer = with_claims(pod, value)
            except ManifestError:
                if not self._stored:
                    raise
                self.leave_out("Pod", value)
                continue
            consumer = consumer if is_counted or not pod.assumed else replace(consumer, by_operator=True)
            if isinstance(whole, Packed):
                consumer = replace(consumer, written=whole if consumer.waits else {"metadata": {"uid": consumer.uid}})
            notes = unconsidered(pod) if consumer.waits else ()
            if not self._stored:  # In a cluster, most pods have no claims, and nobody asks about them.
                in_cluster = self._in_cluster or _has_uid(value)
                notes = pod_notes(consumer, notes, in_cluster=in_cluster, others_ask=others_ask)
            self._add_pod(consumer, notes)

    def _add_pod(self, pod: PodWithClaims, notes: Iterable[str]) -> None:
        if pod.waits:
            self._pods.append(pod)
        elif pod.spec.node_name:
            self._running.append(pod)
        for text in notes:
            if not pod.waits:
                self._without_claims[pod.namespace, pod.name] = text
            self._unconsidered.setdefault(text, []).append(f"{pod.namespace}/{pod.name}")
