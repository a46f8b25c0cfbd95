"""The cases of Kubernetes' own table for its slice controller that concern node-local slices with plain devices.

Left out are those about fields that this driver does not write (binding conditions, consumable
capacity, per-device node selection, other node selectors), and those about taints, which ``test_taints`` and
``tests/plugin/driver/resourceslices`` test; that a server drops fields is tested in ``test_server`` there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.changes import Changes, ServerNormalized, decide
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.kube.api.codec import NewerSlice, unrecognised
from dra_driver.kube.objects.resource import Device, DeviceAttribute, ResourceSlice
from dra_driver.util.errors import DriverError

DRIVER = "neuron.aws.com"


def some_devices(count: int, note: str = "") -> list[Device]:
    return [Device(f"neuron-device-{i}", {"note": DeviceAttribute(string=note or "x")}) for i in range(count)]


def wanted(devices: Sequence[Device], node: str = "node-a", uid: str = "uid") -> tuple[ResourceSlice, ...]:
    return pool(devices, node, uid, DRIVER)


def stored(
    slices: Sequence[ResourceSlice], generation: int = 1, name: str | None = None, version: str = "1"
) -> list[ResourceSlice]:
    """As the server keeps them after a create at that generation."""
    result = []
    for item in slices:
        meta = msgspec.structs.replace(
            item.metadata, name=name or item.metadata.generate_name + "abcde", uid="s-uid", resource_version=version
        )
        numbered = msgspec.structs.replace(item.spec.pool, generation=generation)
        result.append(ResourceSlice(meta, msgspec.structs.replace(item.spec, pool=numbered)))
    return result


def with_name(item: ResourceSlice, name: str) -> ResourceSlice:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name=name))


def summary(changes: Changes) -> tuple[list[str], list[str], int, int]:
    return (
        [item.metadata.name for item in changes.delete],
        [item.metadata.name for item in changes.update],
        len(changes.create),
        changes.generation,
    )


def apply(existing: Sequence[ResourceSlice], changes: Changes) -> list[ResourceSlice]:
    """What the server has after the changes."""
    gone = {item.metadata.name for item in (*changes.delete, *changes.update)}
    kept = [item for item in existing if item.metadata.name not in gone]
    created = [with_name(item, f"{item.metadata.generate_name}new{i}") for i, item in enumerate(changes.create)]
    return [*kept, *changes.update, *created]


def test_create_slice() -> None:
    changes = decide([], wanted(some_devices(2)))
    assert summary(changes) == ([], [], 1, 1)
    assert changes.create[0].spec.pool.generation == 1
    assert changes.create[0].spec.pool.resource_slice_count == 1


def test_keep_slice_unchanged() -> None:
    existing = stored(wanted(some_devices(2)), generation=7)
    changes = decide(existing, wanted(some_devices(2)))
    assert changes.empty
    assert changes.keep == tuple(existing)
    assert changes.generation == 7


def test_update_slice_in_place_keeps_the_generation() -> None:
    existing = stored(wanted(some_devices(2)), generation=3, version="55")
    changes = decide(existing, wanted(some_devices(2, "other")))
    assert summary(changes) == ([], [existing[0].metadata.name], 0, 3)
    assert changes.update[0].metadata.resource_version == "55"
    assert changes.update[0].metadata.uid == "s-uid"
    assert changes.update[0].spec.devices == tuple(some_devices(2, "other"))


def test_reordered_devices_are_a_change_because_order_is_preference() -> None:
    existing = stored(wanted(some_devices(2)))
    assert len(decide(existing, wanted(some_devices(2)[::-1])).update) == 1


def test_no_devices_is_one_empty_slice() -> None:
    changes = decide([], wanted([]))
    assert summary(changes) == ([], [], 1, 1)
    assert decide(stored(wanted([])), wanted([])).empty
    assert len(decide(stored(wanted(some_devices(1))), wanted([])).update) == 1


def test_update_slice_with_many_devices() -> None:
    existing = stored(wanted(some_devices(64)))
    assert summary(decide(existing, wanted(some_devices(64, "n"))))[1:] == ([existing[0].metadata.name], 0, 1)


def test_delete_redundant_slice() -> None:
    desired = wanted(some_devices(2))
    existing = [*stored(desired), *stored(desired, name="00000-neuron.aws.com-node-a-zzzzz")]
    changes = decide(existing, desired)
    assert summary(changes) == (["00000-neuron.aws.com-node-a-zzzzz"], [], 0, 1)


def test_of_duplicates_the_one_that_needs_no_write_stays() -> None:
    desired = wanted(some_devices(2))
    old = stored(wanted(some_devices(1)), name="00000-neuron.aws.com-node-a-aaaaa")
    new = stored(desired, name="00000-neuron.aws.com-node-a-bbbbb")
    assert summary(decide([*old, *new], desired)) == (["00000-neuron.aws.com-node-a-aaaaa"], [], 0, 1)


def test_two_instances_choose_the_same_duplicate() -> None:
    desired = wanted(some_devices(2))
    one = stored(desired, name="00000-neuron.aws.com-node-a-aaaaa")
    two = stored(desired, name="00000-neuron.aws.com-node-a-bbbbb")
    assert summary(decide([*one, *two], desired)) == summary(decide([*two, *one], desired))


def test_slices_of_another_pool_of_ours_are_removed() -> None:
    other = stored(pool(some_devices(1), "node-a", "uid", DRIVER), name="00000-old")
    moved = msgspec.structs.replace(
        other[0],
        spec=msgspec.structs.replace(
            other[0].spec, pool=msgspec.structs.replace(other[0].spec.pool, name="node-a/neuron", generation=99)
        ),
    )
    changes = decide([moved], wanted(some_devices(1)))
    assert summary(changes) == (["00000-old"], [], 1, 1)


def test_slices_of_another_driver_or_node_are_left_alone() -> None:
    foreign_driver = stored(pool(some_devices(1), "node-a", "uid", "gpu.example.com"))
    foreign_node = stored(pool(some_devices(1), "node-b", "uid", DRIVER))
    assert summary(decide([*foreign_driver, *foreign_node], wanted(some_devices(1)))) == ([], [], 1, 1)


def test_multiple_existing_no_changes() -> None:
    desired = wanted(some_devices(130))
    assert len(desired) == 3
    assert decide(stored(desired, generation=2), desired).empty


def test_multiple_existing_one_changed_keeps_the_generation() -> None:
    existing = stored(wanted(some_devices(130)), generation=2)
    devices = [*some_devices(128), Device("neuron-device-128"), Device("neuron-device-129")]
    changes = decide(existing, wanted(devices))
    assert summary(changes) == ([], [existing[2].metadata.name], 0, 2)


def test_multiple_existing_two_changed_is_a_new_generation_of_all() -> None:
    existing = stored(wanted(some_devices(130)), generation=2)
    devices = some_devices(130)
    devices[0], devices[64] = Device("neuron-device-0"), Device("neuron-device-64")
    changes = decide(existing, wanted(devices))
    assert summary(changes) == ([], [item.metadata.name for item in existing], 0, 3)
    assert {item.spec.pool.generation for item in changes.update} == {3}


def test_multiple_existing_one_added_is_a_new_generation_of_all() -> None:
    existing = stored(wanted(some_devices(100)), generation=2)
    changes = decide(existing, wanted(some_devices(130)))
    assert summary(changes) == ([], [item.metadata.name for item in existing], 1, 3)
    assert {item.spec.pool.resource_slice_count for item in (*changes.update, *changes.create)} == {3}


def test_multiple_existing_one_removed_is_a_new_generation_of_the_rest() -> None:
    existing = stored(wanted(some_devices(130)), generation=2)
    changes = decide(existing, wanted(some_devices(128)))
    assert summary(changes) == (
        [existing[2].metadata.name],
        [existing[0].metadata.name, existing[1].metadata.name],
        0,
        3,
    )


def test_one_of_two_removed_is_one_change_and_keeps_the_generation() -> None:
    existing = stored(wanted(some_devices(100)), generation=2)
    changes = decide(existing, wanted(some_devices(64)))
    assert summary(changes) == ([existing[1].metadata.name], [existing[0].metadata.name], 0, 2)


def test_multiple_existing_with_different_generations() -> None:
    desired = wanted(some_devices(130))
    first, second, third = stored(desired, generation=5)
    behind = stored([desired[1]], generation=4)[0]
    changes = decide([first, behind, third], desired)
    assert summary(changes) == ([behind.metadata.name], [first.metadata.name, third.metadata.name], 1, 6)
    assert second.metadata.name == behind.metadata.name


def test_migration_from_random_naming_to_index_based_naming() -> None:
    existing = stored(wanted(some_devices(2)), generation=1, name="node-a-neuron.aws.com-x7k2p")
    changes = decide(existing, wanted(some_devices(2)))
    assert summary(changes) == (["node-a-neuron.aws.com-x7k2p"], [], 1, 2)


def test_migration_with_mixed_naming() -> None:
    desired = wanted(some_devices(100))
    first, second = stored(desired, generation=4)
    renamed = with_name(second, "node-a-neuron.aws.com-x7k2p")
    changes = decide([first, renamed], desired)
    assert summary(changes) == (["node-a-neuron.aws.com-x7k2p"], [first.metadata.name], 1, 5)


@pytest.mark.parametrize("name", ["0000g-neuron.aws.com-node-a-abcde", "fffff-neuron.aws.com-node-a-abcde", "x", "-"])
def test_names_without_a_legal_index_are_obsolete(name: str) -> None:
    desired = wanted(some_devices(1))
    assert summary(decide(stored(desired, name=name), desired)) == ([name], [], 1, 2)


def test_a_vendor_name_that_starts_like_an_index_is_no_match() -> None:
    desired = wanted(some_devices(1), node="00000-node")
    assert summary(decide(stored(desired, name="00000-node-neuron.aws.com-abcde"), desired))[2] == 1


def test_another_owner_is_corrected_in_place() -> None:
    existing = stored(wanted(some_devices(1), uid="old-node"), generation=3)
    changes = decide(existing, wanted(some_devices(1), uid="new-node"))
    assert summary(changes) == ([], [existing[0].metadata.name], 0, 3)
    assert changes.update[0].metadata.owner_references[0].uid == "new-node"


def test_an_update_keeps_what_others_put_into_the_metadata() -> None:
    (plain,) = stored(wanted(some_devices(1)))
    meta = msgspec.structs.replace(
        plain.metadata, labels={"team": "a"}, annotations={"note": "b"}, finalizers=("x/y",), creation_timestamp="t"
    )
    changes = decide([msgspec.structs.replace(plain, metadata=meta)], wanted(some_devices(2)))
    sent = changes.update[0].metadata
    assert (sent.labels, sent.annotations, sent.finalizers) == ({"team": "a"}, {"note": "b"}, ("x/y",))
    assert sent.creation_timestamp is None


def test_a_slice_that_somebodys_finalizer_holds_is_replaced_under_a_new_generation() -> None:
    (plain,) = stored(wanted(some_devices(1)), generation=3)
    held = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, deletion_timestamp="t"))
    assert summary(decide([held], wanted(some_devices(1)))) == ([], [], 1, 4)


def test_fields_that_this_version_does_not_know_are_removed() -> None:
    (plain,) = stored(wanted(some_devices(1)))
    odd = NewerSlice(plain.metadata, plain.spec, ("devices[].someday",))
    changes = decide([odd], wanted(some_devices(1)))
    assert len(changes.update) == 1
    assert unrecognised(changes.update[0]) == ()


def test_what_the_server_made_of_a_write_is_left_as_it_is() -> None:
    desired = wanted(some_devices(2))
    sent = desired[0].spec
    (kept,) = stored(wanted([Device("neuron-device-0"), Device("neuron-device-1")]))
    accepted = {kept.metadata.name: ServerNormalized(sent, kept.spec, ())}
    assert len(decide([kept], desired).update) == 1
    assert decide([kept], desired, accepted).empty
    assert not decide([kept], wanted(some_devices(2, "new")), accepted).empty
    other = NewerSlice(kept.metadata, kept.spec, ("x",))
    assert not decide([other], desired, accepted).empty


def test_generation_zero_of_others_counts_as_behind() -> None:
    existing = stored(wanted(some_devices(1)), generation=0)
    assert summary(decide(existing, wanted(some_devices(1)))) == ([], [existing[0].metadata.name], 0, 1)


def test_device_names_that_come_twice_are_refused() -> None:
    with pytest.raises(DriverError, match="neuron-device-0"):
        wanted([Device("neuron-device-0"), Device("neuron-device-0")])


EXISTING = st.lists(
    st.tuples(
        st.sampled_from(["00000", "00001", "00002", "node", "0000x"]),
        st.sampled_from(["abcde", "fghij", "klmno"]),
        st.integers(0, 4),
        st.integers(0, 130),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda row: row[:2],
)


@given(EXISTING, st.integers(0, 200))
def test_whatever_there_is_one_round_leads_to_what_is_desired(
    rows: list[tuple[str, str, int, int, bool]], count: int
) -> None:
    existing = []
    for prefix, suffix, generation, devices, same_node in rows:
        uid = "uid" if same_node else "old"
        (item, *_) = stored(wanted(some_devices(devices), uid=uid), generation)
        existing.append(with_name(item, f"{prefix}-neuron.aws.com-node-a-{suffix}"))
    desired = wanted(some_devices(count))
    after = apply(existing, decide(existing, desired))
    assert decide(after, desired).empty
    assert [device for item in sorted(after, key=lambda i: i.metadata.name) for device in item.spec.devices] == (
        some_devices(count)
    )
    assert len({item.spec.pool.generation for item in after}) == 1
    assert {item.spec.pool.resource_slice_count for item in after} == {len(after)}
