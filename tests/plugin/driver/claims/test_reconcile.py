from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from dra_driver.driver.claims import reconcile
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.model import PreparedClaims
from dra_driver.driver.claims.observe import CHECK_AGAIN, CHECK_DOUBTFUL
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.kube.api.errors import DecodeError, Unreachable
from dra_driver.kube.cdi import encode
from dra_driver.kube.kubelet.client import CallError
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from tests.builders.claims import LATER, NODE, SETTINGS, ApiServer, Node, claim, host, plan, result, uid, without
from tests.eventually import eventually
from tests.golden import golden, golden_error


def state_of(path: Path) -> tuple[int, ...]:
    """What changes only when somebody writes or replaces the file: who reads it may set the time of the last access."""
    state = path.lstat()
    return state.st_ino, state.st_mode, state.st_nlink, state.st_size, state.st_mtime_ns, state.st_ctime_ns


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Node:
    return Node(tmp_path, api)


def kinds(node: Node) -> list[tuple[str, str]]:
    return [(repair.kind, repair.uid) for repair in node.reconciler.reconcile()]


def later(node: Node, seconds: float) -> list[tuple[str, str]]:
    node.now += seconds
    return kinds(node)


DAMAGED = b"\0" * 100


def spoil(node: Node, item: ResourceClaim, content: bytes = DAMAGED) -> None:
    node.checkpoint_file(item).write_bytes(content)
    node.restart()


def test_where_all_is_well_nothing_is_done_or_written(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    before = [state_of(path) for path in (node.checkpoint_file(item), node.cdi.file(uid(1)))]
    for _ in range(3):
        assert kinds(node) == []
    assert [state_of(path) for path in (node.checkpoint_file(item), node.cdi.file(uid(1)))] == before
    assert node.reconciler.findings == ()


def test_a_node_without_claims_asks_the_api_server_nothing(node: Node, api: ApiServer) -> None:
    for _ in range(100):
        assert later(node, 600) == []
    assert api.gets == []
    assert api.lists == 0


def test_a_claim_is_asked_for_twice_an_hour(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4])))
    kinds(node)
    api.gets.clear()
    for _ in range(10 * 60):
        later(node, 60)
    assert 18 <= len(api.gets) <= 21


def test_start_after_a_reboot_restores_all_specs_with_the_numbers_of_now(node: Node, api: ApiServer) -> None:
    items = [api.put(claim(number, [number])) for number in (1, 2)]
    for item in items:
        node.prepare(item)
    node.reboot(major=251)
    assert kinds(node) == [("write-spec", uid(1)), ("write-spec", uid(2))]
    spec = node.spec(items[0])
    assert spec is not None
    assert spec.devices[0].container_edits.device_nodes[0].major == 251
    node.restart()
    assert kinds(node) == []


def test_leftovers_in_the_cdi_directory_are_removed_and_counted(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4])))
    leftover = node.cdi.path / f"spec.k8s.neuron.aws.com-claim_{uid(8)}.tmp"
    leftover.touch()
    foreign = node.cdi.path / "nvidia.json"
    foreign.touch()
    assert kinds(node) == []
    assert not leftover.exists()
    assert foreign.exists()
    assert node.reconciler.counts["remove-temporary"] == 1


def test_a_spec_that_no_claim_explains_goes_once_its_claim_is_gone_for_ten_minutes(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4])))
    stray = node.cdi.file(uid(9))
    stray.write_bytes(node.cdi.file(uid(1)).read_bytes())
    node.cdi.note_boots()
    node.reboot(tmpfs=False)
    # The pass that finds it cannot have asked for it; the next one does.
    assert [kinds(node), later(node, 60), later(node, CHECK_DOUBTFUL)] == [[], [], []]
    assert stray.exists()
    assert later(node, CHECK_DOUBTFUL) == [("release", uid(9))]
    assert not stray.exists()
    assert node.reconciler.counts["release"] == 1


