"""Groups of pods for UltraServers, a stream of them, and what the placer promises of each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import yaml

from dra_driver.neuron.names import SERVER_4
from dra_driver.ultraserver.placer.values import GATE, LWS_SIZE, LWS_WORKER_INDEX
from tests.cluster.lib.kube import Kube, Object
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.lifecycle import is_ready, own_namespace
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import request, template
from tests.paths import ROOT

SELECTOR = "device.attributes['neuron.aws.com'].resourceType == 'neuron_node'"


def lws(name: str, size: int, *, gated: bool, worker_selector: dict[str, str] | None = None) -> Object:
    """One group of the example with that size, with or without the gate."""
    documents = yaml.safe_load_all((ROOT / f"examples/specs/{size}-node-inference-us.yaml").read_text())
    wanted: Object = next(item for item in documents if item["kind"] == "LeaderWorkerSet")
    wanted["metadata"]["name"] = name
    wanted["spec"]["replicas"] = 1
    for key in ("leaderTemplate", "workerTemplate"):
        spec = wanted["spec"]["leaderWorkerTemplate"][key]["spec"]
        spec["terminationGracePeriodSeconds"] = 1
        spec.pop("schedulingGates", None)
        for entry in spec["resourceClaims"]:
            entry["resourceClaimTemplateName"] = "one-node"
    if gated:
        wanted["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["schedulingGates"] = [{"name": GATE}]
    if worker_selector:
        wanted["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["nodeSelector"] = worker_selector
    return wanted


def one_node() -> Object:
    """A template of claims for one whole node."""
    return template("one-node", request("neurons", selectors=[SELECTOR]))


def complete(pods: Sequence[Object], size: int) -> bool:
    """Whether a group has all its pods, and they are Ready."""
    return len(pods) == size and all(is_ready(pod) for pod in pods)


def servers(kube: Kube) -> dict[str, set[str]]:
    """Nodes of each server by its id, those with four."""
    found: dict[str, set[str]] = {}
    for node in kube.find("nodes"):
        if server := node["metadata"]["labels"].get(SERVER_4):
            found.setdefault(server, set()).add(node["metadata"]["name"])
    return {server: names for server, names in sorted(found.items()) if len(names) == 4}


@dataclass
class Watchful:
    """Looks at all groups again and again, and fails when one of the placer's promises is broken."""

    kube: Kube
    namespaces: Sequence[str]
    half_since: dict[str, float] = field(default_factory=dict)
    waits_since: dict[str, float] = field(default_factory=dict)
    looks: int = 0
    halves: int = 0
    """How often a half-placed group was seen."""
    longest_half: float = 0.0
    longest_wait: float = 0.0

    def look(self) -> None:
        """One look; call it at least each second."""
        now = time.monotonic()
        by_group: dict[tuple[str, str], list[Object]] = {}
        for namespace in self.namespaces:
            for pod in self.kube.find("pods", namespace, labels="leaderworkerset.sigs.k8s.io/name"):
                name = pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"]
                by_group.setdefault((namespace, name), []).append(pod)
        sent: dict[str, tuple[str, str]] = {}
        half, waiting = set(), set()
        for group, pods in by_group.items():
            present = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            for leader in (pod for pod in present if pod["metadata"]["labels"][LWS_WORKER_INDEX] == "0"):
                uid = leader["metadata"]["uid"]
                if leader["spec"].get("schedulingGates"):
                    waiting.add(uid)
                    continue
                if sum("nodeName" in pod["spec"] for pod in present) < int(leader["metadata"]["annotations"][LWS_SIZE]):
                    half.add(uid)
                for node in self._nodes(leader["spec"]["nodeSelector"]):
                    assert sent.setdefault(node, group) == group, f"{node} was given to {sent[node]} and to {group}"
        self.looks, self.halves = self.looks + 1, self.halves + len(half)
        self.longest_half = max(self.longest_half, _remember(self.half_since, half, now))
        free = any(not names & sent.keys() for names in servers(self.kube).values())
        self.longest_wait = max(self.longest_wait, _remember(self.waits_since, waiting if free else set(), now))

    def _nodes(self, selector: dict[str, str]) -> list[str]:
        found = self.kube.find("nodes", labels=",".join(f"{key}={value}" for key, value in selector.items()))
        return [str(node["metadata"]["name"]) for node in found]


def _remember(since: dict[str, float], now_so: set[str], now: float) -> float:
    """Seconds that the longest of those has been so."""
    for uid in set(since) - now_so:
        del since[uid]
    return max((now - since.setdefault(uid, now) for uid in now_so), default=0.0)


@dataclass
class Stream:
    """Groups of two and four nodes that arrive, are made anew, and end, in three namespaces."""

    kube: Kube
    groups: LeaderWorkerSets
    chance: random.Random
    made: int = 0
    served: int = 0
    """Groups that ran."""
    kills: int = 0
    spent: float = 0.0
    """Seconds."""
    _live: dict[str, tuple[Namespace, int, float]] = field(default_factory=dict)
    """Namespace, size, and since when it may end (0 before it runs)."""
    _watchful: Watchful | None = None

    def run(self, count: int, at_once: int, kill: Callable[..., None]) -> Watchful:
        """Make ``count`` groups, at most ``at_once`` at a time; ``kill(hard=...)`` is called now and then."""
        began = time.monotonic()
        with ExitStack() as stack:
            places = [stack.enter_context(own_namespace(self.kube, f"placer-{letter}")) for letter in "abc"]
            for place in places:
                place.apply(one_node())
            watchful = self._watchful = Watchful(self.kube, [place.name for place in places])
            while self.made < count or self._live:
                if self.made < count and len(self._live) < at_once:
                    self._arrive(self.chance.choice(places))
                    if self.made % 6 == 3:
                        kill(hard=self.chance.random() < 0.3)
                        self.kills += 1
                watchful.look()
                self._go_on()
                time.sleep(0.2)
        self.spent = time.monotonic() - began
        return watchful

    def __str__(self) -> str:
        seen = self._watchful
        assert seen is not None, "it has not run"
        return (
            f"{self.served} of {self.made} groups ran with {self.kills} kills of the placer in {self.spent:.0f} s; "
            f"half-placed at most {seen.longest_half:.1f} s ({seen.halves} times seen in {seen.looks} looks), "
            f"waiting beside a free server at most {seen.longest_wait:.1f} s"
        )

    def _arrive(self, place: Namespace) -> None:
        name, size = f"g{self.made}", self.chance.choice([2, 2, 4])
        self.groups.apply(lws(name, size, gated=True), namespace=place.name)
        self._live[name] = place, size, 0.0
        self.made += 1

    def _go_on(self) -> None:
        now = time.monotonic()
        for name, (place, size, ends) in list(self._live.items()):
            if not ends and complete(self.groups.pods(name, place.name), size):
                self._live[name] = place, size, now + self.chance.uniform(0, 3)
                self.served += 1
                if self.chance.random() < 0.2:  # LeaderWorkerSet makes the group anew
                    place.kubectl("delete", "pod", f"{name}-0-1", "--wait=false", check=False)
            elif ends and now > ends:
                self.groups.delete(name, place.name)
                del self._live[name]
