"""Who has what, kept beside the product and by other means: the watch's order, the annotations, the plugins' answers.

Annotations are looked at as they were when the pod was bound; what others write into them later is not the extender's.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from dataclasses import dataclass

from tests.cluster.lib.kube import Object
from tests.cluster.lib.legacy.nodes import Given, NeuronNode
from tests.cluster.lib.legacy.pods import ended, ids, limits_of, notes
from tests.cluster.lib.legacy.rules import CORE, DEVICE, KINDS, Kind

Shares = dict[str, tuple[str, list[int]]]
"""By container: resource and ids."""


@dataclass(frozen=True)
class Entry:
    """A bound pod that has not ended."""

    name: str
    node: str
    shares: Shares
    cores: frozenset[int]


class Ledger:
    """Hears of every event and answer; ``faults`` are sentences about what must not be."""

    def __init__(self, kinds: dict[str, str]) -> None:
        self._kinds = {name: KINDS[kind] for name, kind in kinds.items()}
        self._lock = threading.Lock()
        self._bound: dict[str, Entry] = {}
        self._handed: dict[str, dict[str, frozenset[int]]] = defaultdict(dict)
        self._over: set[str] = set()
        self.edited: set[str] = set()
        """Names of pods whose annotations somebody may have edited before they were handed out."""
        self.faults: list[str] = []
        self.checked = self.answered = 0
        """Pods whose annotations, and whose answers, were looked at."""

    @property
    def bound(self) -> int:
        """Pods that are bound and have not ended."""
        return len(self._bound)

    def check(self) -> None:
        """AssertionError when something was seen that must not be."""
        assert not self.faults, "\n".join(self.faults[:20])

    def hear(self, kind: str, item: Object) -> None:
        """An event of a pod, in the API server's order."""
        uid, node = item["metadata"]["uid"], item["spec"].get("nodeName", "")
        with self._lock:
            if kind == "DELETED" or ended(item):
                self._over.add(uid)
                self._bound.pop(uid, None)
            elif node and uid not in self._bound and uid not in self._over:
                self._bound[uid] = self._entry(item, node)

    def _entry(self, item: Object, node: str) -> Entry:
        name, shape = item["metadata"]["name"], self._kinds[node]
        try:
            shares = _shares(item)
        except (KeyError, ValueError) as error:
            self.faults.append(f"{name} on {node}: annotations {notes(item)} cannot be read: {error!r}")
            return Entry(name, node, {}, frozenset())
        self.checked += 1
        self.faults += [f"{name} on {node}: {text}" for text in _violations(item, shape, shares)]
        cores = frozenset().union(*(shape.cores_of(*share) for share in shares.values()))
        for other in self._bound.values():
            if other.node == node and other.cores & cores:
                both = sorted(other.cores & cores)
                self.faults.append(f"{name} on {node} was bound to cores {both}, which {other.name} has")
        return Entry(name, node, shares, cores)

    def handed_out(self, node: NeuronNode, item: Object, answers: dict[str, Given]) -> None:
        """What a device plugin has given to a pod's containers."""
        name, uid, shape = item["metadata"]["name"], item["metadata"]["uid"], node.shape
        asked = limits_of(item)
        cores: set[int] = set()
        for container, answer in answers.items():
            resource, count = asked[container]
            numbers = answer.devices if answer.cores is None else answer.cores
            right = len(numbers) == count and shape.allows(resource, numbers)
            if resource == CORE:
                right = right and set(answer.devices) == shape.beneath(numbers)
            if not right or (answer.cores is None) != (resource == DEVICE):
                self._fault(f"{name} on {node.name}: {container} asks for {count} of {resource} and got {answer}")
            cores |= shape.cores_of(resource, numbers)
        with self._lock:
            self.answered += 1
            if answers.keys() != asked.keys():
                self.faults.append(f"{name} on {node.name}: {sorted(answers)} got devices, {sorted(asked)} asked")
            for other, theirs in self._handed[node.name].items():
                if theirs & cores:
                    self.faults.append(f"{name} on {node.name} was given {sorted(theirs & cores)}, which {other} has")
            self._handed[node.name][uid] = frozenset(cores)
            entry = self._bound.get(uid)
            if entry is not None and name not in self.edited:
                told = {key: (resource, ids_) for key, (resource, ids_) in entry.shares.items()}
                got = {key: (asked[key][0], list(_numbers(answer))) for key, answer in answers.items()}
                if told != got:
                    self.faults.append(f"{name} on {node.name}: chosen was {told}, handed out {got}")

    def left(self, node: NeuronNode, uid: str) -> None:
        """A pod's containers have ended; what it had may be given to others from now on."""
        with self._lock:
            self._handed[node.name].pop(uid, None)

    def _fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)


def _numbers(answer: Given) -> tuple[int, ...]:
    return answer.devices if answer.cores is None else answer.cores


def _shares(item: Object) -> Shares:
    own = json.loads(notes(item)["neuron.aws.com/allocation"])
    return {entry["name"]: (entry["resource"], ids(entry["ids"])) for entry in own["containers"]}


def _violations(item: Object, shape: Kind, shares: Shares) -> list[str]:
    """What is wrong with a pod's annotations by themselves."""
    asked, told = limits_of(item), notes(item)
    found = []
    if shares.keys() != asked.keys():
        found.append(f"{sorted(asked)} ask, {sorted(shares)} have")
    for name, (resource, numbers) in shares.items():
        if asked.get(name) != (resource, len(numbers)) or not shape.allows(resource, numbers):
            found.append(f"{name} asks for {asked.get(name)} and has {numbers} of {resource}")
    together: set[int] = set()
    for entry in item["spec"]["containers"]:
        mine = shape.cores_of(*shares[entry["name"]]) if entry["name"] in shares else set()
        if mine & together:
            found.append(f"{entry['name']} shares cores {sorted(mine & together)} with another container")
        together |= mine
    kinds = {resource for resource, _ in shares.values()}
    kind = kinds.pop() if len(kinds) == 1 else CORE
    cores = set().union(*(shape.cores_of(*share) for share in shares.values()))
    expected = sorted(cores if kind == CORE else {core // shape.cores for core in cores})
    if told["NEURON_RESOURCE_TYPE"] != kind or ids(told["AWS_NEURON_IDS"]) != expected:
        found.append(f"{told['AWS_NEURON_IDS']} of {told['NEURON_RESOURCE_TYPE']}, but {expected} of {kind}")
    if not told["NEURON_ALLOC_TIME"].isdecimal():
        found.append(f"chosen at {told['NEURON_ALLOC_TIME']}")
    return found
