"""Random claims for cores, chips, groups and whole nodes come and go, on nodes that offer all of them at once.

The scheduler and the drivers are real, kubelet is the test's own. A ledger over physical cores follows every change of
every claim. Each kind of node is a lane of its own: what happens there comes one after the other, so that the
simulator can be asked about each pod what the scheduler was asked. ``SEED`` and ``CUTS_CLAIMS`` choose other
claims and more of them.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.following import Followed
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lightnodes import LightNodes
from tests.cluster.lib.objects import container, pod
from tests.generators.effort import SEED
from tests.generators.partition_pods import CHIP, CORE, NODE, CutClaim, CutPod, Request, random_pod
from tests.oracles.core_ledger import Core, Ledger, Want
from tests.oracles.simulator_cases import Simulated, disagreement
from tests.paths import ROOT

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37"),
    pytest.mark.timeout(900, func_only=True),
]

CLAIMS = int(os.environ.get("CUTS_CLAIMS", "2000"))
TYPES = {
    f"{short}-{number}": full
    for short, full in (
        ("trn2", "trn2.48xlarge"),
        ("trn1", "trn1.32xlarge"),
        ("inf2", "inf2.48xlarge"),
        ("trn2u", "trn2u.48xlarge"),
    )
    for number in (1, 2)
}
OPTIONS = ("--partitions", "chip.core.group.node")

ANSWER_SECONDS = 60.0
RETRY_SECONDS = 40.0
"""The scheduler's longest pause before it tries a pod again is 10 s; with what a busy machine adds."""
CALM_SECONDS = 1.0
"""After which the scheduler has heard of everything."""
MOST_RESULTS = 32
"""Devices of one claim (Kubernetes limit)."""
HOST_LABEL = "kubernetes.io/hostname"
TYPE_LABEL = "node.kubernetes.io/instance-type"
PODS = "/api/v1/namespaces/default/pods"
CLAIM_PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="module")
def light_nodes(kube: Kube) -> Iterator[LightNodes]:
    """Two nodes of each kind, with drivers that offer everything."""
    kube.apply((ROOT / "deploy/deviceclasses.yaml").read_text())
    with (
        tempfile.TemporaryDirectory(prefix="ndc-", dir="/tmp") as directory,
        LightNodes(kube, list(TYPES), Path(directory), TYPES, OPTIONS) as nodes,
    ):
        yield nodes
    kube.kubectl("delete", "deviceclasses", "--all", "--wait=false")


class Observer:
    """The ledger, kept by each change of a claim's status in the order of the API server."""

    def __init__(self, slices: Sequence[Object]) -> None:
        self.ledger = Ledger.of(slices)
        self.lock = threading.Lock()
        self.most: Counter[str] = Counter()
        """Cores in use at most, by node."""
        self._entered: set[str] = set()

    def seen(self, item: Object, there: bool) -> None:
        if item["kind"] != "ResourceClaim":
            return
        uid = item["metadata"]["uid"]
        allocation = item.get("status", {}).get("allocation") if there else None
        with self.lock:
            if allocation is None and uid in self._entered:
                self._entered.remove(uid)
                self.ledger.release(uid)
            elif allocation is not None and uid not in self._entered:
                self._entered.add(uid)
                self.ledger.take(uid, allocation["devices"]["results"])
                held = Counter(pool for pool, _, _ in self.ledger.holders)
                self.most |= held

    def fits(self, pod: CutPod, nodes: Sequence[str], own: Sequence[str]) -> bool:
        """Whether there is room for the pod on one of the nodes, what its own claims hold being free."""
        with self.lock:
            return any(self.ledger.fits(node, pod.alternatives(), own) for node in nodes)

    def held(self, uids: Sequence[str]) -> frozenset[tuple[int, int]]:
        with self.lock:
            return frozenset((chip, core) for uid in uids for _, chip, core in self.ledger.held(uid))


@dataclass
class Member:
    """A pod of the test, with its claims."""

    name: str
    asks: CutPod
    nodes: Sequence[str]
    """On which it may run."""
    claims: list[Object] = field(default_factory=list)
    """As they were created."""
    answer: Object = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} ({self.asks})"

    @property
    def placed(self) -> bool:
        return bool(self.answer.get("node"))

    @property
    def case(self) -> Object:
        """For the simulator."""
        return {"name": self.name, "nodes": list(self.nodes), "claims": self.claims}


