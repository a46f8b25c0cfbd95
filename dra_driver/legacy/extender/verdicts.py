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
from dra_driver.legacy.placement import Refusal, fits, place, union
from dra_driver.legacy.rules import score

SHAPES: Final = 32
"""Requests (by what their containers ask for) whose verdicts on all nodes are remembered."""

PREEMPTION_SECONDS: Final = 2.0
"""For one question; kube-scheduler waits five, and needs one node."""

_fits: Final = lru_cache(maxsize=16384)(fits)


@dataclass(frozen=True, slots=True)
class Filtered:
    """Names of the nodes where a pod fits, and why it does not on the others: for now, or for ever."""

    fitting: list[str]
    failed: dict[str, str]
    lasting: dict[str, str]


class _Table:
    """What is remembered about one request, by node."""

    __slots__ = ("refusals", "scores")

    def __init__(self) -> None:
        self.refusals: dict[str, Refusal | None] = {}
        self.scores: dict[str, int] = {}


class Verdicts:
    """About the nodes of ``cluster``; may be asked from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tables: OrderedDict[Demand, _Table] = OrderedDict()
        cluster.touched = self._forget

    @property
    def remembered(self) -> list[int]:
        """For how many nodes the verdict on each remembered request is known."""
        return [len(table.refusals) for table in self._tables.values()]

    def filter(self, names: Iterable[str], wants: Demand) -> Filtered:
        """Where a pod fits."""
        shape = _shape(wants)
        fitting: list[str] = []
        failed: dict[str, str] = {}
        lasting: dict[str, str] = {}
        with self._cluster.lock:
            table = self._table(shape)
            refusals = table.refusals
            for name in names:
                try:
                    refusal = refusals[name]
                except KeyError:
                    refusal = self._verdict(name, shape, refusals)
                if refusal is None:
                    fitting.append(name)
                elif refusal.lasting:
                    lasting[name] = refusal.text
                else:
                    failed[name] = refusal.text
        return Filtered(fitting, failed, lasting)

    def scores(self, names: Iterable[str], wants: Demand) -> list[tuple[str, int]]:
        """0 to 10 for each node: how well it packs."""
        shape = _shape(wants)
        found: list[tuple[str, int]] = []
        with self._cluster.lock:
            scores = self._table(shape).scores
            for name in names:
                score_ = scores.get(name)
                found.append((name, self._judge(name, shape, scores) if score_ is None else score_))
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

    def _judge(self, name: str, shape: Demand, scores: dict[str, int]) -> int:
        seen = self._cluster.look(name)
        found = 0 if isinstance(seen, Refusal) else _score(*seen, shape)
        if self._cluster.knows(name):
            scores[name] = found
        return found

    def _table(self, shape: Demand) -> _Table:
        found = self._tables.setdefault(shape, _Table())
        self._tables.move_to_end(shape)
        if len(self._tables) > SHAPES:
            self._tables.popitem(last=False)
        return found

    def _verdict(self, name: str, shape: Demand, refusals: dict[str, Refusal | None]) -> Refusal | None:
        seen = self._cluster.look(name)
        refusal = seen if isinstance(seen, Refusal) else _fits(*seen, shape)
        if refusal is not None:
            refusal = self._cluster.explained(name, refusal)
        # Names come from outside: those that are no nodes must not fill the memory.
        if self._cluster.knows(name):
            refusals[name] = refusal
        return refusal

    def _forget(self, name: str) -> None:
        for table in self._tables.values():
            table.refusals.pop(name, None)
            table.scores.pop(name, None)


@lru_cache(maxsize=16384)
def _score(hardware: Hardware, taken: int, shape: Demand) -> int:
    found = place(hardware, taken, shape)
    return 0 if isinstance(found, Refusal) else score(hardware, taken, taken | union(found))


def _shape(wants: Demand) -> Demand:
    """What is asked for, without names: equal for all pods that can go to the same nodes."""
    return tuple(replace(want, container="") for want in wants)