def test_the_spec_of_a_vanished_chip_is_withdrawn_until_it_is_back(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.inventory = without(host(), 4)
    assert kinds(node) == [("withdraw-spec", uid(1))]
    assert kinds(node) == []
    assert node.spec(item) is None
    assert node.checkpointed() == {uid(1): (4,)}
    node.inventory = host()
    assert kinds(node) == [("write-spec", uid(1))]


def test_a_claim_that_is_prepared_after_the_look_at_the_host_keeps_its_spec(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))

    def look() -> NodeInventory:
        before = without(host(), 4)
        node.prepare(item)  # the chip has just come
        return before

    repairs = Reconciler(node.checkpoint, node.cdi, api, look, NODE, metadata=node.metadata).repair()
    assert repairs == []
    assert node.paths(item) == {"/dev/neuron0": 4}


def test_a_file_that_a_loss_of_power_brought_back_is_released_at_the_first_word(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    content = node.checkpoint_file(item).read_bytes()
    node.unprepare(item)
    api.delete(item)
    node.reboot()
    node.checkpoint_file(item).write_bytes(content)  # its removal had not reached the disk
    node.restart()
    assert [repair.kind for repair in node.reconciler.reconcile()] == ["release"]
    assert node.checkpointed() == {}


def test_a_claim_of_an_earlier_boot_that_is_gone_is_released_at_the_first_word(node: Node, api: ApiServer) -> None:
    item, kept = api.put(claim(1, [4])), api.put(claim(2, [5]))
    node.prepare(item)
    node.prepare(kept)
    api.delete(item)
    node.reboot()
    assert ("release", uid(1)) in kinds(node)
    assert node.checkpointed() == {uid(2): (5,)}
    assert node.spec(item) is None
    node.unprepare(item)
    assert node.prepare(api.put(claim(3, [4])))


@pytest.mark.parametrize("fate", ["replaced", "not allocated", "elsewhere", "allocated again"])
def test_what_a_claim_of_an_earlier_boot_no_longer_has_is_released(node: Node, api: ApiServer, fate: str) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    now = {
        "replaced": claim(2, [4], name="claim-1"),
        "not allocated": ResourceClaim(item.metadata),
        "elsewhere": claim(1, [result(4, pool="node-2")]),
        "allocated again": claim(1, [5]),
    }
    api.put(now[fate])
    node.reboot()
    with pytest.raises(DriverError):
        node.prepare(api.put(claim(3, [4])))
    assert ("release", uid(1)) in kinds(node)
    assert node.prepare(api.put(claim(3, [4])))


def test_a_claim_that_is_gone_in_this_boot_stays_held_and_is_reported(
    node: Node, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    kinds(node)
    api.delete(item)
    later(node, CHECK_AGAIN)
    assert not node.reconciler.findings
    for _ in range(4):
        assert later(node, CHECK_DOUBTFUL) == []
    [finding] = node.reconciler.findings
    golden(finding)
    assert str(node.checkpoint_file(item)) in finding
    assert caplog.text.count("has been gone") == 1, "said once, not each minute"
    with golden_error(DriverError):
        node.prepare(api.put(claim(2, [4])))
    node.unprepare(item)
    later(node, 60)
    assert node.reconciler.findings == ()


def test_an_administrator_can_free_a_claim_that_is_gone_by_removing_its_file(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    kinds(node)
    api.delete(item)
    node.checkpoint_file(item).unlink()
    assert kinds(node) == [("release", uid(1))], "it is asked for at once"
    assert node.spec(item) is None
    assert node.prepare(api.put(claim(2, [4])))


def test_a_removed_file_is_written_again_if_the_api_server_has_the_claim(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    ids = node.prepare(item)
    before = node.checkpoint_file(item).read_bytes()
    node.checkpoint_file(item).unlink()
    assert kinds(node) == [("write-journal", uid(1))]
    assert node.checkpoint_file(item).read_bytes() == before
    assert kinds(node) == []
    assert node.prepare(item) == ids


def test_a_removed_file_is_no_word_while_the_api_server_is_away(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    kinds(node)
    node.checkpoint_file(item).unlink()
    api.down = Unreachable("connection refused")
    for _ in range(20):
        assert later(node, CHECK_AGAIN) == []
    assert node.spec(item) is not None, "running pods keep their devices"
    api.down = None
    with golden_error(DriverError):
        node.prepare(api.put(claim(2, [4])))
    assert kinds(node) == [("write-journal", uid(1))]


@pytest.mark.parametrize("lost", ["claims", "."])
def test_a_vanished_claims_directory_frees_nothing_and_takes_no_device_from_a_running_pod(
    node: Node, api: ApiServer, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    items = [api.put(claim(number, [number])) for number in (1, 2)]
    for item in items:
        node.prepare(item)
    shutil.rmtree(node.root / "state" / lost)
    api.down = Unreachable("connection refused")
    assert kinds(node) == []
    golden(caplog.messages)
    assert node.checkpointed() == {uid(1): (1,), uid(2): (2,)}
    assert all(node.spec(item) is not None for item in items)


def test_a_claims_directory_that_vanished_before_a_start_frees_nothing_until_the_api_server_says_so(
    node: Node, api: ApiServer
) -> None:
    here, gone = (api.put(claim(number, [number])) for number in (1, 2))
    for item in (here, gone):
        node.prepare(item)
    node.reboot(tmpfs=False)
    node.prepare(here)
    api.delete(gone)
    shutil.rmtree(node.root / "state" / "claims")
    node.restart()
    node.reconciler.repair()
    assert kinds(node) == []
    for item in (here, gone):
        assert node.spec(item) is not None, "running pods keep their devices"
        with golden_error(DriverError):
            node.prepare(api.put(claim(3, [int(item.metadata.name[-1])])))
    assert any("checkpoint file" in text and "is missing" in text for text in node.reconciler.findings)
    assert [later(node, CHECK_DOUBTFUL) for _ in range(2)] == [[], [("release", uid(2))]]
    assert node.prepare(api.put(claim(3, [2])))
    assert node.spec(here) is not None
    node.unprepare(here)
    assert node.spec(here) is None
    assert node.prepare(api.put(claim(4, [1])))


def test_a_failing_api_server_neither_stops_repair_nor_counts_as_an_answer(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.reboot()
    api.down = Unreachable("connection refused")
    assert kinds(node) == [("write-spec", uid(1))]
    for _ in range(20):
        assert later(node, CHECK_AGAIN) == []
    api.down = None
    api.delete(item)
    assert later(node, 60) == [("release", uid(1))]


def test_one_repair_that_fails_does_not_stop_the_others(node: Node, api: ApiServer) -> None:
    items = [api.put(claim(number, [number])) for number in (1, 2)]
    for item in items:
        node.prepare(item)
    node.reboot()
    node.cdi.file(uid(1)).mkdir(parents=True)
    (node.cdi.file(uid(1)) / "in-the-way").touch()
    assert kinds(node) == [("write-spec", uid(2))]
    assert node.reconciler.counts["failed"] == 1


def test_a_pod_that_uses_two_claims_with_the_same_numbers_is_reported(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4], pods=["a"])))
    node.prepare(api.put(claim(2, [6], pods=["b"])))
    api.put(claim(1, [4], pods=["a", "c"]))
    api.put(claim(2, [6], pods=["b", "c"]))
    kinds(node)
    later(node, CHECK_AGAIN)
    [finding] = node.reconciler.findings
    golden(finding)


# Unreadable checkpoint files


def test_the_spec_tells_what_an_unreadable_file_held(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    spoil(node, item)
    assert len(node.quarantined()) == 0, "nothing is touched before the checkpoint is used"
    with golden_error(DriverError):
        node.prepare(api.put(claim(2, [5])))
    assert node.prepare(api.put(claim(3, [6])))
    assert len(node.quarantined()) == 1
    assert node.spec(item) is not None, "running containers keep what they have"


def test_without_a_spec_all_is_held_back_until_the_api_server_tells(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    node.reboot()
    spoil(node, item)
    with golden_error(DriverError):
        node.prepare(api.put(claim(3, [6])))
    assert kinds(node) == [("learn", uid(1))]
    assert node.prepare(api.put(claim(3, [6])))
    with golden_error(DriverError):
        node.prepare(api.put(claim(2, [5])))
    golden(node.reconciler.findings[0])
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    assert len(node.quarantined()) == 1


def test_while_the_api_server_is_away_all_stays_held_back(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.reboot()
    spoil(node, item)
    api.down = Unreachable("connection refused")
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    api.down = None
    with golden_error(DriverError):
        node.prepare(api.put(claim(2, [9])))
    golden(node.reconciler.findings[0])


@pytest.mark.parametrize("tmpfs", [True, False])
def test_an_unreadable_file_of_a_claim_that_is_gone_and_of_an_earlier_boot_is_let_go_after_ten_minutes(
    node: Node, api: ApiServer, tmpfs: bool
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    node.reboot(tmpfs=tmpfs)
    spoil(node, item)
    assert kinds(node) == []
    assert later(node, CHECK_DOUBTFUL) == []
    assert later(node, CHECK_DOUBTFUL) == [("release", uid(1))]
    assert node.quarantined() == []
    assert node.spec(item) is None
    assert node.prepare(api.put(claim(2, [4])))


@pytest.mark.parametrize("content", [DAMAGED, LATER], ids=["damaged", "of a later version"])
def test_the_api_servers_word_alone_frees_no_chip_of_a_claim_whose_file_cannot_be_read(
    node: Node, api: ApiServer, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    spoil(node, item, content)
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    assert node.spec(item) is not None, "its pod was deleted by force and may be running"
    with pytest.raises(DriverError):
        node.prepare(api.put(claim(2, [4])))
    [finding] = node.reconciler.findings
    golden(finding)
    assert caplog.messages.count(finding) == 1
    assert str(node.cdi.file(uid(1))) in finding
    node.cdi.file(uid(1)).unlink()
    assert kinds(node) == [("release", uid(1))], "an administrator can end it"
    assert node.prepare(api.put(claim(2, [4])))


@pytest.mark.parametrize("step", [7200.0, -7200.0], ids=["forward", "back"])
@pytest.mark.parametrize("file_system", ["tmpfs", "ext4"])
def test_setting_the_clock_frees_no_chip(node: Node, api: ApiServer, file_system: str, step: float) -> None:
    mount_on(node, file_system)
    item = api.put(claim(1, [4]))
    node.prepare(item)
    with runtime.use(runtime.Runtime(now=lambda: time.time() + step)):
        api.delete(item)
        spoil(node, item)
        for _ in range(10):
            assert later(node, CHECK_DOUBTFUL) == []
        with pytest.raises(DriverError):
            node.prepare(api.put(claim(2, [4])))
        node.reboot(tmpfs=file_system == "tmpfs")
        assert [later(node, CHECK_DOUBTFUL) for _ in range(3)] == [[], [], [("release", uid(1))]]
        assert node.prepare(api.put(claim(2, [4])))


def mount_on(node: Node, file_system: str) -> None:
    """Have the table of mounts say that the tests' files are on such a file system."""
    device = node.root.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    (node.root / "mountinfo").write_text(
        f"1 0 0:1 / / ro - overlay overlay rw\n2 1 {number} / /run/cdi rw,relatime shared:7 - {file_system} x rw\n"
    )


def test_a_rolling_update_of_a_version_that_notes_no_boots_neither_frees_nor_loses_a_chip(
    node: Node, api: ApiServer
) -> None:
    """On a file system that outlives a boot. In the boot of the update all specs count; after it, none does."""
    item = api.put(claim(1, [4]))
    node.prepare(item)
    (node.cdi.path / "spec.k8s.neuron.aws.com-claim_boots").unlink()
    api.delete(item)
    spoil(node, item)
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    node.reboot(tmpfs=False)
    assert [later(node, CHECK_DOUBTFUL) for _ in range(3)] == [[], [], [("release", uid(1))]]


def test_neither_does_it_free_a_chip_whose_record_was_removed_while_the_driver_was_down(
    node: Node, api: ApiServer
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    node.checkpoint_file(item).unlink()
    node.restart()
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    [finding] = node.reconciler.findings
    golden(finding)
    node.unprepare(item)
    assert node.prepare(api.put(claim(2, [4])))


def test_an_unreadable_file_holds_its_chips_while_kubelet_lists_the_claim_or_does_not_answer(
    node: Node, api: ApiServer
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    spoil(node, item)
    node.cdi.file(uid(1)).unlink()
    node.listed.add(uid(1))
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    golden(node.reconciler.findings, "listed")
    node.kubelet_silent = CallError("kubelet does not answer", code="UNAVAILABLE")
    assert later(node, CHECK_DOUBTFUL) == []
    golden(node.reconciler.findings, "silent")
    node.kubelet_silent = None
    node.listed.clear()
    assert later(node, 60) == [("release", uid(1))]


def test_all_claims_are_listed_once_for_an_unreadable_file_whose_claim_is_here(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.reboot(tmpfs=False)
    spoil(node, item)
    for _ in range(10):
        later(node, CHECK_DOUBTFUL)
    assert (api.lists, api.gets[-9:]) == (1, ["default/claim-1"] * 9)
    api.delete(item)
    found = [later(node, CHECK_DOUBTFUL) for _ in range(3)]
    assert found == [[], [], [("release", uid(1))]]
    assert api.lists == 4, "its name may be another claim's: only a list says that it is gone"


def test_what_is_gone_for_sure_is_looked_for_ever_more_seldom_and_what_is_new_at_once(
    node: Node, api: ApiServer
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    spoil(node, item)
    for _ in range(10 * 60):
        later(node, 60)
    assert 20 <= api.lists <= 25, "every half hour in the end"
    while api.lists < 25:
        later(node, 60)
    node.checkpoint.path(uid(2)).write_bytes(DAMAGED)
    for _ in range(6):
        later(node, 60)
    assert api.lists == 26


def test_a_claim_that_was_prepared_again_in_this_boot_has_a_cdi_file_of_this_boot(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.reboot(tmpfs=False)
    node.prepare(item)
    api.delete(item)
    spoil(node, item)
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []


def test_the_ten_minutes_begin_anew_when_the_claim_was_here_in_between(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.reboot(tmpfs=False)
    spoil(node, item)
    for present in (False, False, True, False, False):
        api.put(item if present else ResourceClaim(item.metadata))
        assert later(node, CHECK_DOUBTFUL) == []
    assert later(node, CHECK_DOUBTFUL) == [("release", uid(1))]


def test_unprepare_settles_an_unreadable_file(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    spoil(node, item)
    api.down = Unreachable("connection refused")
    node.unprepare(item)
    assert node.quarantined() == []
    assert node.spec(item) is None
    api.down = None
    assert node.prepare(api.put(claim(2, [4])))


def test_preparing_the_claim_again_settles_its_unreadable_file(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    spoil(node, item)
    assert node.prepare(item) == first
    assert node.quarantined() == []
    assert node.checkpointed() == {uid(1): (4, 5)}


def test_a_file_that_spoils_while_the_driver_runs_is_healed_from_memory(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.checkpoint_file(item).write_bytes(b"")
    assert kinds(node) == []
    assert node.checkpointed() == {uid(1): (4,)}
    assert node.quarantined() == []


def test_the_timer_repairs_at_once_and_stops_when_told(
    node: Node, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reboot()
    caplog.set_level(logging.INFO)
    node.reconciler.worker.start()
    eventually(lambda: node.reconciler.counts["write-spec"])
    node.reconciler.worker.stop()
    assert node.reconciler.counts["write-spec"] == 1


def test_a_timer_that_cannot_work_goes_on_trying(node: Node) -> None:
    (node.root / "cdi").write_text("in the way")
    node.reconciler.worker.start()
    eventually(lambda: node.reconciler.counts["failed"])
    node.reconciler.worker.stop()
    assert node.reconciler.counts["failed"] == 1


def test_a_failure_that_nobody_foresaw_does_not_end_repair(
    node: Node, api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconcile, "INTERVAL", 0.02)
    item = api.put(claim(1, [4]))
    node.prepare(item)
    node.cdi.remove(uid(1))
    real, failures = node.checkpoint.verify, [RuntimeError("odd"), RuntimeError("odd")]

    def verify() -> PreparedClaims:
        if failures:
            raise failures.pop()
        return real()

    monkeypatch.setattr(node.checkpoint, "verify", verify)
    node.reconciler.worker.start()
    try:
        eventually(lambda: node.spec(item) is not None, what="the spec")
    finally:
        node.reconciler.worker.stop()
    assert node.reconciler.counts["failed"] == 2
    golden(caplog.messages)


def test_stopping_does_not_wait_for_a_silent_api_server(
    node: Node, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reboot()
    asked, answer = threading.Event(), threading.Event()

    def silent(namespace: str, name: str) -> ResourceClaim:
        asked.set()
        answer.wait(60)
        raise Unreachable(f"no answer about {namespace}/{name}")

    monkeypatch.setattr(api, "get_claim", silent)
    node.reconciler.worker.start()
    assert asked.wait(30)
    started = time.monotonic()
    node.reconciler.worker.stop(0.2)
    assert time.monotonic() - started < 30
    answer.set()
    node.reconciler.worker.stop()


def test_a_claim_that_cannot_be_read_does_not_keep_others_from_being_looked_after(node: Node, api: ApiServer) -> None:
    odd, gone = api.put(claim(1, [1])), api.put(claim(2, [2]))
    for item in (odd, gone):
        node.prepare(item)
    node.reboot()
    api.delete(gone)
    api.trouble = [DecodeError("a field of the wrong type")]
    assert ("release", uid(2)) in kinds(node)
    asked = len(api.gets)
    later(node, 60)
    assert len(api.gets) == asked, "and it is not asked for every minute"


# Files of others in the CDI directory

PREFIX = "k8s.neuron.aws.com-claim_"


def _put_foreign(node: Node, kind: str) -> Path:
    """Something with the driver's prefix that another program or a person has put there."""
    cdi, elsewhere = node.cdi.path, node.root / "elsewhere"
    cdi.mkdir(parents=True, exist_ok=True)
    spec = encode(cdi_spec(plan(claim(9, [3]), host(), PreparedClaims(), SETTINGS)))
    named = cdi / f"{PREFIX}{uid(9)}.json"
    if kind == "no UID in its name":
        path = cdi / f"{PREFIX}common.json"
        path.write_bytes(spec)
    elif kind == "copy of a spec":
        path = cdi / f"{PREFIX}{uid(9)}-backup-2026.json"
        path.write_bytes(spec)
    elif kind == "another kind":
        path = named
        path.write_bytes(spec.replace(b"k8s.neuron.aws.com/claim", b"k8s.example.com/claim"))
    elif kind == "no spec":
        path = named
        path.write_text("{}")
    elif kind == "directory":
        path = named
        path.mkdir()
    elif kind == "directory without a UID":
        path = cdi / f"{PREFIX}common.json"
        path.mkdir()
    else:
        path = named
        elsewhere.write_bytes(spec)
        path.symlink_to(elsewhere)
    return path


FOREIGN = [
    "no UID in its name",
    "copy of a spec",
    "another kind",
    "no spec",
    "directory",
    "directory without a UID",
    "link to a spec",
]


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("when", ["before the driver starts", "while it runs"])
def test_what_others_put_into_the_cdi_directory_blocks_nothing_and_stays_and_is_reported_once(
    node: Node, api: ApiServer, kind: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    if when == "while it runs":
        node.prepare(api.put(claim(2, [5])))
    path = _put_foreign(node, kind)
    before = state_of(path)
    for number in range(40):
        kinds(node)
        if number == 0:
            assert node.prepare(api.put(claim(1, [3])))
        node.now += 60
    assert state_of(path) == before
    assert not path.is_symlink() or path.exists(), "what the link leads to is there too"
    [finding] = [text for text in node.reconciler.findings if path.name in text]
    assert caplog.messages.count(finding) == 1
    golden(finding)
    assert node.reconciler.counts["failed"] == 0
    path.rmdir() if path.is_dir() else path.unlink()
    kinds(node)
    assert not node.reconciler.findings


def test_what_looks_like_a_file_in_the_making_but_is_none_of_ours_stays(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4])))
    elsewhere = node.root / "elsewhere"
    elsewhere.write_text("kept")
    directory, link, other = (node.cdi.path / f"spec.{PREFIX}{owner}.tmp" for owner in (uid(7), uid(8), "common"))
    directory.mkdir()
    link.symlink_to(elsewhere)
    other.write_text("{}")
    assert kinds(node) == []
    assert directory.is_dir()
    assert link.is_symlink()
    assert other.exists()
    assert elsewhere.read_text() == "kept"
    assert node.reconciler.counts["remove-temporary"] == 0


def test_a_directory_in_the_place_of_a_claims_spec_does_not_keep_the_claim_from_ending(
    node: Node, api: ApiServer
) -> None:
    items = [api.put(claim(number, [number])) for number in (1, 2)]
    for item in items:
        node.prepare(item)
    node.reboot()
    for item in items:
        node.cdi.file(item.metadata.uid).mkdir(parents=True)
    node.unprepare(items[0])
    api.delete(items[1])
    assert ("release", uid(2)) in kinds(node)
    assert node.checkpointed() == {}
    assert node.prepare(api.put(claim(3, [1, 2])))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, f"{uid(9)}.json") for kind in ("directory", "link", "pipe")),
        *(("file", name) for name in ("backup.json", "backup.tmp", f"{uid(9)}-backup.tmp")),
        *(("link", name) for name in ("backup.json", "backup.tmp")),
    ],
)
def test_what_others_put_beside_the_checkpoint_files_blocks_nothing_and_stays_and_is_reported_once(
    node: Node, api: ApiServer, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    path = node.root / "state" / "claims" / name
    if kind == "file":
        path.write_text("{")
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(node.checkpoint_file(item))
    else:
        os.mkfifo(path)
    before = state_of(path)
    node.restart()
    for _ in range(40):
        assert later(node, 60) == []
    assert node.prepare(api.put(claim(2, [3])))
    assert state_of(path) == before
    assert node.quarantined() == []
    [finding] = node.reconciler.findings
    assert caplog.messages.count(finding) == 1
    if name == "backup.json" and kind == "file":
        golden(finding)
    assert str(path) in finding


def test_a_directory_in_the_place_of_a_claims_checkpoint_file_does_not_keep_the_claim_from_ending(
    node: Node, api: ApiServer
) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    path = node.checkpoint_file(item)
    path.unlink()
    path.mkdir()
    node.unprepare(item)
    assert path.is_dir()
    assert node.checkpointed() == {}
    assert node.prepare(api.put(claim(2, [4])))
    node.restart()
    assert node.prepare(api.put(claim(3, [5], pods=["pod-3"])))


def test_a_damaged_file_and_one_of_a_later_version_hold_just_their_chips_and_end_each_for_itself(
    node: Node, api: ApiServer
) -> None:
    later_version, damaged = api.put(claim(1, [4])), api.put(claim(2, [5], pods=["pod-2"]))
    node.prepare(later_version)
    node.prepare(damaged)
    node.checkpoint_file(later_version).write_bytes(LATER)
    spoil(node, damaged)
    api.delete(later_version)
    api.delete(damaged)
    for _ in range(10):
        assert later(node, CHECK_DOUBTFUL) == []
    assert len(node.reconciler.findings) == 2
    assert node.prepare(api.put(claim(3, [6], pods=["pod-3"])))
    node.cdi.file(uid(1)).unlink()
    assert later(node, 60) == [("release", uid(1))]
    assert node.prepare(api.put(claim(4, [4], pods=["pod-4"])))
    with pytest.raises(DriverError):
        node.prepare(api.put(claim(5, [5], pods=["pod-5"])))
    node.unprepare(damaged)
    assert node.prepare(api.put(claim(5, [5], pods=["pod-5"])))
