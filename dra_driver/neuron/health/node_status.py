"""All that a driver says on its own Node: the condition ``NeuronHealth``, Events, the label that chips are there.

The condition is true to the present: it is written when status, reason or message change, and not otherwise. There are
no periodic writes, so ``lastHeartbeatTime`` is the time of the last change; whether the driver lives is what its pod
and its metrics say. The last word of a driver that nobody succeeds is that the health is not known any more. Those of
``condition.OfferProblem`` are there only while they are true, and stay when the driver stops, as slices do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dra_driver.kube.api.own_node import NodePart, OwnCondition, OwnLabels, OwnNodeWriter, PartStatus
from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.meta import Condition
from dra_driver.neuron.health import condition
from dra_driver.neuron.health.condition import KERNEL_DRIVER, NOT_LOADED_MESSAGE, PROBLEMS, OfferProblem
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.health.node_events import Change, NodeEvents
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import PRESENT
from dra_driver.util import runtime
from dra_driver.util.metrics import Sample
from dra_driver.util.worker import Backoff

if TYPE_CHECKING:
    from dra_driver.kube.api.resources import ResourceApi

MANAGER: Final = "neuron-health"
"""Field manager of condition and label, whichever program writes them: a node may go from one to the other."""


def chips_present(inventory: NodeInventory) -> bool | None:
    """Whether the node has chips, or should have; None while that is not sure."""
    return True if inventory.chip_indexes else None if inventory.settling else False


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A snapshot."""

    labels: PartStatus
    """Of all labels together."""
    condition: PartStatus
    events: Mapping[str, int]
    """How many, by outcome (``node_events.OUTCOMES``)."""


class NodeStatusWriter:
    """Keeps the own Node true to what is known of its chips.

    Args:
        api: the API server.
        node_name: name of the Node object.
        component: source of the Events, such as ``neuron-dra-driver``.
        present_label: whether nodes with chips get the label ``PRESENT``; otherwise ours is removed.
        writes: whether the Node is written at all; without that, there are Events alone, and no right to patch Nodes is
            needed. What was written before stays.
        labels: other labels that the program keeps on the Node: say with ``label`` what they should be.
        events: writes the Events.
        waits: between writes; see ``OwnNodeWriter``.
    """

    def __init__(
        self,
        api: ResourceApi,
        node_name: str,
        component: str,
        *,
        present_label: bool = True,
        writes: bool = True,
        labels: Sequence[OwnLabels] = (),
        events: NodeEvents | None = None,
        **waits: Callable[[], Backoff],
    ) -> None:
        self._condition = OwnCondition(condition.TYPE, MANAGER)
        self._problems = {problem: OwnCondition(problem.type, f"neuron-{problem.subject}") for problem in PROBLEMS}
        self._texts: dict[OfferProblem, str] = {}
        """What is to be said of them, where that is known."""
        self._said: set[OfferProblem] = set()
        """Those of which an Event has told: all that the Node's conditions said when it was first seen, too."""
        self._present = OwnLabels(f"labels {PRESENT} of the node", frozenset({PRESENT}), MANAGER)
        self._labels: tuple[NodePart[Any], ...] = (*labels, self._present)
        self._present_label = present_label
        self._writes = writes
        self._events = events or NodeEvents(api, component)
        parts = (*self._labels, self._condition, *self._problems.values())
        self._writer = OwnNodeWriter(api, node_name, parts, chore=self._tell, **waits)
        self.worker = self._writer.worker
        """Writes as soon as the Node is known, and what is to be said on it; all that was written stays."""
        self._health: NodeHealth | None = None
        self._looked: NodeHealth | None = None
        """Of the worker: the health of which the Events have been told."""
        self._told: tuple[tuple[int, str], ...] | None = None
        """The faults that the Node's condition named when it was first seen; None: not seen yet."""

    def last_word(self, seconds: float) -> None:
        """With the worker stopped: say that nobody watches the chips any more, within so many seconds or not at all."""
        if self._writes and self._health is not None and self._health.chips:
            self._writer.conclude(self._condition, (condition.stopped(self._health),), seconds)

    def saw(self, node: Node) -> None:
        """The Node as it is now."""
        if self._told is None:
            named = condition.told_by(self._condition.of(node))
            self._told = tuple((index, code) for index, codes in named.items() if index is not None for code in codes)
            self._said |= {problem for problem, part in self._problems.items() if part.of(node) is not None}
        self._writer.saw(node)

    def label(self, labels: OwnLabels, wanted: Mapping[str, str] | None) -> None:
        """What some other labels should be from now on; None: leave them as they are."""
        self._want(labels, wanted)

    def problem(self, problem: OfferProblem, text: str) -> None:
        """Why the node does not offer what is expected of it, or "" if that is over."""
        self._texts[problem] = text
        wanted = (Condition(problem.type, "True", problem.reason, text),) if text else ()
        self._want(self._problems[problem], wanted)

    def want(self, health: NodeHealth, present: bool | None) -> None:
        """What is known now.

        Args:
            health: of all chips. While there are none in it, nothing is known, and nothing is said.
            present: see ``chips_present``.
        """
        if present is not None:
            self._want(self._present, {PRESENT: "true"} if present and self._present_label else {})
        if health.chips:
            self._want(self._condition, (condition.condition(health),))
        elif present is False:
            self._want(self._condition, ())
        else:
            return
        self.problem(KERNEL_DRIVER, NOT_LOADED_MESSAGE if health.not_loaded else "")
        if self._health is None or self._health.chips != health.chips:
            self._health = health
            self.worker.wake()

    @property
    def status(self) -> NodeReport:
        """How all of it stands."""
        labels = [self._writer.status(part) for part in self._labels]
        wrong = [item.last_error for item in labels if item.last_error]
        together = PartStatus(
            all(item.current for item in labels),
            sum(item.writes for item in labels),
            sum(item.errors for item in labels),
            "; ".join(wrong),
        )
        return NodeReport(together, self._writer.status(self._condition), dict(self._events.counts))

    def samples(self) -> Iterator[Sample]:
        """The same for Prometheus."""
        status = self.status
        parts = (
            ("label", "labels", status.labels),
            ("condition", f"the condition {condition.TYPE}", status.condition),
        )
        for name, what, part in parts if self._writes else ():
            current = f"1 while the Node has {what} as intended."
            yield Sample(f"node_{name}{'s' if name == 'label' else ''}_current", current, float(part.current))
            yield Sample(f"node_{name}_writes", f"Writes of {what} of the Node.", part.writes, kind="counter")
            yield Sample(f"node_{name}_errors", f"Failed attempts to write {what}.", part.errors, kind="counter")
        for outcome, count in status.events.items():
            yield Sample("node_events", "Events on the Node.", count, (("outcome", outcome),), "counter")

    def _want(self, part: NodePart[Any], value: object) -> None:
        if self._writes:
            self._writer.want(part, value)
        else:
            self.worker.wake()  # for the Events

    # Worker thread

    def _tell(self, node: Node) -> float:
        health = self._health
        if health is not None and health is not self._looked:
            self._looked = health
            self._events.look(health, self._told or ())
        for problem, text in tuple(self._texts.items()):
            # What the condition says, an Event has told; a restart of the driver is no reason for another one.
            if text and problem not in self._said:
                self._events.tell(Change(problem.subject, problem.reason, True, runtime.now(), text))
            (self._said.add if text else self._said.discard)(problem)
        return self._events.write(node)
