"""What a pod with the gate is told in Events while its group waits."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.ultraserver.placer.values import Action, EmitEvent, GroupPod, ServerNode
from tests.builders.placer import World, demands, ultraservers
from tests.golden import golden


def plain(name: str, **fields: object) -> GroupPod:
    pod = GroupPod("a", name, uid=name, version="1", created=1.0, group="job", size="2", gated=True, owner="Job")
    return replace(pod, **fields)  # type: ignore[arg-type] # fields of GroupPod


def told(actions: list[Action]) -> list[str]:
    return [f"{action.pod.name}: {action.message}" for action in actions if isinstance(action, EmitEvent)]


def of(*pods: GroupPod, nodes: list[ServerNode] | None = None) -> list[str]:
    world = World(ultraservers() if nodes is None else nodes)
    world.pods = {pod.uid: pod for pod in pods}
    return told(world.decide())


def test_why_a_group_waits() -> None:
    golden(
        [
            *of(plain("no-group", group="")),
            *of(plain("no-size", size="9")),
            *of(plain("alone-0")),
            *of(
                plain("one-0", written_demands=demands(other_gates=("example.com/later",))),
                plain("one-1", written_demands=demands(other_gates=("example.com/later",))),
            ),
            *of(plain("two-0"), plain("two-1"), plain("two-2", gated=False, node="s0-n0")),
            *of(plain("three-0"), plain("three-1"), nodes=[ServerNode("unlabelled", {})]),
            *of(
                plain("four-0", written_demands=demands(selector={"zone": "z"})),
                plain("four-1", written_demands=demands(selector={"zone": "z"})),
            ),
        ]
    )


def test_nodes_with_a_pod_of_another_group_are_no_place_for_leaderworkersets() -> None:
    world = World(ultraservers(1))
    world.arrive("second", 4)
    world.pods["other"] = plain("other", group="first", of_lws=True, node="s0-n3", gated=False)
    world.idle.add("other")
    golden(told(world.decide()))
