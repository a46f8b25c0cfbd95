"""From texts to objects: which of them contain pod specs, what becomes of these, and what is passed through unchanged.

Pod specs are found wherever they are, in kinds of Kubernetes and of any operator.

``unchanged`` makes the DeviceClasses by which Kubernetes 1.36 and later serves limits from DRA devices. The scheduler
itself creates a claim for such a pod: a number of devices of the class, without constraints. They are chips or cores of
one node, but chips are connected only if one or all are requested, and cores may be of several chips. Source:
Kubernetes enhancement 5004.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.kube.documents import children, documents, items_of, metadata_of, named, type_of
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.core import PodSpec
from dra_driver.legacy.annotations import POD_KEYS
from dra_driver.legacy.migration.claims import Template, selector
from dra_driver.legacy.migration.container_settings import SET_IN_TEXT
from dra_driver.legacy.migration.limits import (
    RESOURCES,
    Nodes,
    Path,
    Place,
    Warnings,
    Wishes,
    chosen_types,
    devices_of_limits,
    places,
)
from dra_driver.legacy.migration.mentions import host_paths, mentions, specified, spoken_of, variables
from dra_driver.legacy.migration.pods import BYPASSES, SECOND_SCHEDULER, migrate_spec
from dra_driver.legacy.rules import RETIRED_DEVICE, NeuronResource
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.simulator.manifests import NAMESPACE, ManifestError, Origin, podtemplates
from dra_driver.simulator.manifests.fields import BESIDE, KINDS, convert
from dra_driver.simulator.manifests.pods import makes_pods
from dra_driver.simulator.manifests.unasked import CHANGED, VARIABLES, asks, unasked

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of a migration."""

    documents: tuple[Json, ...]
    """Each template before the first object that needs it; everything else in its order."""
    changed: int
    """Number of objects that were given claims."""
    warnings: tuple[str, ...]
    """What differs from before, with file, line and path."""
    left: tuple[str, ...] = ()
    """Where Neuron resources are named and nothing was converted, likewise."""


def objects(sources: Sequence[tuple[str, str]]) -> Iterator[tuple[Json, Origin]]:
    """The objects in some texts, given with their names; Lists are expanded. Raises ManifestError."""
    for file, text in sources:
        found = False
        for origin, document in documents(file, text):
            for item, at in items_of(document, origin):
                found = True
                _, kind = type_of(item, at)
                yield _plain(item, at), named(item, kind, at)
        if not found:
            raise ManifestError(f"{file}: there is no Kubernetes object in it")


def pod_specs(item: Json, origin: Origin, warnings: Warnings) -> tuple[Path, ...]:
    """Paths of the pod specs in an object that may have limits of Neuron resources.

    Raises:
        ManifestError: an invalid field of a kind of Kubernetes, or of such a pod spec of another kind.
    """
    version, kind = item["apiVersion"], item["kind"]
    group = version.rpartition("/")[0]
    if (group, kind) in BESIDE:
        return ()
    known = KINDS.get((group, kind))
    if known is not None and version.rpartition("/")[2] in known.versions:
        if not makes_pods(known.struct):
            return ()
        # A live object may have fields of newer releases.
        convert(item, known.struct, origin, {} if metadata_of(item).get("uid") else None)
        return podtemplates.find(item, origin)
    templates = podtemplates.find(item, origin)
    among = frozenset(templates)
    used: set[Path] = set()
    for limit in _limits(item):
        used.update(limit[:length] for length in range(len(limit)) if limit[:length] in among)
    found = tuple(path for path in templates if path in used)
    is_counted = (group, kind) in podtemplates.KNOWN
    is_strict = is_counted and not metadata_of(item).get("uid")
    for path in found:
        at = origin.at((*origin.path, *path), origin.subject)
        convert(podtemplates.at(item, path), PodSpec, at, None if is_strict else {})
        _warn_of_kind(item, path, origin, warnings, is_known=is_counted or known is not None)
    return found


def _limits(item: Json) -> Iterator[Path]:
    """Paths of limits and requests of Neuron resources anywhere in what the user has specified."""
    for path, _ in specified(item):
        if path[-1] in RESOURCES and path[-2:-1] in (("limits",), ("requests",)):
            yield path


