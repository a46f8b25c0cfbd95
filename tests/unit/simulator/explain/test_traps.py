"""Known traps, named exactly when the claims walk into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.simulator.explain import Question, explain, text
from dra_driver.simulator.explain.traps import TRAPS
from tests.builders.allocator import counters, device, different, every, offered, request, same
from tests.builders.explain import ANY, ATTRIBUTES, ONE, claim, explained, group, holder, published, question, wanted
from tests.golden import golden

Json = dict[str, Any]
BOTH = published("node-0", "trn2u.48xlarge", "chip.node")
CHIP = f"{ATTRIBUTES}.resourceType == 'neuron_device'"
WHOLE = f"{ATTRIBUTES}.resourceType == 'neuron_node'"


def named(*arguments: Any, **fields: Any) -> dict[str, str]:
    found = explained(*arguments, **fields)
    assert all(trap.name in TRAPS for trap in found.traps)
    return {trap.name: trap.sentence for trap in found.traps}


def counting(*devices: Json, units: int = 4, driver: str = "a.example", pool: str = "pool") -> list[Json]:
    fields: Json = {"nodeName": "node-0", "slices": 2, "driver": driver, "pool": pool}
    return [
        counters({"set": {"units": units}}, name=f"0-{driver}", **fields),
        offered(*devices, name=f"1-{driver}", **fields),
    ]


def unit(name: str, amount: int = 1, **fields: Any) -> Json:
    return device(name, {"set": {"units": amount}}, **fields)


def test_the_search_that_explodes_on_a_node_with_too_few_free_chips() -> None:
    found = named([claim(wanted("xl", 16))], ONE, held=[holder("a", "node-0", 3)])
    golden(found["subset-search"])


def test_the_search_that_will_explode_once_the_node_is_not_empty() -> None:
    found = named([claim(wanted("xl", 16))], ONE)
    golden(found["subset-search"])


@pytest.mark.parametrize(
    "requests",
    [
        [wanted("few", 8)],
        [wanted("all", 1, allocationMode="All")],
        [{"name": "whole", "exactly": {"deviceClassName": "neuron.aws.com", "count": 1}}],
    ],
)
def test_other_requests_do_not_explode(requests: list[Json]) -> None:
    assert "subset-search" not in named([claim(*requests)], ONE, held=[holder("a", "node-0", *range(9))])


def test_no_search_is_told_of_where_an_error_ends_the_attempt_before_it() -> None:
    beyond = explained([claim(wanted("xl", 33))], ONE)
    golden(beyond.error)
    assert "subset-search" not in {trap.name for trap in beyond.traps}
    together = claim(wanted("a", 16), wanted("b", 17))
    assert "subset-search" not in named([together], ONE, held=[holder("a", "node-0", 3)])
    many = [offered(*(device(f"d{i}") for i in range(40)), nodeName="node-0")]
    request_of_many = {"name": "xl", "exactly": {"deviceClassName": "any", "count": 33}}
    assert named([claim(request_of_many)], many, classes=[ANY]) == {}


def test_a_constraint_keeps_the_subsets_small() -> None:
    held = [holder("a", "node-0", 3, 7, 11, 15)]
    assert "subset-search" not in named([claim(wanted("n", 4), constraints=[group(4)])], ONE, held=held)
    assert "subset-search" in named([claim(wanted("n", 16), constraints=[group(16)])], ONE, held=held)


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_all_over_devices_with_counters(kubernetes: str) -> None:
    found = named([claim(wanted("all", 1, allocationMode="All"))], BOTH, kubernetes=kubernetes)
    golden(found["all-with-counters"])
    assert "all-with-counters" not in named([claim(wanted("all", 1, allocationMode="All"))], ONE, kubernetes=kubernetes)


def test_admin_access_to_devices_with_counters() -> None:
    found = named([claim(wanted("m", 1, WHOLE, adminAccess=True))], BOTH, held=[holder("h", "node-0", 3)])
    golden(found["admin-with-counters"])
    every_chip = wanted("m", 1, WHOLE, adminAccess=True, allocationMode="All")
    golden(named([claim(every_chip)], BOTH)["all-with-counters"])
    assert not named([claim(wanted("m", 1, adminAccess=True))], ONE)


def test_an_attribute_that_some_devices_lack() -> None:
    wish = claim(wanted("n", 1, f"{ATTRIBUTES}.deviceId == 20"))
    golden(named([wish], BOTH)["missing-attribute"])


def test_an_attribute_that_only_devices_in_use_lack() -> None:
    wish = claim(wanted("n", 1, f"{ATTRIBUTES}.deviceId == 0"))
    found = named([wish], BOTH, held=[holder("h", "node-0", "neuron-node", 5)])
    golden(found["missing-attribute"])


def test_a_guarded_attribute_is_no_trap() -> None:
    wish = claim(wanted("n", 1, f"{CHIP} && {ATTRIBUTES}.deviceId == 20"))
    assert not named([wish], BOTH)


def two_drivers() -> list[Json]:
    return [*counting(unit("d0"), pool="node-0"), *counting(unit("d1"), driver="b.example", pool="node-0")]


def test_two_drivers_whose_pools_have_one_name() -> None:
    golden(named([claim(request())], two_drivers(), kubernetes="1.36")["shared-pool-name"])
    assert "shared-pool-name" not in named([claim(request())], two_drivers())
    one = [*counting(unit("d0")), offered(device("d1"), driver="b.example", nodeName="node-0", name="b")]
    assert "shared-pool-name" not in named([claim(request())], one, kubernetes="1.36")


@pytest.mark.parametrize("constraint", [same("group"), different("group")])
def test_counters_that_a_rejected_device_keeps(constraint: Json) -> None:
    made = counting(unit("d0", attributes={"group": 0}), unit("d1", attributes={"group": 1}))
    wish = [claim(request(), constraints=[constraint])]
    golden(named(wish, made, kubernetes="1.36")["kept-counters"])
    assert "kept-counters" not in named(wish, made)
    assert "kept-counters" not in named([claim(request())], made, kubernetes="1.36")
    tainted = counting(unit("d0", taints=[{"key": "broken", "effect": "NoSchedule"}]), unit("d1"))
    golden(named([claim(request())], tainted, kubernetes="1.36")["kept-counters"])


def test_a_device_in_use_that_is_published_no_more() -> None:
    held = [holder("h", "pool", "d9", driver="a.example")]
    found = named([claim(request())], counting(unit("d0"), unit("d1")), held=held)
    golden(found["vanished-device"])
    held = [holder("h", "pool", "d0", driver="a.example")]
    assert "vanished-device" not in named([claim(request())], counting(unit("d0"), unit("d1")), held=held)


def many_nodes(count: int) -> tuple[list[Json], tuple[str, ...]]:
    names = tuple(f"n{i}" for i in range(count))
    return [item for name in names for item in published(name, "trn2u.48xlarge", "chip.node")], names


def test_counters_in_a_large_cluster() -> None:
    slices, names = many_nodes(50)
    wish = [claim(wanted("n", 1, CHIP))]
    golden(named(wish, slices, nodes=names, kubernetes="1.36")["counters-at-scale"])
    assert "counters-at-scale" not in named(wish, slices, nodes=names)
    assert "counters-at-scale" not in named(wish, slices, nodes=names[:49], kubernetes="1.36")


def without_counters(slices: Sequence[Json]) -> list[Json]:
    """As an API server stores them that does not know the fields."""
    stored = []
    for item in slices:
        spec = {key: value for key, value in item["spec"].items() if key != "sharedCounters"}
        kept = [
            {key: value for key, value in one.items() if key != "consumesCounters"} for one in spec.get("devices", [])
        ]
        stored.append({**item, "spec": {**spec, "devices": kept}})
    return stored


def test_a_server_that_dropped_counters() -> None:
    found = named([claim(wanted("n", 1, CHIP))], without_counters(BOTH))
    golden(found["dropped-counters"])
    assert "dropped-counters" not in named([claim(wanted("n", 1, CHIP))], BOTH)


@pytest.mark.parametrize("taken", [0, 6])
def test_schedulers_before_1_36_try_every_order(taken: int) -> None:
    held = [holder("a", "node-0", *range(taken))] if taken else []
    asked = question([claim(wanted("n", 16))], ONE, kubernetes="1.36", held=held)
    (old,) = (trap for trap in explain(replace(asked, server="1.34")).traps if trap.name == "subset-search")
    (new,) = (trap for trap in explain(replace(asked, server="1.36")).traps if trap.name == "subset-search")
    assert "every subset of" in new.sentence or "every subset," in new.sentence
    golden(old.sentence)


@pytest.mark.parametrize(("free", "count", "warned"), [(7, 8, False), (8, 9, True), (9, 10, True)])
def test_fewer_devices_are_many_where_their_orders_are_tried(free: int, count: int, warned: bool) -> None:
    held = [holder("a", "node-0", *range(16 - free))]
    asked = question([claim(wanted("n", count))], ONE, kubernetes="1.36", held=held)
    old, new = ({trap.name for trap in explain(replace(asked, server=server)).traps} for server in ("1.34", "1.36"))
    assert ("subset-search" in old, "subset-search" in new) == (warned, False)


@pytest.mark.parametrize(("server", "warned"), [("", False), ("1.34", True), ("1.36", False), ("1.37", False)])
def test_a_server_that_drops_fields(server: str, warned: bool) -> None:
    asked = question([claim(wanted())], ONE, kubernetes="1.36")
    asked = Question(asked.subject, asked.world, asked.nodes, asked.claims, server=server)
    found = [trap for trap in explain(asked).traps if trap.name == "old-server"]
    assert bool(found) is warned
    golden(trap.sentence for trap in found)


def test_a_count_that_is_legal_but_of_which_nothing_is_connected() -> None:
    golden(named([claim(wanted("two", 2))], ONE, held=[holder("h", "node-0", 1)])["unconnected"])
    golden(named([claim(wanted("two", 2))], ONE)["unconnected"])


def test_a_count_of_a_connected_set_without_its_constraint() -> None:
    found = named([claim(wanted("n", 4))], ONE)
    golden(found["unconnected"])
    assert "unconnected" in named([claim(wanted("n", 4), constraints=[group(8)])], ONE)
    assert not named([claim(wanted("n", 4), constraints=[group(4)])], ONE)
    assert not named([claim(wanted("n", 8), constraints=[group(8)])], ONE)


@pytest.mark.parametrize(
    ("instance_type", "count"), [("trn2.48xlarge", 1), ("trn2.48xlarge", 16), ("trn2.3xlarge", 1), ("inf2.xlarge", 1)]
)
def test_one_chip_and_all_of_them_are_always_connected(instance_type: str, count: int) -> None:
    assert "unconnected" not in named([claim(wanted("n", count))], published("node-0", instance_type))


def test_chains_and_rings_have_their_own_sets() -> None:
    found = named([claim(wanted("n", 2))], published("node-0", "inf2.48xlarge"))
    golden(found["unconnected"])
    wish = claim(wanted("n", 2), constraints=[{"matchAttribute": "neuron.aws.com/segment2_id"}])
    assert not named([wish], published("node-0", "inf2.48xlarge"))


def test_other_drivers_devices_have_no_such_sets() -> None:
    made = [device(f"d{i}", attributes={"deviceId": i, "instanceType": "trn2.48xlarge"}) for i in range(4)]
    slices = [offered(*made, nodeName="node-0")]
    assert not named([claim(request(count=2))], slices)
    assert not named([claim(every())], slices, classes=[ANY])


def test_a_trap_is_written_with_its_name() -> None:
    lines = text(explained([claim(wanted("two", 2))], ONE)).splitlines()
    golden(lines[lines.index("Known traps:") + 1])
