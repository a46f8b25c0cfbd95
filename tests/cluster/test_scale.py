"""More nodes than this machine can hold, so they are light ones with the driver's real process.

Eight UltraServers take a stream of groups; with as many nodes of single servers, all their chips fail at once.
``NEURON_DRA_SCALE_GROUPS`` makes the stream of groups longer than it is by default.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dra_driver.driver.node_labels import KEYS
from dra_driver.driver.write_budget import SPACING_SECONDS
from dra_driver.neuron.health.faults import FAULTS, TAINT_DOMAIN
from dra_driver.neuron.health.node_events import BURST
from tests.cluster.lib.groupstream import Stream, servers
from tests.cluster.lib.health import SickHost
from tests.cluster.lib.installation import DAEMONSET, EMULATED, EMULATED_ULTRASERVER, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.lifecycle import SliceWatch, own_namespace
from tests.cluster.lib.lightnodes import LightNode, LightNodes
from tests.generators.effort import SEED
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

SERVERS = 8
NAMES = [f"light-{number}" for number in range(1, 4 * SERVERS + 1)]
ALL_NODES = 64
GROUPS = int(os.environ.get("NEURON_DRA_SCALE_GROUPS", "40"))
GROUP_TIMEOUT = 20
FAILOVER_SECONDS = 30.0
"""A killed leader's lease lasts 20 s; and its successor reads the cluster first."""


@pytest.fixture(scope="module")
def light_nodes(installation: Installation, kube: Kube) -> Iterator[LightNodes]:
    """Eight UltraServers of four nodes; the driver on other nodes is removed, so that only these have devices."""
    if kube.get("daemonsets", DAEMONSET, NAMESPACE) is not None:
        installation.uninstall()
    eventually("no slice to be left", lambda: not kube.slices(), 60)
    # Nodes keep them when the driver is uninstalled, and those of emulated servers are the same on other nodes.
    kube.kubectl("label", "nodes", "--all", *(f"{key}-" for key in sorted(KEYS)))
    classes = str(ROOT / "deploy/deviceclasses.yaml")
    kube.kubectl("apply", "-f", classes)
    options = ("--emulated-ultraservers", f"{SERVERS}x4")
    with (
        tempfile.TemporaryDirectory(prefix="ndl-", dir="/tmp") as directory,
        LightNodes(kube, NAMES, Path(directory), EMULATED_ULTRASERVER, options) as nodes,
    ):
        eventually("the nodes to be labelled", lambda: len(servers(kube)) == SERVERS, 60)
        yield nodes
    kube.kubectl("delete", "-f", classes)


@pytest.fixture
def all_nodes(light_nodes: LightNodes, kube: Kube) -> Iterator[Sequence[LightNode]]:
    """These, and as many single servers."""
    names = [f"light-{number}" for number in range(len(NAMES) + 1, ALL_NODES + 1)]
    with (
        tempfile.TemporaryDirectory(prefix="ndl-", dir="/tmp") as directory,
        LightNodes(kube, names, Path(directory), EMULATED) as others,
    ):
        yield [*light_nodes, *others]


class Placers:
    """Two placers as processes of this machine; the one that acts can be ended, and another is started."""

    def __init__(self, kube: Kube, namespace: str, directory: Path, *options: str) -> None:
        self._options = options
        self._kube = kube
        self._namespace = namespace
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(2):
            self._start()

    def _start(self) -> None:
        name = f"placer-{os.urandom(3).hex()}"
        command = [
            *(sys.executable, "-m", "dra_driver", "placer", f"--kubeconfig={self._kube.access.kubeconfig}"),
            *(f"--namespace={self._namespace}", f"--identity={name}", f"--group-timeout={GROUP_TIMEOUT}"),
            *self._options,
        ]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}, cwd=ROOT)
        self._processes[name] = process

    def acting(self) -> str:
        """Name of the one that holds the lease, or ""."""
        found = self._kube.find("leases", self._namespace)
        return next((str(lease["spec"].get("holderIdentity") or "") for lease in found), "")

    def kill(self, *, hard: bool) -> None:
        """End the one that acts, at once or in order."""
        process = self._processes.pop(self.acting(), None)
        if process is not None:
            process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
            process.wait(30)
            self._start()

    def end(self) -> list[int]:
        """End all; their exit statuses."""
        for process in self._processes.values():
            process.terminate()
        return [process.wait(30) for process in self._processes.values()]


@pytest.mark.timeout(300 + 10 * GROUPS, func_only=True)
def test_a_stream_of_groups_over_eight_servers_while_placers_are_killed(
    light_nodes: LightNodes, kube: Kube, figures: list[str], tmp_path: Path
) -> None:
    with own_namespace(kube, "placers") as home, LeaderWorkerSets(kube) as groups:
        placers = Placers(kube, home.name, tmp_path)
        try:
            eventually("a placer to act", placers.acting, FAILOVER_SECONDS)
            stream = Stream(kube, groups, chance=random.Random(SEED))
            seen = stream.run(count=GROUPS, at_once=3 * SERVERS, kill=placers.kill)
        finally:
            statuses = placers.end()
    figures.append(f"{len(NAMES)} light nodes: {stream}")
    light_nodes.check()
    assert statuses == [0, 0]
    assert light_nodes.failures == []
    assert stream.served == stream.made
    assert seen.longest_half <= GROUP_TIMEOUT + FAILOVER_SECONDS
    assert seen.longest_wait <= FAILOVER_SECONDS + 15
    eventually("all claims to be unprepared", lambda: not any(node.prepared for node in light_nodes), 30)


