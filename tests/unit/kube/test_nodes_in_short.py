"""What programs keep of a Node that hold all of them."""

from __future__ import annotations

from dra_driver.kube.objects.core import (
    MAX_CONDITION_CHARACTERS,
    MAX_NODE_CONDITIONS,
    MAX_NODE_LABELS,
    NodeSpec,
    PartialNode,
    PartialNodeStatus,
    Taint,
    in_short,
)
from dra_driver.kube.objects.meta import Condition, ObjectMeta


def test_a_node_that_writes_a_megabyte_into_itself_is_kept_in_short_but_for_its_taints() -> None:
    labels = {f"{number:05}": "" for number in range(50_000)}
    taints = tuple(Taint(f"t{number}", effect="NoSchedule") for number in range(5_000))
    conditions = tuple(Condition(f"t{number}", "True", message="x" * 9_000) for number in range(5_000))
    meta = ObjectMeta(name="evil", labels=labels, finalizers=tuple(labels))
    node = in_short(PartialNode(meta, NodeSpec(taints), PartialNodeStatus(conditions)), "v1")
    assert list(node.metadata.labels) == list(labels)[:MAX_NODE_LABELS]
    assert not node.metadata.finalizers
    assert len(node.status.conditions) == MAX_NODE_CONDITIONS
    assert {len(condition.message) for condition in node.status.conditions} == {MAX_CONDITION_CHARACTERS}
    assert node.spec.taints == taints
