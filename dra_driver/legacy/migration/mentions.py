"""Where Neuron resources are named outside pod templates, so that nobody believes them to be converted."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from dra_driver.kube.documents import children
from dra_driver.legacy.migration.limits import RESOURCES, Path
from dra_driver.simulator.manifests.unasked import DEVICE_FILES, sets

_NAMED: Final = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, RESOURCES))})(?![\w.-])", re.ASCII)
_OF_TAINT: Final = re.compile(r"\b(?:key|taintKey)[\"']?\s*:\s*[\"']?$")
"""Before a resource that is the key of a taint."""
_SCHEDULER: Final = ("KubeSchedulerConfiguration", '"managedResources"')
"""The configuration of a scheduler that asks the extender, in its newer and its older form, asks for no resources."""
_NOT_SPECIFIED: Final = frozenset({"metadata", "status"})

_COUNTS: Final = "it counts limits, which the migrated pods do not have"
_BY_CLASS: Final = f"{_COUNTS}: claims are counted by DeviceClass (docs/operate/autoscaling-and-quota.md)"
_POLICY: Final = "it checks limits, which the migrated pods do not have: check their resourceClaims instead"
_NODE: Final = (
    "nodes with the DRA driver offer devices in ResourceSlices in place of this resource "
    "(docs/operate/autoscaling-and-quota.md)"
)
_WEIGHS: Final = "it weighs limits, which the migrated pods do not have"
_SPEAKERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("", "ResourceQuota", _BY_CLASS),
    ("", "LimitRange", _COUNTS),
    ("kueue.x-k8s.io", "ClusterQueue", _BY_CLASS),
    ("kueue.x-k8s.io", "Cohort", _BY_CLASS),
    ("config.kueue.x-k8s.io", "*", _BY_CLASS),
    ("scheduling.volcano.sh", "Queue", _COUNTS),
    ("karpenter.sh", "NodeOverlay", _NODE),
    ("admissionregistration.k8s.io", "*", _POLICY),
    ("kyverno.io", "*", _POLICY),
    ("policies.kyverno.io", "*", _POLICY),
    ("constraints.gatekeeper.sh", "*", _POLICY),
    ("templates.gatekeeper.sh", "*", _POLICY),
)
"""Group and kind of objects that speak of the resource, and let no pod ask for it; what becomes of them."""
_WRITES: Final = frozenset({"mutate", "generate", "mutations", "default", "defaultRequest"})
"""Parts of Kyverno's policies, Kubernetes' own and LimitRanges that write limits into pods, or make pods."""
_SPEAKING_TEXTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("config.kueue.x-k8s.io",), _BY_CLASS),
    (("partitions:", "queues:"), _COUNTS),  # YuniKorn's queues
    (("binpack.resources",), _WEIGHS),  # Volcano's scheduler
)
"""What all stands in a text of the same sort."""


def spoken_of(item: dict[str, Any], path: Path) -> str:
    """What is to be looked at where a resource is named at ``path``, and no pod asks for it by that; "": pods may."""
    group, kind = item["apiVersion"].rpartition("/")[0], item["kind"]
    for its_group, its_kind, text in _SPEAKERS:
        if group == its_group and its_kind in ("*", kind):
            return "" if _WRITES & {*map(str, path)} else text
    value: Any = item
    for step in path:
        value = value[step]
    if not isinstance(value, str):
        return ""
    return next((text for marks, text in _SPEAKING_TEXTS if all(mark in value for mark in marks)), "")


def mentions(item: dict[str, Any], templates: Collection[Path]) -> Iterator[Path]:
    """Paths of the keys and texts that name a Neuron resource, in the order of the text; not those of taints.

    Args:
        item: the object.
        templates: paths of pod specs, which are not searched.
    """
    for path, value in specified(item, templates):
        is_key = str(path[-1]).removeprefix("requests.") in RESOURCES
        if is_key or (isinstance(value, str) and path[-1] != "key" and _asks(value)):
            yield path


def variables(item: dict[str, Any], templates: Collection[Path], names: frozenset[str]) -> Iterator[Path]:
    """Paths of the keys and texts that set a variable of the runtime.

    Args:
        item: the object.
        templates: paths of pod specs, which are not searched.
        names: of the variables.
    """
    for path, value in specified(item, templates):
        if path[-1] in names or (isinstance(value, str) and (value in names or sets(value, names))):
            yield path


def host_paths(item: dict[str, Any], templates: Collection[Path]) -> Iterator[Path]:
    """Paths of the host paths to device files of chips, likewise, and of texts that have one."""
    for path, value in specified(item, templates):
        is_path = path[-2:] == ("hostPath", "path") and str(value).startswith(DEVICE_FILES)
        if is_path or (isinstance(value, str) and "hostPath" in value and DEVICE_FILES in value):
            yield path


def specified(item: dict[str, Any], templates: Collection[Path] = ()) -> Iterator[tuple[Path, Any]]:
    """All that is specified, each with its path, in the order of the text; templates are not searched.

    Without recursion, as kinds may nest arbitrarily.
    """
    known = frozenset(templates)
    waiting: list[tuple[Path, Any]] = [((key,), value) for key, value in reversed(item.items())]
    while waiting:
        path, value = waiting.pop()
        if path in known or path[0] in _NOT_SPECIFIED:
            continue
        yield path, value
        waiting += reversed([((*path, step), below) for step, below in children(value)])


def _asks(text: str) -> bool:
    text = text.replace("~1", "/")  # as in JSON patches
    if "\\." in text:  # as in parameters of helm, where other dots stand between keys
        text = " ".join(part.replace("\0", ".") for part in text.replace("\\.", "\0").split("."))
    if any(word in text for word in _SCHEDULER):
        return False
    return any(_OF_TAINT.search(text, 0, found.start()) is None for found in _NAMED.finditer(text))
