"""Claims for cores: what their containers are told, who may share a chip, and at which logical core size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.driver.claims.container_edits import cdi_spec, plan_document, shown_in
from dra_driver.driver.claims.files import decoded, encoded
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, Quarantined
from dra_driver.driver.claims.planner import refresh
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import EXTENDED_RESOURCE_CLAIM, DeviceRequestAllocationResult, ResourceClaim
from dra_driver.legacy.annotations import ContainerShare
from dra_driver.legacy.device_plugin.devices import AnswerSettings, answer, offer
from dra_driver.legacy.rules import NeuronResource
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import VISIBLE_CORES
from dra_driver.neuron.topology.partitions import HardwarePart, core_name, device_name
from dra_driver.util.errors import DriverError
from tests.builders.claims import (
    SETTINGS,
    changed,
    claim,
    config,
    host,
    needs,
    neuron_config,
    plan,
    pod,
    result,
    uid,
    with_extended_resources,
)
from tests.generators.effort import examples
from tests.golden import golden, golden_error

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
    pods: Mapping[str, Pod] | None = None,
    **choices: Any,
) -> Plan:
    return plan(
        item,
        inventory or host(),
        PreparedClaims(CheckpointEntry(one) for one in held),
        replace(SETTINGS, **choices),
        core_sizes=core_sizes or {},
        pods=pods,
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
    got = made(claim(1, cores(5, 2, 3)))
    assert visible(got) == "2-3"
    assert {number: node.chip for number, node in got.nodes.items()} == {0: 5}
    assert [device.nodes[0].cores for device in got.devices] == [(4, 5), (6, 7)]
    assert (
        spec_env(got)
        == [{VISIBLE_CORES: "2-3", "NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}] * 2
    )
    assert got.warnings == ()


def test_cores_of_several_chips_count_over_the_chips_of_the_container() -> None:
    assert visible(made(claim(1, [*cores(4, 2, 3), *cores(5, 0)]))) == "2-4"


def test_with_host_numbers_cores_are_counted_as_on_the_host() -> None:
    assert visible(made(claim(1, cores(12, 1)), device_numbering="host")) == "49"


def test_chips_without_logical_cores_are_told_physical_ones() -> None:
    got = made(claim(1, cores(3, 1)), inventory=host(instance_type=TRN1))
    assert visible(got) == "1"
    assert got.env == {}


def test_a_whole_chip_beside_cores_is_named_too() -> None:
    assert visible(made(claim(1, [*cores(4, 3), 5]))) == "3-7"


def test_claims_of_whole_chips_name_no_cores() -> None:
    assert visible(made(claim(1, [4, 5]))) == ""


def test_cores_to_look_at_are_not_told_as_cores_to_use() -> None:
    got = made(claim(1, [core(5, 1, admin_access=True)]))
    assert (visible(got), got.held) == ("", ())


def test_a_logical_core_size_of_the_claim_divides_what_was_offered() -> None:
    got = made(claim(1, cores(5, 1, 2), configs=[config(neuron_config(1))]))
    assert visible(got) == "2-5"
    assert got.env["NEURON_LOGICAL_NC_CONFIG"] == "1"


def test_cores_offered_at_another_size_than_the_nodes_are_used_at_that_size() -> None:
    got = made(claim(1, cores(5, 2, 3)), core_sizes={5: 1})
    assert (visible(got), got.env["NEURON_LOGICAL_NC_CONFIG"]) == ("2-3", "1")
    assert [part.cores for part in got.held] == [(2,), (3,)]
    joined = made(claim(1, cores(5, 2, 3), configs=[config(neuron_config(2))]), core_sizes={5: 1})
    assert visible(joined) == "1"


def test_cores_that_fill_no_logical_core_of_the_wanted_size_are_refused() -> None:
    said = refusal(claim(1, cores(5, 1, 2), configs=[config(neuron_config(2))]), core_sizes={5: 1})
    golden(said)


@pytest.mark.parametrize("name", ["neuron-core-5-4", "neuron-core-5-99999", "neuron-core-05-1", "neuron-core-5"])
def test_a_core_that_the_chip_does_not_have_is_refused(name: str) -> None:
    golden(refusal(claim(1, [result(name)])))


def test_the_document_of_a_plan_shows_physical_cores_and_the_environment() -> None:
    got = made(claim(1, cores(5, 2)))
    document = plan_document(got, cdi_spec(got))
    assert document["environment"][VISIBLE_CORES] == "2"
    assert [row["cores"] for row in document["deviceNodes"]] == [[4, 5]]
    assert "environment" not in document["deviceNodes"][0]


def test_a_cdi_name_tells_cores_of_one_size_from_those_of_another() -> None:
    at_two, at_one = made(claim(1, cores(5, 0))), made(claim(1, cores(5, 0)), core_sizes={5: 1})
    assert at_two.devices[0].cdi_name != at_one.devices[0].cdi_name


# Contiguous cores


def test_cores_that_are_no_contiguous_run_are_warned_of_refused_or_let_through() -> None:
    item = claim(1, cores(5, 0, 2))
    (warning,) = made(item).warnings
    golden(warning)
    assert "coreRun2_id" in warning
    golden(refusal(item, contiguity="refuse"))
    assert made(item, contiguity="allow").warnings == ()


def test_chips_of_cores_that_are_no_contiguous_run_are_warned_of() -> None:
    (warning,) = made(claim(1, [*cores(3, 3), *cores(5, 0)])).warnings
    golden(warning)


# Who may share a chip


def test_two_claims_share_a_chip_and_see_it_under_number_0_each() -> None:
    one = made(for_pod(1, "a", cores(5, 0, 1)))
    other = made(for_pod(2, "b", cores(5, 2, 3)), one)
    assert (visible(one), visible(other)) == ("0-1", "2-3")
    assert set(other.nodes) == {0}


def test_a_core_that_another_claim_holds_is_refused() -> None:
    one = made(for_pod(1, "a", cores(5, 0, 1)))
    said = refusal(for_pod(2, "b", cores(5, 1)), one)
    golden(said)


def test_a_chip_and_its_cores_exclude_each_other() -> None:
    part, whole = made(for_pod(1, "a", cores(5, 0))), made(for_pod(2, "b", [5]))
    golden(refusal(for_pod(3, "c", [5]), part))
    golden(refusal(for_pod(3, "c", cores(5, 0)), whole))
    golden(refusal(for_pod(3, "c", [result("neuron-node")]), part))
    golden(refusal(for_pod(3, "c", [result("neuron-group4-1")]), part))


def test_a_core_is_given_once_in_a_claim_and_not_beside_its_chip() -> None:
    golden(refusal(claim(1, cores(5, 1, 1))))
    golden(refusal(claim(1, [*cores(5, 1), 5])))


def test_a_spoiled_file_of_cores_holds_the_whole_chip_back() -> None:
    spec = cdi_spec(made(for_pod(1, "a", cores(5, 0))))
    shown = shown_in(spec, uid(1))
    assert shown == frozenset({(0, 5)})
    held = PreparedClaims((), [Quarantined(uid(1), "x", "empty", frozenset({5}), shown)])
    with golden_error(DriverError):
        plan(for_pod(2, "b", cores(5, 3)), host(), held, SETTINGS)
    assert visible(plan(for_pod(2, "b", cores(6, 3)), host(), held, SETTINGS)) == "7"


# The logical core size of a chip


def test_the_first_claim_on_a_chip_decides_its_logical_core_size() -> None:
    one = made(for_pod(1, "a", cores(5, 0), configs=[config(neuron_config(1))]))
    said = refusal(for_pod(2, "b", cores(5, 1)), one)
    golden(said)
    same = made(for_pod(2, "b", cores(5, 1), configs=[config(neuron_config(1))]), one)
    assert visible(same) == "2-3"
    assert visible(made(for_pod(2, "b", cores(6, 1)), one)) == "1", "another chip has a size of its own"


def test_a_tenant_is_not_told_whose_claim_of_another_namespace_is_in_the_way() -> None:
    one = made(for_pod(1, "a", cores(5, 0), namespace="others", name="secret", configs=[config(neuron_config(1))]))
    for wanted in (cores(5, 1), cores(5, 0)):
        said = refusal(for_pod(2, "b", wanted), one)
        assert "others" not in said.replace("another", "")
        assert "secret" not in said
        golden(said)


def test_cores_that_are_held_keep_the_size_at_which_they_were_offered() -> None:
    one = made(for_pod(1, "a", cores(5, 0)))
    node = host(default_lnc=1)
    assert visible(made(for_pod(2, "b", cores(5, 3)), one, inventory=node)) == "3", "four logical cores, not eight"
    assert visible(made(for_pod(2, "b", cores(6, 7)), one, inventory=node)) == "7"


def test_after_a_reboot_cores_are_the_same_with_the_device_numbers_of_now() -> None:
    got = made(claim(1, cores(5, 2, 3)))
    again = refresh(got, changed(host(), 5, major=511))
    assert [(node.major, node.cores) for device in again.devices for node in device.nodes] == [
        (511, (4, 5)),
        (511, (6, 7)),
    ]
    assert again.held == got.held
    assert visible(again) == "2-3"


# Two claims of one pod


def test_a_chip_of_which_two_claims_of_a_pod_have_cores_may_have_two_numbers() -> None:
    one = made(for_pod(1, "a", [*cores(4, 3), *cores(5, 0)]))
    assert numbered(one) == [(4, 0), (5, 1)]
    apart = [pod("a", x=["claim-1"], y=["claim-2"])]
    assert numbered(together(for_pod(2, "a", cores(4, 1)), one, pods=apart)) == [(4, 0)], "no container has both"
    assert numbered(together(for_pod(2, "a", cores(5, 1)), one, pods=apart)) == [(5, 2)]


def together(item: ResourceClaim, *held: Plan, pods: Sequence[Pod], **choices: Any) -> Plan:
    """The plan of a claim of pods that can be read."""
    known = {of.metadata.uid: of for of in pods}
    index = PreparedClaims(CheckpointEntry(one) for one in held)
    return plan(item, host(), index, replace(SETTINGS, **choices), pods=known)


def test_a_pod_is_asked_for_only_where_its_containers_decide() -> None:
    index = PreparedClaims([CheckpointEntry(made(for_pod(1, "a", cores(5, 0))))])
    for alone in (for_pod(2, "b", cores(5, 1)), for_pod(2, "b", [6]), for_pod(2, "a", [6], namespace="other")):
        plan(alone, host(), index, SETTINGS, pods={})
    requests = [core(5, 1, "x"), core(5, 2, "y")]
    for of_pod in (for_pod(2, "a", cores(5, 1)), for_pod(2, "a", [6]), for_pod(2, "b", requests)):
        needed = needs(of_pod, host(), index, SETTINGS, pods={})
        assert [pod.uid for pod in needed.pods] == [of_pod.status.reserved_for[0].uid]


@pytest.mark.parametrize(
    ("one", "other"),
    [(cores(5, 0, 1), cores(5, 2)), (cores(5, 0), [6]), ([6], cores(5, 0))],
    ids=["cores", "chip", "core"],
)
def test_claims_with_cores_do_not_meet_in_one_container(one: list[Any], other: list[Any]) -> None:
    first = made(for_pod(1, "a", one))
    for containers in ({"main": ["claim-1", "claim-2"], "y": []}, {"x": ["claim-1", "claim-2"], "y": ["claim-1"]}):
        with golden_error(DriverError):
            together(for_pod(2, "a", other), first, pods=[pod("a", **containers)])


def test_whole_chips_of_two_claims_may_meet_in_one_container() -> None:
    got = together(for_pod(2, "a", [6]), made(for_pod(1, "a", [5])), pods=[pod("a", main=["claim-1", "claim-2"])])
    assert (numbered(got), got.warnings) == ([(6, 1)], ())


def test_two_claims_of_different_containers_stay_apart() -> None:
    for first in (made(for_pod(1, "a", cores(5, 0, 1))), made(claim(1, cores(5, 0), pods=["a", "b"]))):
        second = together(for_pod(2, "a", cores(5, 2)), first, pods=[pod("a", x=["claim-1"], y=["claim-2"])])
        assert visible(second) == "2"


def test_where_pods_are_not_asked_for_claims_stay_apart_with_a_warning() -> None:
    first = made(for_pod(1, "a", cores(5, 0, 1)))
    index = PreparedClaims([CheckpointEntry(first)])
    second = plan(for_pod(2, "a", cores(5, 2)), host(), index, SETTINGS)
    assert visible(second) == "2"
    (warning,) = second.warnings
    golden(warning)


def test_requests_of_different_containers_tell_each_its_own_cores() -> None:
    item = for_pod(1, "a", [core(5, 0, "x"), core(5, 1, "y/big"), core(6, 0, "y/big")])
    apart = together(item, pods=[pod("a", one=["claim-1/x"], two=["claim-1/y"])])
    assert [device.env[VISIBLE_CORES] for device in apart.devices] == ["0", "1,4", "1,4"]
    whole = together(item, pods=[pod("a", one=["claim-1"], two=["claim-1"])])
    assert visible(whole) == "0-1,4"
    unused = together(item, pods=[pod("a", one=["claim-1/x"])])
    assert [device.env[VISIBLE_CORES] for device in unused.devices] == ["0", "1,4", "1,4"]
    with golden_error(DriverError):
        together(item, pods=[pod("a", one=["claim-1"], two=["claim-1/x"])])


def test_an_extended_resource_and_a_claim_with_cores_do_not_meet_in_one_container() -> None:
    first = made(for_pod(1, "pod-1", cores(5, 0)))
    item = extended(2, [core(5, 1, "container-0-request-0"), core(6, 2, "container-1-request-0")])
    requests = {"main": "container-0-request-0", "side": "container-1-request-0"}
    with golden_error(DriverError):
        together(item, first, pods=[with_extended_resources(pod("pod-1", main=["claim-1"]), "claim-2", **requests)])
    apart = with_extended_resources(pod("pod-1", third=["claim-1"]), "claim-2", **requests)
    assert [device.env[VISIBLE_CORES] for device in together(item, first, pods=[apart]).devices] == ["5", "6"]


# Requests of one claim with logical core sizes of their own

ONE_AND_TWO = [config(neuron_config(1), "x"), config(neuron_config(2), "y")]
SIZE = "NEURON_LOGICAL_NC_CONFIG"


def sizes(of: Plan) -> list[str]:
    """What the CDI devices of a plan tell of the logical core size, in the order of the plan's devices."""
    by_name = {device.name: device.container_edits.env for device in cdi_spec(of).devices}
    return [dict(text.split("=", 1) for text in by_name[device.cdi_name])[SIZE] for device in of.devices]


