"""What kubelet and the log are told when a claim, its files or the API server are not as they should be."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.diff import diff
from dra_driver.driver.claims.files import decoded, encoded
from dra_driver.driver.claims.lock import StateLock
from dra_driver.driver.claims.metadata import MetadataDirectory
from dra_driver.driver.claims.model import CheckpointEntry, Needs, PreparedClaims, Quarantined
from dra_driver.driver.claims.observe import GONE_CHECKS, GONE_SECONDS, ClaimObservation
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.kube.api.errors import DecodeError, Unreachable
from dra_driver.kube.cdi import encode
from dra_driver.kube.objects.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_driver.util.errors import DriverError
from tests.builders.claims import NODE, SETTINGS, ApiServer, Node, claim, host, plan, ref, result, uid
from tests.golden import golden, golden_error


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[Node]:
    made = Node(tmp_path, api)
    yield made
    made.checkpoint.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def entry(item: ResourceClaim) -> CheckpointEntry:
    return CheckpointEntry(plan(item, host(), PreparedClaims(), SETTINGS), "boot-1")


def test_a_lock_that_another_thread_holds_too_long_is_explained(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "lock")
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.hold():
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30)
        with pytest.raises(DriverError) as caught, lock.hold(time.monotonic() + 0.01):
            pytest.fail("two hold it")
        golden(re.sub(r"for \d+ s", "for N s", str(caught.value)))
    finally:
        leave.set()
        thread.join()


def test_a_checkpoint_file_of_another_claim_is_refused() -> None:
    with golden_error(ValueError):
        decoded(encoded(entry(claim(1, [4]))), uid(2))


def test_a_checkpoint_file_that_nests_without_end_is_refused() -> None:
    with golden_error(ValueError):
        decoded(b'{"version":1,"checksum":"","entry":' + b"[" * 100_000, uid(1))


def test_a_claim_whose_pods_are_not_known_waits_for_them() -> None:
    golden(str(Needs(pods=(ResourceClaimConsumerReference("pods", "one", uid(1)),)).unmet("team")))
    golden(str(Needs(claims=(entry(claim(1, [4])).plan,)).unmet("team")))


def test_a_device_name_of_a_beta_release_is_refused_with_the_name_of_now() -> None:
    with golden_error(DriverError):
        entry(claim(1, [result("neurondevice2")]))


def test_a_call_whose_time_is_over_asks_nothing(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    with golden_error(DriverError):
        node.preparer.prepare(ref(item), time.monotonic() - 1)
    assert api.gets == []


def test_what_is_done_without_the_api_server_is_logged(
    node: Node, api: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    log.clear()
    api.down = Unreachable("GET claims: connection refused", consequence="no claim can be read", remedy="look at it")
    node.prepare(item)
    node.checkpoint_file(item).unlink()
    node.reconciler.reconcile()
    golden(log.messages)


def test_a_claim_that_was_allocated_again_while_the_node_was_down_is_prepared_anew(
    node: Node, api: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reboot()
    log.clear()
    node.prepare(api.put(claim(1, [6])))
    golden(log.messages)


def test_a_claim_that_cannot_be_decoded_is_looked_after_later(
    node: Node, api: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reconciler.reconcile()
    node.now += 7200
    log.clear()
    api.trouble.append(DecodeError("the API server sent a claim that is not an object"))
    node.reconciler.reconcile()
    golden(log.messages)


def test_checkpoint_files_that_spoil_are_written_again_set_aside_or_taken_back(
    node: Node, api: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    good = node.checkpoint_file(item).read_bytes()
    log.clear()
    node.checkpoint_file(item).write_bytes(b"{")
    node.reconciler.repair()
    in_the_way = node.root / "state" / "quarantine" / f"{uid(1)}.json"
    in_the_way.mkdir(parents=True)
    node.checkpoint_file(item).write_bytes(b"{")
    node.restart()
    node.reconciler.repair()
    in_the_way.rmdir()
    node.restart()
    node.reconciler.repair()
    (spoilt,) = node.quarantined()
    spoilt.write_bytes(good)
    node.restart()
    node.reconciler.repair()
    golden(log.messages)


HERE = ClaimObservation(here=True, since=0.0, checked=0.0, chips=frozenset({4}))
GONE = ClaimObservation(here=False, since=0.0, checked=GONE_SECONDS, checks=GONE_CHECKS)


def test_each_repair_says_why() -> None:
    one = entry(claim(1, [4, 5]))
    held, missing = PreparedClaims([one]), PreparedClaims()
    missing.add(one, missing=True)
    unreadable = PreparedClaims([], [Quarantined(uid(2), "x", "it is empty", None)])
    wrong: dict[str, bytes | None] = {uid(1): b"{}"}
    rows = [
        diff(held, wrong, host(major=251), "boot-1", {}),
        diff(held, {}, host(), "boot-1", {}),
        diff(held, wrong, host(), "boot-1", {}),
        diff(held, {}, host(), "boot-2", {uid(1): GONE}),
        diff(missing, {}, host(), "boot-1", {uid(1): GONE}),
        diff(missing, {uid(1): encode(cdi_spec(one.plan))}, host(), "boot-1", {uid(1): HERE}),
        diff(unreadable, {}, host(), "boot-1", {uid(2): HERE}),
        diff(unreadable, {}, host(), "boot-1", {uid(2): GONE}),
    ]
    golden(f"{repair.kind}: {repair.reason}" for row in rows for repair in row)


def test_files_about_devices_are_written_and_removed_with_a_reason(
    tmp_path: Path, node: Node, api: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    metadata = MetadataDirectory(tmp_path / "metadata")
    made = entry(claim(1, [4]))
    with node.checkpoint.locked():
        node.checkpoint.put(msgspec.structs.replace(made.plan, metadata=str(tmp_path / "metadata" / uid(1))))
    (tmp_path / "metadata" / uid(2)).mkdir(parents=True)
    log.clear()
    Reconciler(node.checkpoint, node.cdi, api, host, NODE, metadata=metadata).repair()
    golden(log.messages)
