"""Where a pod fits, and how well: asked for thousands of nodes at a time, so every answer is kept until it changes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from dra_driver.legacy.demand import Demand
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.preemption import victims
from dra_driver.legacy.hardware import Hardware
from dra_driver.legacy.placement import Packing, Refusal, union
from dra_driver.legacy.rules import score

SHAPES: Final = 32
"""Requests (by what their containers ask for) whose verdicts on all nodes are remembered."""

PREEMPTION_SECONDS: Final = 2.0
"""For one question; kube-scheduler waits five, and needs one node."""

JUDGE_SECONDS: Final = 0.1
"""For the nodes of one question on which there is no verdict yet: the scheduler waits for the answer, and bindings and
the news of pods wait for the lock. Thousands of nodes are judged in that time."""

_fits: Final = lru_cache(maxsize=16384)(Packing.fits)


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is known about a pod and some nodes.

    Attributes:
        fitting: where it fits.
        failed: why it does not fit on others, for now.
        lasting: why it never fits on others.
        unjudged: nodes for which there was no time; they are judged when the pod is tried again.
    """

    fitting: list[str]
    failed: dict[str, str]
    lasting: dict[str, str]
    unjudged: list[str]


class _Table:
    """What is remembered about one request: by kind of node, and by node."""

    __slots__ = ("_packings", "_shape", "refusals", "scores")

    def __init__(self, shape: Demand) -> None:
        self._shape = shape
        self._packings: dict[Hardware, Packing] = {}
        self.refusals: dict[str, Refusal | None] = {}
        self.scores: dict[str, int] = {}

    def packing(self, hardware: Hardware) -> Packing:
        """Of the request on this kind of node."""
        found = self._packings.get(hardware)
        if found is None:
            found = self._packings[hardware] = Packing(hardware, self._shape)
        return found


class Verdicts:
    """About the nodes of ``cluster``; may be asked from any thread.

    Args:
        cluster: what is taken.
        seconds: how long one question may take for nodes that are not judged yet.
    """

    def __init__(self, cluster: Cluster, seconds: float = JUDGE_SECONDS) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._tables: OrderedDict[Demand, _Table] = OrderedDict()
        cluster.touched = self._forget

    @property
    def remembered(self) -> list[int]:
        """For how many nodes the verdict on each remembered request is known."""
        with self._cluster.lock:
            return [len(table.refusals) for table in self._tables.values()]

    def filter(self, names: Iterable[str], wants: Demand) -> Filtered:
        """Where a pod fits."""
        found = Filtered([], {}, {}, [])
        with self._cluster.lock:
            table, until = self._table(wants), time.monotonic() + self._seconds
            refusals = table.refusals
            for name in names:
                try:
                    refusal = refusals[name]
                except KeyError:
                    if time.monotonic() > until:
                        found.unjudged.append(name)
                        continue
                    refusal = self._verdict(name, table)
                if refusal is None:
                    found.fitting.append(name)
                elif refusal.lasting:
                    found.lasting[name] = refusal.text
                else:
                    found.failed[name] = refusal.text
        return found

    def scores(self, names: Iterable[str], wants: Demand) -> list[tuple[str, int]]:
        """0 to 10 for each node: how well it packs; 0 also where there was no time to find out."""
        found: list[tuple[str, int]] = []
        with self._cluster.lock:
            table, until = self._table(wants), time.monotonic() + self._seconds
            for name in names:
                score_ = table.scores.get(name)
                if score_ is None:
                    score_ = 0 if time.monotonic() > until else self._judge(name, table)
                found.append((name, score_))
        return found

    def victims(self, proposed: Mapping[str, Sequence[str]], wants: Demand, priority: int) -> dict[str, list[str]]:
        """By node the UIDs of the pods to evict for a pod, for as many nodes as are done in time.

        Args:
            proposed: what kube-scheduler would evict, by node.
            wants: what the pod asks for.
            priority: of the pod.
        """
        end = time.monotonic() + PREEMPTION_SECONDS
        found: dict[str, list[str]] = {}
        for name, uids in proposed.items():
            tenancy = self._cluster.tenancy(name)
            if time.monotonic() >= end:
                break
            chosen = tenancy and victims(tenancy, wants, priority, uids, lambda: time.monotonic() < end)
            if chosen:
                found[name] = chosen
        return found

    def _table(self, wants: Demand) -> _Table:
        shape = _shape(wants)
        found = self._tables.get(shape)
        if found is None:
            found = self._tables[shape] = _Table(shape)
        self._tables.move_to_end(shape)
        if len(self._tables) > SHAPES:
            self._tables.popitem(last=False)
        return found

    def _verdict(self, name: str, table: _Table) -> Refusal | None:
        seen = self._cluster.look(name)
        refusal = seen if isinstance(seen, Refusal) else _fits(table.packing(seen[0]), seen[1])
        if refusal is not None:
            refusal = self._cluster.explained(name, refusal)
        # Names come from outside: those that are no nodes must not fill the memory.
        if self._cluster.knows(name):
            table.refusals[name] = refusal
        return refusal

    def _judge(self, name: str, table: _Table) -> int:
        seen = self._cluster.look(name)
        found = 0 if isinstance(seen, Refusal) else _score(table.packing(seen[0]), seen[1])
        if self._cluster.knows(name):
            table.scores[name] = found
        return found

    def _forget(self, name: str) -> None:
        for table in self._tables.values():
            table.refusals.pop(name, None)
            table.scores.pop(name, None)


@lru_cache(maxsize=16384)
def _score(packing: Packing, taken: int) -> int:
    found = packing.place(taken)
    return 0 if isinstance(found, Refusal) else score(packing.hardware, taken, taken | union(found))


def _shape(wants: Demand) -> Demand:
    """What is asked for, without names: equal for all pods that can go to the same nodes."""
    return tuple(replace(want, container="") for want in wants)
