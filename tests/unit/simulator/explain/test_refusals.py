"""Sentences of ``explain`` and of the scheduler that few clusters ever see."""

from __future__ import annotations

from typing import Any

from tests.builders.allocator import claim as plain_claim
from tests.builders.allocator import (
    counters,
    device,
    first_of,
    offered,
    refusal,
    subrequest,
    world,
)
from tests.builders.explain import (
    ATTRIBUTES,
    ONE,
    claim,
    explained,
    holder,
    of_devices,
    plain_request,
    wanted,
)
from tests.golden import golden


def test_devices_that_cannot_be_looked_at_are_in_use_or_for_other_nodes() -> None:
    fails = claim(wanted("r", 16, f"{ATTRIBUTES}.missing == 1"))
    golden(of_devices(explained([fails], ONE, held=[holder("a", "node-0", 3)])), "in use")
    elsewhere = offered(device("a", nodeName="node-9"), device("b", nodeName="node-0"), perDeviceNodeSelection=True)
    golden(of_devices(explained([claim(plain_request(2))], [elsewhere])), "other nodes")
    golden(of_devices(explained([claim(wanted())], ONE, held=[holder("a", "node-0", *range(16))])), "all in use")


def test_a_claim_that_asks_for_nothing_has_nothing() -> None:
    empty = {**claim(), "status": {"allocation": {"devices": {"results": []}}}}
    golden(explained([empty], ONE).verdict)


def test_many_pools_with_counters_are_slow() -> None:
    slices = []
    for number in range(60):
        where: dict[str, Any] = {"nodeName": "node-0", "slices": 2, "pool": f"pool-{number}"}
        slices.append(counters({"set": {"units": 4}}, name=f"counters-{number}", **where))
        slices.append(offered(device("d", {"set": {"units": 1}}), name=f"devices-{number}", **where))
    found = explained([claim(plain_request())], slices, kubernetes="1.36")
    golden(trap.sentence for trap in found.traps if "pools" in trap.sentence)


def test_what_no_choice_can_hold_and_constraints_without_a_kind() -> None:
    pool = world(offered(*(device(f"d{number}") for number in range(80))))
    several = (first_of(name, subrequest("a", count=20), subrequest("b", count=21)) for name in ("x", "y"))
    golden(refusal(pool, plain_claim(*several)).reason, "too many")
    golden(refusal(pool, plain_claim(first_of("r", subrequest("a")), constraints=[{}])).reason, "constraint")
