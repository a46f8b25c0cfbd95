"""A container's own variables of the Neuron runtime, beside those that the node's driver sets through CDI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dra_driver.neuron.names import LOGICAL_CORE_SIZE, NUM_CORES, VISIBLE_CORES, VISIBLE_DEVICES
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.simulator.manifests.unasked import entries
from dra_driver.simulator.preparation import Container
from dra_driver.util.text import quoted

_CORES: Final = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*", re.ASCII)


def own_variables(spec: Mapping[str, Any], rows: Sequence[Container], kind: InstanceType | None) -> Iterator[str]:
    """What a pod's containers say themselves, and the driver or the hardware says otherwise, a sentence each.

    Args:
        spec: of the pod, as it was read and validated.
        rows: what its containers are given (``preparation.containers``).
        kind: type of the node; None if it is not known.
    """
    given = {row.name: row for row in rows}
    for which in ("initContainers", "containers"):
        for _, container in entries(spec, which):
            name = container["name"]
            for _, entry in entries(container, "env") if name in given else ():
                contradiction = _contradiction(entry, given[name].environment, _cores(given[name], kind))
                if contradiction:
                    yield f"container {name}: {contradiction}"


def _contradiction(entry: Mapping[str, Any], environment: Mapping[str, str], cores: int | None) -> str:
    name, value = str(entry.get("name")), entry.get("value")
    own = f"its own {name}={quoted(str(value))}" if value is not None else f"its own {name}"
    driver_value = environment.get(name)
    if driver_value is not None:
        text = f"{own} has no effect: the driver sets {driver_value} (CRI-O before 1.34 uses the container's own)"
        return text if value != driver_value else ""
    if name == VISIBLE_DEVICES:
        return f"{own} is for a hook outside CDI, which adds chips of the host to those of the claim: remove it"
    if cores is None or VISIBLE_CORES in environment or not _CORES.fullmatch(str(value)):
        return ""
    has = f"it has {cores}, which count from 0"
    if name == VISIBLE_CORES and max(map(int, re.findall("[0-9]+", str(value)))) >= cores:
        return f"{own} names cores that it does not have: {has}"
    if name == NUM_CORES and str(value).isdigit() and int(value or 0) > cores:
        return f"{own} is more than the cores that it has: {has}"
    return ""


def _cores(row: Container, kind: InstanceType | None) -> int | None:
    """Logical cores of the chips that a container is given."""
    size = row.environment.get(LOGICAL_CORE_SIZE, "1")
    return None if kind is None else len(row.device_nodes) * kind.cores_per_device // int(size)
