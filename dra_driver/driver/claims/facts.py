"""What preparations need to know of their node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.driver.claims.model import Attributes, Unhealthy
from dra_driver.neuron.exclusion import HeldBack


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of the node's chips now beside what the host shows, as far as it matters to a preparation."""

    unhealthy: Unhealthy = field(default_factory=dict)
    held_back: HeldBack = field(default=HeldBack())
    """Chips that no claim gets that has none yet."""
    core_sizes: Mapping[int, int] = field(default_factory=dict)
    """Physical cores in a logical one by chip, where they are offered at another size than the node's."""
    attributes: Attributes | None = None
    """What containers are to be told of devices, by name; None: nothing."""