SICK = ("hbm-uncorrectable", "sram-uncorrectable")
"""Two of the gravest faults for each of 16 chips: more than a node may tell in Events. They end when they are gone."""
TOLD_SECONDS = 75.0
"""Two readings on a machine that has too much to do, and the pause between two writes of slices."""
CONDITION_WRITES = 4
"""Chips that are read while the emulator makes them sick, or well, one after the other: at most in so many parts."""
OTHERS = 60
"""Requests that others than the drivers may make meanwhile, such as two kubelets that look at their Nodes."""

LATE_SECONDS = 5.0
OF_DRIVERS = (
    *("LIST resourceslices", "POST resourceslices (dry run)", "PUT resourceslices", "POST resourceslices"),
    *("DELETE resourceslices", "GET nodes", "APPLY nodes/status", "POST events", "PATCH events"),
)
"""By verb and resource, what nobody else asks for, or hardly: the test itself lists nodes and watches slices."""

_COUNTED = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def _requests(kube: Kube) -> Counter[str]:
    """How many requests the API server has answered so far, by verb and resource."""
    found: Counter[str] = Counter()
    for text, number in _COUNTED.findall(kube.raw("/metrics").decode()):
        labels = dict(_LABEL.findall(text))
        resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
        found[f"{labels['verb']} {resource}{' (dry run)' if labels['dry_run'] else ''}"] += int(float(number))
    return found


def _codes(device: Object) -> set[str]:
    return {taint["key"].removeprefix(f"{TAINT_DOMAIN}/") for taint in device.get("taints") or ()}


def _writes(watch: SliceWatch) -> dict[str, list[float]]:
    """When each slice was written, by its name; none is written twice in one round."""
    found: dict[str, list[float]] = {}
    for event in watch.events():
        found.setdefault(event.object["metadata"]["name"], []).append(event.at)
    return found


def test_a_storm_of_faults_on_all_chips_of_64_nodes_stays_bounded(
    all_nodes: Sequence[LightNode], kube: Kube, figures: list[str]
) -> None:
    names = {node.name for node in all_nodes}
    assert len(names) == ALL_NODES
    hosts = [SickHost(node.directory / "host") for node in all_nodes]

    def conditions(status: str) -> bool:
        found = {
            node["metadata"]["name"]
            for node in kube.find("nodes")
            for entry in node["status"].get("conditions", ())
            if (entry["type"], entry["status"]) == ("NeuronHealth", status)
        }
        return found >= names

    def tainted(codes: set[str]) -> bool:
        """Whether all devices have taints of just these faults, by what the watch has seen: it costs no requests."""
        newest = watch.before | {event.object["metadata"]["name"]: event.object for event in watch.events()}
        devices: dict[str, list[Object]] = {}
        for item in newest.values():
            devices.setdefault(item["spec"]["nodeName"], []).extend(item["spec"].get("devices") or ())
        return all(devices[name] and all(_codes(device) == codes for device in devices[name]) for name in names)

    eventually("all nodes to be well", lambda: conditions("False"), 30, every=1)
    with SliceWatch(kube) as watch:
        before, began = _requests(kube), time.monotonic()
        for host in hosts:
            host.fail(*(f"{code}@0-15" for code in SICK))
        eventually("all devices to be tainted", lambda: tainted({*SICK}), TOLD_SECONDS, every=0.5)
        eventually("all conditions to say so", lambda: conditions("True"), TOLD_SECONDS, every=1)
        sick = time.monotonic() - began
        for host in hosts:
            host.mend()
        eventually("no device to be tainted", lambda: tainted(set()), TOLD_SECONDS, every=0.5)
        eventually("all conditions to clear", lambda: conditions("False"), TOLD_SECONDS, every=1)
        lasted = time.monotonic() - began
        made = _requests(kube) - before
        writes = _writes(watch)
    told = Counter(
        event["involvedObject"]["name"]
        for event in kube.find("events", "default", fields="involvedObject.kind=Node")
        if event["involvedObject"]["name"] in names
        and str(event.get("reason", "")) in {FAULTS[code].reason for code in SICK}
    )

    drivers = {what: made[what] for what in OF_DRIVERS if made[what]}
    figures.append(
        f"{ALL_NODES} nodes, all chips sick after {sick:.0f} s, healthy again after {lasted:.0f} s: {drivers}; a slice "
        f"was written {max(map(len, writes.values()))} times at most"
    )
    for name, times in writes.items():
        # As the watch saw them: a bit late while there is much to do.
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(pause > SPACING_SECONDS - LATE_SECONDS for pause in pauses), (name, pauses)
    stored = sum(map(len, writes.values()))
    # One question for each write with taints: not for the last one. Where the machine is busy, not all chips are seen
    # at once, and a slice is written in two steps.
    assert made["POST resourceslices (dry run)"] <= stored - ALL_NODES
    assert made["PUT resourceslices"] + made["POST resourceslices"] + made["DELETE resourceslices"] <= stored
    # One look for each write, one more where a write had to wait for its turn.
    assert made["LIST resourceslices"] <= 2 * stored + OTHERS
    assert made["APPLY nodes/status"] <= 2 * CONDITION_WRITES * ALL_NODES
    assert made["GET nodes"] <= made["LIST resourceslices"] + 2 * made["APPLY nodes/status"] + OTHERS
    assert made["POST events"] + made["PATCH events"] <= (BURST + 1) * ALL_NODES + OTHERS
    assert set(told) == names
    assert max(told.values()) <= BURST
