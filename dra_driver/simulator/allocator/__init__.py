"""The devices that a claim would get: a reimplementation of kube-scheduler's "incubating" allocator.

``World`` holds slices, classes and usage; ``Scheduler`` places the claims of one pod after another on its nodes.

Source: ``k8s.io/dynamic-resource-allocation/structured`` of Kubernetes 1.36.3 and 1.37.1.
"""

from __future__ import annotations

from dra_driver.simulator.allocator.capacity import Usage
from dra_driver.simulator.allocator.nodes import NodeView
from dra_driver.simulator.allocator.pool_devices import Deadline, MayGoOn, Selector, Selectors, TimeOver, unlimited
from dra_driver.simulator.allocator.scheduler import Scheduler, nodes_with_room
from dra_driver.simulator.allocator.world import TIME_OVER, Allocation, Choice, Refusal, World

__all__ = [
    "TIME_OVER",
    "Allocation",
    "Choice",
    "Deadline",
    "MayGoOn",
    "NodeView",
    "Refusal",
    "Scheduler",
    "Selector",
    "Selectors",
    "TimeOver",
    "Usage",
    "World",
    "nodes_with_room",
    "unlimited",
]
