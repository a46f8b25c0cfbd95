from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dra_driver.driver.claims.container_edits import cdi_spec, plan_document
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, PrepareError, Quarantined
from dra_driver.driver.claims.planner import refresh
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import DeviceToleration, ResourceClaim, ResourceClaimStatus
from dra_driver.neuron.health.policy import Blocking, HealthTaint
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.opaque_config import ConfigError
from dra_driver.neuron.topology.partitions import core_name
from dra_driver.util.errors import DriverError
from tests.builders.claims import (
    NODE,
    SETTINGS,
    changed,
    claim,
    config,
    host,
    neuron_config,
    plan,
    result,
    uid,
    without,
)
from tests.golden import golden, golden_error
from tests.oracles.cdi_schema import SCHEMA
from tests.paths import DOCS


def made(item: ResourceClaim, inventory: NodeInventory | None = None, *held: Plan, **settings: Any) -> Plan:
    return plan(
        item, inventory or host(), PreparedClaims(CheckpointEntry(one) for one in held), replace(SETTINGS, **settings)
    )


def refusal(item: ResourceClaim, inventory: NodeInventory | None = None, *held: Plan, **settings: Any) -> str:
    with pytest.raises(DriverError) as caught:
        made(item, inventory, *held, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def numbers(of: Plan) -> dict[int, int]:
    return {node.chip: number for number, node in of.nodes.items()}


def test_a_row_of_the_torus_becomes_neuron0_to_3() -> None:
    row = made(claim(1, [6, 4, 7, 5]))
    assert numbers(row) == {4: 0, 5: 1, 6: 2, 7: 3}
    assert [device.device for device in row.devices] == [f"neuron-device-{i}" for i in (6, 4, 7, 5)]
    assert row.held_chips == (4, 5, 6, 7)
    assert row.env == {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}
    assert row.warnings == ()


def test_host_numbering_keeps_the_host_numbers() -> None:
    assert numbers(made(claim(1, [4, 5]), device_numbering="host")) == {4: 4, 5: 5}


def test_numbers_run_over_all_requests_of_the_claim() -> None:
    both = made(claim(1, [result(6, "a"), result(7, "a"), result(4, "b"), result(5, "b")]))
    assert numbers(both) == {4: 0, 5: 1, 6: 2, 7: 3}


def test_a_claim_that_is_not_allocated_is_refused() -> None:
    golden(refusal(replace_status(claim(1, [4]))))


def replace_status(item: ResourceClaim) -> ResourceClaim:
    return ResourceClaim(item.metadata, ResourceClaimStatus(None, item.status.reserved_for))


@pytest.mark.parametrize("wrong", ["", "../../etc/x", "a/b", "a b", "-a", "x" * 65, "a\n"])
def test_a_uid_that_could_not_be_a_file_name_is_refused(wrong: str) -> None:
    item = claim(1, [4])
    golden(refusal(ResourceClaim(replace_uid(item, wrong), item.status)))


def replace_uid(item: ResourceClaim, wrong: str) -> ObjectMeta:
    return ObjectMeta(name=item.metadata.name, namespace=item.metadata.namespace, uid=wrong)


def test_results_of_other_drivers_are_none_of_ours() -> None:
    nic = result("nic-1", "nics", driver="efa.networking.k8s.aws", pool="elsewhere", share_id="x")
    assert numbers(made(claim(1, [nic, result(4)]))) == {4: 0}
    golden(refusal(claim(1, [nic])))


@pytest.mark.parametrize(
    "item",
    [
        claim(1, [result(4, pool="node-2")]),
        claim(1, [result("neuron-device-04")]),
        claim(1, [result("neurondevice04")]),
        claim(1, [result("neurondevice4x")]),
        claim(1, [result("neurondevice1234")]),
        claim(1, [result("x" * 5000)]),
        claim(1, [result(4, share_id="5e7ea1e5-0000-4000-8000-000000000000")]),
        claim(1, [result(16)]),
        claim(1, [4, 4]),
        claim(1, [result(4, "a"), result(4, "b")]),
    ],
)
def test_an_allocation_that_cannot_be_right_is_refused(item: ResourceClaim) -> None:
    message = refusal(item)
    golden(message)
    assert len(message) < 500


def test_a_claim_from_a_beta_of_the_vendors_driver_is_refused_with_the_way_out() -> None:
    with pytest.raises(DriverError) as caught:
        made(claim(1, [result("neurondevice12")]))
    said = str(caught.value)
    for text in ("neurondevice12", "beta", "neuron-device-12", "delete the pods that use this claim", "move.md"):
        assert text in said
    assert len(said) < 500


@pytest.mark.parametrize(
    "inventory",
    [
        without(host(), 5),
        changed(host(), 5, major=None, minor=None),
        changed(host(), 5, major=0),
        changed(host(), 5, node_present=False),
    ],
)
def test_a_chip_that_no_container_could_open_is_refused(inventory: NodeInventory) -> None:
    golden(refusal(claim(1, [4, 5]), inventory))
    assert numbers(made(claim(1, [4]), inventory)) == {4: 0}


def test_device_zero_of_minor_zero_is_a_device_like_any_other() -> None:
    assert made(claim(1, [0])).nodes[0].minor == 0


def test_a_chip_is_never_given_to_a_second_claim() -> None:
    first = made(claim(1, [4, 5]))
    first_of_pod_1 = made(claim(1, [4, 5], template=True))
    text = refusal(claim(2, [result(5), result(6)]), None, first)
    golden(text)
    assert numbers(made(claim(2, [6, 7], pods=["pod-2"], template=True), None, first_of_pod_1)) == {6: 0, 7: 1}


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    first = made(claim(1, [4, 5]))
    assert made(claim(1, [4, 5]), None, first) == first


def test_admin_access_sees_held_chips_and_holds_none() -> None:
    first = made(claim(1, [4, 5], template=True))
    watched = [result(4, admin_access=True), result(9, admin_access=True)]
    monitor = made(claim(2, watched, pods=["monitor"], template=True), None, first)
    assert numbers(monitor) == {4: 4, 9: 9}
    assert monitor.held_chips == ()
    assert monitor.warnings == ()
    assert numbers(made(claim(3, [9], pods=["pod-3"], template=True), None, first, monitor)) == {9: 0}


def test_one_claim_may_hold_a_chip_and_watch_all() -> None:
    item = claim(1, [result(1, "own"), *(result(chip, "all", admin_access=True) for chip in range(4))])
    both = made(item)
    assert numbers(both) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert both.held_chips == (1,)
    names = [device.name for device in cdi_spec(both).devices]
    assert len(names) == len(set(names)) == 4


@pytest.mark.parametrize("chips", [[1, 3], [0, 11], [0, 4, 8, 12]])
def test_chips_that_are_no_run_are_refused_warned_about_or_allowed(chips: list[int]) -> None:
    item = claim(1, chips)
    golden(refusal(item, contiguity="refuse"))
    [warning] = made(item).warnings
    golden(warning)
    assert "devicegroup4_id" in warning
    assert made(item, contiguity="allow").warnings == ()


def test_chips_that_are_a_run_are_never_warned_about() -> None:
    for chips in ([3], [3, 4], [8, 9, 10, 11], list(range(16))):
        assert made(claim(1, chips), contiguity="refuse").warnings == ()


def test_unknown_holdings_of_an_unreadable_file_keep_all_chips_back_but_for_their_own_claim() -> None:
    held = PreparedClaims((), [Quarantined(uid(9), "/state/quarantine/x", "its checksum is wrong", None)])
    with golden_error(PrepareError):
        plan(claim(1, [4]), host(), held, SETTINGS)
    assert plan(claim(9, [4]), host(), held, SETTINGS).held_chips == (4,)
    watching = claim(1, [result(4, admin_access=True)])
    assert plan(watching, host(), held, SETTINGS).held_chips == ()


def test_known_holdings_of_an_unreadable_file_keep_only_those_chips_back() -> None:
    held = PreparedClaims((), [Quarantined(uid(9), "/state/quarantine/x", "empty", frozenset({4, 5}))])
    with golden_error(PrepareError):
        plan(claim(1, [5]), host(), held, SETTINGS)
    assert plan(claim(1, [6]), host(), held, SETTINGS).held_chips == (6,)


# Logical cores


def lnc(item: ResourceClaim, inventory: NodeInventory | None = None) -> str | None:
    env = made(item, inventory).env
    assert set(env) in (set(), {"NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"})
    assert len(set(env.values())) <= 1
    return env.get("NEURON_LOGICAL_NC_CONFIG")


def test_logical_cores_come_from_claim_class_node_file_and_type_in_that_order() -> None:
    of_claim, of_class = config(neuron_config(1)), config(neuron_config(1), source="FromClass")
    two = config(neuron_config(2))
    node_says_1 = host(default_lnc=1)
    assert lnc(claim(1, [4])) == "2"
    assert lnc(claim(1, [4]), node_says_1) == "1"
    assert lnc(claim(1, [4], configs=[of_class])) == "1"
    assert lnc(claim(1, [4], configs=[of_class, two]), node_says_1) == "2"
    assert lnc(claim(1, [4], configs=[of_claim])) == "1"


def test_a_node_default_that_the_hardware_lacks_is_not_used() -> None:
    assert lnc(claim(1, [4]), host(default_lnc=7)) == "2"


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "inf2.48xlarge", "inf1.24xlarge"])
@pytest.mark.parametrize("size", [1, 2])
def test_hardware_without_logical_cores_refuses_the_setting_and_gets_no_variable(instance_type: str, size: int) -> None:
    inventory = host(4, instance_type, default_lnc=1)
    text = refusal(claim(1, [0], configs=[config(neuron_config(size))]), inventory)
    golden(text)
    assert lnc(claim(1, [0]), inventory) is None