@dataclass
class Lane:
    """Nodes of one kind, and what happens there one after the other."""

    instance_type: str
    nodes: Sequence[str]
    transport: Transport
    followed: Followed
    observer: Observer
    light: LightNodes
    simulated: Simulated
    alive: list[Member] = field(default_factory=list)
    left: list[Member] = field(default_factory=list)
    """Those whose devices became free last: the scheduler may have been told of that a moment later."""
    waiting: Member | None = None
    made: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    longest_wait: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(f"{SEED} {self.instance_type}")

    def run(self, claims: int) -> None:
        """So many random claims, until all are gone; then everything can be had again."""
        while self.made < claims and len(self.wrong) < 5:
            burst = [
                self.create(random_pod(self.random, self.instance_type))
                for _ in range(self.random.choice((1, 2, 3, 4)))
            ]
            problem = self.judge(burst)
            self.settle(burst)
            if problem:
                self.look_again(burst)
            self.shrink(any(not member.placed for member in burst))
        self.end(self.alive)
        self.end(self.alive)
        assert self.waiting is None, f"{self.waiting} waits, although nothing is in use"
        self.have_everything()

    # Coming

    def create(self, asks: CutPod, *, node: str = "") -> Member:
        """Create the pod and its claims."""
        number = self.counts["pods"] = self.counts["pods"] + 1
        member = Member(f"{self.nodes[0][:-2]}-{number}", asks, [node] if node else self.nodes)
        self.made += len(asks.claims)
        names = {f"c{place}": f"{member.name}-{place}" for place in range(len(asks.claims))}
        member.claims = [
            {"metadata": {"name": name}, "spec": claim.spec()}
            for name, claim in zip(names.values(), asks.claims, strict=True)
        ]
        made = pod(member.name, names, containers=[container(f"uses-{key}", key) for key in names])
        made["spec"]["nodeSelector"] = {HOST_LABEL: node} if node else {TYPE_LABEL: self.instance_type}
        for claim in member.claims:
            self._post(CLAIM_PATH, claim)
        self._post(PODS, made)
        return member

    def judge(self, burst: Sequence[Member], *, again: bool = False) -> str:
        """Wait for the scheduler's word on each, and compare it with the simulator's and the ledger's.

        Returns what the simulator is wrong about, or "".
        """
        for member in burst:
            self.followed.wait(f"an answer about {member.name}", partial(self._answered, member), ANSWER_SECONDS)
            member.answer = self._answer(member)
        if problem := self._explain(burst):
            # A scheduler that was told late of what became free says so, and tries again.
            late = [member for member in burst if not member.placed and self._fits(member)]
            for member in late:
                self._wait_placed(member)
            problem = self._explain(burst) if late else problem
            self.counts["late"] += bool(late) and not problem
        if problem and again:
            self.wrong.append(problem)
        for member in burst:
            self.counts["placed" if member.placed else "pending"] += 1
            self._take(member)
        for member in burst:
            if member.placed:
                self.alive.append(member)
            elif self._fits(member):
                self.wrong.append(f"{member} is pending, but fits: {member.answer}")
            elif self.waiting is None and self.random.randrange(100) < 35 and self._would_fit(member):
                self.waiting = member
            else:
                self._delete(member)
        self.left.clear()
        return problem

    def look_again(self, burst: Sequence[Member]) -> None:
        """The same pods one by one: what is so once only is a matter of time, such as an event that came late."""
        self.counts["looked at again"] += 1
        self.end([member for member in burst if member in self.alive])
        time.sleep(CALM_SECONDS)
        for member in burst:
            if member is not self.waiting:
                anew = self.create(member.asks)
                self.judge([anew], again=True)
                self.settle([anew])

    def settle(self, members: Sequence[Member]) -> None:
        """Wait until they run, and compare what their containers see with what the ledger has for them."""
        for member in members:
            if not member.placed:
                continue
            self.followed.wait(f"{member.name} to run", partial(self._runs, member), ANSWER_SECONDS)
            node = self.light[member.answer["node"]]
            seen = [node.view(claim["metadata"]["name"]) for claim in member.claims]
            held = self.observer.held([self._uid(claim) for claim in member.claims])
            try:
                cores = frozenset[Core]().union(*(view.cores(self.instance_type) for view in seen))
            except (AssertionError, KeyError) as error:
                self.wrong.append(f"{member.name} on {node.name}: {seen}: {error!r}")
                continue
            if cores != held:
                holds = [item["device"] for item in _results(member)]
                self.wrong.append(
                    f"{member.name} on {node.name} holds {holds} ({sorted(held)}), but its containers have {seen}, "
                    f"which are {sorted(cores)}"
                )
            self.counts["environments"] += 1

    # Going

    def shrink(self, full: bool) -> None:
        """Let some pods end, more likely where there was no room."""
        chance = self.random.randrange(100)
        if chance < 4:
            node = self.random.choice(self.nodes)
            going = [member for member in self.alive if member.answer["node"] == node]
        elif full or chance < 30:
            going = self.random.sample(self.alive, k=min(len(self.alive), self.random.choice((1, 2, 3, 5))))
        else:
            return
        self.end(going)

    def end(self, going: Sequence[Member]) -> None:
        """End pods; one after the other while another waits for what they hold."""
        left = list(going)
        while left:
            number = len(left) if self.waiting is None else 1
            self.leave(left[:number])
            del left[:number]
            self.meet_waiting()

    def leave(self, going: Sequence[Member]) -> None:
        """End pods, and wait until their claims are gone."""
        going = list(going)
        for member in going:
            self._delete(member)
        for member in going:
            self.followed.wait(f"{member.name} to be gone", partial(self._is_gone, member), ANSWER_SECONDS)
            self.simulated.give_back(member.answer)
            self.alive.remove(member)
        self.left += going

    def meet_waiting(self) -> None:
        """A pod that waits gets what it wants as soon as that is free."""
        member = self.waiting
        if member is None or not self._fits(member):
            return
        self.waiting = None
        began = time.monotonic()
        self._wait_placed(member)
        self.counts["waited"] += 1
        self.longest_wait = max(self.longest_wait, time.monotonic() - began)
        problem = self._explain([member])
        self._take(member)
        self.alive.append(member)
        self.left.clear()
        self.settle([member])
        if problem:
            self.look_again([member])

    def have_everything(self) -> None:
        """On each node the whole, all chips, and all cores can be had one after the other."""
        for node in self.nodes:
            for want in (NODE, CHIP, CORE):
                asks = _all_of(want, self.observer.ledger, node)
                member = self.create(asks, node=node)
                self.judge([member], again=True)
                assert member.placed, f"{member} on {node}: {member.answer}"
                self.settle([member])
                held = self.observer.held([self._uid(claim) for claim in member.claims])
                assert held == {(chip, core) for pool, chip, core in self.observer.ledger.total() if pool == node}
                self.leave([member])

    # What there is

    def _post(self, path: str, body: Object) -> Object:
        made: Object = json.loads(self.transport.request("POST", path, body=body, timeout=60).body)
        return made

    def _fits(self, member: Member) -> bool:
        own = [claim["metadata"]["uid"] for claim in self._claims(member)]
        return self.observer.fits(member.asks, member.nodes, own)

    def _would_fit(self, member: Member) -> bool:
        """Whether a node of nobody else has enough for it."""
        with self.observer.lock:
            everybody = [*self.observer.ledger.holders.values()]
        return self.observer.fits(member.asks, member.nodes, everybody)

    def _uid(self, claim: Object) -> str:
        found = self.followed.get(CLAIM_PATH, claim["metadata"]["name"])
        assert found is not None, claim
        return str(found["metadata"]["uid"])

    def _claims(self, member: Member) -> list[Object]:
        found = [self.followed.get(CLAIM_PATH, claim["metadata"]["name"]) for claim in member.claims]
        return [claim for claim in found if claim is not None]

    def _answered(self, member: Member) -> bool:
        found = self.followed.get(PODS, member.name)
        if found is None:
            return False
        if found["spec"].get("nodeName"):
            allocated = [claim for claim in self._claims(member) if claim.get("status", {}).get("allocation")]
            return len(allocated) == len(member.claims)
        # While a claim is missing, the scheduler does not look at the pod.
        return "nodes are available" in _condition(found, "PodScheduled").get("message", "")

    def _answer(self, member: Member) -> Object:
        found = self.followed.get(PODS, member.name)
        assert found is not None
        node = found["spec"].get("nodeName")
        if not node:
            condition = _condition(found, "PodScheduled")
            return {"node": None, "reason": condition["reason"], "message": condition.get("message", "")}
        allocations = [claim["status"]["allocation"] for claim in self._claims(member)]
        return {"node": node, "allocations": [_without_time(item) for item in allocations]}

    def _wait_placed(self, member: Member) -> None:
        def placed() -> bool:
            found = self.followed.get(PODS, member.name)
            return found is not None and bool(found["spec"].get("nodeName")) and self._answered(member)

        what = f"{member} to be placed, since it fits"
        self.followed.wait(what, placed, RETRY_SECONDS)
        member.answer = self._answer(member)

    def _runs(self, member: Member) -> bool:
        found = self.followed.get(PODS, member.name)
        return found is not None and _condition(found, "Ready").get("status") == "True"

    def _is_gone(self, member: Member) -> bool:
        return self.followed.get(PODS, member.name) is None and not self._claims(member)

    def _delete(self, member: Member) -> None:
        paths = [f"{PODS}/{member.name}", *(f"{CLAIM_PATH}/{claim['metadata']['name']}" for claim in member.claims)]
        query = [("gracePeriodSeconds", "1")]
        for path in paths:
            with suppress(ApiError):
                self.transport.request("DELETE", path, query=query if path == paths[0] else (), timeout=60)

    # The simulator

    def _take(self, member: Member) -> None:
        if member.placed:
            self.simulated.take(member.answer)

    def _explain(self, burst: Sequence[Member]) -> str:
        """Why the simulator would not have given just this; "" when it would.

        The scheduler takes pods in the order in which it hears of them, mostly that of their creation.
        """
        first = ""
        for late in ((), self.left) if self.left else ((),):
            for member in late:
                self.simulated.take(member.answer)
            for order in permutations(burst):
                problem = self._replayed(order)
                if not problem:
                    self.counts["in another order"] += list(order) != list(burst)
                    self.counts["told late"] += bool(late)
                    break
                first = first or problem
            for member in late:
                self.simulated.give_back(member.answer)
            if not problem:
                return ""
        return first

    def _replayed(self, order: Sequence[Member]) -> str:
        taken: list[Member] = []
        try:
            for member in order:
                if problem := disagreement(self.simulated.ask(member.case), member.answer):
                    return f"{member}: {problem}"
                self._take(member)
                taken.append(member)
        finally:
            for member in taken:
                if member.placed:
                    self.simulated.give_back(member.answer)
        return ""


