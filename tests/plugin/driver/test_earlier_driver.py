"""This driver beside an earlier one, as during an update: two programs on the files of one node.

The earlier one is that of cad0076c, the last without the loop in which a node decides; ``tests/data`` has what its
program consists of (``git archive cad0076c``), so that a shallow checkout has it too.
"""

from __future__ import annotations

import fcntl
import random
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import Agent, World, agent_on_host
from tests.doubles.kubelet import Claim
from tests.doubles.kubelet_connection import Instance
from tests.eventually import eventually
from tests.generators.effort import SEED
from tests.paths import DATA

EARLIER = DATA / "driver-cad0076c.tar.xz"
CHIPS = 16
CLAIMS = 24
CALLS = 80
CALL_SECONDS = 6.0
"""This driver waits for a chip that another claim has, but not beyond its call."""
WORKERS = 4
"""Calls of kubelet at a time; each worker has claims of its own, since kubelet makes one call for a claim at a time."""


class Node:
    """Both drivers, and what kubelet was told by either: chips by claim."""

    def __init__(self, world: World, instances: dict[str, Instance], agents: dict[str, Agent]) -> None:
        self.world, self.instances, self.agents = world, instances, agents
        self.lock = threading.Lock()
        self.promised: dict[str, frozenset[str]] = {}
        self.refused = 0
        chance = random.Random(f"{SEED} claims")
        self.claims = [self._claim(f"claim-{number}", chance) for number in range(CLAIMS)]

    def _claim(self, name: str, chance: random.Random) -> Claim:
        first, count = chance.randrange(CHIPS), chance.choice([1, 1, 2, 4])
        devices = [("neurons", f"neuron-device-{(first + index) % CHIPS}") for index in range(count)]
        return self.world.add_claim("default", name, devices, pods=[(f"pod-of-{name}", name)])

    def call(self, which: str, method: str, claim: Claim, seconds: float = CALL_SECONDS) -> tuple[list[Any], str]:
        """The devices, and the error."""
        answer = self.instances[which].call(method, [claim], seconds).claims[claim.uid]
        return list(getattr(answer, "devices", ())), answer.error

    def prepare(self, which: str, claim: Claim) -> None:
        devices, error = self.call(which, "NodePrepareResources", claim)
        chips = frozenset(device.device_name for device in devices)
        with self.lock:
            if error:
                assert claim.uid not in self.promised, error
                self.refused += 1
                return
            others = {uid: chips & has for uid, has in self.promised.items() if uid != claim.uid and chips & has}
            assert not others, f"{which} gave {claim.name} what others have: {others}"
            assert self.promised.setdefault(claim.uid, chips) == chips

    def unprepare(self, which: str, claim: Claim) -> None:
        with self.lock:
            self.promised.pop(claim.uid, None)
        assert self.call(which, "NodeUnprepareResources", claim)[1] == ""


@contextmanager
def update(world: World, earlier: Path) -> Iterator[Node]:
    """A node on which the earlier driver still runs, and this one already."""
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
    with agent_on_host(world, "--pod-uid", "earlier", search_path=earlier) as before:
        before.ready()
        with agent_on_host(world, "--pod-uid", "present") as now:
            world.kubelet.wait_registered(DRIVER_NAME, instances=2)
            earlier_one, present = world.kubelet.instances[DRIVER_NAME]
            yield Node(world, {"earlier": earlier_one, "present": present}, {"earlier": before, "present": now})


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the earlier driver's package is."""
    directory = tmp_path_factory.mktemp("earlier")
    with tarfile.open(EARLIER) as archive:
        archive.extractall(directory, filter="data")
    return directory


def test_no_chip_is_given_twice_by_an_earlier_driver_and_this_one(world: World, earlier: Path) -> None:
    with update(world, earlier) as node:

        def calls(worker: int) -> None:
            chance = random.Random(f"{SEED} {worker}")
            for _ in range(CALLS // WORKERS):
                claim = node.claims[chance.randrange(worker, CLAIMS, WORKERS)]
                act = node.unprepare if claim.uid in node.promised and chance.random() < 0.6 else node.prepare
                act(chance.choice(["earlier", "present"]), claim)

        with ThreadPoolExecutor(WORKERS) as workers:
            list(workers.map(calls, range(WORKERS)))
        assert node.refused, "no two claims wanted the same chip"
        for claim in node.claims:
            node.unprepare("present", claim)
        everything = world.add_claim("default", "all", [("neurons", f"neuron-device-{n}") for n in range(CHIPS)])
        for which in node.instances:  # neither believes that anything is still prepared
            node.prepare(which, everything)
            node.unprepare(which, everything)


def test_each_waits_for_the_lock_that_the_other_holds(world: World, earlier: Path) -> None:
    with update(world, earlier) as node:
        claim = node.claims[0]
        with (world.kubelet.plugins_dir / DRIVER_NAME / "journal.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for which in node.instances:
                _, error = node.call(which, "NodePrepareResources", claim, seconds=3.0)
                assert "another instance of the driver" in error
        for which in node.instances:
            node.prepare(which, claim)


def test_claims_of_an_earlier_driver_stay_after_a_kill_and_end_by_this_one(world: World, earlier: Path) -> None:
    with update(world, earlier) as node:
        claim = node.claims[0]
        node.prepare("earlier", claim)
        node.agents["earlier"].kill()
        node.prepare("present", claim)
        assert len(world.specs()) == 1
        node.unprepare("present", claim)
        eventually(lambda: not world.specs(), what="the CDI spec is gone")
