"""What a claim is planned from: the claim itself, what was found out about its pods, and what its node is like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dra_driver.driver.claims.model import Attributes, Consumers, Pods, Unhealthy
from dra_driver.kube.objects.resource import PartialResourceClaim
from dra_driver.neuron.host.inventory import NodeInventory

if TYPE_CHECKING:
    from dra_driver.neuron.exclusion import HeldBack  # asks kubelet and the API server: not for who only plans


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of the node's chips now beside what the host shows, as far as it matters to a preparation."""

    unhealthy: Unhealthy = field(default_factory=dict)
    held_back: HeldBack | None = None
    """Chips that no claim gets that has none yet."""
    core_sizes: Mapping[int, int] = field(default_factory=dict)
    """Physical cores in a logical one by chip, where they are offered at another size than the node's."""
    attributes: Attributes | None = None
    """What containers are to be told of devices, by name; None: nothing."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A claim and all that its plan depends on, but what is prepared and what an administrator has set."""

    claim: PartialResourceClaim
    """The claim as the API server has it."""
    inventory: NodeInventory
    """The node as its host shows it."""
    facts: NodeFacts = field(default_factory=NodeFacts)
    consumers: Consumers = field(default_factory=dict)
    """Who uses other prepared claims now, as far as a plan needed it (``Needs.claims``)."""
    pods: Pods | None = None
    """The claim's pods, as far as a plan needed them (``Needs.pods``); None: they cannot be read. One without
    containers is gone, or may not be read."""
