"""The whole agent as a process where something around it is wrong: it says what, and does what can be done."""

from __future__ import annotations

import fcntl
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dra_driver.driver.claims.lock import StateLock
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import World, agent, free_port, health, scraped
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually
from tests.golden import golden, golden_error, lines

GRACE_SECONDS = 30.0
"""``terminationGracePeriodSeconds`` of the DaemonSet: then the process is killed."""


def sockets(world: World) -> list[Path]:
    state = world.kubelet.plugins_dir / DRIVER_NAME
    return [path for folder in (world.kubelet.registry_dir, state) for path in folder.iterdir() if path.is_socket()]


@pytest.mark.parametrize("option", ["--metrics-port", "--healthcheck-port"])
def test_a_taken_port_ends_the_agent_with_the_reason_and_leaves_no_socket(world: World, option: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with agent(world, option, port, "--healthcheck-address", "127.0.0.1") as running:
            assert running.process.wait(timeout=30) == 1
            assert f"127.0.0.1:{port}" in running.log
            assert "Traceback" not in running.log
    assert sockets(world) == []


def test_an_unusable_checkpoint_is_told_by_health_metrics_and_each_refusal(world: World) -> None:
    health_port, metrics_port = free_port(), free_port()
    (world.kubelet.plugins_dir / DRIVER_NAME / "journal.lock").mkdir(parents=True)
    options = ("--healthcheck-port", str(health_port), "--healthcheck-address", "127.0.0.1")
    with agent(world, *options, "--metrics-port", str(metrics_port)) as running:
        running.ready()
        wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        services = ("readiness", "liveness")
        eventually(lambda: {health(health_port, name) for name in services} == {"NOT_SERVING"}, what="the truth")
        text = scraped(metrics_port)
        assert "neuron_dra_driver_registered 1.0" in text
        assert "neuron_dra_driver_prepared_claims" not in text, "nobody knows"
        assert "Traceback" not in running.log


def test_a_scrape_does_not_wait_for_the_lock_of_the_checkpoint(world: World) -> None:
    port = free_port()
    with agent(world, "--metrics-port", str(port)) as running:
        running.ready()
        wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
        world.kubelet.prepare("pod", [wanted])
        with StateLock(world.kubelet.plugins_dir / DRIVER_NAME / "journal.lock").hold():
            text = scraped(port)
        assert "neuron_dra_driver_prepared_claims 1.0" in text
        assert "neuron_dra_driver_unreadable_journal_files 0.0" in text


def test_a_driver_that_starts_after_its_state_was_removed_takes_no_device_from_a_running_pod(world: World) -> None:
    state = world.kubelet.plugins_dir / DRIVER_NAME
    first, second = (
        world.add_claim("default", name, devices=[("n", "neuron-device-0")]) for name in ("first", "second")
    )
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("pod", [first])
        assert running.terminate() == 0
    eventually(lambda: not world.kubelet.instances.get(DRIVER_NAME), what="that kubelet knows it")
    shown = world.specs()
    assert shown
    shutil.rmtree(state)
    with agent(world) as running:
        running.ready()
        with golden_error(KubeletError):
            world.kubelet.prepare("other", [second])
        assert world.specs() == shown
        world.kubelet.unprepare("pod")
        assert world.specs() == []
        world.kubelet.prepare("other", [second])


def test_health_is_well_again_when_the_checkpoint_is(world: World) -> None:
    port = free_port()
    state = world.kubelet.plugins_dir / DRIVER_NAME
    (state / "journal.lock").mkdir(parents=True)
    with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as running:
        running.ready()
        eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="the truth")
        (state / "journal.lock").rmdir()
        wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
        world.kubelet.prepare("pod", [wanted])
        eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")


def test_a_driver_that_has_lost_its_rights_is_not_ready_from_the_first_refused_claim_on_until_it_has_them_again(
    world: World,
) -> None:
    """As after `helm uninstall` of another release that owns the ClusterRole: the watches that are open go on."""
    port = free_port()
    options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
    with agent(world, *options) as running:
        running.ready()
        wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
        eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")
        refusal = world.server.fail(403, times=1000, path="resource.k8s.io")
        with pytest.raises(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="the truth")
        assert health(port, "liveness") == "SERVING", "a restart gives no rights"
        refusal.times = 0
        world.kubelet.prepare("pod", [wanted])
        eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")
        golden(lines(running.log, "other rights"))


def test_without_an_api_server_the_log_and_readiness_tell_why_and_hold_no_traceback(world: World) -> None:
    port = free_port()
    world.server.stop()
    with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as running:
        running.ready(published=False)
        eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="no readiness")
        eventually(lambda: "the slices are not published: the API server" in running.log, what="why it is not ready")
        assert running.terminate() == 0
        assert "Traceback" not in running.log


def test_a_silent_api_server_delays_neither_start_nor_stop_for_long(world: World) -> None:
    world.server.stop()
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", urlsplit(world.server.url).port or 0))
        silent.listen()  # connections are made, and nothing ever answers
        with agent(world) as running:
            running.ready(published=False)
            time.sleep(0.5)  # all threads wait for an answer
            assert running.terminate(GRACE_SECONDS) == 0


# kubelet gives up on a call after 45 s; the calls here have less, so that the tests take less


def claims(world: World, count: int) -> list[Claim]:
    """Claims of one pod, a chip each."""
    return [
        world.add_claim("default", f"claim-{chip}", devices=[("n", f"neuron-device-{chip}")]) for chip in range(count)
    ]


@contextmanager
def state_lock_held(world: World) -> Iterator[None]:
    """Another instance of the driver works on the checkpoint, and does not end."""
    with (world.kubelet.plugins_dir / DRIVER_NAME / "journal.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_claims_that_the_api_server_does_not_tell_of_are_refused_within_the_call_and_the_retry_waits_for_nothing(
    world: World,
) -> None:
    with agent(world) as running:
        running.ready()
        wanted = claims(world, 4)
        world.server.delay(60, times=1000, path="/resourceclaims/")
        world.kubelet.call_seconds = 8
        with pytest.raises(KubeletError, match="no answer in"):
            world.kubelet.prepare("pod", wanted)
        for claim in wanted:
            assert f"claim default/{claim.name}" in running.log
        world.server.faults.clear()
        # Within the call again, so nothing of the first one is still running.
        assert len(world.kubelet.prepare("pod", wanted)) == 4


def test_prepared_claims_are_all_served_from_the_checkpoint_within_one_call_of_an_api_server_that_is_silent(
    world: World,
) -> None:
    with agent(world) as running:
        running.ready()
        wanted = claims(world, 4)
        world.kubelet.prepare("pod", wanted)
        world.kubelet.restart()
        world.kubelet.wait_registered(DRIVER_NAME)
        world.server.delay(60, times=1000, path="/resourceclaims/")
        world.kubelet.call_seconds = 8
        assert len(world.kubelet.prepare("pod", wanted)) == 4


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_a_checkpoint_that_another_instance_keeps_is_told_within_the_call(world: World, verb: str) -> None:
    with agent(world) as running:
        running.ready()
        wanted = claims(world, 2)
        if verb == "unprepare":
            world.kubelet.prepare("pod", wanted)
        world.kubelet.call_seconds = 6

        def act() -> None:
            if verb == "prepare":
                world.kubelet.prepare("pod", wanted)
            else:
                world.kubelet.unprepare("pod")

        with state_lock_held(world), pytest.raises(KubeletError) as refusal:
            act()
        # A pass of repair may wait for the lock, too, and then the call for that.
        golden(re.sub(r"for \d+ s", "for N s", str(refusal.value)))
        act()