def test_a_type_that_is_not_in_the_table_is_known_by_its_chips() -> None:
    inventory = host(4, "trn2.96xlarge")
    assert lnc(claim(1, [0]), inventory) == "2"
    assert lnc(claim(1, [0], configs=[config(neuron_config(1))]), inventory) == "1"


def test_unknown_hardware_gets_no_variable_and_no_setting() -> None:
    inventory = changed(host(1, None, chip=None), 0, architecture="Trainium9")
    assert lnc(claim(1, [0]), inventory) is None
    text = refusal(claim(1, [0], configs=[config(neuron_config(1))]), inventory)
    golden(text)


def test_two_values_in_one_claim_are_refused_and_equal_ones_are_fine() -> None:
    chips = [result(4, "a"), result(5, "b")]
    one, two = config(neuron_config(1), "a"), config(neuron_config(2), "b")
    golden(refusal(claim(1, chips, configs=[one, two])))
    golden(refusal(claim(1, chips, configs=[one])))
    assert lnc(claim(1, chips, configs=[one, config(neuron_config(1), "b")])) == "1"
    assert lnc(claim(1, chips, configs=[config(neuron_config(2), "a")])) == "2"


def test_a_setting_for_a_request_of_another_driver_changes_nothing() -> None:
    chips = [result(4, "a"), result("nic", "nics", driver="efa.networking.k8s.aws")]
    assert lnc(claim(1, chips, configs=[config(neuron_config(1), "nics")])) == "2"