def _warn_of_kind(item: Json, path: Path, origin: Origin, warnings: Warnings, *, is_known: bool) -> None:
    kind = item["kind"][:60]
    within = (podtemplates.at(item, path[:length]) for length in range(1, len(path)))
    if any(isinstance(each, dict) and {"apiVersion", "kind"} <= each.keys() for each in within):
        text = f"this is an object within {kind}: put the ResourceClaimTemplate where that object goes"
        warnings.add(origin, path, text)
    elif not is_known:
        text = (
            f"the controller that creates the pods of {kind} must keep their resourceClaims, and the "
            "ResourceClaimTemplate must be in the pods' namespace"
        )
        warnings.add(origin, path, text)


def migrate(sources: Sequence[tuple[str, str]], nodes: Nodes, wishes: Wishes | None = None) -> Migration:
    """Replace limits by claims.

    Args:
        sources: name (for errors) and text (YAML or JSON) of each file.
        nodes: for pods that do not choose their nodes.
        wishes: what claims are to be made of.

    Raises:
        ManifestError: invalid input, with file, line and path. NotPossibleError: what claims cannot express, likewise.
    """
    work = _Work(nodes, wishes or Wishes())
    for item, origin in objects(sources):
        work.add(item, origin)
    return Migration(tuple(work.documents), work.changed, work.warnings.texts(), tuple(work.left))


@dataclass(slots=True)
class _Work:
    nodes: Nodes
    wishes: Wishes
    documents: list[Json] = field(default_factory=list)
    changed: int = 0
    warnings: Warnings = field(default_factory=Warnings)
    left: list[str] = field(default_factory=list)
    templates: dict[tuple[str, str], Json] = field(default_factory=dict)
    """By namespace and name: created, or from the files."""

    def add(self, item: Json, origin: Origin) -> None:
        made = item
        found = pod_specs(item, origin, self.warnings)
        self._name(item, origin)
        for path in found:
            spec = podtemplates.at(item, path)
            migrated = migrate_spec(spec, origin, path, self.nodes, self.wishes, self.warnings)
            if migrated is not None:
                made = _replaced(made, path, migrated.spec)
                for each in migrated.templates:
                    self._need(each, metadata_of(item).get("namespace"), origin)
        if made is not item:
            self.changed += 1
            made = _without_stale(made)
        made = self._as_new(made, origin)
        if item["kind"] == "ResourceClaimTemplate":
            self._keep_template(item, origin)
        else:
            self.documents.append(made)

    def _name(self, item: Json, origin: Origin) -> None:
        """Where Neuron is asked for, used or spoken of, and nothing is converted."""
        templates = podtemplates.find(item, origin)
        mentioned = list(mentions(item, templates))
        for path in mentioned:
            if text := spoken_of(item, path):
                self.warnings.add(origin, path, text)
            elif _may_ask(item):
                self.left.append(origin.located(path, _NOT_CONVERTED))
        used = [*_unasked(item, templates), *(host_paths(item, templates) if _may_ask(item) else ())]
        if _may_ask(item):
            is_asked = bool(mentioned) or item["kind"] == "ConfigMap" or podtemplates.any_asks(item, origin)
            if is_asked:
                for path in variables(item, templates, CHANGED):
                    self.warnings.add(origin, path, SET_IN_TEXT)
            else:
                used += variables(item, templates, VARIABLES)
        self.left += (origin.located(path, _NOT_ASKED) for path in used)

    def _as_new(self, item: Json, origin: Origin) -> Json:
        """Without what only an API server writes, if one has written the object."""
        metadata = metadata_of(item)
        if "uid" not in metadata:
            return item
        if metadata.get("ownerReferences") and item["kind"] in ("Pod", "ReplicaSet", "Job"):
            owner = metadata["ownerReferences"][0]
            text = f"{owner.get('kind')} {owner.get('name')} created it, and would create another: migrate that object"
            self.warnings.add(origin, ("metadata", "ownerReferences"), text)
        self.warnings.add(origin, ("metadata", "uid"), "it is a live object: fields set by the API server are left out")
        kept = {key: value for key, value in metadata.items() if key not in _OF_SERVER}
        annotations = {
            key: value for key, value in (kept.pop("annotations", None) or {}).items() if key not in _OF_KUBECTL
        }
        rest = {key: value for key, value in item.items() if key != "status"}
        return {**rest, "metadata": {**kept, **({"annotations": annotations} if annotations else {})}}

    def _need(self, template: Template, namespace: str | None, origin: Origin) -> None:
        document = template.document(namespace)
        known = self.templates.setdefault((namespace or NAMESPACE, template.name), document)
        if known is document:
            self.documents.append(document)
        elif known["spec"] != document["spec"]:
            what = f"the ResourceClaimTemplate {template.name} that it needs is in the files with different content"
            raise origin.error((), what, remedy="rename that one")

    def _keep_template(self, item: Json, origin: Origin) -> None:
        key = (metadata_of(item).get("namespace") or NAMESPACE, str(metadata_of(item).get("name")))
        known = self.templates.setdefault(key, item)
        if known is item:
            self.documents.append(item)
        elif known.get("spec") != item.get("spec"):
            what = f"a ResourceClaimTemplate {key[1]} with different content is needed for the pods before it"
            raise origin.error(("metadata", "name"), what, remedy="rename this one")


