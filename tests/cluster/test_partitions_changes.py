"""What nodes offer changes while claims hold devices: by the setting, the core size, an upgrade, a roll-back.

The drivers are real, on nodes without kubelet. What a claim holds is held until it ends, nothing is given twice, and
who waits gets what becomes free.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lab import components
from lab.build import Builder, available_modules
from lab.cluster import Cluster
from lab.daemons import ControlPlane
from lab.progress import Progress
from lab.settings import Settings

from tests.cluster.lib.installation import EMULATED
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lightnodes import LightNodes
from tests.cluster.lib.objects import container, pod
from tests.generators.effort import SEED
from tests.generators.partition_pods import CHIP, CORE, NODE, CutClaim, CutPod, Request, random_pod
from tests.oracles.core_ledger import Core, Device, Ledger, Want
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

STEPS = int(os.environ.get("CUTS_STEPS", "40"))
A, B = "partitions-1", "partitions-2"
ALL = "chip.core.group.node"
LABEL = "neuron.aws.com/partitions"
RETIRED = "neuron.aws.com/retired"
KINDS = {
    "chip": "neuron_device",
    "core": "neuron_core",
    "group": "neuron_group",
    "group4": "neuron_group",
    "node": "neuron_node",
}
"""Value of ``resourceType`` by the word of the setting."""
SETTINGS = ("chip", "core", "group", "node", "chip.core", "core.group4", "chip.group.node", "chip.core.group.node")
OFFER_SECONDS = 60.0
"""Until a change of the setting is in the slices: the pause between two writes, and another look at who holds what."""
RUN_SECONDS = 60.0
GROUP = Want("neuron_group", size=4)


@dataclass
class Pods:
    """Pods with claims on light nodes, checked against a ledger that is made anew from the API at each look."""

    kube: Kube
    light: LightNodes
    asks: dict[str, tuple[CutPod, str]] = field(default_factory=dict)
    """What each pod that there is asks for, and its node."""
    held: dict[str, frozenset[Core]] = field(default_factory=dict)
    """Cores of each claim by UID, as they were when it was seen first."""

    def create(self, name: str, asks: CutPod, node: str) -> None:
        """Create a pod and its claims."""
        names = {f"c{place}": f"{name}-{place}" for place in range(len(asks.claims))}
        containers = [container(f"uses-{key}", key) for key in names]
        self.kube.apply(pod(name, names, containers=containers, node=node), namespace="default")
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        claims = [
            {**head, "metadata": {"name": made}, "spec": claim.spec()}
            for made, claim in zip(names.values(), asks.claims, strict=True)
        ]
        self.kube.apply(*claims, namespace="default")
        self.asks[name] = (asks, node)

    def claims(self, name: str) -> list[str]:
        """Names of its claims."""
        return [f"{name}-{place}" for place in range(len(self.asks[name][0].claims))]

    def bound(self, name: str) -> bool:
        """Whether it has its node, and so its devices."""
        found = self.kube.get("pods", name, "default")
        return bool(found and found["spec"].get("nodeName"))

    def runs(self, name: str) -> bool:
        """Whether its claims are prepared."""
        found = self.kube.get("pods", name, "default")
        return bool(found and found["status"].get("phase") == "Running")

    def wait_running(self, *names: str, within: float = RUN_SECONDS) -> None:
        """Wait until they run."""
        for name in names:
            eventually(f"{name} to run; {self.light.failures[-1:]}", lambda: self.runs(name), within)  # noqa: B023

    def settle(self, name: str) -> bool:
        """Wait for the scheduler's word; whether it got what it asks for. Then it runs as well."""

        def answered() -> str | None:
            found = self.kube.get("pods", name, "default") or {}
            if found.get("spec", {}).get("nodeName"):
                return "bound"
            texts = [str(item.get("message", "")) for item in found.get("status", {}).get("conditions", ())]
            # While a claim is missing, the scheduler does not look at the pod.
            return "pending" if any("nodes are available" in text for text in texts) else None

        if eventually(f"an answer about {name}", answered) == "pending":
            return False
        self.wait_running(name)
        return True

    def delete(self, *names: str) -> None:
        """End pods; returns when their claims are gone."""
        for name in names:
            claims = [f"resourceclaim/{claim}" for claim in self.claims(name)]
            self.kube.kubectl("delete", "--ignore-not-found", "--wait=false", f"pod/{name}", *claims)
        for name in names:
            gone = [("pods", name), *(("resourceclaims", claim) for claim in self.claims(name))]
            for resource, item in gone:
                eventually(f"{item} to be gone", lambda: not self.kube.get(resource, item, "default"), RUN_SECONDS)  # noqa: B023
            del self.asks[name]

    def ledger(self) -> Ledger:
        """All claims, by what the slices say now. AssertionError when anything is held twice, gone, or has changed."""
        ledger = Ledger.of(offered(self.kube))
        for claim in self.kube.find("resourceclaims", "default"):
            allocation = claim.get("status", {}).get("allocation")
            if allocation is None:
                continue
            uid, results = claim["metadata"]["uid"], allocation["devices"]["results"]
            if not {item["pool"] for item in results}.intersection((A, B)):
                continue  # another test's, that ends later
            lost = [item["device"] for item in results if (item["pool"], item["device"]) not in ledger.devices]
            assert not lost, f"{claim['metadata']['name']} holds {lost}, which is not offered any more"
            cores = self.held.setdefault(uid, ledger.cores_of(results))
            assert cores == ledger.cores_of(results), f"{results} was {sorted(cores)}"
            ledger.take(uid, results)
        return ledger

    def check(self) -> Ledger:
        """Compare what containers see with the ledger, and with each other."""
        ledger = self.ledger()
        for name, (_, node) in self.asks.items():
            if self.runs(name):
                claims = [self.kube.get("resourceclaims", claim, "default") for claim in self.claims(name)]
                held = {core for claim in claims if claim for core in ledger.held(claim["metadata"]["uid"])}
                assert {(node, *core) for core in self.seen(name)} == held, f"{name}: {self.light[node]}"
        return ledger

    def seen(self, name: str) -> frozenset[tuple[int, int]]:
        """Chip and core of each core that the pod's containers use."""
        node = self.light[self.asks[name][1]]
        return frozenset[tuple[int, int]]().union(*(node.view(claim).cores(EMULATED) for claim in self.claims(name)))

    def nothing_shared(self) -> None:
        """AssertionError when containers that run use a core in common, whatever the API says."""
        users: dict[Core, str] = {}
        for name in [name for name in self.asks if self.runs(name)]:
            for core in self.seen(name):
                other = users.setdefault((self.asks[name][1], *core), name)
                assert other == name, f"{other} and {name} both use {core}"

    def fits(self, name: str, ledger: Ledger) -> bool:
        """Whether there is room for a pod that waits."""
        asks, node = self.asks[name]
        return ledger.fits(node, asks.alternatives())

    def everything(self, node: str, partitions: Collection[str]) -> None:
        """With nothing else there, all devices of each kind can be had."""
        for want in (NODE, CHIP, CORE):
            kinds = {KINDS[word] for word in partitions}
            if want.kind in kinds:
                ledger = self.ledger()
                left = [item for item in ledger.devices.values() if (item.pool, item.kind) == (node, want.kind)]
                whole, rest = divmod(len(left), 32)
                counts = [32] * whole + ([rest] if rest else [])
                asks = CutPod(tuple(CutClaim((Request((replace(want, count=count),)),)) for count in counts))
                self.create("everything", asks, node)
                self.wait_running("everything")
                assert len(self.seen("everything")) == 128
                self.check()
                self.delete("everything")