def test_a_setting_reaches_the_subrequest_that_was_taken() -> None:
    assert lnc(claim(1, [result(4, "neurons/small")], configs=[config(neuron_config(1), "neurons")])) == "1"


def test_illegal_parameters_are_refused_with_the_path() -> None:
    with golden_error(ConfigError):
        made(claim(1, [4], configs=[config({**neuron_config(1), "logicalNeuronCoreCount": 2})]))
    with golden_error(ConfigError):
        made(claim(1, [4], configs=[config(neuron_config("1"))]))


# After a reboot


def test_refreshing_changes_the_kernel_numbers_and_nothing_else() -> None:
    before = made(claim(1, [4, 5]))
    after = refresh(before, host(major=251))
    assert numbers(after) == numbers(before)
    assert {node.major for node in after.nodes.values()} == {251}
    assert refresh(after, host()) == before
    with golden_error(PrepareError):
        refresh(before, without(host(), 5))


# CDI and the document


@pytest.mark.parametrize(
    "item",
    [
        claim(0, [0]),
        claim(1, [4, 5, 6, 7]),
        claim(2, range(16)),
        claim(3, [result(4, admin_access=True), result(4, "again", admin_access=True)]),
    ],
)
def test_specs_follow_the_schema_and_name_claim_and_device(item: ResourceClaim) -> None:
    spec = cdi_spec(made(item))
    document = plan_document(made(item), spec)
    jsonschema.validate(document["cdi"], SCHEMA)
    assert document["cdi"]["kind"] == "k8s.neuron.aws.com/claim"
    assert all(device.name.startswith(f"{item.metadata.uid}-neuron-device-") for device in spec.devices)
    assert json.loads(json.dumps(document)) == document


