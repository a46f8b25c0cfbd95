"""Which labels a node of an UltraServer has, and when its Node object must be written."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.node_labels import KEYS, LABELS, MANAGER, labels
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.host.inventory import Membership, ServerSet
from dra_driver.neuron.topology.ultraserver import Mode

PAIR, FOUR = ServerSet(2, "0123456789abcdef", 1), ServerSet(4, "fedcba9876543210", 3)
HEALTHY = Membership((Mode.X4, Mode.X2V, Mode.X1), (PAIR, FOUR), elected=True)
ALL = {
    "neuron.amazonaws.com/ultraserver-mode": "1_2_4",
    "neuron.amazonaws.com/ultraserver-server-id-2": "0123456789abcdef",
    "neuron.amazonaws.com/ultraserver-node-id-2": "1",
    "neuron.amazonaws.com/ultraserver-server-id-4": "fedcba9876543210",
    "neuron.amazonaws.com/ultraserver-node-id-4": "3",
}
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

sets = st.lists(
    st.builds(
        ServerSet, st.sampled_from([2, 4, 36]), st.from_regex(r"[0-9a-f]{16}", fullmatch=True), st.integers(0, 35)
    ),
    max_size=2,
    unique_by=lambda item: item.nodes,
)
memberships = st.builds(
    Membership,
    st.lists(st.sampled_from(Mode), unique=True).map(tuple),
    sets.map(tuple),
    st.booleans(),
    st.just(False),
)


def node(has: dict[str, str], mine: Any = ()) -> Node:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in mine}}}
    managed = [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}, "subresource": "status"},
        {
            "manager": "kubectl-label",
            "operation": "Update",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{k}": {} for k in KEYS}}},
        },
        {"manager": MANAGER, "operation": "Apply", "fieldsV1": fields},
    ]
    return msgspec.convert({"metadata": {"name": "n", "labels": has, "managedFields": managed}}, Node)


def test_a_node_of_a_whole_server_has_all_labels() -> None:
    assert labels(HEALTHY) == ALL


def test_a_remainder_has_only_the_labels_of_its_pair() -> None:
    assert labels(Membership((Mode.X2H, Mode.X1), (PAIR,), elected=True)) == {
        "neuron.amazonaws.com/ultraserver-mode": "1_2",
        "neuron.amazonaws.com/ultraserver-server-id-2": "0123456789abcdef",
        "neuron.amazonaws.com/ultraserver-node-id-2": "1",
    }


def test_both_modes_of_two_nodes_count_once() -> None:
    found = labels(Membership((Mode.X2V, Mode.X2H, Mode.X1), (), elected=True))
    assert found == {"neuron.amazonaws.com/ultraserver-mode": "1_2"}


def test_a_running_election_leaves_all_labels_as_they_are() -> None:
    assert labels(Membership((), (PAIR, FOUR), elected=True, electing=True)) is None


@pytest.mark.parametrize("membership", [None, Membership((), (), elected=True), Membership((), (), elected=False)])
def test_a_host_that_is_part_of_no_server_has_no_label(membership: Membership | None) -> None:
    assert labels(membership) == {}


@given(memberships)
def test_labels_are_ours_and_legal(membership: Membership) -> None:
    found = labels(membership)
    assert found is not None
    assert set(found) <= KEYS
    assert all(LABEL_VALUE.fullmatch(value) for value in found.values())


@pytest.mark.slow
@given(memberships, memberships, st.dictionaries(st.sampled_from(sorted(KEYS)), st.just("other"), max_size=3))
def test_after_a_write_there_is_nothing_to_write(before: Membership, after: Membership, others: dict[str, str]) -> None:
    first, second = labels(before), labels(after)
    assert first is not None
    assert second is not None
    kept = {key: value for key, value in others.items() if key not in first}
    assert not LABELS.differs(node(kept | dict(first), first), first)
    gone = {key: value for key, value in (kept | dict(first)).items() if key in second or key not in first}
    assert not LABELS.differs(node(gone | dict(second), second), second)
    if second != first:
        assert LABELS.differs(node(kept | dict(first), first), second)


def test_right_labels_of_somebody_else_are_left_to_them() -> None:
    assert not LABELS.differs(node(ALL), ALL)
    assert LABELS.owned(node(ALL)) == frozenset()
    assert not LABELS.differs(node(ALL), {}), "not ours to remove"


def test_labels_of_ours_that_are_not_wanted_are_a_reason_to_write() -> None:
    assert LABELS.differs(node(ALL, ALL), {})
    assert LABELS.owned(node(ALL, [*ALL, "example.com/zone"])) == KEYS


@pytest.mark.parametrize("fields", [None, [], "x", {"f:metadata": None}, {"f:metadata": {"f:labels": []}}])
def test_odd_accounts_of_fields_are_no_labels_of_ours(fields: Any) -> None:
    managed = [{"manager": MANAGER, "operation": "Apply", "fieldsV1": fields}]
    found = msgspec.convert({"metadata": {"name": "n", "managedFields": managed}}, Node)
    assert LABELS.owned(found) == frozenset()
