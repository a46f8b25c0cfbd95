"""A chip whose holder is about to end is waited for, and the wait keeps nobody else waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.driver.claims import prepare
from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.situation import NodeFacts
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.neuron.exclusion import HeldBack
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations
from tests.builders.claims import ApiServer, Node, claim, config, neuron_config
from tests.doubles.kubelet import Claim, Kubelet
from tests.doubles.sample_driver import DRIVER, node_directory, served
from tests.eventually import eventually

SOON = 20.0
UNPREPARED_SECONDS = 2.0


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[Node]:
    made = Node(tmp_path, api)
    made.patience = 60.0
    made.restart()
    yield made
    made.checkpoint.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


def waiting(node: Node) -> int:
    return node.preparer._waiting.taken


def waits(
    node: Node, pool: ThreadPoolExecutor, number: int, chips: list[int], namespace: str = "default"
) -> Future[list[str]]:
    """A call for a claim, once it waits."""
    before = waiting(node)
    call = pool.submit(node.prepare, node.api.put(claim(number, chips, namespace=namespace)))
    eventually(lambda: waiting(node) == before + 1, SOON)
    return call


def test_a_claim_gets_its_chip_when_the_holder_ends(node: Node, api: ApiServer, pool: ThreadPoolExecutor) -> None:
    former = api.put(claim(1, [4]))
    node.prepare(former)
    call = waits(node, pool, 2, [4])
    node.unprepare(former)
    assert len(call.result(SOON)) == 1
    assert list(node.checkpointed().values()) == [(4,)]
    assert waiting(node) == 0


def test_the_wait_is_no_part_of_what_a_preparation_takes(
    node: Node, api: ApiServer, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations: list[tuple[str, float]] = []
    monkeypatch.setattr(Operations, "observe", lambda _, name, seconds, *, ok: durations.append((name, seconds)))
    former = api.put(claim(1, [4]))
    node.prepare(former)
    began = time.monotonic()
    call = waits(node, pool, 2, [4])
    time.sleep(1.0)
    node.unprepare(former)
    call.result(SOON)
    took = [seconds for name, seconds in durations if name == "prepare"]
    assert took[-1] < time.monotonic() - began - 1.0


def test_a_holder_that_another_instance_of_the_driver_releases_is_seen_to_end(
    node: Node, api: ApiServer, pool: ThreadPoolExecutor
) -> None:
    former = api.put(claim(1, [4]))
    node.prepare(former)
    call = waits(node, pool, 2, [4])
    other = Checkpoint(node.root / "state", boot_id=node.boot, cdi=node.cdi)
    with other.locked():
        node.cdi.remove(former.metadata.uid)
        other.remove(former.metadata.uid)
    other.close()
    assert len(call.result(SOON)) == 1


def test_a_chip_of_a_device_plugins_pod_is_waited_for(node: Node, api: ApiServer, pool: ThreadPoolExecutor) -> None:
    node.facts = NodeFacts(held_back=HeldBack(frozenset({4}), "a pod has it"))
    call = waits(node, pool, 1, [4])
    node.facts = NodeFacts()
    assert len(call.result(SOON)) == 1


def test_a_claim_that_was_allocated_anew_meanwhile_gets_its_new_chip(
    node: Node, api: ApiServer, pool: ThreadPoolExecutor
) -> None:
    former = api.put(claim(1, [4]))
    node.prepare(former)
    call = waits(node, pool, 2, [4])
    api.put(claim(2, [5]))
    node.unprepare(former)
    assert len(call.result(SOON)) == 1
    assert list(node.checkpointed().values()) == [(5,)]


def test_a_holder_that_does_not_end_is_told_in_time(node: Node, api: ApiServer) -> None:
    node.patience = 0.2
    node.restart()
    node.prepare(api.put(claim(1, [4])))
    with pytest.raises(DriverError, match="still prepared for claim default/claim-1"):
        node.prepare(api.put(claim(2, [4])))


def test_what_does_not_end_by_itself_is_not_waited_for(node: Node, api: ApiServer) -> None:
    with pytest.raises(DriverError):
        node.prepare(api.put(claim(1, [4], configs=[config(neuron_config(3))])))
    with pytest.raises(DriverError):
        node.prepare(api.put(claim(2, [99])))


def test_so_many_wait_at_a_time_and_the_next_is_refused_at_once(
    node: Node, api: ApiServer, pool: ThreadPoolExecutor
) -> None:
    former = [api.put(claim(number, [number])) for number in range(10)]
    for item in former:
        node.prepare(item)
    calls = [waits(node, pool, 10 + number, [number], namespace="abc"[number // 4]) for number in range(8)]
    for namespace in ("a", "c"):
        with pytest.raises(DriverError, match="still prepared"):
            node.prepare(api.put(claim(19, [9], namespace=namespace)))
    for item in former:
        node.unprepare(item)
    assert all(call.result(SOON) for call in calls)
    assert waiting(node) == 0


@pytest.mark.slow
def test_every_pod_that_ends_has_its_call_answered_while_forty_others_wait_for_its_chip(
    node: Node, api: ApiServer
) -> None:
    node.patience = 8.0
    node.restart()
    holders = [api.put(claim(number, [number])) for number in range(10)]
    for item in holders:
        node.prepare(item)
    others = [api.put(claim(10 + number, [number % 10], namespace=f"team-{number // 10}")) for number in range(40)]
    with node_directory() as root, Kubelet(root) as kubelet, served(kubelet, node.preparer):
        kubelet.wait_registered(DRIVER)
        call = kubelet.instance(DRIVER).call

        def seconds(verb: str, item: ResourceClaim) -> float:
            named = Claim(item.metadata.namespace, item.metadata.name, item.metadata.uid, (DRIVER,))
            began = time.monotonic()
            call(f"Node{verb}Resources", [named], 45.0)
            return time.monotonic() - began

        with ThreadPoolExecutor(len(others)) as calls:
            prepares = [calls.submit(seconds, "Prepare", item) for item in others]
            eventually(lambda: waiting(node) == prepare._WAITING, SOON)
            assert max(seconds("Unprepare", item) for item in holders) < UNPREPARED_SECONDS
            assert max(answer.result(SOON) for answer in prepares) < node.patience + UNPREPARED_SECONDS
    assert set(node.checkpointed().values()) <= {(number,) for number in range(10)}
    assert len(node.checkpointed()) >= prepare._WAITING_OF_NAMESPACE, "those of one namespace wait for different chips"