_NOT_CONVERTED: Final = "this is not converted: the pods that are created from it must use claims instead"
_NOT_ASKED: Final = (
    "Neuron devices are used here without being requested, so other pods can get them, too: request them with a limit "
    "(and migrate it) or with a claim"
)
_OF_SERVER: Final = frozenset({
    *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("managedFields", "ownerReferences", "selfLink"),
})  # fmt: skip
_OF_KUBECTL: Final = frozenset({
    "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision"
})  # fmt: skip


_ASK_BESIDE: Final = (
    ("", "ConfigMap"),
    ("", "LimitRange"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
)
"""Kinds of Kubernetes of which pods with limits may come."""


def _may_ask(item: Json) -> bool:
    """Whether an object may ask for devices elsewhere than in pod templates: custom resources, and texts."""
    group, _, version = item["apiVersion"].rpartition("/")
    name = (group, item["kind"])
    is_known = name in BESIDE or (name in KINDS and version in KINDS[name].versions)
    return name in _ASK_BESIDE or not is_known


def _unasked(item: Json, templates: Iterable[Path]) -> Iterator[Path]:
    """Where pods of these templates use Neuron devices without asking for them."""
    name = (item["apiVersion"].rpartition("/")[0], item["kind"])
    if name not in BESIDE and (name not in KINDS or makes_pods(KINDS[name].struct)):
        specs = {path: podtemplates.at(item, path) for path in templates}
        others_ask = any(map(asks, specs.values()))
        for path, spec in specs.items():
            yield from ((*path, *place) for place in unasked(spec, others_ask=others_ask))


MAX_LEVELS: Final = 200
"""Levels of nesting of an object; PyYAML calls itself several times for each that it writes."""


def _plain(item: Json, origin: Origin) -> Json:
    """Converted to plain JSON: keys are strings, and there are no bytes, sets or infinities."""
    level: list[Any] = [item]
    for _ in range(MAX_LEVELS):
        level = [below for value in level for _, below in children(value)]
        if not level:
            break
    else:
        raise origin.error((), f"more than {MAX_LEVELS} levels of nesting")
    try:
        made: Json = json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise origin.error((), f"it has a value that JSON cannot represent: {error}") from error
    return made


def _replaced(item: Any, path: Path, value: Any) -> Any:
    """A copy with something else at a path, which exists."""
    if not path:
        return value
    copy: Any = dict(item) if isinstance(item, dict) else list(item)
    copy[path[0]] = _replaced(item[path[0]], path[1:], value)
    return copy


def _without_stale(item: Json) -> Json:
    metadata = metadata_of(item)
    annotations = metadata.get("annotations")
    if item["kind"] != "Pod" or not isinstance(annotations, dict) or not annotations.keys() & POD_KEYS:
        return item
    rest = {key: value for key, value in annotations.items() if key not in POD_KEYS}
    kept = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**item, "metadata": {**kept, "annotations": rest} if rest else kept}


