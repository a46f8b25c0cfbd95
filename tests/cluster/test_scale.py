"""Eight UltraServers: more nodes than this machine can hold, so they are light ones with the driver's real process.

``NEURON_DRA_SCALE_GROUPS`` makes the stream of groups longer than it is by default.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.driver.node_labels import KEYS
from tests.cluster.lib.groupstream import Stream, servers
from tests.cluster.lib.installation import DAEMONSET, EMULATED_ULTRASERVER, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.lifecycle import own_namespace
from tests.cluster.lib.lightnodes import LightNodes
from tests.paths import ROOT

SERVERS = 8
NAMES = [f"light-{number}" for number in range(1, 4 * SERVERS + 1)]
GROUPS = int(os.environ.get("NEURON_DRA_SCALE_GROUPS", "40"))
GROUP_TIMEOUT = 20
FAILOVER_SECONDS = 30.0
"""A killed leader's lease lasts 20 s; and its successor reads the cluster first."""


@pytest.fixture
def light_nodes(installation: Installation, kube: Kube) -> Iterator[LightNodes]:
    """Eight UltraServers of four nodes; the driver on other nodes is removed, so that only these have devices."""
    if kube.get("daemonsets", DAEMONSET, NAMESPACE) is not None:
        installation.uninstall()
    eventually("no slice to be left", lambda: not kube.slices(), 60)
    # Nodes keep them when the driver is uninstalled, and those of emulated servers are the same on other nodes.
    kube.kubectl("label", "nodes", "--all", *(f"{key}-" for key in sorted(KEYS)))
    kube.apply((ROOT / "scripts/manifests/deviceclass.yaml").read_text())
    options = ("--emulated-ultraservers", f"{SERVERS}x4")
    with (
        tempfile.TemporaryDirectory(prefix="ndl-", dir="/tmp") as directory,
        LightNodes(kube, NAMES, Path(directory), EMULATED_ULTRASERVER, options) as nodes,
    ):
        eventually("the nodes to be labelled", lambda: len(servers(kube)) == SERVERS, 60)
        yield nodes
    kube.kubectl("delete", "deviceclass", "neuron.aws.com")


class Placers:
    """Two placers as processes of this machine; the one that acts can be ended, and another is started."""

    def __init__(self, kube: Kube, namespace: str, directory: Path) -> None:
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
            stream = Stream(kube, groups, chance=random.Random(os.environ.get("NEURON_DRA_PLACER_SEED", "7")))
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
