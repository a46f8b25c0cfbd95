"""Pods of all kinds come and go on twenty nodes while extenders are killed, and nobody has what another one has.

``NEURON_DRA_STREAM_PODS`` and ``SEED`` choose how many, and other ones.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.legacy.extender import DEVICE_PLUGIN, ExtenderLab, extender_lab
from tests.cluster.lib.legacy.ledger import Ledger
from tests.cluster.lib.legacy.nodes import NeuronNode, NeuronNodes, neuron_nodes
from tests.cluster.lib.legacy.pods import Pods, container, pod
from tests.cluster.lib.legacy.rules import DEVICE
from tests.cluster.lib.legacy.stream import Killer, Stream
from tests.generators.effort import SEED

pytestmark = pytest.mark.nightly

MINOR_PODS = 150
"""On other versions than the newest."""
PODS = int(os.environ.get("NEURON_DRA_STREAM_PODS", "0"))
NODES = {
    "inf1.6xlarge": 2,
    "inf1.24xlarge": 2,
    "inf2.24xlarge": 3,
    "inf2.48xlarge": 3,
    "trn1.2xlarge": 1,
    "trn1.32xlarge": 4,
    "trn2.48xlarge": 3,
    "trn3.48xlarge": 1,
    "trn3e.24xlarge": 1,
}
KINDS = {f"{kind.replace('.', '-')}-{number}": kind for kind, count in NODES.items() for number in range(count)}


@pytest.fixture
def side(kube: Kube, lab: Cluster, tmp_path: Path) -> Iterator[ExtenderLab]:
    """`my-scheduler`; the tests start the extenders."""
    with extender_lab(kube, lab, tmp_path) as made:
        yield made


@contextmanager
def world(side: ExtenderLab) -> Iterator[tuple[Pods, NeuronNodes, Ledger]]:
    """Twenty nodes, and a ledger of everything that happens there."""
    transport = Transport.from_kubeconfig(os.fspath(side.lab.kubeconfig), user_agent="extender-stream")
    pods, ledger, account = Pods(transport), Ledger(KINDS), side.kubeconfig(DEVICE_PLUGIN)
    with (
        tempfile.TemporaryDirectory(prefix="nne-", dir="/tmp") as directory,
        pods.following(),
        neuron_nodes(transport, pods, KINDS, Path(directory), account, ledger.hear) as nodes,
    ):
        for node in nodes:
            node.told, node.left = ledger.handed_out, ledger.left
        yield pods, nodes, ledger
    transport.close()


@pytest.mark.control_plane
@pytest.mark.kubernetes("1.37", "1.34")
@pytest.mark.timeout(1800, func_only=True)
def test_no_device_is_given_twice_or_lost_while_pods_come_and_go_and_extenders_are_killed(
    side: ExtenderLab, lab: Cluster, figures: list[str]
) -> None:
    count = PODS or (2000 if lab.spec.kubernetes.startswith("1.37.") else MINOR_PODS)
    sys.stdout.write(f"{count} pods, seed {SEED}\n")
    with world(side) as (pods, nodes, ledger):
        stream = Stream(pods, nodes, ledger, random.Random(SEED))
        side.start_extender("--no-leader-elect")
        alone = Killer(side, random.Random(f"{SEED} alone"), every=40, elect=False)
        stream.run(count * 3 // 4, alone.tick)
        # From now on there are two, of which one leads.
        side.end_extender(side.replicas[0], hard=False)
        for _ in range(2):
            side.start_extender()
        pair = Killer(side, random.Random(f"{SEED} pair"), every=max(count // 10, 60), elect=True)
        stream.run(count - count * 3 // 4, pair.tick)
        stream.end_all()
        eventually("the ledger to be empty", lambda: ledger.bound == 0, 30)
        whole = [_whole(node) for node in nodes]
        pods.create(*whole)
        names = [item["metadata"]["name"] for item in whole]
        pods.wait("a pod on every whole node", lambda: all(pods.phase(name) == "Running" for name in names), 120)
        assert alone.kills
        stream.check_failed()
        ledger.check()
        side.check()
        kills = f"{alone.kills} kills alone, {pair.kills} of a leader, {pair.ends} handed over"
        figures.append(f"extender, Kubernetes {lab.spec.kubernetes}: {stream.report()}; {kills}; seed {SEED}")


def _whole(node: NeuronNode) -> Object:
    """A pod that gets all devices of one node."""
    everything = container("main", {DEVICE: node.shape.devices})
    return pod(f"whole-{node.name}", everything, where={"kubernetes.io/hostname": node.name})
