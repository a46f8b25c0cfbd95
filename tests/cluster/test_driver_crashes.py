"""The driver is killed again and again while it prepares and unprepares claims."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.lib.installation import NAMESPACE, Installation
from tests.cluster.lib.kube import eventually
from tests.cluster.lib.lifecycle import Stopwatch, nudge, process_of, say, uid_of, wait_driver_ready, wait_gone
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

NODE = "node-1"
BATCH = 3
BATCHES = 5
MAX_DELAY = 0.02
"""Seconds. The three claims of a batch are prepared or unprepared within about so long after the first file."""


def _kill_at_a_random_instant(driver: Installation, files: NodeFiles, act: Callable[[], object]) -> None:
    """Kill the driver within milliseconds of the first change of its checkpoint by ``act``; renew its pod."""
    found = wait_driver_ready(driver, NODE)
    process, claims, delay = process_of(found), files.state / "claims", random.uniform(0, MAX_DELAY)
    before = _names(claims)
    act()
    end = time.monotonic() + 30
    while _names(claims) == before:
        assert time.monotonic() < end, "the driver has not touched its checkpoint"
    instant = time.monotonic() + delay
    while time.monotonic() < instant:
        pass
    os.kill(process, signal.SIGKILL)
    left = _names(claims) | _names(files.cdi)
    say(
        f"killed {delay * 1000:.1f} ms after the first change: {len(files.checkpoint())} checkpointed, "
        f"{len(files.specs())} CDI specs, {sum(name.endswith('.tmp') for name in left)} temporary files"
    )
    # A new pod, since kubelet would wait longer and longer before it restarts the container.
    name = found["metadata"]["name"]
    driver.kube.kubectl("--namespace", NAMESPACE, "delete", "pod", name, "--grace-period=1", "--wait=false")
    old = uid_of(found)  # between it and the new one there may be none
    eventually("the driver's pod to be replaced", lambda: {uid_of(item) for item in driver.pods(NODE)} - {old}, 60)


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


@pytest.mark.timeout(400, func_only=True)
def test_no_kill_gives_a_device_twice_loses_one_or_leaves_anything_behind(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    namespace.apply(template("one", request()))
    batches = [[f"pod-{batch}-{number}" for number in range(BATCH)] for batch in range(BATCHES)]
    pods = [name for batch in batches for name in batch]
    clock = Stopwatch()
    for batch in batches:
        wanted = [pod(name, templates={"neurons": "one"}, node=NODE) for name in batch]
        _kill_at_a_random_instant(driver, files, partial(namespace.apply, *wanted))
    wait_driver_ready(driver, NODE)
    clock.lap("the last driver is ready")
    nudge(namespace, *pods)
    namespace.wait_ready(*pods)
    clock.lap("all pods are ready")

    claims = {name: namespace.claim_of(name) for name in pods}
    allocated = {uid_of(claim): namespace.allocated(claim)[0].chip for claim in claims.values()}
    assert len(set(allocated.values())) == len(pods)
    assert {uid: files.shown(uid) for uid in files.specs()} == {uid: {0: chip} for uid, chip in allocated.items()}
    assert set(files.checkpoint()) == set(allocated)
    for name in pods:
        assert namespace.numbers(name) == [0]

    for batch in batches[:2]:
        command = ("delete", "pod", *batch, "--grace-period=1", "--wait=false")
        _kill_at_a_random_instant(driver, files, partial(namespace.kubectl, *command))
    wait_driver_ready(driver, NODE)
    namespace.kubectl("delete", "pod", "--all", "--grace-period=1", "--wait=false")
    nudge(namespace, *pods)
    wait_gone(namespace, *pods, within=60)
    clock.lap("all pods are gone")
    assert _names(files.state / "claims") == set()
    # Where a device plugin was before, it has left its spec for containers that are started anew.
    assert _names(files.cdi) <= {"k8s.neuron.aws.com-chip_node.json"}
    assert _names(files.state / "quarantine") == set()
