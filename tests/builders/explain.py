"""Small clusters for tests of explanations: real selectors, real chips."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from dra_driver.driver.resourceslices.devices import Offer, effective_partitions, offer
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.kube.objects.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.simulator.allocator import NodeView, Usage, World
from dra_driver.simulator.cluster import selectors
from dra_driver.simulator.explain import Explanation, Question, explain
from dra_driver.simulator.explain.values import Diagnosis
from tests.builders.allocator import offered

Json = dict[str, Any]

NEURON = {
    "metadata": {"name": "neuron.aws.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
}
ANY = {"metadata": {"name": "any"}}
ATTRIBUTES = "device.attributes['neuron.aws.com']"


@lru_cache(maxsize=8)
def _offer(instance_type: str, partitions: str) -> Offer:
    import tempfile

    kind = lookup(instance_type)
    assert kind is not None
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "host"
        write_host(root, kind, EmulationOptions())
        inventory = discover(root)
        return offer(inventory, effective_partitions(inventory, Partitions.parse(partitions) if partitions else None))


def published(node: str, instance_type: str = "trn2.48xlarge", partitions: str = "") -> list[Json]:
    """The slices of a node, as the driver publishes them."""
    offered = _offer(instance_type, partitions)
    made = pool(offered.devices, node, "uid", counters=offered.counters)
    return [{**msgspec.to_builtins(item), "metadata": {"name": f"{node}-{i}"}} for i, item in enumerate(made)]


def holder(name: str, node: str, *chips: int | str, driver: str = "neuron.aws.com") -> Json:
    """A claim to which these chips of a node are allocated."""
    results = [
        {
            "request": "r",
            "driver": driver,
            "pool": node,
            "device": f"neuron-device-{chip}" if isinstance(chip, int) else chip,
        }
        for chip in chips
    ]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def wanted(name: str = "neurons", count: int = 1, *expressions: str, **fields: Any) -> Json:
    """A request for chips."""
    chosen = [{"cel": {"expression": item}} for item in expressions]
    return {
        "name": name,
        "exactly": {"deviceClassName": "neuron.aws.com", "count": count, "selectors": chosen, **fields},
    }


def group(size: int, *requests: str) -> Json:
    """The constraint for connected chips."""
    return {"requests": list(requests), "matchAttribute": f"resource.aws.com/devicegroup{size}_id"}


def claim(*requests: Json, constraints: Sequence[Json] = (), name: str = "c") -> Json:
    """A pending claim."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), "constraints": list(constraints)}},
    }


def question(
    claims: Sequence[Json],
    slices: Sequence[Json],
    *,
    nodes: Sequence[str] = ("node-0",),
    held: Sequence[Json] = (),
    classes: Sequence[Json] = (NEURON, ANY),
    kubernetes: str = "1.37",
    excluded: dict[str, str] | None = None,
    taint_rules: Sequence[Json] = (),
) -> Question:
    """The question to explain."""
    holders = msgspec.convert(held, tuple[ResourceClaim, ...])
    world = World(
        msgspec.convert(slices, tuple[ResourceSlice, ...]),
        msgspec.convert(classes, tuple[DeviceClass, ...]),
        selectors(kubernetes),
        Usage(holders),
        kubernetes,
        taint_rules=msgspec.convert(taint_rules, tuple[DeviceTaintRule, ...]),
    )
    return Question(
        subject="pod default/p",
        world=world,
        nodes=[NodeView(name) for name in nodes],
        claims=msgspec.convert(claims, tuple[ResourceClaim, ...]),
        holders=holders,
        excluded=excluded or {},
    )


def explained(*arguments: Any, **fields: Any) -> Explanation:
    """The explanation."""
    return explain(question(*arguments, **fields))


def said(found: Explanation, node: str = "node-0") -> Diagnosis:
    """The diagnosis of a node."""
    return next(item.diagnosis for item in found.nodes if node in item.nodes)


def of_devices(found: Explanation, node: str = "node-0") -> list[str]:
    """The statements about its devices."""
    return [item.sentence for view in said(found, node).requests for item in view.groups]


def other(*devices: Json, **fields: Any) -> list[Json]:
    """A slice of another driver for node-0."""
    return [offered(*devices, nodeName="node-0", **fields)]


def plain_request(count: int = 1, **fields: Any) -> Json:
    """A request for any driver's devices."""
    return {"name": "r", "exactly": {"deviceClassName": "any", "count": count, **fields}}


NODES = ("node-0", "node-1")
BOTH = [*published("node-0"), *published("node-1")]
ONE = published("node-0")
TYPE = f"{ATTRIBUTES}.instanceType == 'trn2.48xlarge'"