CLASS_NAMES: Final = {
    NeuronResource.DEVICE.value: "neuron.aws.amazon.com",
    RETIRED_DEVICE: "neurondevice.aws.amazon.com",
    NeuronResource.CORE.value: "neuroncore.aws.amazon.com",
}
"""Extended resource to the name of its class."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """How pods run without migration."""

    classes: tuple[Json, ...]
    """DeviceClasses that the cluster needs for that."""
    objects: Mapping[str, int]
    """Number of objects of each source, by its name, whose pods run from these classes as they are."""
    warnings: tuple[str, ...]
    """What differs from before, with file, line and path."""
    impossible: tuple[str, ...] = ()
    """Pods that no node can run from these classes, likewise."""


def unchanged(sources: Sequence[tuple[str, str]], nodes: Nodes) -> Unchanged:
    """The classes that the pods in some texts need. Without texts, the class for ``aws.amazon.com/neuron``.

    Raises:
        ManifestError: a text that cannot be parsed.
    """
    warnings = Warnings()
    used = {} if sources else {NeuronResource.DEVICE.value: None}
    counted = dict.fromkeys((name for name, _ in sources), 0)
    impossible = Warnings()
    for item, origin in objects(sources):
        found: list[Place] = []
        fits = True
        # That a kind has to keep claims does not matter here.
        paths = pod_specs(item, origin, Warnings())
        elsewhere = [limit for limit in _limits(item) if not any(limit[: len(path)] == path for path in paths)]
        for used_at in _unasked(item, podtemplates.find(item, origin)):
            warnings.add(origin, used_at, _NOT_ASKED)
        # The message speaks of a limit: of equal places, none of a request is named.
        for limit in sorted(elsewhere, key=lambda path: path[-2] == "requests") if _may_ask(item) else ():
            warnings.add(origin, limit, "the controller that creates its pods must give them this limit")
            used[str(limit[-1])] = None
        for path in paths:
            spec = podtemplates.at(item, path)
            places_here = places(spec, origin, path)
            for place in places_here:
                _warn_of_choice(place, spec, origin, path, nodes, warnings)
                used[place.name] = None
            found += places_here
            if (devices := devices_of_limits(spec)) > limits.MAX_RESULTS:
                fits = False
                impossible.add(origin, path, _too_many(devices))
            if places_here and spec.get("nodeName"):
                warnings.add(origin, (*path, "nodeName"), BYPASSES)
            if places_here and spec.get("schedulerName") == SECOND_SCHEDULER:
                text = f"{SECOND_SCHEDULER} would call the extender, which does not support DRA: remove this line"
                warnings.add(origin, (*path, "schedulerName"), text)
        counted[origin.file] += fits and bool(found or (elsewhere and _may_ask(item)))
    classes = tuple(_device_class(name, nodes) for name in CLASS_NAMES if name in used)
    return Unchanged(classes, counted, warnings.texts(), impossible.texts())


def _too_many(devices: int) -> str:
    return (
        f"no node can run this pod from these classes: its limits ask for {devices} devices, and the claim that "
        f"kube-scheduler makes for them has at most {limits.MAX_RESULTS}; ask for chips, or migrate the pod"
    )


def _warn_of_choice(place: Place, spec: Any, origin: Origin, path: Path, nodes: Nodes, warnings: Warnings) -> None:
    where, count = (*path, *place.path), place.request.count
    types = chosen_types(spec)
    row = (lookup(types[0]) if len(types) == 1 else None) or nodes.instance_type
    if place.request.resource is NeuronResource.CORE:
        text = "only nodes that offer cores can serve this: set partitions to core, or to chip.core"
        warnings.add(origin, where, text)
        if count > 1:
            text = f"the {count} cores may be of several devices: only a claim can ask for one (migrate the pod)"
            warnings.add(origin, where, text)
    elif count > 1 and (row is None or row.devices != count):
        text = f"the {count} devices need not be connected: only a claim can ask for that (migrate the pod)"
        warnings.add(origin, where, text)


def _device_class(name: str, nodes: Nodes) -> Json:
    resource = "neuron_core" if name == NeuronResource.CORE.value else "neuron_device"
    expression = f'device.driver == "{DRIVER_NAME}" && {selector(nodes.instance_type, resource)}'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS_NAMES[name]},
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            "extendedResourceName": name,
        },
    }