def offered(kube: Kube) -> list[Object]:
    """The slices of the newest generation of each pool, once they are all there."""

    def complete() -> list[Object] | None:
        slices = kube.slices()
        newest: dict[str, int] = {}
        for item in slices:
            pool = item["spec"]["pool"]
            newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
        found = [item for item in slices if item["spec"]["pool"]["generation"] == newest[item["spec"]["pool"]["name"]]]
        counts = {item["spec"]["pool"]["name"]: item["spec"]["pool"]["resourceSliceCount"] for item in found}
        here = [item["spec"]["pool"]["name"] for item in found]
        return found if all(here.count(name) == count for name, count in counts.items()) else None

    return eventually("complete pools", complete, 20)


def devices(kube: Kube, node: str) -> list[Device]:
    """What a node offers."""
    return [device for device in Ledger.of(offered(kube)).devices.values() if device.pool == node]


def wait_offer(pods: Pods, node: str, setting: str) -> None:
    """Wait until a node offers what the setting says, and beside it only what claims hold, which nobody else gets."""
    words = setting.split(".")
    kinds = {KINDS[word] for word in words}

    def as_set() -> bool:
        ledger = pods.ledger()
        claims = [
            item for item in pods.kube.find("resourceclaims", "default") if item.get("status", {}).get("allocation")
        ]
        results = [found for item in claims for found in item["status"]["allocation"]["devices"]["results"]]
        held = {found["device"] for found in results if found["pool"] == node}
        here = [device for device in ledger.devices.values() if device.pool == node]
        free = [device for device in here if RETIRED not in device.taints]
        retired = {device.name for device in here if RETIRED in device.taints}
        sizes = {device.attributes.get("size") for device in free if device.kind == "neuron_group"}
        right = "group" in words or sizes <= {4}
        return {device.kind for device in free} == kinds and right and retired <= held

    eventually(f"{node} to offer {setting}", as_set, OFFER_SECONDS, every=0.5)


