"""The whole agent where something never answers: health tells, and the stop keeps to its time all the same."""

from __future__ import annotations

import fcntl
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dra_driver.kube.api.client import READ_TIMEOUT
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, Agent, World, agent, free_port, health
from tests.doubles import hanging_host
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually
from tests.golden import golden_error

pytestmark = pytest.mark.slow

GRACE_SECONDS = 30.0
"""``terminationGracePeriodSeconds`` of the DaemonSet: then the process is killed."""


@contextmanager
def agent_on_hanging_host(world: World, *options: str) -> Iterator[tuple[Agent, Path]]:
    """A started agent, and the file whose existence makes its host hang."""
    hanging = world.root / "hanging"
    program = [sys.executable, "-m", hanging_host.__name__, str(hanging)]
    with agent(world, *options, program=program) as running:
        yield running, hanging


def test_a_read_of_the_host_that_hangs_ends_readiness_and_not_liveness_and_refuses_claims(world: World) -> None:
    port = free_port()
    options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
    with agent_on_hanging_host(world, *options) as (running, hanging):
        running.ready()
        eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")

        hanging.touch()

        eventually(lambda: health(port, "readiness") == "NOT_SERVING", 40.0, "no readiness")
        # The watch of the chips' health reads the same files, and may be the first to say so.
        said = "reading the host has made no progress"
        eventually(lambda: health(port, "readiness") and said in running.log, what="the reason")
        assert health(port, "liveness") == "SERVING"
        wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])


def test_an_agent_whose_host_hangs_from_the_start_serves_kubelet_and_says_why_it_is_not_ready(world: World) -> None:
    port = free_port()
    (world.root / "hanging").touch()
    options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
    with agent_on_hanging_host(world, *options) as (running, _):
        running.ready(published=False)
        eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="the truth")
        assert running.terminate() == 0


def test_labels_that_become_known_while_the_host_is_read_are_in_the_first_publication(world: World) -> None:
    named = {"topology.k8s.aws/network-node-layer-1": "nn-1"}
    node_object = world.server.store.get("nodes", NODE)
    assert node_object is not None
    node_object["metadata"]["labels"] |= named
    world.server.store.update("nodes", NODE, node_object)
    world.server.stop()
    (world.root / "hanging").touch()
    with agent_on_hanging_host(world) as (running, hanging):
        running.ready(published=False)
        world.server.start()
        eventually(lambda: world.server.count("GET", "nodes", watch=True) > 0, what="the agent to follow its Node")
        time.sleep(0.5)  # and to hear of the labels
        hanging.unlink()
        eventually(world.offered, what="slices")
        assert world.attributes("networkNodeLayer1") == {"nn-1"}
        assert world.slice_writes() == 1


def test_the_stop_keeps_to_its_time_though_every_part_hangs(world: World) -> None:
    health_port, metrics_port = free_port(), free_port()
    health_options = ("--healthcheck-port", str(health_port), "--healthcheck-address", "127.0.0.1")
    options = (*health_options, "--metrics-port", str(metrics_port))
    wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
    with ExitStack() as stack:
        running, hanging = stack.enter_context(agent_on_hanging_host(world, *options))
        running.ready()
        # The state directory is locked by another instance that hangs too: repairs, calls and scrapes wait for it.
        lock = stack.enter_context((world.kubelet.plugins_dir / DRIVER_NAME / "journal.lock").open("rb+"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The API server takes requests and answers none of them.
        world.server.delay(3 * READ_TIMEOUT, times=100_000)
        world.server.close_watches()
        world.kubelet.stop_watching()
        hanging.touch()
        waiting = [
            threading.Thread(target=attempt, daemon=True)
            for attempt in (
                lambda: prepare(world, wanted),
                lambda: scrape(metrics_port),
                lambda: health(health_port, "readiness"),
            )
        ]
        for thread in waiting:
            thread.start()
        time.sleep(2.0)  # every part has come to where it hangs

        stopped = time.monotonic()
        assert running.terminate(GRACE_SECONDS) == 0
        assert time.monotonic() - stopped < GRACE_SECONDS
        assert [path for path in world.kubelet.registry_dir.iterdir() if path.is_socket()] == []
        for thread in waiting:
            thread.join(10)


def prepare(world: World, wanted: Claim) -> None:
    with suppress(KubeletError):
        world.kubelet.prepare("pod", [wanted])


def scrape(port: int) -> None:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        answer.read()
