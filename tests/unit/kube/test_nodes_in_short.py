"""What programs keep of a Node that hold all of them."""

from __future__ import annotations

import msgspec

from dra_driver.kube.api.codec import partial_nodes
from dra_driver.kube.objects.core import (
    MAX_CONDITION_CHARACTERS,
    MAX_NODE_CONDITIONS,
    MAX_NODE_LABELS,
    MAX_NODE_TAINTS,
    NodeSpec,
    PartialNode,
    PartialNodeStatus,
    Taint,
    in_short,
)
from dra_driver.kube.objects.meta import Condition, ObjectMeta


def test_a_node_that_writes_a_megabyte_into_itself_is_kept_in_short() -> None:
    labels = {f"{number:05}": "" for number in range(50_000)}
    taints = tuple(Taint(f"t{number}", effect="NoSchedule") for number in range(5_000))
    conditions = tuple(Condition(f"t{number}", "True", message="x" * 9_000) for number in range(5_000))
    meta = ObjectMeta(name="evil", labels=labels, finalizers=tuple(labels))
    node = in_short(PartialNode(meta, NodeSpec(taints), PartialNodeStatus(conditions)))
    assert list(node.metadata.labels) == list(labels)[:MAX_NODE_LABELS]
    assert not node.metadata.finalizers
    assert len(node.status.conditions) == MAX_NODE_CONDITIONS
    assert {len(condition.message) for condition in node.status.conditions} == {MAX_CONDITION_CHARACTERS}
    assert node.spec.taints == taints[: MAX_NODE_TAINTS + 1], "one more tells that these are not all"


def test_of_annotations_those_are_kept_that_are_read_and_words_have_a_length() -> None:
    long = "\U0001f600" * 300_000
    meta = ObjectMeta(name="evil", annotations={f"a{number}": "" for number in range(60_000)} | {"read": long})
    status = PartialNodeStatus((Condition(long, "True", long, long, long),))
    whole = PartialNode(meta, NodeSpec(provider_id=long), status)
    for read in ((), ("read",)):
        convert = partial_nodes(*read).from_version
        assert convert is not None
        node = convert(whole, "v1")
        assert list(node.metadata.annotations) == list(read)
        assert len(msgspec.json.encode(node)) < 60_000