def test_random_claims_share_no_core_lose_none_and_get_what_the_simulator_says(
    light_nodes: LightNodes, lab: Cluster, kube: Kube, figures: list[str]
) -> None:
    slices = kube.slices()
    classes = kube.find("deviceclasses")
    observer = Observer(slices)
    assert len(observer.ledger.devices) == 2 * (87 + 55 + 102 + 87)
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="partitions-test")
    began = time.monotonic()
    with Followed(transport, (PODS, CLAIM_PATH), observer.seen) as followed, ThreadPoolExecutor(4) as pool:
        lanes = []
        for kind in sorted({*TYPES.values()}):
            nodes = [name for name, found in TYPES.items() if found == kind]
            case = {
                "slices": [item for item in slices if item["spec"]["pool"]["name"] in nodes],
                "classes": classes,
                "nodes": [{"metadata": {"name": name}} for name in nodes],
            }
            simulated = Simulated([case], "1.37")
            lanes.append(Lane(kind, nodes, transport, followed, observer, light_nodes, simulated))
        running = [pool.submit(lane.run, -(-CLAIMS // len(lanes))) for lane in lanes]
        problems = [found for found in (work.exception() for work in running) if found is not None]
    transport.close()
    counts: Counter[str] = sum((lane.counts for lane in lanes), Counter())
    longest = max(lane.longest_wait for lane in lanes)
    figures.append(
        f"partitions: {sum(lane.made for lane in lanes)} claims of {counts['pods']} pods in "
        f"{time.monotonic() - began:.0f} s: {dict(counts)}; cores in use at most {dict(observer.most)}; "
        f"at most {longest:.1f} s until a pod that waited got what had become free"
    )
    wrong = [text for lane in lanes for text in lane.wrong]
    assert not wrong, "\n".join(wrong)
    assert not problems, "\n".join([*map(repr, problems), *light_nodes.failures[-3:]])
    assert not light_nodes.failures, light_nodes.failures[:5]
    assert not observer.ledger.holders
    light_nodes.check()
    eventually("nothing to be prepared", lambda: not any(node.prepared for node in light_nodes), 30)
    assert counts["pending"]
    assert counts["waited"]
    assert slices == kube.slices(), "what comes and goes is no reason to write slices"


def _all_of(want: Want, ledger: Ledger, node: str) -> CutPod:
    """A pod that asks for all devices of a kind that a node has."""
    left = sum(pool == node and device.kind == want.kind for (pool, _), device in ledger.devices.items())
    claims = []
    while left:
        count = min(left, MOST_RESULTS)
        claims.append(CutClaim((Request((Want(want.kind, count),)),)))
        left -= count
    return CutPod(tuple(claims))


def _results(member: Member) -> list[Object]:
    return [item for allocation in member.answer["allocations"] for item in allocation["devices"]["results"]]


def _condition(pod: Object, kind: str) -> Mapping[str, str]:
    found = (item for item in pod.get("status", {}).get("conditions", ()) if item["type"] == kind)
    return next(found, {})


def _without_time(allocation: Object) -> Object:
    return {key: value for key, value in allocation.items() if key != "allocationTimestamp"}