@contextmanager
def light(kube: Kube, *options: str) -> Iterator[LightNodes]:
    """Two nodes without kubelet, and the driver's classes."""
    kube.apply((ROOT / "deploy/deviceclasses.yaml").read_text())
    with (
        tempfile.TemporaryDirectory(prefix="ndc-", dir="/tmp") as directory,
        LightNodes(kube, [A, B], Path(directory), EMULATED, ("--rescan-seconds", "1", *options)) as nodes,
    ):
        yield nodes
    kube.kubectl("delete", "deviceclasses", "--all", "--wait=false")


@pytest.fixture
def pods(kube: Kube) -> Iterator[Pods]:
    """On two nodes that offer everything."""
    with light(kube, "--partitions", ALL) as nodes:
        made = Pods(kube, nodes)
        yield made
        made.delete(*made.asks)
        eventually("nothing to be prepared", lambda: not any(node.prepared for node in nodes), 30)


def core_size(pods: Pods, node: str, size: int) -> None:
    """Write the node's file of the logical core size."""
    path = pods.light[node].directory / "host/opt/aws/neuron/logical_nc_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(f"NEURON_LOGICAL_NC_CONFIG={size}\n")
    new.rename(path)


def label(kube: Kube, node: str, value: str) -> None:
    """Set the label that says what a node offers; "": remove it."""
    kube.kubectl("label", "--overwrite", "node", node, f"{LABEL}={value}" if value else f"{LABEL}-")