def test_containers_with_one_request_each_get_its_logical_core_size() -> None:
    apart = [pod("a", one=["claim-1/x"], two=["claim-1/y"], none=[])]
    chips = together(for_pod(1, "a", [result(4, "x"), result(5, "y")], configs=ONE_AND_TWO), pods=apart)
    assert sizes(chips) == ["1", "2"]
    assert SIZE not in chips.env
    item = for_pod(1, "a", [core(4, 1, "x"), core(5, 1, "y/big"), result(6, "y/big")], configs=ONE_AND_TWO)
    told = together(item, pods=apart)
    assert sizes(told) == ["1", "2", "2"]
    # Numbers of cores are those of the size: eight small ones on the first chip, four on the others.
    assert [device.env[VISIBLE_CORES] for device in told.devices] == ["2-3", "5,8-11", "5,8-11"]
    document = plan_document(told, cdi_spec(told))
    assert SIZE not in document["environment"]
    assert [row["environment"][SIZE] for row in document["deviceNodes"]] == ["1", "2", "2"]
    assert decoded(encoded(CheckpointEntry(told)), told.uid).plan == told


def test_a_size_of_one_request_and_the_nodes_of_another_are_sizes_of_their_own() -> None:
    item = for_pod(1, "a", [result(4, "x"), result(5, "y")], configs=[config(neuron_config(1), "x")])
    apart = together(item, pods=[pod("a", one=["claim-1/x"], two=["claim-1/y"])])
    assert sizes(apart) == ["1", "2"]


