"""What would be prepared on a node whose slices say that it is allocated to an UltraServer workload."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dra_driver.driver.resourceslices.devices import offer
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.driver.workload import NodeWorkload, Tenancy
from dra_driver.simulator.preparation import NodeDrivers
from tests.builders.claims import NODE, claim, config, host, result

TRAIN, OTHER = (f"b2b1e5a0-0000-4000-8000-00000000000{digit}" for digit in "ab")


def drivers(workload: NodeWorkload | None) -> NodeDrivers:
    inventory = host(instance_type="trn2.48xlarge")
    slices = pool(offer(inventory, tenancy=Tenancy(workload)).devices, NODE, "uid")
    manifests: Any = SimpleNamespace(inventories={NODE: inventory}, slices=slices)
    return NodeDrivers(manifests)


@pytest.mark.parametrize(
    ("holder", "served"), [(None, {None, TRAIN, OTHER}), (NodeWorkload(TRAIN, "train", "ml"), {TRAIN})]
)
def test_the_claims_of_a_nodes_workload_alone_are_prepared(
    holder: NodeWorkload | None, served: set[str | None]
) -> None:
    for uid in (None, TRAIN, OTHER):
        named = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", **({"workload": uid} if uid else {})}
        (outcome,) = drivers(holder).prepared(
            NODE, [claim(1, [result("neuron-device-0")], configs=[config(named)])], []
        )
        assert (outcome.plan is not None) == (uid in served), outcome.problem
        assert ("allocated to" in outcome.problem) == (uid not in served)