def test_a_node_says_all_that_a_runtime_needs_so_that_it_never_looks_at_the_host() -> None:
    [device] = cdi_spec(made(claim(1, [4]))).devices
    [node] = device.container_edits.device_nodes
    assert (node.path, node.host_path) == ("/dev/neuron0", "/dev/neuron4")
    assert (node.type, node.major, node.minor) == ("c", 240, 4)
    assert (node.file_mode, node.permissions) == (0o666, "rw")


def test_every_device_of_a_claim_carries_the_same_variables() -> None:
    spec = cdi_spec(made(claim(1, [4, 5, 6], configs=[config(neuron_config(1))])))
    assert {device.container_edits.env for device in spec.devices} == {
        ("NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1")
    }


def test_variables_that_would_widen_or_narrow_what_a_container_sees_are_not_set() -> None:
    names = {
        entry.split("=")[0] for device in cdi_spec(made(claim(1, [4]))).devices for entry in device.container_edits.env
    }
    assert names.isdisjoint({"AWS_NEURON_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"})


def test_the_version_is_the_lowest_that_suffices() -> None:
    digit_first = claim(1, [0])
    letter_first = made(digit_first, host(1, "trn1.2xlarge"))
    assert cdi_spec(letter_first).cdi_version == "0.5.0"
    devices = tuple(structs.replace(device, cdi_name="f" + device.cdi_name[1:]) for device in letter_first.devices)
    assert cdi_spec(structs.replace(letter_first, devices=devices)).cdi_version == "0.3.0"


def test_a_cdi_name_stands_for_one_content() -> None:
    first = {device.name: device for device in cdi_spec(made(claim(1, [4, 5]))).devices}
    anew = {device.name: device for device in cdi_spec(made(claim(1, [5, 6]))).devices}
    other_size = {d.name: d for d in cdi_spec(made(claim(1, [4, 5], configs=[config(neuron_config(1))]))).devices}
    rebooted = {device.name: device for device in cdi_spec(made(claim(1, [4, 5]), host(major=251))).devices}
    assert first.keys().isdisjoint(anew)
    assert first.keys().isdisjoint(other_size)
    assert first.keys() == rebooted.keys()


def test_the_document_has_a_row_for_each_device_node() -> None:
    planned = made(claim(1, [4, 5]))
    document = plan_document(planned, cdi_spec(planned))
    assert document["claim"] == {"namespace": "default", "name": "claim-1", "uid": uid(1)}
    assert document["deviceNodes"] == [
        {
            "request": "neurons",
            "device": "neuron-device-4",
            "hostPath": "/dev/neuron4",
            "containerPath": "/dev/neuron0",
        },
        {
            "request": "neurons",
            "device": "neuron-device-5",
            "hostPath": "/dev/neuron5",
            "containerPath": "/dev/neuron1",
        },
    ]
    assert document["environment"] == {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}


def test_the_page_about_containers_shows_the_names_that_are_made() -> None:
    page = (DOCS / "use/in-containers.md").read_text()
    shown = "5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5"
    item = claim(1, [4, 5])
    spec = cdi_spec(made(ResourceClaim(replace_uid(item, shown), item.status)))
    assert all(f"k8s.neuron.aws.com/claim={device.name}\n" in page for device in spec.devices)


# Any claim

