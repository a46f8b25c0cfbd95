"""Pods that come and go at random, and extenders that are killed meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

from tests.cluster.lib.kube import Object
from tests.cluster.lib.legacy.extender import ExtenderLab
from tests.cluster.lib.legacy.ledger import Ledger
from tests.cluster.lib.legacy.nodes import NeuronNodes
from tests.cluster.lib.legacy.pods import Pods, container, ended, pod, refusal
from tests.cluster.lib.legacy.rules import CORE, DEVICE

COUNTS = {DEVICE: (1, 1, 1, 2, 3, 4, 4, 5, 8, 12, 16), CORE: (1, 1, 2, 2, 3, 4, 6, 8, 9, 13, 16, 32, 40)}
WAITING = 25
"""Pods without a node at one time."""
LIFE = 60
"""At most so many other pods come while one lives."""
EDITS: tuple[dict[str, str | None], ...] = (
    {"k8s.ovn.org/pod-networks": "{}"},
    {"AWS_NEURON_IDS": "0"},
    {"AWS_NEURON_IDS": "nonsense"},
    {"NEURON_ALLOCATED": "false"},
    {"NEURON_RESOURCE_TYPE": "x"},
    {"neuron.aws.com/allocation": None},
    {"neuron.aws.com/allocation": "{}"},
    dict.fromkeys(("AWS_NEURON_IDS", "neuron.aws.com/allocation", "NEURON_CORES", "NEURON_DEVS")),
)
STALE = {"AWS_NEURON_IDS": "0,1", "NEURON_ALLOCATED": "true", "NEURON_RESOURCE_TYPE": CORE}
"""Of a pod whose template was taken from a running one."""
STUCK_SECONDS = 120.0


class Stream:
    """One stream of pods; every choice is drawn from ``chance``."""

    def __init__(self, pods: Pods, nodes: NeuronNodes, ledger: Ledger, chance: random.Random) -> None:
        self._pods, self._nodes, self._ledger, self._chance = pods, nodes, ledger, chance
        self._number = 0
        self._until: dict[str, int] = {}
        """When a pod is to end: the number of the pod that comes then."""
        self._leaving: set[str] = set()
        """Pods that were told to end."""
        self._foreign: set[str] = set()
        self.refused: Counter[str] = Counter()
        self.seen_refused: set[str] = set()
        """Pods that had to wait for room."""
        self._ended: Counter[str] = Counter()

    def run(self, count: int, tick: Callable[[int], None]) -> None:
        """Let so many pods come; ``tick`` is told the number of each."""
        last, moved = self._number + count, time.monotonic()
        while self._number < last:
            self._nodes.check()
            self._ledger.check()
            waiting = self._waiting()
            if len(waiting) < WAITING:
                self._arrive()
                tick(self._number)
                moved = time.monotonic()
            else:
                self._turn_away(waiting)
                self._pods.rest(0.1)
            self._end_due()
            if len(self._waiting()) >= WAITING and time.monotonic() - moved > 1.0:
                self._make_room()
            assert time.monotonic() - moved < STUCK_SECONDS, f"nothing moves; waiting: {waiting[:3]}"

    def check_failed(self) -> None:
        """Pods fail only where somebody has edited their annotations, or those of a pod that is in their way."""
        edited = self._ledger.edited
        for node in self._nodes:
            for name, text in node.refused.items():
                harmed = name in edited or any(f"pod default/{other} " in text for other in edited)
                assert harmed, f"{name} has failed on {node.name}: {text}; its plugin: {node.plugin.text[-5000:]}"
        self.refused["gone before they were admitted"] = sum(node.too_late for node in self._nodes)

    def end_all(self) -> None:
        """No pod is left."""

        def gone() -> bool:
            # The watch may not have told yet of those that came last.
            known = list(self._pods.known.items())
            left = [name for name, item in known if ended(item) or "deletionTimestamp" not in item["metadata"]]
            self._pods.delete(*left)
            return not self._pods.known and self._pods.seen >= self._pods.made.keys()

        end = time.monotonic() + STUCK_SECONDS
        while not gone():
            self._nodes.check()
            assert time.monotonic() < end, f"pods are left: {list(self._pods.known)[:5]}"
            self._pods.rest(0.2)

    def report(self) -> str:
        """Counts and times."""
        pods = self._pods
        times = sorted(
            pods.bound[name] - pods.made[name]
            for name in pods.bound
            if name in pods.made and name not in self.seen_refused
        )
        failed = sum(len(node.refused) for node in self._nodes)
        return (
            f"{self._number} pods came, {len(pods.bound)} were bound, {self._ledger.answered} ran, "
            f"{failed} failed, refused: {dict(self.refused)}, ends: {dict(self._ended)}; "
            f"{self._ledger.checked} annotations checked; bound without waiting for room: {len(times)}, "
            f"p50 {1000 * median(times):.0f} ms, p99 {1000 * times[int(len(times) * 0.99)]:.0f} ms"
        )

    # What happens

    def _waiting(self) -> list[str]:
        return [
            name
            for name, item in list(self._pods.known.items())
            if not item["spec"].get("nodeName") and "deletionTimestamp" not in item["metadata"]
        ]

    def _arrive(self) -> None:
        self._number += 1
        name = f"s{self._number}"
        item = self._draw(name)
        self._until[name] = self._number + self._chance.randint(1, LIFE)
        if self._chance.random() < 0.05:
            item["metadata"]["annotations"] = dict(STALE)
        self._pods.create(item)
        if self._chance.random() < 0.02:
            # While it is being scheduled, perhaps.
            self._pods.delete(name)
            self._leaving.add(name)
            self._ended["deleted at once"] += 1
        if self._chance.random() < 0.06:
            self._edit()

    def _draw(self, name: str) -> Object:
        chance = self._chance
        containers = [self._container(f"c{number}") for number in range(chance.choice((1, 1, 1, 1, 2, 2, 3)))]
        if all("resources" not in entry or not entry["resources"]["limits"] for entry in containers):
            containers.append(container("last", {DEVICE: 1}))
        init = [self._container(f"i{number}") for number in range(chance.choice((0, 0, 0, 0, 1, 2)))]
        where = {}
        if chance.random() < 0.3:
            where["node.kubernetes.io/instance-type"] = chance.choice([node.kind for node in self._nodes])
        return pod(name, *containers, init=init, where=where)

    def _container(self, name: str) -> Object:
        resource = self._chance.choice((DEVICE, CORE, CORE))
        nothing = self._chance.random() < 0.05
        return container(name, {} if nothing else {resource: self._chance.choice(COUNTS[resource])})

    def _end_due(self) -> None:
        for name, number in list(self._until.items()):
            item = self._pods.known.get(name)
            if number <= self._number and item is not None and item["spec"].get("nodeName"):
                self._end(name, item)
        for name, item in list(self._pods.known.items()):
            if ended(item) and name not in self._leaving:
                self._leaving.add(name)
                self._pods.delete(name)

    def _end(self, name: str, item: Object) -> None:
        del self._until[name]
        how = self._chance.choice(("Succeeded", "Failed", "deleted"))
        self._ended[how] += 1
        if how == "deleted":
            self._leaving.add(name)
            self._pods.delete(name)
        else:
            self._nodes[item["spec"]["nodeName"]].end(item, how)

    def _turn_away(self, waiting: list[str]) -> None:
        """Delete pods that no node of theirs can ever have."""
        for name in waiting:
            text = refusal(self._pods.known.get(name, {"status": {}}))
            if text:
                self.seen_refused.add(name)
            for reason in (
                "does not support requests",
                "for all containers of the pod",
                "Insufficient",
                "affinity/selector",
            ):
                if name not in self._leaving and reason in text and self._chance.random() < 0.3:
                    self.refused[reason] += 1
                    self._leaving.add(name)
                    self._pods.delete(name)

    def _make_room(self) -> None:
        running = [name for name in self._until if self._pods.phase(name) == "Running"]
        for name in self._chance.sample(running, min(len(running), 3)):
            self._end(name, self._pods.known[name])

    def _edit(self) -> None:
        """Somebody else writes into the annotations of a bound pod."""
        bound = [name for name, item in list(self._pods.known.items()) if item["spec"].get("nodeName")]
        if not bound:
            return
        name, change = self._chance.choice(bound), self._chance.choice(EDITS)
        if any("ovn" not in key for key in change):
            self._ledger.edited.add(name)
        self._pods.annotate(name, change)


class Killer:
    """Ends extenders at random instants, and starts others.

    Args:
        side: where they run.
        chance: when.
        every: on average, one for so many pods.
        elect: there are two, and the leader is meant: killed, or ended in order.
    """

    def __init__(self, side: ExtenderLab, chance: random.Random, *, every: int, elect: bool) -> None:
        self._side, self._chance, self._every, self._elect = side, chance, every, elect
        self._next = 0
        self.kills = self.ends = 0

    def tick(self, number: int) -> None:
        """Pod ``number`` has come."""
        if not self._next:
            self._next = number + self._chance.randint(1, self._every)
        if number < self._next:
            return
        self._next = number + self._chance.randint(self._every // 2, self._every * 3 // 2)
        threading.Event().wait(self._chance.random() * 0.1)
        replica = self._side.leader() if self._elect else self._side.replicas[0]
        if replica is None:
            return
        hard = not self._elect or self._chance.random() < 0.5 or not self.kills
        self._side.end_extender(replica, hard=hard)
        self.kills, self.ends = self.kills + hard, self.ends + (not hard)
        self._side.start_extender(*(() if self._elect else ("--no-leader-elect",)))
