"""From texts to objects: which of them contain pod specs, what becomes of these, and what is passed through unchanged.

``extended_classes`` makes the DeviceClasses by which Kubernetes 1.36 and later serves limits from DRA devices. The
scheduler itself creates a claim for such a pod: a number of devices of the class, without constraints. They are chips
of one node, but connected only if one or all are requested, and a class cannot count cores. Source: Kubernetes
enhancement 5004.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.legacy.annotations import POD_KEYS
from dra_driver.legacy.migration.claims import Template, selector
from dra_driver.legacy.migration.limits import (
    RESOURCES,
    Nodes,
    Path,
    Place,
    Warnings,
    chosen_type,
    not_possible,
    places,
)
from dra_driver.legacy.migration.pods import SECOND_SCHEDULER, migrate_spec
from dra_driver.legacy.rules import RETIRED_DEVICE, Resource
from dra_driver.manifests import NAMESPACE, ManifestError, Origin
from dra_driver.manifests.documents import documents, items_of
from dra_driver.manifests.fields import BESIDE, KINDS, convert
from dra_driver.names import DRIVER_NAME
from dra_driver.topology.instance_types import lookup

Json = dict[str, Any]

_LEADER_WORKER: Final = ("spec", "leaderWorkerTemplate")
_TEMPLATE: Final = ("spec", "template", "spec")
POD_SPECS: Final[Mapping[tuple[str, str], tuple[Path, ...]]] = {
    ("v1", "Pod"): (("spec",),),
    ("apps/v1", "Deployment"): (_TEMPLATE,),
    ("apps/v1", "ReplicaSet"): (_TEMPLATE,),
    ("apps/v1", "StatefulSet"): (_TEMPLATE,),
    ("batch/v1", "Job"): (_TEMPLATE,),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): (
        (*_LEADER_WORKER, "leaderTemplate", "spec"),
        (*_LEADER_WORKER, "workerTemplate", "spec"),
    ),
}
"""API version and kind to the paths of its pod specs."""
_KINDS: Final = ", ".join(kind for _, kind in POD_SPECS)


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of a migration."""

    documents: tuple[Json, ...]
    """Each template before the first object that needs it; everything else in its order."""
    changed: int
    """Number of objects that were given claims."""
    warnings: tuple[str, ...]
    """What differs from before, with file, line and path."""


def objects(sources: Sequence[tuple[str, str]]) -> Iterator[tuple[Json, Origin]]:
    """The objects in some texts, given with their names; Lists are expanded. Raises ManifestError."""
    for file, text in sources:
        found = False
        for origin, document in documents(file, text):
            for item, at in items_of(document, origin):
                found = True
                subject = _subject(item, at)
                yield _plain(item, at), at.at(at.path, subject)
        if not found:
            raise ManifestError(f"{file}: there is no Kubernetes object in it")


def pod_specs(item: Json, origin: Origin) -> tuple[Path, ...]:
    """Paths of the pod specs of an object; () if its kind has none.

    Raises:
        ManifestError: an invalid field.
        NotPossibleError: limits of Neuron resources in an unknown kind.
    """
    version, kind = item["apiVersion"], item["kind"]
    paths = POD_SPECS.get((version, kind))
    if paths is None:
        _require_no_limits(item, origin)
        return ()
    convert(item, KINDS[version.rpartition("/")[0], kind].struct, origin)
    return tuple(path for path in paths if _at(item, path) is not None)


def migrate(sources: Sequence[tuple[str, str]], nodes: Nodes) -> Migration:
    """Replace limits by claims.

    Args:
        sources: name (for errors) and text (YAML or JSON) of each file.
        nodes: for pods that do not choose their nodes.

    Raises:
        ManifestError: invalid input, with file, line and path. NotPossibleError: what claims cannot express, likewise.
    """
    work = _Work(nodes)
    for item, origin in objects(sources):
        work.add(item, origin)
    return Migration(tuple(work.documents), work.changed, work.warnings.texts())


@dataclass(slots=True)
class _Work:
    nodes: Nodes
    documents: list[Json] = field(default_factory=list)
    changed: int = 0
    warnings: Warnings = field(default_factory=Warnings)
    templates: dict[tuple[str, str], Json] = field(default_factory=dict)
    """By namespace and name: created, or from the files."""

    def add(self, item: Json, origin: Origin) -> None:
        made = item
        for path in pod_specs(item, origin):
            migrated = migrate_spec(_at(item, path), origin, path, self.nodes, self.warnings)
            if migrated is not None:
                made = _replaced(made, path, migrated.spec)
                for each in migrated.templates:
                    self._need(each, _metadata(item).get("namespace"), origin)
        if made is not item:
            self.changed += 1
            made = _without_stale(made)
        if item["kind"] == "ResourceClaimTemplate":
            self._keep_template(item, origin)
        else:
            if made is item and (named := _quota(item)):
                self.warnings.add(origin, named, "it counts limits, of which the migrated pods have none")
            self.documents.append(made)

    def _need(self, template: Template, namespace: str | None, origin: Origin) -> None:
        document = template.document(namespace)
        known = self.templates.setdefault((namespace or NAMESPACE, template.name), document)
        if known is document:
            self.documents.append(document)
        elif known["spec"] != document["spec"]:
            what = f"the ResourceClaimTemplate {template.name} that it needs is in the files with different content"
            raise origin.error((), what, remedy="rename that one")

    def _keep_template(self, item: Json, origin: Origin) -> None:
        key = (_metadata(item).get("namespace") or NAMESPACE, str(_metadata(item).get("name")))
        known = self.templates.setdefault(key, item)
        if known is item:
            self.documents.append(item)
        elif known.get("spec") != item.get("spec"):
            what = f"a ResourceClaimTemplate {key[1]} with different content is needed for the pods before it"
            raise origin.error(("metadata", "name"), what, remedy="rename this one")


