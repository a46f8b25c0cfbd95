"""What a container says of Neuron devices beside its limits: converted, left out or named when it gets a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.legacy.migration.limits import Path
from dra_driver.simulator.manifests.unasked import CHANGED, CHOICES, commands_that_set, host_path, reaches_devices
from dra_driver.util.text import quoted

SET_IN_TEXT: Final = (
    "a variable of the Neuron runtime is set here: with a claim, cores and chips count from 0 over its devices, and "
    "its NeuronConfig has the logical core size (docs/use/limits.md)"
)

Warn = Callable[[Path, str], None]
"""Takes a path below the container, and what is to be said."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """What becomes of a container's own settings."""

    core_size: int | None = None
    """Logical core size for a NeuronConfig of its claim; None: the node's."""
    left_out: frozenset[str] = frozenset()
    """Variables that the container no longer has."""


def container_settings(
    container: Mapping[str, Any], core_sizes: tuple[int, ...], warn: Warn, *, cores: bool
) -> ContainerSettings:
    """Read the variables of a container that is given a claim, also those that its command sets.

    Args:
        container: as in the pod spec.
        core_sizes: logical core sizes that its nodes can have.
        warn: told of whatever is different from before.
        cores: whether its claim is for cores, which have the size at which nodes offer them.
    """
    size, left_out = None, set[str]()
    for field in commands_that_set(container, CHANGED):
        warn((field,), SET_IN_TEXT)
    for place, entry in enumerate(container.get("env") or ()):
        name, value, path = entry.get("name"), entry.get("value"), ("env", place)
        if name not in CHANGED:
            continue
        if value is None:
            warn(path, f"{name} has a value from elsewhere, which is not known: remove it, because the driver sets it")
            continue
        left_out.add(name)
        if name in CHOICES:
            text = f"{name}={quoted(str(value))} is left out: in the pod, numbers count from 0 over the claim's devices"
            warn(path, text)
        elif cores:
            warn(path, f"{name}={quoted(str(value))} is left out: cores have the size at which nodes offer them")
        elif str(value) in map(str, core_sizes):
            size = int(value)
        else:
            legal = " or ".join(map(str, core_sizes))
            warn(path, f"{name}={quoted(str(value))} is left out: the logical core size of these nodes is {legal}")
    return ContainerSettings(size, frozenset(left_out))


def warn_of_host_access(spec: Mapping[str, Any], list_name: str, index: int, warn: Warn) -> None:
    """Say what a container reaches past its claim."""
    container = spec[list_name][index]
    if (container.get("securityContext") or {}).get("privileged") is True:
        text = "a privileged container can access all devices of the node, whatever its claim holds: remove this"
        warn((list_name, index, "securityContext", "privileged"), text)
    mounted = {mount.get("name") for mount in container.get("volumeMounts") or ()}
    for place, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("name") in mounted and reaches_devices(host_path(volume)):
            text = "it exposes the host's devices, whatever the claim holds: remove the volume and its mounts"
            warn(("volumes", place, "hostPath"), text)
