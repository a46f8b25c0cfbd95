"""Claims for cores: what their containers are told, who may share a chip, and at which logical core size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.driver.claims.cdi_spec import cdi_spec, plan_document, shown_in
from dra_driver.driver.claims.checkpoint import decoded, encoded
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, Quarantined
from dra_driver.driver.claims.planner import EXTENDED_RESOURCE_CLAIM, plan, refreshed
from dra_driver.host.inventory import NodeInventory
from dra_driver.kube.types import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.names import VISIBLE_CORES
from dra_driver.topology.cuts import Part, core_name
from dra_driver.util.errors import DriverError
from tests.builders.claims import SETTINGS, changed, claim, config, host, neuron_config, result, uid
from tests.generators.effort import examples

TRN1 = "trn1.32xlarge"


def core(chip: int, number: int, request: str = "cores", **changes: Any) -> DeviceRequestAllocationResult:
    return result(core_name(chip, number), request, **changes)


def cores(chip: int, *numbers: int) -> list[DeviceRequestAllocationResult]:
    return [core(chip, number) for number in numbers]


def made(
    item: ResourceClaim,
    *held: Plan,
    inventory: NodeInventory | None = None,
    core_sizes: dict[int, int] | None = None,
    **choices: Any,
) -> Plan:
    return plan(
        item,
        inventory or host(),
        PreparedClaims(CheckpointEntry(one) for one in held),
        replace(SETTINGS, **choices),
        core_sizes=core_sizes or {},
    )


def refusal(item: ResourceClaim, *held: Plan, **changes: Any) -> str:
    with pytest.raises(DriverError) as caught:
        made(item, *held, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def visible(of: Plan) -> str:
    """What the containers of a plan are told, all the same."""
    (value,) = {device.env.get(VISIBLE_CORES, "") for device in of.devices}
    return value


def for_pod(number: int, pod: str, results: Sequence[int | DeviceRequestAllocationResult], **changes: Any) -> Any:
    return claim(number, results, pods=[pod], template=True, **changes)


def extended(number: int, results: Sequence[DeviceRequestAllocationResult], pod: str = "pod-1") -> ResourceClaim:
    """A claim as the scheduler makes it for extended resources."""
    made_for = claim(number, results, pods=[pod], template=True)
    metadata = msgspec.structs.replace(made_for.metadata, annotations={EXTENDED_RESOURCE_CLAIM: "true"})
    return ResourceClaim(metadata, made_for.status)


def spec_env(of: Plan) -> list[dict[str, str]]:
    """Variables of each CDI device."""
    return [dict(entry.split("=", 1) for entry in device.container_edits.env) for device in cdi_spec(of).devices]


# What containers are told


def test_cores_of_a_chip_are_told_in_the_numbers_of_the_container() -> None:
    planned = made(claim(1, cores(5, 2, 3)))
    assert visible(planned) == "2-3"
    assert {number: node.chip for number, node in planned.nodes.items()} == {0: 5}
    assert [device.nodes[0].cores for device in planned.devices] == [(4, 5), (6, 7)]
    assert (
        spec_env(planned)
        == [{VISIBLE_CORES: "2-3", "NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}] * 2
    )
    assert planned.warnings == ()


def test_cores_of_several_chips_count_over_the_chips_of_the_container() -> None:
    assert visible(made(claim(1, [*cores(4, 2, 3), *cores(5, 0)]))) == "2-4"


def test_with_host_numbers_cores_are_counted_as_on_the_host() -> None:
    assert visible(made(claim(1, cores(12, 1)), device_numbering="host")) == "49"


def test_chips_without_logical_cores_are_told_physical_ones() -> None:
    planned = made(claim(1, cores(3, 1)), inventory=host(instance_type=TRN1, chip=None), core_sizes={})
    assert visible(planned) == "1"
    assert planned.env == {}


def test_a_whole_chip_beside_cores_is_named_too() -> None:
    assert visible(made(claim(1, [*cores(4, 3), 5]))) == "3-7"


def test_claims_of_whole_chips_name_no_cores() -> None:
    assert visible(made(claim(1, [4, 5]))) == ""


def test_cores_to_look_at_are_not_told_as_cores_to_use() -> None:
    planned = made(claim(1, [core(5, 1, admin_access=True)]))
    assert (visible(planned), planned.held) == ("", ())


def test_a_logical_core_size_of_the_claim_divides_what_was_offered() -> None:
    planned = made(claim(1, cores(5, 1, 2), configs=[config(neuron_config(1))]))
    assert visible(planned) == "2-5"
    assert planned.env["NEURON_LOGICAL_NC_CONFIG"] == "1"


def test_cores_offered_at_another_size_than_the_nodes_are_used_at_that_size() -> None:
    planned = made(claim(1, cores(5, 2, 3)), core_sizes={5: 1})
    assert (visible(planned), planned.env["NEURON_LOGICAL_NC_CONFIG"]) == ("2-3", "1")
    assert [part.cores for part in planned.held] == [(2,), (3,)]
    joined = made(claim(1, cores(5, 2, 3), configs=[config(neuron_config(2))]), core_sizes={5: 1})
    assert visible(joined) == "1"


def test_cores_that_fill_no_logical_core_of_the_wanted_size_are_refused() -> None:
    said = refusal(claim(1, cores(5, 1, 2), configs=[config(neuron_config(2))]), core_sizes={5: 1})
    assert "logical cores of 2 physical NeuronCores, but its physical cores 1-2 of chip 5 do not make up whole" in said
    assert "leave logicalNeuronCore out" in said


@pytest.mark.parametrize("name", ["neuron-core-5-4", "neuron-core-5-99999", "neuron-core-05-1", "neuron-core-5"])
def test_a_core_that_the_chip_does_not_have_is_refused(name: str) -> None:
    assert "is not one that this driver publishes" in refusal(claim(1, [result(name)]))


def test_the_document_of_a_plan_shows_physical_cores_and_the_environment() -> None:
    planned = made(claim(1, cores(5, 2)))
    document = plan_document(planned, cdi_spec(planned))
    assert document["environment"][VISIBLE_CORES] == "2"
    assert [row["physicalCores"] for row in document["devices"]] == [[4, 5]]
    assert "environment" not in document["devices"][0]


def test_a_cdi_name_tells_cores_of_one_size_from_those_of_another() -> None:
    at_two, at_one = made(claim(1, cores(5, 0))), made(claim(1, cores(5, 0)), core_sizes={5: 1})
    assert at_two.devices[0].cdi_name != at_one.devices[0].cdi_name


# Contiguous cores


def test_cores_that_are_no_contiguous_run_are_warned_of_refused_or_let_through() -> None:
    item = claim(1, cores(5, 0, 2))
    (warning,) = made(item).warnings
    assert warning.startswith("cores 0,2 (numbers in the container) are not one contiguous run; ")
    assert "coreRun2_id" in warning
    assert "so the claim is not prepared" in refusal(item, contiguity="refuse")
    assert made(item, contiguity="allow").warnings == ()


def test_chips_of_cores_that_are_no_contiguous_run_are_warned_of() -> None:
    (warning,) = made(claim(1, [*cores(3, 3), *cores(5, 0)])).warnings
    assert warning.startswith("chips 3, 5 are not one contiguous run of host ids")


# Who may share a chip


def test_two_claims_share_a_chip_and_see_it_under_number_0_each() -> None:
    one = made(for_pod(1, "a", cores(5, 0, 1)))
    other = made(for_pod(2, "b", cores(5, 2, 3)), one)
    assert (visible(one), visible(other)) == ("0-1", "2-3")
    assert set(other.nodes) == {0}


def test_a_core_that_another_claim_holds_is_refused() -> None:
    one = made(for_pod(1, "a", cores(5, 0, 1)))
    said = refusal(for_pod(2, "b", cores(5, 1)), one)
    assert f"device neuron-core-5-1 is still prepared for claim {one.reference}" in said


def test_a_chip_and_its_cores_exclude_each_other() -> None:
    part, whole = made(for_pod(1, "a", cores(5, 0))), made(for_pod(2, "b", [5]))
    assert f"still prepared for claim {part.reference}" in refusal(for_pod(3, "c", [5]), part)
    assert f"still prepared for claim {whole.reference}" in refusal(for_pod(3, "c", cores(5, 0)), whole)
    assert f"still prepared for claim {part.reference}" in refusal(for_pod(3, "c", [result("neuron-node")]), part)
    assert f"still prepared for claim {part.reference}" in refusal(for_pod(3, "c", [result("neuron-group4-1")]), part)


def test_a_core_is_given_once_in_a_claim_and_not_beside_its_chip() -> None:
    assert "device neuron-core-5-1 is allocated twice" in refusal(claim(1, cores(5, 1, 1)))
    assert "devices neuron-core-5-1 and neuron-device-5 are both" in refusal(claim(1, [*cores(5, 1), 5]))


def test_a_spoiled_file_of_cores_holds_the_whole_chip_back() -> None:
    spec = cdi_spec(made(for_pod(1, "a", cores(5, 0))))
    shown = shown_in(spec, uid(1))
    assert shown == frozenset({(0, 5)})
    held = PreparedClaims((), [Quarantined(uid(1), "x", "empty", frozenset({5}), shown)])
    with pytest.raises(DriverError, match="is held by claim"):
        plan(for_pod(2, "b", cores(5, 3)), host(), held, SETTINGS)
    assert visible(plan(for_pod(2, "b", cores(6, 3)), host(), held, SETTINGS)) == "7"


# The logical core size of a chip


def test_the_first_claim_on_a_chip_decides_its_logical_core_size() -> None:
    one = made(for_pod(1, "a", cores(5, 0), configs=[config(neuron_config(1))]))
    said = refusal(for_pod(2, "b", cores(5, 1)), one)
    assert f"claim {one.reference} ({one.uid}) uses chip 5 with logical cores of 1 physical NeuronCore, " in said
    assert "set logicalNeuronCore 1 in the claim's NeuronConfig" in said
    same = made(for_pod(2, "b", cores(5, 1), configs=[config(neuron_config(1))]), one)
    assert visible(same) == "2-3"
    assert visible(made(for_pod(2, "b", cores(6, 1)), one)) == "1", "another chip has a size of its own"


def test_cores_that_are_held_keep_the_size_at_which_they_were_offered() -> None:
    one = made(for_pod(1, "a", cores(5, 0)))
    node = host(default_lnc=1)
    assert visible(made(for_pod(2, "b", cores(5, 3)), one, inventory=node)) == "3", "four logical cores, not eight"
    assert visible(made(for_pod(2, "b", cores(6, 7)), one, inventory=node)) == "7"


def test_after_a_reboot_cores_are_the_same_with_the_device_numbers_of_now() -> None:
    planned = made(claim(1, cores(5, 2, 3)))
    again = refreshed(planned, changed(host(), 5, major=511))
    assert [(node.major, node.cores) for device in again.devices for node in device.nodes] == [
        (511, (4, 5)),
        (511, (6, 7)),
    ]
    assert again.held == planned.held
    assert visible(again) == "2-3"


# Two claims of one pod


def test_a_chip_of_which_two_claims_of_a_pod_have_cores_has_one_number() -> None:
    one = made(for_pod(1, "a", [*cores(4, 3), *cores(5, 0)]))
    other = made(for_pod(2, "a", cores(5, 1)), one)
    assert {node.chip: number for number, node in other.nodes.items()} == {5: 1}
    third = made(for_pod(3, "a", [*cores(5, 2), *cores(6, 0)]), one, other)
    assert {node.chip: number for number, node in third.nodes.items()} == {5: 1, 6: 2}


# Claims that were made for extended resources


def test_each_container_of_an_extended_resource_claim_counts_from_0() -> None:
    first, second = "container-0-request-0", "container-1-request-0"
    planned = made(extended(1, [core(5, 0, first), core(5, 1, first), core(5, 2, second), core(6, 0, second)]))
    assert [device.env[VISIBLE_CORES] for device in planned.devices] == ["0,1", "0,1", "2,4", "2,4"]
    assert [node.number for device in planned.devices for node in device.nodes] == [0, 0, 0, 1]
    assert [text.partition(" are")[0] for text in planned.warnings] == ["cores 2,4 (numbers in the container)"]


def test_chips_of_an_extended_resource_claim_are_numbered_for_each_container() -> None:
    planned = made(extended(1, [result(4, "container-0-request-0"), result(9, "container-1-request-0")]))
    assert planned.shown == {(0, 4), (0, 9)}
    assert planned.warnings == (), "no container has both"
    assert shown_in(cdi_spec(planned), uid(1)) == planned.shown
    assert planned.held_chips == (4, 9)


def test_another_claim_of_the_pod_counts_on_from_those_numbers() -> None:
    asked = made(extended(1, [result(4, "container-0-request-0"), result(9, "container-1-request-0")]))
    other = made(for_pod(2, "pod-1", [6, 7]), asked)
    assert other.shown == {(1, 6), (2, 7)}


def test_the_numbers_of_an_extended_resource_claim_survive_its_file() -> None:
    other = made(for_pod(2, "pod-1", [6, 7]))
    item = extended(1, [result(4, "container-0-request-0"), result(9, "container-1-request-0")])
    planned = made(item, other)
    assert planned.shown == {(2, 4), (2, 9)}
    shown = shown_in(cdi_spec(planned), uid(1))
    assert shown is not None
    held = PreparedClaims((), [Quarantined(uid(1), "x", "empty", frozenset({4, 9}), shown)])
    assert plan(item, host(), held, SETTINGS).shown == planned.shown


def test_a_container_that_differs_is_told_so_in_the_document() -> None:
    planned = made(extended(1, [core(5, 0, "container-0-request-0"), core(5, 1, "container-1-request-0")]))
    document = plan_document(planned, cdi_spec(planned))
    assert VISIBLE_CORES not in document["environment"]
    assert [row["environment"] for row in document["devices"]] == [{VISIBLE_CORES: "0"}, {VISIBLE_CORES: "1"}]


# Any history

SIZES = st.sampled_from([None, 1, 2])
DEVICES = st.one_of(
    st.builds(core, st.integers(0, 3), st.integers(0, 7)),
    st.builds(result, st.integers(0, 3)),
    st.just(result("neuron-group4-0")),
)
ARRIVALS = st.tuples(st.integers(0, 9), st.none() | st.tuples(st.lists(DEVICES, min_size=1, max_size=4), SIZES))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ARRIVALS, max_size=30), st.dictionaries(st.integers(0, 3), st.sampled_from([1, 2])))
def test_no_physical_core_is_given_twice_and_containers_are_told_what_is_held(
    history: list[tuple[int, Any]], core_sizes: dict[int, int]
) -> None:
    held = PreparedClaims()
    for number, arrival in history:
        if arrival is None or uid(number) in held.entries:
            held.discard(uid(number))
            continue
        devices, size = arrival
        item = for_pod(number, f"pod-{number}", devices, configs=[config(neuron_config(size))] if size else [])
        try:
            planned = plan(item, host(), held, SETTINGS, core_sizes=core_sizes)
        except DriverError:
            continue
        held.add(CheckpointEntry(planned))
        told = msgspec.json.decode(msgspec.json.encode(planned), type=Plan)
        assert told == planned
    taken: list[tuple[int, int]] = []
    size_of: dict[int, set[int]] = {}
    for entry in held.entries.values():
        planned = entry.plan
        mine = [(part.chip, physical) for part in planned.held for physical in part.cores or range(8)]
        taken += mine
        if not planned.has_cores:
            assert visible(planned) == ""
            continue
        for part in planned.held:
            if part.cores:
                size_of.setdefault(part.chip, set()).add(planned.core_size)
        assert _physical(planned) == set(mine)
    assert len(taken) == len(set(taken))
    assert all(len(sizes) == 1 for sizes in size_of.values())
    for chip, physical in taken:
        assert held.holder(Part(chip, (physical,))) is not None


def _physical(planned: Plan) -> set[tuple[int, int]]:
    """Chips and physical cores that NEURON_RT_VISIBLE_CORES means in a container, read as the runtime reads it."""
    size, found = planned.core_size, set()
    for part in visible(planned).split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            at, logical = divmod(number, 8 // size)
            chip = planned.nodes[at].chip
            found |= {(chip, logical * size + rest) for rest in range(size)}
    return found


# The checkpoint


def test_only_entries_with_cores_need_a_reader_that_knows_cores() -> None:
    whole, part = made(claim(1, [4, 5])), made(claim(2, [*cores(6, 0), 7]))
    documents = [msgspec.json.decode(encoded(CheckpointEntry(planned, "boot-1"))) for planned in (whole, part)]
    assert [(document["version"], document["minimumReader"]) for document in documents] == [(1, 1), (2, 2)]
    for planned in (whole, part):
        assert decoded(encoded(CheckpointEntry(planned, "boot-1")), planned.uid).plan == planned