def _subject(item: Json, origin: Origin) -> str:
    for needed in ("apiVersion", "kind"):
        if not isinstance(item.get(needed), str):
            raise origin.error((), f"{needed} is missing, so this is not a Kubernetes object")
    name = _metadata(item).get("name") or _metadata(item).get("generateName")
    return f"{item['kind'][:60]} {name[:253]}" if isinstance(name, str) else str(item["kind"][:60])


def _metadata(item: Json) -> Json:
    found = item.get("metadata")
    return found if isinstance(found, dict) else {}


def _plain(item: Json, origin: Origin) -> Json:
    """Converted to plain JSON: keys are strings, and there are no bytes, sets or infinities."""
    try:
        made: Json = json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise origin.error((), f"it has a value that JSON cannot represent: {error}") from error
    except RecursionError:
        raise origin.error((), "nested too deeply") from None
    return made


def _at(item: Json, path: Path) -> Any:
    found: Any = item
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _replaced(item: Json, path: Path, value: Any) -> Json:
    step, rest = str(path[0]), path[1:]
    return {**item, step: _replaced(item[step], rest, value) if rest else value}


def _require_no_limits(item: Json, origin: Origin) -> None:
    if (item["apiVersion"].rpartition("/")[0], item["kind"]) in BESIDE:
        return
    for path in _neuron_keys(item):
        if path[-1] in RESOURCES and path[-2:-1] in (("limits",), ("requests",)):
            raise not_possible(
                origin,
                path,
                f"{item['kind'][:60]} of {item['apiVersion'][:60]} is not a kind that can be migrated ({_KINDS} are)",
                remedy="migrate its pod template as a Pod, and copy the result",
            )


def _quota(item: Json) -> Path:
    """Path at which a ResourceQuota or LimitRange names the resources, or ()."""
    return next(_neuron_keys(item), ()) if item["kind"] in ("ResourceQuota", "LimitRange") else ()


def _neuron_keys(item: Json) -> Iterator[Path]:
    """Paths of the keys that name a Neuron resource; depth first without recursion, as kinds may nest arbitrarily."""
    waiting: list[tuple[Path, Any]] = [((), item)]
    while waiting:
        path, value = waiting.pop()
        if path and isinstance(path[-1], str) and path[-1].removeprefix("requests.") in RESOURCES:
            yield path
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [((*path, step), below) for step, below in pairs if isinstance(below, dict | list) or step in _NAMES]


_NAMES: Final = frozenset((*RESOURCES, *(f"requests.{name}" for name in RESOURCES)))


def _without_stale(item: Json) -> Json:
    metadata = _metadata(item)
    annotations = metadata.get("annotations")
    if item["kind"] != "Pod" or not isinstance(annotations, dict) or not annotations.keys() & POD_KEYS:
        return item
    rest = {key: value for key, value in annotations.items() if key not in POD_KEYS}
    kept = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**item, "metadata": {**kept, "annotations": rest} if rest else kept}


CLASS_NAMES = {Resource.DEVICE.value: "neuron.aws.amazon.com", RETIRED_DEVICE: "neurondevice.aws.amazon.com"}
"""Extended resource to the name of its class."""


def extended_classes(sources: Sequence[tuple[str, str]], nodes: Nodes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The classes that the pods in some texts need, and what differs from before, with file, line and path.

    Without texts, the class for ``aws.amazon.com/neuron``.

    Raises:
        ManifestError: a text that cannot be parsed. NotPossibleError: a pod that requests cores.
    """
    warnings = Warnings()
    used = {} if sources else {Resource.DEVICE.value: None}
    for item, origin in objects(sources):
        for path in pod_specs(item, origin):
            spec: Any = item
            for step in path:
                spec = spec[step]
            found = places(spec, origin, path)
            for place in found:
                _check(place, spec, origin, path, nodes, warnings)
                used[place.name] = None
            if found and spec.get("schedulerName") == SECOND_SCHEDULER:
                text = f"{SECOND_SCHEDULER} would ask the extender, which knows nothing of DRA: remove this line"
                warnings.add(origin, (*path, "schedulerName"), text)
    return [_device_class(name, nodes) for name in CLASS_NAMES if name in used], warnings.texts()


def _check(place: Place, spec: Any, origin: Origin, path: Path, nodes: Nodes, warnings: Warnings) -> None:
    where = (*path, *place.path)
    if place.request.resource is Resource.CORE:
        raise not_possible(
            origin,
            where,
            "a DeviceClass cannot count cores: each would be a whole device",
            remedy="migrate this pod without --extended-resource",
        )
    row = lookup(chosen_type(spec) or "") or nodes.instance_type
    if place.request.count > 1 and (row is None or row.devices != place.request.count):
        text = (
            f"the {place.request.count} devices need not be connected: only a claim can ask for that (migrate without "
            "--extended-resource)"
        )
        warnings.add(origin, where, text)


def _device_class(name: str, nodes: Nodes) -> dict[str, Any]:
    expression = f'device.driver == "{DRIVER_NAME}" && {selector(nodes.instance_type)}'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS_NAMES[name]},
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            "extendedResourceName": name,
        },
    }