@pytest.mark.control_plane
@pytest.mark.kubernetes("1.37")
@pytest.mark.timeout(600, func_only=True)
def test_settings_change_and_nothing_is_given_twice_lost_or_stuck(pods: Pods, kube: Kube, figures: list[str]) -> None:
    random = Random(f"changes {SEED}")
    began = time.monotonic()
    setting = {A: ALL, B: ALL}
    waiting: list[str] = []
    changes = made = 0
    for step in range(STEPS):
        node = random.choice((A, B))
        action = random.choice(("label", "option", "create", "create", "create", "delete"))
        if action == "label":
            setting[node] = random.choice(SETTINGS)
            label(kube, node, setting[node])
        elif action == "option":
            label(kube, node, "")
            setting[node] = random.choice(SETTINGS)
            pods.light.restart(node, ("--rescan-seconds", "1", "--partitions", setting[node]))
        elif action == "delete":
            alive = [name for name in pods.asks if name not in waiting]
            pods.delete(*random.sample(alive, k=min(len(alive), 2)))
        if action in ("label", "option"):
            changes += 1
            wait_offer(pods, node, setting[node])
        elif action == "create":
            name = f"p{step}"
            pods.create(name, random_pod(random, EMULATED), node)
            made += 1
            if not pods.settle(name):
                waiting.append(name)
        _serve(pods, waiting)
        while len(waiting) > 2:
            pods.delete(waiting.pop(0))
        pods.check()
    pods.delete(*pods.asks)
    for node in (A, B):
        wait_offer(pods, node, setting[node])
        assert not [device for device in devices(kube, node) if device.taints]
        pods.everything(node, setting[node].split("."))
    figures.append(f"partitions: {changes} changes of the setting, {made} pods, {time.monotonic() - began:.0f} s")
    assert not pods.light.failures, pods.light.failures[:3]


def _serve(pods: Pods, waiting: list[str]) -> None:
    """Those that wait get what they ask for, as soon as that is free."""
    for name in list(waiting):
        if pods.bound(name) or pods.fits(name, pods.ledger()):
            pods.wait_running(name)
            waiting.remove(name)


@pytest.mark.control_plane
@pytest.mark.kubernetes("1.37")
@pytest.mark.timeout(600, func_only=True)
def test_pods_that_come_while_the_setting_changes_share_nothing_and_end_up_running(pods: Pods, kube: Kube) -> None:
    """A scheduler may give what a driver is about to take back: the driver then has to refuse one of two pods."""
    random = Random(f"race {SEED}")
    for round_ in range(12):
        setting = random.choice(SETTINGS)
        label(kube, A, setting)
        for number in range(3):
            time.sleep(random.uniform(0, 0.4))
            pods.create(f"p{round_}-{number}", random_pod(random, EMULATED), A)
        pods.nothing_shared()
        running = [name for name in pods.asks if pods.runs(name)]
        pods.delete(*random.sample(running, k=min(len(running), 2)))
        pods.nothing_shared()
    label(kube, A, ALL)
    for _ in range(len(pods.asks)):
        # Each that runs makes room for others, until nobody is left: each has run, and nobody waits for ever.
        eventually("some pod to run", lambda: any(pods.runs(name) for name in pods.asks), RUN_SECONDS)
        pods.nothing_shared()
        pods.delete(*[name for name in pods.asks if pods.runs(name)][:4])
        if not pods.asks:
            break
    assert not pods.asks
    wait_offer(pods, A, ALL)
    pods.everything(A, ALL.split("."))


@pytest.mark.control_plane
@pytest.mark.kubernetes("1.37")
@pytest.mark.timeout(400, func_only=True)
def test_another_core_size_holds_for_chips_of_which_no_core_is_held(pods: Pods, kube: Kube) -> None:
    pods.create("before", CutPod((CutClaim((Request((Want("neuron_core", 2, same="deviceId"),)),)),)), A)
    assert pods.settle("before")
    before = pods.seen("before")
    assert len(before) == 4
    core_size(pods, A, 1)

    def sizes() -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for device in devices(kube, A):
            if device.kind == "neuron_core":
                found.setdefault(device.attributes["deviceId"], set()).add(device.attributes["logicalCoreSize"])
        return found

    expected = {chip: {2 if chip == 0 else 1} for chip in range(16)}
    eventually("cores of the new size", lambda: sizes() == expected, OFFER_SECONDS, every=0.5)
    pods.light.restart(A)
    assert sizes() == expected
    assert pods.seen("before") == before
    for number in range(3):
        pods.create(f"after-{number}", CutPod((CutClaim((Request((Want("neuron_core", 3),)),)),)), A)
        assert pods.settle(f"after-{number}"), pods.light.failures[-1:]
    pods.check()
    pods.delete(*pods.asks)
    eventually(
        "all cores of the new size", lambda: {*map(frozenset, sizes().values())} == {frozenset({1})}, OFFER_SECONDS
    )
    core_size(pods, A, 2)
    eventually(
        "all cores of the old size", lambda: {*map(frozenset, sizes().values())} == {frozenset({2})}, OFFER_SECONDS
    )
    pods.everything(A, ALL.split("."))


