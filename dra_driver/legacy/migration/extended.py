"""DeviceClasses by which Kubernetes 1.36 and later serves old limits from DRA devices.

The scheduler makes a claim for such a pod by itself: so many devices of the class, without constraints. So they are
chips of one node, but connected only where one or all are asked for, and a class cannot count cores.

Source: Kubernetes enhancement 5004.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.legacy.migration.claims import selector
from dra_driver.legacy.migration.files import objects, pod_specs
from dra_driver.legacy.migration.pods import SECOND_SCHEDULER
from dra_driver.legacy.migration.values import Nodes, Path, Warnings, not_possible
from dra_driver.legacy.migration.wants import Place, chosen_type, places
from dra_driver.legacy.names import RETIRED_DEVICE, Resource
from dra_driver.names import DRIVER_NAME
from dra_driver.simulator.manifests import Origin
from dra_driver.topology.instance_types import lookup

CLASS_NAMES = {Resource.DEVICE.value: "neuron.aws.amazon.com", RETIRED_DEVICE: "neurondevice.aws.amazon.com"}
"""Extended resource to the name of its class."""


def extended_classes(sources: Sequence[tuple[str, str]], nodes: Nodes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The classes that the pods in some texts need, and what is not as before, with file, line and path.

    Without texts, the class for ``aws.amazon.com/neuron``.

    Raises:
        ManifestError: a text that cannot be read. NotPossibleError: a pod that asks for cores.
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
    if place.want.resource is Resource.CORE:
        raise not_possible(
            origin,
            where,
            "a DeviceClass cannot count cores: each would be a whole device",
            remedy="migrate this pod without --extended-resource",
        )
    row = lookup(chosen_type(spec) or "") or nodes.instance_type
    if place.want.count > 1 and (row is None or row.devices != place.want.count):
        text = (
            f"the {place.want.count} devices need not be connected: only a claim can ask for that (migrate without "
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