@pytest.mark.parametrize("uses", [["claim-1"], ["claim-1/x", "claim-1/y"]])
def test_a_container_with_requests_of_different_logical_core_sizes_is_refused(uses: list[str]) -> None:
    item = for_pod(1, "a", [result(4, "x"), result(5, "y")], configs=ONE_AND_TWO)
    with golden_error(DriverError):
        together(item, pods=[pod("a", one=["claim-1/x"], both=uses)])


def test_different_logical_core_sizes_are_refused_where_the_pod_is_not_known() -> None:
    item = for_pod(1, "a", [result(4, "x"), result(5, "y")], configs=ONE_AND_TWO)
    golden(refusal(item))
    assert not needs(item, host(), PreparedClaims(), SETTINGS, pods={}).optional


def test_containers_with_extended_resources_of_different_classes_get_the_sizes_of_their_class() -> None:
    configs = [config(neuron_config(1), SECOND, source="FromClass")]
    item = extended(1, [result(4, FIRST), core(5, 0, SECOND)])
    allocation = item.status.allocation
    assert allocation is not None
    devices = msgspec.structs.replace(allocation.devices, config=tuple(configs))
    status = msgspec.structs.replace(item.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    got = together(msgspec.structs.replace(item, status=status), pods=[TWO])
    assert sizes(got) == ["2", "1"]
    assert got.devices[1].env[VISIBLE_CORES] == "0,1"


def test_cores_of_one_chip_are_used_with_one_size_by_all_requests_of_a_claim() -> None:
    item = for_pod(1, "a", [core(4, 0, "x"), core(4, 1, "y")], configs=ONE_AND_TWO)
    with golden_error(DriverError):
        together(item, pods=[pod("a", one=["claim-1/x"], two=["claim-1/y"])])


def test_another_claim_on_a_chip_needs_the_size_of_the_request_that_has_cores_there() -> None:
    apart = [pod("a", one=["claim-1/x"], two=["claim-1/y"])]
    first = together(for_pod(1, "a", [core(4, 0, "x"), core(5, 0, "y")], configs=ONE_AND_TWO), pods=apart)
    assert made(for_pod(2, "b", cores(5, 1)), first).core_sizes == {5: 2}
    with golden_error(DriverError):
        made(for_pod(2, "b", cores(4, 1)), first)


def test_claims_of_a_pod_are_compared_with_every_size_of_each_other() -> None:
    apart = [pod("a", one=["claim-1/x"], two=["claim-1/y"])]
    first = together(for_pod(1, "a", [result(4, "x"), result(5, "y")], configs=ONE_AND_TWO), pods=apart)
    golden(made(for_pod(2, "a", [6]), first).warnings)


# Claims that were made for extended resources


FIRST, SECOND, THIRD = (f"container-{place}-request-0" for place in range(3))
TWO = with_extended_resources(pod("pod-1"), "claim-1", main=FIRST, side=SECOND)
"""A pod with two containers for whose limits claim-1 was made."""


def numbered(of: Plan) -> list[tuple[int, int]]:
    """For each device of a plan of chips, the host's number and that in containers."""
    return [(node.chip, node.number) for device in of.devices for node in device.nodes]


def test_each_container_of_an_extended_resource_claim_counts_from_0() -> None:
    item = extended(1, [core(5, 0, FIRST), core(5, 1, FIRST), core(5, 2, SECOND), core(6, 0, SECOND)])
    got = together(item, pods=[TWO])
    assert [device.env[VISIBLE_CORES] for device in got.devices] == ["0,1", "0,1", "2,4", "2,4"]
    assert [node.number for device in got.devices for node in device.nodes] == [0, 0, 0, 1]
    golden([text.partition(" are")[0] for text in got.warnings])


def test_containers_that_cannot_use_all_their_cores_are_told_of_together() -> None:
    item = extended(1, [core(5, 0, FIRST), core(6, 0, SECOND)])
    uses = {f"init-{number}": f"{FIRST} {SECOND}" for number in range(500)}
    got = together(item, pods=[with_extended_resources(pod("pod-1"), "claim-1", **uses, main=FIRST)])
    several = [text for text in got.warnings if "init-" in text]
    golden(several)
    assert len(several) == 1


def test_chips_of_an_extended_resource_claim_are_numbered_for_each_container() -> None:
    got = together(extended(1, [result(4, FIRST), result(9, SECOND)]), pods=[TWO])
    assert got.shown == {(0, 4), (0, 9)}
    assert got.warnings == (), "no container has both"
    assert shown_in(cdi_spec(got), uid(1)) == got.shown
    assert got.held_chips == (4, 9)


def test_an_init_container_with_several_requests_sees_all_their_chips() -> None:
    """What the scheduler makes of init containers with 1, 1 (a sidecar) and 2, before a container with 1."""
    sidecar, beside, main = (f"container-{place}-request-0" for place in (1, 2, 3))
    item = extended(1, [result(4, sidecar), result(5, beside), result(6, main)])
    of = with_extended_resources(
        pod("pod-1"), "claim-1", first=sidecar, sidecar=sidecar, second=f"{main} {beside}", main=main
    )
    got = together(item, pods=[of])
    assert numbered(got) == [(4, 0), (5, 1), (6, 0)], "the container that stays sees its chip as the first"
    assert got.warnings == ()
    host_numbers = together(item, pods=[of], device_numbering="host")
    assert numbered(host_numbers) == [(4, 4), (5, 5), (6, 6)]


def test_an_init_container_that_uses_what_two_others_use_sees_both_and_the_others_their_part() -> None:
    item = extended(1, [result(4, SECOND), result(5, THIRD), result(6, "container-3-request-0")])
    of = with_extended_resources(
        pod("pod-1"), "claim-1", init=f"{SECOND} {THIRD}", a=SECOND, b=THIRD, c="container-3-request-0"
    )
    got = together(item, pods=[of])
    assert numbered(got) == [(4, 0), (5, 1), (6, 0)]
    other = together(for_pod(2, "pod-1", [8, 9]), got, pods=[of])
    assert numbered(other) == [(8, 2), (9, 3)]


def test_an_init_container_with_cores_of_several_requests_is_told_those_of_one() -> None:
    """Their other containers are told their own: a device can carry only one set of cores."""
    item = extended(1, [core(5, 0, SECOND), core(6, 1, FIRST)])
    of = with_extended_resources(pod("pod-1"), "claim-1", init=f"{SECOND} {FIRST}", main=SECOND)
    got = together(item, pods=[of])
    assert [device.env[VISIBLE_CORES] for device in got.devices] == ["0", "5"]
    assert numbered(got) == [(5, 0), (6, 1)]
    golden(got.warnings)


def test_where_the_pod_is_not_known_an_extended_resource_claim_is_numbered_as_one() -> None:
    item = extended(1, [result(4, FIRST), result(5, SECOND)])
    for unread in (None, {"pod-1": Pod(msgspec.structs.replace(TWO.metadata))}):
        got = plan(item, host(), PreparedClaims(), SETTINGS, pods=unread)
        assert numbered(got) == [(4, 0), (5, 1)]
        golden(got.warnings)
    assert needs(item, host(), PreparedClaims(), SETTINGS, pods={}).optional
    with_core = extended(1, [core(4, 0, FIRST), result(5, SECOND)])
    assert not needs(with_core, host(), PreparedClaims(), SETTINGS, pods={}).optional
    assert made(extended(1, [result(4, FIRST), result(5, FIRST)]), pods={}).warnings == (), "one container's"


def test_another_claim_of_the_pod_counts_on_from_those_numbers() -> None:
    asked = together(extended(1, [result(4, FIRST), result(9, SECOND)]), pods=[TWO])
    other = made(for_pod(2, "pod-1", [6, 7]), asked)
    assert other.shown == {(1, 6), (2, 7)}


def test_the_numbers_of_an_extended_resource_claim_survive_its_file() -> None:
    other = made(for_pod(2, "pod-1", [6, 7]))
    item = extended(1, [result(4, FIRST), result(9, SECOND)])
    got = together(item, other, pods=[TWO])
    assert got.shown == {(2, 4), (2, 9)}
    shown = shown_in(cdi_spec(got), uid(1))
    assert shown is not None
    held = PreparedClaims((), [Quarantined(uid(1), "x", "empty", frozenset({4, 9}), shown)])
    assert plan(item, host(), held, SETTINGS, pods={"pod-1": TWO}).shown == got.shown


def test_a_container_that_differs_is_told_so_in_the_document() -> None:
    got = made(extended(1, [core(5, 0, "container-0-request-0"), core(5, 1, "container-1-request-0")]))
    document = plan_document(got, cdi_spec(got))
    assert VISIBLE_CORES not in document["environment"]
    assert [row["environment"] for row in document["deviceNodes"]] == [{VISIBLE_CORES: "0"}, {VISIBLE_CORES: "1"}]


@pytest.mark.parametrize(
    ("instance_type", "ids"), [("trn2.48xlarge", (20, 21)), ("trn2.48xlarge", (19, 20, 21)), ("trn1.32xlarge", (10,))]
)
def test_a_container_gets_what_the_device_plugin_would_give_it(instance_type: str, ids: tuple[int, ...]) -> None:
    inventory = host(instance_type=instance_type)
    inventory = replace(inventory, devices=tuple(replace(d, core_count=None) for d in inventory.devices))
    node = offer(inventory, None)
    assert node is not None
    given = answer(node, ContainerShare("main", NeuronResource.CORE, ids), AnswerSettings(numbering="renumber"))
    width = node.hardware.cores_per_device
    item = extended(1, [core(number // width, number % width, "container-0-request-0") for number in ids])
    got = made(item, inventory=inventory)
    assert all(env == given.env for env in spec_env(got))
    shown = {node.container_path: node.host_path for device in got.devices for node in device.nodes}
    assert shown == {device.container_path: device.host_path for device in given.nodes}
    whole = answer(node, ContainerShare("main", NeuronResource.DEVICE, (4, 5)), AnswerSettings(numbering="renumber"))
    chips = made(extended(1, [result(chip, "container-0-request-0") for chip in (4, 5)]), inventory=inventory)
    assert all(env == whole.env for env in spec_env(chips))


# Any history


@st.composite
def pods_with_claims(draw: st.DrawFn) -> tuple[list[list[DeviceRequestAllocationResult]], dict[str, list[str]]]:
    """Devices of a pod's claims, none twice, and what its containers use: claims, or requests of them."""
    small = [core_name(chip, number) for chip in (4, 5) for number in range(4)]
    hardware = draw(st.permutations([*small, device_name(6), device_name(7)]))
    claims, start = [], 0
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 3))
        claims.append([result(name, draw(st.sampled_from("xy"))) for name in hardware[start : start + size]])
        start += size
    uses = [f"claim-{n}{request}" for n in range(len(claims)) for request in ("", "/x", "/y")]
    containers = draw(st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from(uses), max_size=3)))
    return claims, containers


