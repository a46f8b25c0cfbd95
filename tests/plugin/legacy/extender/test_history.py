"""A long history of pods that come and go on twenty nodes, while the extender is killed over and over."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.builders.extender import (
    CORE,
    DEVICE,
    Client,
    Extender,
    add_node,
    add_pod,
    cores_in_use,
    end_pod,
    everything_is_accounted_for,
    extender,
    known,
    limits,
    pod_document,
    process,
)
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]

ARRIVALS = int(os.environ.get("NEURON_DRA_TEST_ARRIVALS", "150"))
"""Pods of the history below; 2000 take some minutes."""
KINDS = ("inf2.48xlarge", "trn2.48xlarge", "inf1.6xlarge", "inf2.24xlarge", "trn1.32xlarge")


@pytest.mark.timeout(60 + 2 * ARRIVALS)
def test_killed_at_any_time_no_device_is_given_twice_and_none_is_lost(server: ApiServer, tmp_path: Path) -> None:
    nodes = [f"n{number}" for number in range(20)]
    for number, name in enumerate(nodes):
        add_node(server, name, KINDS[number % len(KINDS)])
    dice = random.Random(6)
    alive: list[str] = []
    arrived = 0
    while arrived < ARRIVALS:
        with process(server, tmp_path, "--no-leader-elect") as (running, client):
            doom = threading.Timer(dice.uniform(0.05, 0.8), running.kill)
            doom.start()
            while running.poll() is None and arrived < ARRIVALS:
                arrived += 1
                alive.append(f"p{arrived}")
                _arrive(server, client, alive[-1], nodes, dice)
                while len(alive) > 60:
                    _leave(server, alive.pop(dice.randrange(len(alive))), dice)
                rules_are_obeyed(server)
            doom.cancel()
    with extender(server) as last:
        known(last)
        everything_is_accounted_for(server, last)
        for item in server.store.list("pods")[0]:
            server.store.delete("pods", f"a/{item['metadata']['name']}")
        for kind, devices in (("inf2.48xlarge", 12), ("inf1.6xlarge", 4), ("trn1.32xlarge", 16)):
            whole = [name for number, name in enumerate(nodes) if KINDS[number % len(KINDS)] == kind]
            _whole(last, whole, devices)


def _whole(one: Extender, nodes: list[str], devices: int) -> None:
    eventually(lambda: one.fits(pod_document("all", limits(devices)), nodes) == nodes, what="whole nodes")


def _arrive(server: ApiServer, client: Client, name: str, nodes: list[str], dice: random.Random) -> None:
    sizes = (limits(1), limits(2), limits(4), limits(8), limits(cores=1), limits(cores=2), limits(cores=6))
    item = add_pod(server, name, *dice.choices(sizes, k=dice.choice((1, 1, 1, 2))))
    # Killed in the middle of it, or an answer without names, where it had no time to look at the nodes: only what the
    # annotations say afterwards is a failure.
    with suppress(OSError, http.client.HTTPException, KeyError):
        client.schedule(item, dice.sample(nodes, 10))


def _leave(server: ApiServer, name: str, dice: random.Random) -> None:
    if dice.random() < 0.5:
        end_pod(server, name, dice.choice(("Succeeded", "Failed")))
    else:
        server.store.delete("pods", f"a/{name}")


def rules_are_obeyed(server: ApiServer) -> None:
    """No core is given twice, and each container has a run that lies on the devices it may have."""
    cores_in_use(server)
    kinds = {item["metadata"]["name"]: item for item in server.store.list("nodes")[0]}
    for item in server.store.list("pods")[0]:
        node = item["spec"].get("nodeName")
        if not node:
            continue
        capacity = kinds[node]["status"]["capacity"]
        kind = kinds[node]["metadata"]["labels"]["node.kubernetes.io/instance-type"]
        width = int(capacity[CORE]) // int(capacity[DEVICE])
        said = json.loads(item["metadata"]["annotations"]["neuron.aws.com/allocation"])
        asked = {entry["name"]: entry["resources"]["limits"] for entry in item["spec"]["containers"]}
        assert {share["name"] for share in said["containers"]} == {*asked}
        for share in said["containers"]:
            first, _, last = share["ids"].partition("-")
            run = range(int(first), int(last or first) + 1)
            assert len(run) == int(asked[share["name"]][share["resource"]])
            one = 1 if share["resource"] == DEVICE else width
            devices = range(run[0] // one, run[-1] // one + 1)
            aligned = kind.startswith("inf") or (len(devices) in (1, 4, 8, 16) and devices[0] % len(devices) == 0)
            assert aligned, f"{share} on {node}"
