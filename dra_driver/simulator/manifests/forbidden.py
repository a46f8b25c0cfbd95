"""Fields that must not be there, even empty ones: structs do not tell an empty list from an absent one.

Source: ``pkg/apis/core/validation`` and ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.simulator.manifests.fields import GATED
from dra_driver.simulator.manifests.podtemplates import at
from dra_driver.simulator.manifests.validation import Path, Problem

_OF_CREATED_OBJECTS: Final = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "selfLink"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers"),
)
"""What a template cannot say of the claims that are created from it."""


def forbidden(value: Mapping[str, Any], kind: str, version: str, pods: Iterator[Path]) -> Iterator[Problem]:
    """The problems of an object as it was read; ``pods`` are the paths of its pods' ``spec``."""
    for path in pods:
        if at(value, (*path, "resources", "claims")) is not None:
            yield (*path, "resources", "claims"), "claims are for the resources of containers, not for those of the pod"
        if at(value, (*path, "overhead")) is not None and not at(value, (*path, "runtimeClassName")):
            yield (*path, "overhead"), "comes from a RuntimeClass: name one in runtimeClassName"
    if kind == "ResourceClaimTemplate":
        meta = at(value, ("spec", "metadata"))
        for name in _OF_CREATED_OBJECTS if isinstance(meta, dict) else ():
            if meta.get(name) not in (None, "", 0):
                yield ("spec", "metadata", name), "a template has only labels and annotations for its claims"
    if kind == "ResourceSlice" and all(at(value, ("spec", name)) is not None for name in ("devices", "sharedCounters")):
        yield ("spec",), "a slice must have either devices or sharedCounters, not both"
    if version == "v1beta1":
        yield from _of_other_versions(value, kind)


def _of_other_versions(value: Mapping[str, Any], kind: str) -> Iterator[Problem]:
    """What ``v1beta1`` has elsewhere: a request's fields in the request itself, a device's in ``basic``."""
    if kind == "ResourceSlice":
        path: Path = ("spec", "devices")
    else:
        path = (*(("spec",) if kind == "ResourceClaimTemplate" else ()), "spec", "devices", "requests")
    items = at(value, path)
    for place, item in enumerate(items if isinstance(items, list) else ()):
        for name in item if isinstance(item, dict) else ():
            if (name not in ("name", "basic")) if kind == "ResourceSlice" else name == "exactly":
                yield (*path, place, name), "unknown field in v1beta1; write version v1"


def gated(value: Mapping[str, Any]) -> Iterator[str]:
    """The notes on fields of a claim, a template or a slice that need a feature gate."""
    devices = at(value, ("spec", "devices"))
    for device in devices if isinstance(devices, list) else ():
        consumed = at(device, ("consumesCounters",)) or at(device, ("basic", "consumesCounters"))
        if any(at(entry, ("compatibilityGroups",)) for entry in (consumed if isinstance(consumed, list) else ())):
            yield (
                "compatibilityGroups, with which kube-scheduler takes nothing from a pool without the feature gate "
                "DRADeviceCompatibilityGroups (off by default)"
            )
            return
    for path in (("spec", "devices", "requests"), ("spec", "spec", "devices", "requests")):
        items = at(value, path)
        for item in items if isinstance(items, list) else ():
            parts = [item, at(item, ("exactly",)), *(at(item, ("firstAvailable",)) or ())]
            for name, gate in GATED.items():
                if any(isinstance(part, dict) and part.get(name) for part in parts):
                    yield f"{name}, which the API server drops without the feature gate {gate} (off by default)"
