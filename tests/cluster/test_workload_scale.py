"""A stream of UltraServer workloads over light nodes with the driver's real process, while the operator is killed.

Beside it come and go groups with the gate, and pods that want a whole node and ask nobody.
``NEURON_DRA_SCALE_WORKLOADS`` and ``NEURON_DRA_SCALE_KILLS`` make it shorter or longer than it is by default on the
newest Kubernetes; on others it is shorter.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lab.cluster import Cluster

from dra_driver.driver.node_labels import KEYS
from dra_driver.neuron.names import WORKLOAD_TAINT, WORKLOAD_UID
from tests.cluster.lib.groupstream import Stream, one_node, servers
from tests.cluster.lib.installation import DAEMONSET, EMULATED_ULTRASERVER, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.lifecycle import is_ready, own_namespace
from tests.cluster.lib.lightnodes import LightNodes
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod
from tests.cluster.test_scale import FAILOVER_SECONDS, GROUP_TIMEOUT, Placers
from tests.generators.effort import SEED
from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.ultraservers, pytest.mark.kubernetes("1.37", "1.34")]

SERVERS = 4
NAMES = [f"light-{number}" for number in range(1, 4 * SERVERS + 1)]
WORKLOADS = int(os.environ.get("NEURON_DRA_SCALE_WORKLOADS", "200"))
KILLS = int(os.environ.get("NEURON_DRA_SCALE_KILLS", "30"))
GROUPS_AT_ONCE, PODS_AT_ONCE = 2, 2
AT_ONCE = 12
"""Workloads that wait or have servers."""
LIFE_SECONDS = (0.0, 1.0, 4.0)
"""How long one has its servers."""
HALF_SECONDS, HALF_SECONDS_AFTER_KILL = 20.0, 60.0
"""For so long a workload may have servers that are reserved and not bound: while one operator acts, or after a kill."""
KINDS = "/apis/neuron.aws.com/v1beta1"
CLASSES, DEFINITIONS = (
    ROOT / "deploy/deviceclasses.yaml",
    ROOT / "charts/neuron-helm-chart/files/ultraserver-definitions.yaml",
)


@pytest.fixture(scope="module")
def home(installation: Installation, kube: Kube) -> Iterator[str]:
    """The namespace of the operator and of the servers' objects; both kinds are there, and no other driver."""
    if kube.get("daemonsets", DAEMONSET, NAMESPACE) is not None:
        installation.uninstall()
    eventually("no slice to be left", lambda: not kube.slices(), 60)
    kube.kubectl("label", "nodes", "--all", *(f"{key}-" for key in sorted(KEYS)))
    for file in (CLASSES, DEFINITIONS):
        kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    with own_namespace(kube, "operator") as namespace:
        yield namespace.name
    kube.kubectl("delete", "-f", str(CLASSES))


@pytest.fixture
def light_nodes(home: str, kube: Kube) -> Iterator[LightNodes]:
    """Four UltraServers of four nodes."""
    options = ("--emulated-ultraservers", f"{SERVERS}x4", "--ultraserver-namespace", home)
    with (
        tempfile.TemporaryDirectory(prefix="ndl-", dir="/tmp") as directory,
        LightNodes(kube, NAMES, Path(directory), EMULATED_ULTRASERVER, options) as nodes,
    ):
        eventually("the nodes to be labelled", lambda: len(servers(kube)) == SERVERS, 60)
        yield nodes