@settings(max_examples=examples(300))
@given(pods_with_claims())
def test_each_container_is_told_exactly_the_cores_of_the_devices_that_it_uses(
    drawn: tuple[list[list[DeviceRequestAllocationResult]], dict[str, list[str]]],
) -> None:
    claims, containers = drawn
    of = pod("p", **containers)
    held = PreparedClaims()
    for number, devices in enumerate(claims):
        item = for_pod(number, "p", devices)
        try:
            held.add(CheckpointEntry(plan(item, host(), held, SETTINGS, pods={"p": of})))
        except DriverError as error:
            assert re.search("one set of cores|the cores of only one claim", str(error))
            return
    plans = [entry.plan for entry in held.entries.values()]
    for uses in containers.values():
        seen = [
            device
            for plan_ in plans
            for device in plan_.devices
            if plan_.name in uses or f"{plan_.name}/{device.request}" in uses
        ]
        if not any(node.cores for device in seen for node in device.nodes):
            assert all(VISIBLE_CORES not in device.env for device in seen)
            continue
        chip_of = {node.number: node.chip for device in seen for node in device.nodes}
        wanted = {
            (node.chip, physical) for device in seen for node in device.nodes for physical in node.cores or range(8)
        }
        for device in seen:
            assert _physical(device.env[VISIBLE_CORES], 2, chip_of) == wanted