@pytest.mark.upgrade
@pytest.mark.kubernetes("1.36")
@pytest.mark.timeout(500, func_only=True)
def test_an_upgrade_of_the_control_plane_brings_the_partitions_while_chips_are_held(lab: Cluster, kube: Kube) -> None:
    one = CutPod((CutClaim((Request((CHIP,)),)),))
    core = CutPod((CutClaim((Request((CORE,)),)),))
    with light(kube, "--partitions", ALL) as nodes:
        pods = Pods(kube, nodes)
        assert {device.kind for device in devices(kube, A)} == {"neuron_device"}
        assert "Kubernetes 1.37" in nodes[A].log
        for number in range(3):
            pods.create(f"chip-{number}", one, A)
            assert pods.settle(f"chip-{number}")
        pods.create("core", core, A)
        pods.create("group", CutPod((CutClaim((Request((GROUP,)),)),)), A)
        pods.create("whole", CutPod((CutClaim((Request((NODE,)),)),)), A)
        assert [pods.settle(name) for name in ("core", "group", "whole")] == [False, False, False]

        _restart_as(lab, kubernetes="1.37.1")
        wait_offer(pods, A, ALL)
        pods.wait_running("core", "group", within=120)
        pods.check()
        pods.delete(*(name for name in list(pods.asks) if name != "whole"))
        pods.wait_running("whole", within=120)
        pods.check()
        pods.delete("whole")
        pods.everything(A, ALL.split("."))
        assert not nodes.failures


@pytest.mark.upgrade
@pytest.mark.timeout(500, func_only=True)
def test_a_feature_gate_that_is_turned_off_and_on_takes_the_partitions_and_brings_them(
    lab: Cluster, kube: Kube
) -> None:
    core = CutPod((CutClaim((Request((CORE,)),)),))
    with light(kube, "--partitions", ALL) as nodes:
        pods = Pods(kube, nodes)
        wait_offer(pods, A, ALL)
        for number in range(2):
            _restart_as(lab, feature_gates=("DRAPartitionableDevices=false",))
            eventually("chips alone", lambda: {device.kind for device in devices(kube, A)} == {"neuron_device"}, 60)
            pods.create(f"core-{number}", core, A)
            assert not pods.settle(f"core-{number}")
            _restart_as(lab, feature_gates=())
            wait_offer(pods, A, ALL)
            pods.wait_running(f"core-{number}", within=120)
            pods.check()
            pods.delete(f"core-{number}")
        assert not nodes.failures


def _restart_as(lab: Cluster, **changes: Any) -> None:
    """Restart the control plane with another specification, on the same data."""
    old = lab.control_plane
    spec = replace(old.state.spec, **changes)
    wanted = components.of_cluster(spec.kubernetes, spec.kubernetes, available_modules())
    programs = Builder(Settings.from_environment(os.environ), Progress()).build(wanted)
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver"):
        old.stop(name)
    state = replace(old.state, spec=spec, programs=old.state.programs | programs)
    new = ControlPlane(old.layout, state, old.progress)
    new.start("kube-apiserver")
    new.wait_api()
    new.start("kube-controller-manager")
    new.start("kube-scheduler")