@dataclass(frozen=True)
class Extent:
    """How much comes and goes."""

    workloads: int
    kills: int
    """Of operators."""

    @property
    def groups(self) -> int:
        """With the gate."""
        return self.workloads // 10

    @property
    def pods(self) -> int:
        """Without it."""
        return self.workloads // 5

    def kills_by(self, served: int) -> int:
        """How many operators are to have been killed when so many workloads have had servers: first none for long."""
        calm = self.workloads // 3
        return min(self.kills, max(0, -(-(served - calm) * self.kills // (self.workloads - calm))))


@pytest.fixture
def extent(lab: Cluster) -> Extent:
    """By the version of Kubernetes."""
    return Extent(WORKLOADS, KILLS) if lab.spec.kubernetes.startswith("1.37.") else Extent(WORKLOADS // 5, KILLS // 5)


@dataclass
class WorkloadStream:
    """Workloads of all sizes in a random order: some are there at a time, and each goes once it had its servers."""

    kube: Kube
    namespace: str
    count: int
    """How many there are to be."""
    chance: random.Random
    number: int = 0
    ends: dict[str, float] = field(default_factory=dict)
    """By name of those that have servers: when they are deleted."""
    halves: dict[str, float] = field(default_factory=dict)
    """By ``namespace/name`` of those with reserved servers: since when."""
    killed: float = float("-inf")
    longest_half: float = 0.0
    """While one operator acts."""
    longest_half_after_kill: float = 0.0
    served: Counter[int] = field(default_factory=Counter)
    """By nodes of each server."""
    bound: dict[str, str] = field(default_factory=dict)
    """By node of a workload that has all its servers, that one's name, at the last look."""
    strangers: dict[str, str] = field(default_factory=dict)
    """By node: a claim that had devices there after the last look."""

    def items(self, kind: str) -> list[Object]:
        return list(json.loads(self.kube.raw(f"{KINDS}/{kind}"))["items"])

    def ask(self, count: int) -> None:
        """Make so many more."""
        made = []
        for _ in range(count):
            self.number += 1
            nodes = self.chance.choice((1, 2, 4))
            spec = {
                "instanceType": EMULATED_ULTRASERVER,
                "topologySize": nodes,
                "serverCount": self.chance.choice((1, 1, 1, 2)),
            }
            meta = {"name": f"w{self.number}", "namespace": self.namespace}
            made.append({"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServerWorkload", "metadata": meta})
            made[-1]["spec"] = spec
        together = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
        self.kube.kubectl("create", "-f", "-", stdin=together)

    def look(self) -> None:
        """Judge what the objects say now, and delete who had its time."""
        now = time.monotonic()
        self._judge(now)
        present = {item["metadata"]["name"]: item for item in self.items("neuronultraserverworkloads")}
        for name, item in present.items():
            if item.get("status", {}).get("state") == "Allocated" and name not in self.ends:
                self.ends[name] = now + self.chance.choice(LIFE_SECONDS)
                self.served[item["spec"]["topologySize"]] += 1
        over = [
            name
            for name, item in present.items()
            if self.ends.get(name, now) < now and "deletionTimestamp" not in item["metadata"]
        ]
        if over:
            kind = "neuronultraserverworkloads.neuron.aws.com"
            self.kube.kubectl("delete", kind, "-n", self.namespace, "--wait=false", *over)
        missing = min(AT_ONCE - len(present), self.count - self.number)
        if missing > 0:
            self.ask(missing)

    def _judge(self, now: float) -> None:
        """Look who has the nodes, and since when some are reserved alone."""
        given, reserved, bound = list[str](), set[str](), dict[str, str]()
        for item in self.items("neuronultraservers"):
            for one in item.get("status", {}).get("allocations", []):
                given += one["allocatedNodes"]
                if one["phase"] == "Bound":
                    bound |= dict.fromkeys(one["allocatedNodes"], one["workloadRef"])
                else:
                    reserved.add(one["workloadRef"])
        assert len(given) == len(set(given)), f"nodes in two workloads: {Counter(given).most_common(3)}"
        # What is bound now and was so at the last look, has been bound between, when claims were read: no workload is
        # made anew under the name of one that has ended. Its own pods would not be strangers, and there are none.
        for node in bound.keys() & self.strangers.keys():
            assert bound[node] != self.bound.get(node), f"{node} of {bound[node]} has claim {self.strangers[node]}"
        self.bound, self.strangers = bound, self.holders()
        self.halves = {name: self.halves.get(name, now) for name in reserved}
        for since in self.halves.values():
            if self.killed + FAILOVER_SECONDS > since:
                self.longest_half_after_kill = max(self.longest_half_after_kill, now - since)
            else:
                self.longest_half = max(self.longest_half, now - since)

    def holders(self) -> dict[str, str]:
        """By node: a claim that has devices there."""
        return {
            result["pool"]: f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in self.kube.find("resourceclaims")
            for result in item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        }

    @property
    def is_over(self) -> bool:
        return self.served.total() >= self.count and not self.items("neuronultraserverworkloads")


@dataclass
class PodStream:
    """Pods that want a whole node, without a gate: the scheduler alone decides where they go."""

    namespace: Namespace
    count: int
    """How many there are to be."""
    chance: random.Random
    made: int = 0
    served: int = 0
    ends: dict[str, float] = field(default_factory=dict)
    """By name of those that are there: when they are deleted; infinite before they run."""

    def look(self) -> None:
        """Make the next ones, and delete who had its time."""
        now = time.monotonic()
        present = {
            str(item["metadata"]["name"]): item for item in self.namespace.kube.find("pods", self.namespace.name)
        }
        for name, item in present.items():
            if self.ends[name] == float("inf") and is_ready(item):
                self.ends[name], self.served = now + self.chance.choice(LIFE_SECONDS), self.served + 1
            if self.ends[name] <= now and "deletionTimestamp" not in item["metadata"]:
                self.namespace.kube.delete("pods", name, self.namespace.name)
        self.ends = {name: end for name, end in self.ends.items() if name in present}
        if self.made < self.count and len(self.ends) < PODS_AT_ONCE:
            self.made += 1
            name = f"p{self.made}"
            self.namespace.apply(pod(name, templates={"neurons": "one-node"}))
            self.ends[name] = float("inf")

    @property
    def is_over(self) -> bool:
        return self.served == self.count and not self.ends


def leftovers(kube: Kube, stream: WorkloadStream, nodes: Sequence[str]) -> list[str]:
    """What should not be there once all workloads are gone."""
    left = [f"template {one['metadata']['name']}" for one in kube.find("resourceclaimtemplates", stream.namespace)]
    for item in stream.items("neuronultraservers"):
        meta = item["metadata"]
        left += [f"{meta['name']} {what}" for what in ("finalizers",) if meta.get(what)]
        left += [f"{meta['name']} {note}" for note in meta.get("annotations") or () if "neuron.aws.com" in note]
        left += [f"{meta['name']} allocations"] * bool(item["status"]["allocations"])
    for name in nodes:
        for item in kube.slices(name):
            for device in item["spec"].get("devices") or ():
                left += [f"mark of {name}"] * (WORKLOAD_UID in device.get("attributes", {}))
                left += [f"taint of {name}" for taint in device.get("taints") or () if taint["key"] == WORKLOAD_TAINT]
    return left


@pytest.mark.timeout(600 + 3 * WORKLOADS + 30 * KILLS, func_only=True)
def test_workloads_of_all_sizes_are_served_while_operators_are_killed(
    light_nodes: LightNodes, home: str, kube: Kube, extent: Extent, figures: list[str], tmp_path: Path
) -> None:
    with (
        own_namespace(kube, "team") as team,
        own_namespace(kube, "others") as others,
        LeaderWorkerSets(kube) as leader_worker_sets,
        ThreadPoolExecutor(1) as beside,
    ):
        others.apply(one_node())
        placers = Placers(kube, home, tmp_path, "--ultraserver-operator=on")
        stream = WorkloadStream(kube, team.name, extent.workloads, random.Random(SEED))
        pods = PodStream(others, extent.pods, random.Random(SEED))
        groups = Stream(kube, leader_worker_sets, chance=random.Random(SEED))
        kills, began = 0, time.monotonic()
        try:
            eventually("an operator to act", placers.acting, FAILOVER_SECONDS)
            of_groups = beside.submit(
                groups.run, count=extent.groups, at_once=GROUPS_AT_ONCE, kill=lambda *, hard: None
            )
            while not (stream.is_over and pods.is_over and of_groups.done()):
                stream.look()
                pods.look()
                light_nodes.check()
                if kills < extent.kills_by(stream.served.total()) and placers.acting():
                    placers.kill(hard=kills % 2 == 0)
                    kills, stream.killed = kills + 1, time.monotonic()
                time.sleep(0.2)
            of_group = of_groups.result()
            eventually("nothing to be left", lambda: not leftovers(kube, stream, NAMES), 60, every=1)
        finally:
            statuses = placers.end()
    figures.append(
        f"{stream.served.total()} workloads on {len(NAMES)} light nodes in {time.monotonic() - began:.0f} s, beside "
        f"{groups.served} groups with the gate and {pods.served} pods without, {kills} operators killed; reserved and "
        f"not bound for {stream.longest_half:.1f} s at most while one acted, and "
        f"{stream.longest_half_after_kill:.1f} s after a kill; a group was half-placed for "
        f"{of_group.longest_half:.1f} s at most"
    )
    assert statuses == [0, 0]
    assert kills == extent.kills
    assert light_nodes.failures == []
    assert stream.longest_half <= HALF_SECONDS
    assert stream.longest_half_after_kill <= HALF_SECONDS_AFTER_KILL
    assert set(stream.served) == {1, 2, 4}
    assert groups.served == extent.groups
    assert of_group.longest_half <= GROUP_TIMEOUT + FAILOVER_SECONDS