SIZES = st.sampled_from([None, 1, 2])
DEVICES = st.one_of(
    st.builds(core, st.integers(0, 3), st.integers(0, 7)),
    st.builds(result, st.integers(0, 3)),
    st.just(result("neuron-group4-0")),
)
ARRIVALS = st.tuples(st.integers(0, 9), st.none() | st.tuples(st.lists(DEVICES, min_size=1, max_size=4), SIZES))


@settings(max_examples=examples(200))
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
            got = plan(item, host(), held, SETTINGS, core_sizes=core_sizes)
        except DriverError:
            continue
        held.add(CheckpointEntry(got))
        told = msgspec.json.decode(msgspec.json.encode(got), type=Plan)
        assert told == got
    taken: list[tuple[int, int]] = []
    size_of: dict[int, set[int]] = {}
    for entry in held.entries.values():
        got = entry.plan
        mine = [(part.chip, physical) for part in got.held for physical in part.cores or range(8)]
        taken += mine
        if not got.has_cores:
            assert visible(got) == ""
            continue
        for part in got.held:
            if part.cores:
                size_of.setdefault(part.chip, set()).add(got.core_sizes[part.chip])
        chip_of = {number: node.chip for number, node in got.nodes.items()}
        assert _physical(visible(got), next(iter(got.core_sizes.values())), chip_of) == set(mine)
    assert len(taken) == len(set(taken))
    assert all(len(sizes) == 1 for sizes in size_of.values())
    for chip, physical in taken:
        assert held.holder(HardwarePart(chip, (physical,))) is not None


def _physical(told: str, size: int, chip_of: Mapping[int, int]) -> set[tuple[int, int]]:
    """Chips and physical cores that NEURON_RT_VISIBLE_CORES means, read as the runtime reads it."""
    found = set()
    for part in told.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            at, logical = divmod(number, 8 // size)
            found |= {(chip_of[at], logical * size + rest) for rest in range(size)}
    return found


# The checkpoint


def test_an_entry_with_cores_is_kept_as_it_is() -> None:
    got = made(claim(2, [*cores(6, 0), 7]))
    assert decoded(encoded(CheckpointEntry(got, "boot-1")), got.uid).plan == got
