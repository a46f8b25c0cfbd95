"""Pods that use Neuron devices without asking Kubernetes for them: by host paths, or for a runtime that finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from dra_driver.neuron.names import LOGICAL_CORE_VARIABLES, NUM_CORES, VISIBLE_CORES, VISIBLE_DEVICES

CHOICES: Final = (VISIBLE_CORES, VISIBLE_DEVICES)
"""Variables that name cores or chips of the host."""
CHANGED: Final = frozenset({*CHOICES, *LOGICAL_CORE_VARIABLES})
"""Variables that the driver sets, or that mean another thing for the devices of a claim."""
VARIABLES: Final = CHANGED | {NUM_CORES}
"""Variables that only a process with Neuron devices has a use for."""
DEVICE_FILES: Final = "/dev/neuron"
"""What the paths of the chips' device files begin with."""
NEURON_RESOURCES: Final = "aws.amazon.com/neuron"
"""Common prefix of the resources of Neuron's device plugin: this one, ``neurondevice`` and ``neuroncore``."""
_LISTS: Final = ("initContainers", "containers")

Json = Mapping[str, Any]
Path = tuple[str | int, ...]


def unasked(spec: Json, *, others_ask: bool = False) -> Iterator[Path]:
    """Where a pod uses Neuron devices and has no limit or claim for them, from the pod spec on.

    Args:
        spec: a pod spec as it was read; its fields may have any type.
        others_ask: whether pods of the same object ask: a launcher has their variables.
    """
    if not others_ask and not asks(spec):
        for name, at, each in _containers(spec):
            for place, entry in entries(each, "env"):
                if str(entry.get("name")) in VARIABLES:
                    yield name, at, "env", place
            yield from ((name, at, field) for field in commands_that_set(each, VARIABLES))
    mounted: dict[str, bool] = {}
    for _, _, each in _containers(spec):
        for _, mount in entries(each, "volumeMounts") if not _has(each) else ():
            name = str(mount.get("name"))
            # Many containers mount /dev for other devices.
            mounted[name] = mounted.get(name, False) or "neuron" in str(each).lower()
    for place, volume in entries(spec, "volumes"):
        name, path = str(volume.get("name")), host_path(volume)
        if name in mounted and (path.startswith(DEVICE_FILES) or (mounted[name] and reaches_devices(path))):
            yield "volumes", place, "hostPath"


def commands_that_set(container: Json, names: frozenset[str]) -> Iterator[str]:
    """Which of ``command`` and ``args`` set one of these variables."""
    for field in ("command", "args"):
        words = container.get(field)
        if isinstance(words, list) and any(isinstance(word, str) and sets(word, names) for word in words):
            yield field


def sets(text: str, names: frozenset[str]) -> bool:
    """Whether a script, or YAML or JSON within a text, sets one of these variables."""
    return _setting(names).search(text) is not None


@cache
def _setting(names: frozenset[str]) -> re.Pattern[str]:
    after = r"(?:=|[\"']?:\s|[\"']?\s+value[\"']?:)"
    return re.compile(rf"\b(?:{'|'.join(sorted(names))}){after}", re.ASCII)


def asks(spec: Json) -> bool:
    """Whether a pod has a claim, or a limit of Neuron devices."""
    return bool(spec.get("resourceClaims")) or any(_has(each) for _, _, each in _containers(spec))


def _has(container: Json) -> bool:
    resources = container.get("resources")
    return isinstance(resources, dict) and bool(resources.get("claims") or NEURON_RESOURCES in str(resources))


def _containers(spec: Json) -> Iterator[tuple[str, int, Json]]:
    yield from ((name, at, each) for name in _LISTS for at, each in entries(spec, name))


def entries(holder: Json, name: str) -> Iterator[tuple[int, Json]]:
    """The objects in a list, with their places; the list and what is in it may have any type."""
    items = holder.get(name)
    yield from (
        (at, each) for at, each in enumerate(items if isinstance(items, list) else ()) if isinstance(each, dict)
    )


def host_path(volume: Json) -> str:
    """The directory or file of the host that a volume shows; "" if it shows none."""
    source = volume.get("hostPath")
    return str(source.get("path") or "") if isinstance(source, dict) else ""


def reaches_devices(path: str) -> bool:
    """Whether a directory or file of the host is, or contains, device files of Neuron chips."""
    bare = path.rstrip("/") or path[:1]
    return bare.startswith(DEVICE_FILES) or bool(bare and DEVICE_FILES.startswith(bare if bare == "/" else f"{bare}/"))