RESULTS = st.builds(
    result,
    st.integers(0, 17) | st.builds(core_name, st.integers(0, 17), st.integers(0, 5)) | st.text(max_size=70),
    st.sampled_from(["a", "b", "b/c"]) | st.text(max_size=70),
    driver=st.sampled_from(["neuron.aws.com"] * 9 + ["other.example.com"]),
    pool=st.sampled_from([NODE] * 9 + ["node-2"]),
    admin_access=st.sampled_from([None, None, False, True]),
    share_id=st.sampled_from([None] * 9 + ["x"]),
)
PARAMETERS = st.sampled_from([neuron_config(1), neuron_config(2)]) | st.dictionaries(
    st.sampled_from(["apiVersion", "kind", "logicalNeuronCore", "x"]), st.text(max_size=9) | st.integers() | st.none()
)
CONFIGS = st.builds(config, PARAMETERS, st.sampled_from(["a", "b", "b/c"]))
CLAIMS = st.builds(
    claim,
    st.integers(1, 5),
    st.lists(RESULTS, min_size=1, max_size=6),
    pods=st.lists(st.sampled_from(["pod-1", "pod-2"]), min_size=1, unique=True),
    template=st.booleans(),
    configs=st.lists(CONFIGS, max_size=2),
)


@given(CLAIMS, st.sampled_from(["renumber", "host"]))
def test_any_claim_is_refused_in_words_or_planned_soundly(item: ResourceClaim, numbering: Any) -> None:
    try:
        planned = made(item, device_numbering=numbering)
    except DriverError as error:
        assert str(error)
        assert len(str(error)) < 1500
        return
    own = [r for r in item.status.allocation.devices.results if r.driver == "neuron.aws.com"]  # type: ignore[union-attr] # planned, so allocated
    assert [device.device for device in planned.devices] == [r.device for r in own]
    chips = [node.chip for node in planned.nodes.values()]
    assert len(chips) == len(set(chips))
    if numbering == "renumber" and not any(r.admin_access for r in own):
        assert numbers(planned) == {chip: rank for rank, chip in enumerate(sorted(chips))}
    else:
        assert all(number == chip for chip, number in numbers(planned).items())
    jsonschema.validate(plan_document(planned, cdi_spec(planned))["cdi"], SCHEMA)


# Unhealthy chips


KEY = "health.neuron.aws.com/hbm-uncorrectable"
SICK = {4: (Blocking(HealthTaint(KEY, "unhealthy", "NoSchedule", 0), "its memory fails; replace the instance"),)}


def sick_plan(item: ResourceClaim, unhealthy: Literal["warn", "refuse"] = "warn") -> Plan:
    return plan(item, host(), PreparedClaims(), replace(SETTINGS, unhealthy=unhealthy), {}, SICK)


def test_a_claim_with_an_unhealthy_chip_gets_a_warning_with_fault_and_taint() -> None:
    (warning,) = sick_plan(claim(1, [4, 5])).warnings
    golden(warning)
    assert f"{KEY}:NoSchedule" in warning
    assert sick_plan(claim(1, [5, 6])).warnings == ()


def test_a_claim_with_an_unhealthy_chip_is_refused_by_setting() -> None:
    with pytest.raises(PrepareError) as caught:
        sick_plan(claim(1, [5, 4]), "refuse")
    golden(str(caught.value))
    assert "\n" not in str(caught.value)
    assert sick_plan(claim(1, [5]), "refuse").warnings == ()


@pytest.mark.parametrize(
    "toleration",
    [
        DeviceToleration(operator="Exists"),
        DeviceToleration(KEY, "Exists", effect="NoSchedule"),
        DeviceToleration(KEY, "Equal", "unhealthy"),
    ],
)
def test_a_claim_that_tolerates_the_taint_is_prepared_without_a_word(toleration: DeviceToleration) -> None:
    assert sick_plan(claim(1, [result(4, tolerations=(toleration,))]), "refuse").warnings == ()


def test_a_toleration_of_another_request_or_effect_does_not_count() -> None:
    tolerant = result(5, "other", tolerations=(DeviceToleration(operator="Exists"),))
    wrong = result(4, tolerations=(DeviceToleration(KEY, "Exists", effect="NoExecute"),))
    with golden_error(PrepareError):
        sick_plan(claim(1, [tolerant, wrong]), "refuse")
