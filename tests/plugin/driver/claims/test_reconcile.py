from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

import pytest

from dra_driver.driver.claims import reconcile
from dra_driver.driver.claims.model import PreparedClaims
from dra_driver.driver.claims.reconcile import CHECK_AGAIN, CHECK_DOUBTFUL
from dra_driver.kube.errors import DecodeError, Unreachable
from dra_driver.kube.types import ResourceClaim
from dra_driver.util.errors import DriverError
from tests.builders.claims import ApiServer, Node, claim, host, result, uid, without
from tests.eventually import eventually


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


def spoil(node: Node, item: ResourceClaim) -> None:
    node.checkpoint_file(item).write_bytes(b"\0" * 100)
    node.restart()


def test_where_all_is_well_nothing_is_done_or_written(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    before = (node.checkpoint_file(item).stat(), node.cdi.file(uid(1)).stat())
    for _ in range(3):
        assert kinds(node) == []
    assert (node.checkpoint_file(item).stat(), node.cdi.file(uid(1)).stat()) == before
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


@pytest.mark.parametrize("fate", ["replaced", "not allocated", "elsewhere"])
def test_a_claim_of_an_earlier_boot_that_is_no_longer_here_is_released(node: Node, api: ApiServer, fate: str) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    now = {
        "replaced": claim(2, [4], name="claim-1"),
        "not allocated": ResourceClaim(item.metadata),
        "elsewhere": claim(1, [result(4, pool="node-2")]),
    }
    api.put(now[fate])
    node.reboot()
    assert ("release", uid(1)) in kinds(node)


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
    assert "gone from the API server for more than 10 minutes, but kubelet has not unprepared it; chips 4" in finding
    assert str(node.checkpoint_file(item)) in finding
    assert caplog.text.count("has been gone") == 1, "said once, not each minute"
    with pytest.raises(DriverError, match="still prepared"):
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
    with pytest.raises(DriverError, match="still prepared"):
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
    assert "written again from memory" in caplog.text
    assert node.checkpointed() == {uid(1): (1,), uid(2): (2,)}
    assert all(node.spec(item) is not None for item in items)


def test_a_claims_directory_that_vanished_before_a_start_frees_nothing_until_the_api_server_says_so(
    node: Node, api: ApiServer
) -> None:
    here, gone = (api.put(claim(number, [number])) for number in (1, 2))
    for item in (here, gone):
        node.prepare(item)
    api.delete(gone)
    shutil.rmtree(node.root / "state" / "claims")
    node.restart()
    node.reconciler.repair()
    assert kinds(node) == []
    for item in (here, gone):
        assert node.spec(item) is not None, "running pods keep their devices"
        with pytest.raises(DriverError, match=r"whose checkpoint file cannot be read \(it is missing: .*\)"):
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
    assert "claims default/claim-1 and default/claim-2 are used by one pod" in finding
    assert "--device-numbering host" in finding


# Unreadable checkpoint files


def test_the_spec_tells_what_an_unreadable_file_held(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    spoil(node, item)
    assert len(node.quarantined()) == 0, "nothing is touched before the checkpoint is used"
    with pytest.raises(DriverError, match=r"neuron-device-5 is held by claim .* whose checkpoint file cannot be read"):
        node.prepare(api.put(claim(2, [5])))
    assert node.prepare(api.put(claim(3, [6])))
    assert len(node.quarantined()) == 1
    assert node.spec(item) is not None, "running containers keep what they have"


def test_without_a_spec_all_is_held_back_until_the_api_server_tells(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    node.reboot()
    spoil(node, item)
    with pytest.raises(DriverError, match="is not known, since its checkpoint file cannot be read"):
        node.prepare(api.put(claim(3, [6])))
    assert kinds(node) == [("learn", uid(1))]
    assert node.prepare(api.put(claim(3, [6])))
    with pytest.raises(DriverError, match="neuron-device-5 is held by claim"):
        node.prepare(api.put(claim(2, [5])))
    assert "chips 4, 5 are held back" in node.reconciler.findings[0]
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
    with pytest.raises(DriverError, match="held back"):
        node.prepare(api.put(claim(2, [9])))
    assert "all devices that no other claim holds are held back" in node.reconciler.findings[0]


def test_an_unreadable_file_of_a_claim_that_is_gone_is_let_go_after_ten_minutes(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    spoil(node, item)
    assert kinds(node) == []
    assert later(node, CHECK_DOUBTFUL) == []
    assert later(node, CHECK_DOUBTFUL) == [("release", uid(1))]
    assert node.quarantined() == []
    assert node.spec(item) is None
    assert node.prepare(api.put(claim(2, [4])))


def test_the_ten_minutes_begin_anew_when_the_claim_was_here_in_between(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
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
    node.reconciler.start()
    deadline = time.monotonic() + 10
    while not node.reconciler.counts["write-spec"] and time.monotonic() < deadline:
        time.sleep(0.01)
    node.reconciler.stop()
    assert node.reconciler.counts["write-spec"] == 1


def test_a_timer_that_cannot_work_goes_on_trying(node: Node) -> None:
    (node.root / "cdi").write_text("in the way")
    node.reconciler.start()
    deadline = time.monotonic() + 10
    while not node.reconciler.counts["failed"] and time.monotonic() < deadline:
        time.sleep(0.01)
    node.reconciler.stop()
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
    node.reconciler.start()
    try:
        eventually(lambda: node.spec(item) is not None, what="the spec")
    finally:
        node.reconciler.stop()
    assert node.reconciler.counts["failed"] == 2
    assert "repairing what claims left failed (next try in" in caplog.text


def test_stopping_does_not_wait_for_a_silent_api_server(
    node: Node, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reboot()
    asked, answer = threading.Event(), threading.Event()

    def silent(namespace: str, name: str) -> ResourceClaim:
        asked.set()
        answer.wait(20)
        raise Unreachable(f"no answer about {namespace}/{name}")

    monkeypatch.setattr(api, "get_claim", silent)
    node.reconciler.start()
    assert asked.wait(5)
    started = time.monotonic()
    node.reconciler.stop(0.2)
    assert time.monotonic() - started < 5
    answer.set()
    node.reconciler.stop()


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
