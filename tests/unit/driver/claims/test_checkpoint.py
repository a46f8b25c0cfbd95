from __future__ import annotations

import errno
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.lock import StateLock
from dra_driver.driver.claims.model import ChipNode, Plan, PlannedDevice
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.neuron.names import CDI_KIND
from dra_driver.neuron.topology.partitions import HardwarePart
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import MAX_FILE_BYTES
from tests.builders.claims import uid
from tests.eventually import eventually
from tests.golden import golden, golden_error


def made(number: int, *chips: int, admin: bool = False) -> Plan:
    devices = tuple(
        PlannedDevice(
            "neurons",
            "node-1",
            f"neuron-device-{chip}",
            (ChipNode(chip, rank, 240, chip),),
            f"{uid(number)}-neuron-device-{chip}-0123456789",
            admin,
        )
        for rank, chip in enumerate(chips)
    )
    return Plan("default", f"claim-{number}", uid(number), devices, {"A": "1"}, ("pod-1",))


def put(checkpoint: Checkpoint, plan: Plan) -> bool:
    with checkpoint.locked():
        return checkpoint.put(plan)


def remove(checkpoint: Checkpoint, number: int) -> bool:
    with checkpoint.locked():
        return checkpoint.remove(uid(number))


def held(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    with checkpoint.locked() as found:
        return {entry.plan.name: entry.plan.held_chips for entry in found.entries.values()}


def corrupt(checkpoint: Checkpoint, number: int, content: bytes = b"{") -> Path:
    path = checkpoint.path(uid(number))
    path.write_bytes(content)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def checkpoint(directory: Path) -> Checkpoint:
    return Checkpoint(directory, boot_id="boot-1")


def test_a_plan_is_kept_as_it_is(checkpoint: Checkpoint, directory: Path) -> None:
    plan = made(1, 4, 5)
    assert put(checkpoint, plan)
    with Checkpoint(directory).locked() as found:
        entry = found.entries[uid(1)]
        assert entry.plan == plan
        assert entry.boot_id == "boot-1"
        assert found.holder(HardwarePart(4)) == plan
        assert found.holder(HardwarePart(6)) is None
    assert remove(checkpoint, 1)
    assert held(Checkpoint(directory)) == {}


def test_a_plan_that_could_not_be_read_again_is_refused(checkpoint: Checkpoint, directory: Path) -> None:
    with golden_error(DriverError):
        put(checkpoint, replace(made(1, 4), warnings=("x" * MAX_FILE_BYTES,)))
    put(checkpoint, made(2, 5))
    for reader in (checkpoint, Checkpoint(directory)):
        with reader.locked() as found:
            assert (list(found.entries), list(found.quarantined)) == ([uid(2)], [])


def test_what_is_kept_already_is_not_written_again(checkpoint: Checkpoint) -> None:
    put(checkpoint, made(1, 4))
    before = checkpoint.path(uid(1)).stat()
    assert not put(checkpoint, made(1, 4))
    assert checkpoint.path(uid(1)).stat().st_ino == before.st_ino
    assert not remove(checkpoint, 2)


def test_a_changed_plan_frees_what_it_no_longer_has(checkpoint: Checkpoint) -> None:
    put(checkpoint, made(1, 4, 5))
    put(checkpoint, made(1, 5, 6))
    with checkpoint.locked() as found:
        assert found.holder(HardwarePart(4)) is None
        assert found.holder(HardwarePart(6)) is not None


def test_a_file_is_private_and_says_version_and_checksum(checkpoint: Checkpoint) -> None:
    put(checkpoint, made(1, 4))
    path = checkpoint.path(uid(1))
    assert path.stat().st_mode & 0o777 == 0o600
    document = json.loads(path.read_bytes())
    assert document.keys() == {"version", "checksum", "entry"}
    assert document["version"] == 1
    assert document["entry"]["plan"]["devices"][0]["nodes"] == [{"chip": 4, "number": 0, "major": 240, "minor": 4}]
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_another_instance_is_seen_at_once_and_costs_nothing_when_silent(
    checkpoint: Checkpoint, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    assert held(other) == {"claim-1": (4,)}
    put(other, made(2, 5))
    assert held(checkpoint) == {"claim-1": (4,), "claim-2": (5,)}
    remove(checkpoint, 1)
    assert held(other) == {"claim-2": (5,)}
    held(checkpoint)
    monkeypatch.setattr(Path, "iterdir", lambda self: pytest.fail(f"{self} is read again"))
    for _ in range(3):
        assert held(other) == held(checkpoint) == {"claim-2": (5,)}


def _count_up(directory: Path, first: int) -> None:
    checkpoint = Checkpoint(directory)
    for number in range(first, first + 20):
        put(checkpoint, made(number, number))
        if number % 2:
            remove(checkpoint, number)


def test_processes_do_not_lose_each_others_changes(directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_count_up, args=(directory, first)) for first in (100, 200)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    expected = {f"claim-{number}": (number,) for first in (100, 200) for number in range(first, first + 20, 2)}
    assert held(Checkpoint(directory)) == expected


def test_threads_wait_for_each_other(checkpoint: Checkpoint) -> None:
    inside = []

    def enter() -> None:
        with checkpoint.locked():
            inside.append("in")
            time.sleep(0.005)
            assert inside.pop() == "in"
            assert not inside

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_lock_that_is_held_too_long_is_explained(directory: Path) -> None:
    holder, waiter = StateLock(directory / "lock"), StateLock(directory / "lock", timeout=0.05)

    def wait() -> None:
        with waiter.hold():
            pytest.fail("two hold it")

    with holder.hold(), golden_error(DriverError):
        wait()
    with waiter.hold():
        pass


def test_who_waits_behind_a_thread_that_waits_is_told_of_the_instance_that_holds_the_lock(directory: Path) -> None:
    holder, waiter = StateLock(directory / "lock"), StateLock(directory / "lock")

    def wait() -> None:
        with waiter.hold():
            pass

    with holder.hold():
        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: waiter.contended)
        with (
            pytest.raises(DriverError, match="another instance of the driver has held"),
            waiter.hold(time.monotonic() + 0.3),
        ):
            pytest.fail("two hold it")
    thread.join()


def test_a_removed_lock_file_excludes_all_the_same(directory: Path) -> None:
    first, second = StateLock(directory / "lock"), StateLock(directory / "lock", timeout=0.05)
    with first.hold():
        pass
    (directory / "lock").unlink()
    with second.hold(), pytest.raises(DriverError):
        slow = StateLock(directory / "lock", timeout=0.01)
        with slow.hold():
            pytest.fail("two hold it")
    with first.hold():
        assert (directory / "lock").exists()
        with pytest.raises(DriverError), second.hold():
            pytest.fail("two hold it")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b"\xff\xff",
        b'{"version":1,"checksum":"00","entry":{}}',
        b"\0" * 4096,
        b"x" * (2 << 20),
    ],
)
def test_an_unreadable_file_is_moved_aside_and_never_stops_the_others(
    directory: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    put(checkpoint, made(2, 5))
    path = corrupt(checkpoint, 1, content)
    with caplog.at_level(logging.ERROR):
        fresh = Checkpoint(directory)
        assert held(fresh) == {"claim-2": (5,)}
    assert "cannot be read" in caplog.text
    with fresh.locked() as found:
        assert found.quarantined[uid(1)].chips is None
        assert found.quarantined_holder(9, exclude=uid(2)) is not None
        assert found.quarantined_holder(9, exclude=uid(1)) is None
    assert not path.exists()
    assert (directory / "quarantine" / path.name).read_bytes() == content
    assert held(Checkpoint(directory)) == {"claim-2": (5,)}, "it stays so over a restart"
    with Checkpoint(directory).locked() as found:
        assert uid(1) in found.quarantined


def test_a_file_that_reads_well_but_was_changed_is_not_believed(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    path = checkpoint.path(uid(1))
    path.write_bytes(path.read_bytes().replace(b'"chip":4', b'"chip":5'))
    with Checkpoint(directory).locked() as found:
        golden(found.quarantined[uid(1)].reason)


def test_what_else_tells_its_chips_bounds_what_is_held_back(directory: Path) -> None:
    put(Checkpoint(directory), made(1, 4))
    corrupt(Checkpoint(directory), 1)
    cdi = SpecDirectory(directory.parent / "cdi", CDI_KIND)
    cdi.write(uid(1), cdi_spec(made(1, 4)))
    fresh = Checkpoint(directory, cdi=cdi)
    with fresh.locked() as found:
        assert found.quarantined_holder(4, exclude="") is not None
        assert found.quarantined_holder(5, exclude="") is None


def test_what_the_api_server_told_outlives_another_instances_change(directory: Path) -> None:
    put(Checkpoint(directory), made(1, 4))
    corrupt(Checkpoint(directory), 1)
    checkpoint = Checkpoint(directory)
    with checkpoint.locked():
        checkpoint.learn(uid(1), frozenset({4}))
    put(Checkpoint(directory), made(2, 5))
    with checkpoint.locked() as found:
        assert found.quarantined[uid(1)].chips == frozenset({4})


@pytest.mark.parametrize("end", ["remove", "put"])
def test_quarantine_ends_with_an_unprepare_or_a_new_preparation(directory: Path, end: str) -> None:
    put(Checkpoint(directory), made(1, 4))
    corrupt(Checkpoint(directory), 1)
    checkpoint = Checkpoint(directory)
    if end == "remove":
        assert remove(checkpoint, 1)
    else:
        assert put(checkpoint, made(1, 4))
    for reader in (checkpoint, Checkpoint(directory)):
        with reader.locked() as found:
            assert not found.quarantined
    assert list((directory / "quarantine").iterdir()) == []


def test_a_file_about_another_claim_is_not_believed(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    checkpoint.path(uid(1)).rename(checkpoint.path(uid(2)))
    with Checkpoint(directory).locked() as found:
        assert not found.entries
        assert set(found.quarantined) == {uid(2)}


def test_a_file_that_cannot_be_moved_counts_as_moved_where_it_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(Checkpoint(directory), made(1, 4))
    put(Checkpoint(directory), made(2, 5))
    path = corrupt(Checkpoint(directory), 1)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system", str(self), None, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    checkpoint = Checkpoint(directory)
    with checkpoint.locked() as found:
        assert found.quarantined[uid(1)].path == str(path)
        assert set(found.entries) == {uid(2)}
    monkeypatch.undo()
    assert remove(checkpoint, 1)
    assert not path.exists()


def test_foreign_files_are_left_alone_and_leftovers_removed(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    claims = directory / "claims"
    (claims / "README").write_text("x")
    (claims / ".hidden.json").write_text("x")
    (claims / f"{uid(2)}.tmp").write_text("{half")
    assert held(Checkpoint(directory)) == {"claim-1": (4,)}
    assert sorted(path.name for path in claims.iterdir()) == sorted([".hidden.json", f"{uid(1)}.json", "README"])


# Other versions of the driver


def rewrite(checkpoint: Checkpoint, number: int, change: dict[str, Any], entry: dict[str, Any] | None = None) -> None:
    path = checkpoint.path(uid(number))
    document = json.loads(path.read_bytes())
    document["entry"] |= entry or {}
    # A writer of another version formats as it likes.
    raw = json.dumps(document["entry"], indent=1)
    document["checksum"] = hashlib.sha256(raw.encode()).hexdigest()
    document |= change
    del document["entry"]
    path.write_text(f'{json.dumps(document)[:-1]}, "entry": {raw}}}')


def test_fields_that_a_later_version_added_are_ignored_and_stay_until_the_entry_changes(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    rewrite(checkpoint, 1, {"note": "new"}, {"newField": {"a": [1]}})
    later = checkpoint.path(uid(1)).read_bytes()
    older = Checkpoint(directory)
    assert held(older) == {"claim-1": (4,)}
    assert not put(older, made(1, 4))
    assert checkpoint.path(uid(1)).read_bytes() == later
    assert put(older, made(1, 5))
    assert json.loads(checkpoint.path(uid(1)).read_bytes()).keys() == {"version", "checksum", "entry"}


def test_an_entry_for_later_readers_is_set_aside_as_it_is_and_its_devices_stay_reserved(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(directory)
    put(checkpoint, made(1, 4))
    put(checkpoint, made(2, 5))
    before = checkpoint.path(uid(1)).read_bytes()
    rewrite(checkpoint, 1, {"version": 2, "note": "new"}, {"newField": {"a": [1]}})
    later = checkpoint.path(uid(1)).read_bytes()
    aside = directory / "quarantine" / f"{uid(1)}.json"
    with Checkpoint(directory).locked() as found:
        assert set(found.entries) == {uid(2)}
        golden(found.quarantined[uid(1)].reason)
        assert found.quarantined_holder(4, exclude=uid(2)) is not None, "and any other chip: what it has is not known"
    golden(caplog.messages)
    assert aside.read_bytes() == later
    # To a reader that understands it, the same file is one like any other.
    aside.write_bytes(before)
    assert held(Checkpoint(directory)) == {"claim-1": (4,), "claim-2": (5,)}


# Verifying


def test_a_file_that_goes_bad_under_a_running_driver_is_written_again(checkpoint: Checkpoint, directory: Path) -> None:
    put(checkpoint, made(1, 4))
    corrupt(checkpoint, 1)
    with checkpoint.locked():
        found = checkpoint.verify()
    assert not found.quarantined
    assert held(Checkpoint(directory)) == {"claim-1": (4,)}


def test_a_removed_file_counts_as_missing_and_its_claim_stays_held(
    checkpoint: Checkpoint, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(checkpoint, made(1, 4))
    put(checkpoint, made(2, 5))
    checkpoint.path(uid(1)).unlink()
    for _ in range(2):
        with checkpoint.locked():
            found = checkpoint.verify()
        assert (set(found.entries), found.missing) == ({uid(1), uid(2)}, {uid(1)})
    assert caplog.text.count(" was removed;") == 1, "said once, not each minute"
    assert put(checkpoint, made(1, 4)), "it is written again"
    assert not found.missing
    assert held(Checkpoint(directory)) == {"claim-1": (4,), "claim-2": (5,)}


def test_a_failed_write_does_not_make_the_checkpoint_forget_a_claim_whose_file_is_missing(
    checkpoint: Checkpoint, directory: Path
) -> None:
    put(checkpoint, made(1, 4))
    temporary = directory / "claims" / f"{uid(2)}.tmp"
    temporary.mkdir()
    (temporary / "in-the-way").touch()
    with golden_error(DriverError):
        put(checkpoint, made(2, 5))
    checkpoint.path(uid(1)).unlink()
    assert held(checkpoint) == {"claim-1": (4,)}


def test_a_missing_file_of_a_claim_that_another_instance_has_unprepared_is_no_loss(
    checkpoint: Checkpoint, directory: Path
) -> None:
    put(checkpoint, made(1, 4))
    remove(Checkpoint(directory), 1)
    with checkpoint.locked():
        found = checkpoint.verify()
    assert not found.entries
    assert not found.missing


@pytest.mark.parametrize("lost", ["claims", "."])
@pytest.mark.parametrize("seen", ["verify", "put", "remove", "change of another instance"])
def test_a_removed_directory_is_written_anew_from_memory_and_reported(
    checkpoint: Checkpoint, directory: Path, lost: str, seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        put(checkpoint, made(number, number))
    other = Checkpoint(directory)
    held(other)
    shutil.rmtree(directory / lost)
    if seen == "verify":
        with checkpoint.locked():
            checkpoint.verify()
    elif seen == "put":
        put(checkpoint, made(4, 4))
    elif seen == "remove":
        assert remove(checkpoint, 3)
    else:
        put(other, made(4, 4))
    with checkpoint.locked():
        checkpoint.verify()
    expected = {1: (1,), 2: (2,), 3: (3,), 4: (4,)}
    if seen == "remove":
        del expected[3]
    if seen in {"verify", "remove"}:
        expected.pop(4)
    for reader in (checkpoint, other, Checkpoint(directory)):
        assert held(reader) == {f"claim-{number}": chips for number, chips in expected.items()}
    golden(caplog.messages)


def test_a_directory_that_cannot_be_written_anew_frees_nothing_and_is_written_once_it_can(
    checkpoint: Checkpoint, directory: Path
) -> None:
    put(checkpoint, made(1, 4))
    shutil.rmtree(directory / "claims")
    (directory / "claims").symlink_to(directory / "nowhere")
    for _ in range(2):
        assert held(checkpoint) == {"claim-1": (4,)}
        assert checkpoint.unusable is None, "a restart would forget it"
        golden(str(checkpoint.unwritable))
    (directory / "claims").unlink()
    assert held(checkpoint) == {"claim-1": (4,)}
    assert checkpoint.unwritable is None
    assert held(Checkpoint(directory)) == {"claim-1": (4,)}


def test_counting_neither_waits_for_the_lock_nor_touches_a_file(checkpoint: Checkpoint, directory: Path) -> None:
    assert Checkpoint(directory).counts is None, "nobody knows yet"
    put(checkpoint, made(1, 4))
    put(Checkpoint(directory), made(2, 5))
    path = corrupt(checkpoint, 2)
    with StateLock(directory / "journal.lock").hold():
        assert checkpoint.counts == (1, 0)
    assert path.exists()
    with checkpoint.locked():
        assert checkpoint.counts == (1, 1)


def test_a_claim_whose_spec_no_file_explains_is_held_back_as_its_spec_tells(tmp_path: Path) -> None:
    cdi = SpecDirectory(tmp_path / "cdi", CDI_KIND)
    plan = made(1, 4, 5)
    cdi.write(plan.uid, cdi_spec(plan))
    with Checkpoint(tmp_path / "state", cdi=cdi).locked() as found:
        assert found.quarantined[uid(1)].chips == frozenset({4, 5})
        golden(found.quarantined[uid(1)].reason)


def test_a_checkpoint_that_cannot_be_written_says_so_until_it_can(checkpoint: Checkpoint, directory: Path) -> None:
    put(checkpoint, made(1, 4))
    temporary = directory / "claims" / f"{uid(2)}.tmp"
    temporary.mkdir()
    (temporary / "in-the-way").touch()
    with golden_error(DriverError):
        put(checkpoint, made(2, 5))
    golden(str(checkpoint.unwritable))
    assert checkpoint.unusable is None
    (temporary / "in-the-way").unlink()
    temporary.rmdir()
    assert put(checkpoint, made(2, 5))
    assert checkpoint.unwritable is None
    assert held(Checkpoint(directory)) == {"claim-1": (4,), "claim-2": (5,)}


def test_an_instance_sees_what_another_did_although_somebody_removed_the_lock_file(directory: Path) -> None:
    one, other = Checkpoint(directory), Checkpoint(directory)
    put(one, made(1, 4))
    (directory / "journal.lock").unlink()
    put(other, made(2, 5))
    assert held(one) == {"claim-1": (4,), "claim-2": (5,)}


def test_a_checkpoint_that_cannot_be_read_says_so_until_it_can(checkpoint: Checkpoint, directory: Path) -> None:
    put(checkpoint, made(1, 4))
    claims, aside = directory / "claims", directory / "aside"
    claims.rename(aside)
    claims.touch()
    newcomer = Checkpoint(directory)
    with golden_error(DriverError):
        held(newcomer)
    with checkpoint.locked(), golden_error(DriverError):
        checkpoint.verify()
    golden(str(checkpoint.unusable))
    assert newcomer.unusable == checkpoint.unusable
    claims.unlink()
    aside.rename(claims)
    for one in (checkpoint, newcomer):
        assert held(one) == {"claim-1": (4,)}
        assert one.unusable is None


def test_a_lock_that_cannot_be_had_is_a_problem_until_it_can(checkpoint: Checkpoint, directory: Path) -> None:
    (directory / "journal.lock").mkdir(parents=True)
    with golden_error(DriverError):
        held(checkpoint)
    golden(str(checkpoint.unusable))
    (directory / "journal.lock").rmdir()
    assert held(checkpoint) == {}
    assert checkpoint.unusable is None


def test_content_reaches_the_disk_before_its_name(
    checkpoint: Checkpoint, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(checkpoint, made(1, 4))
    seen: list[str] = []

    def traced(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_directory = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")  # noqa: PTH112 - a descriptor
            seen.append(f"{name} directory" if is_directory else name)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "replace", "unlink"):
        traced(name)
    put(checkpoint, made(2, 5))
    assert [step for step in seen if step != "unlink"] == ["write", "fsync", "replace"]
    seen.clear()
    remove(checkpoint, 2)
    assert seen == ["unlink"], "a file that comes back after a loss of power is one of an earlier boot"
    seen.clear()
    without_boot = Checkpoint(directory)
    remove(without_boot, 1)
    assert seen == ["unlink", "fsync directory"], "nothing else could tell that it is one of an earlier boot"


def test_a_removal_that_could_not_be_synced_is_synced_by_the_next_call(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(directory)  # the boot id is not known
    put(checkpoint, made(1, 4))

    def full(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(f"{Checkpoint.__module__}.sync_directory", full)
        with golden_error(DriverError):
            remove(checkpoint, 1)
        golden(str(checkpoint.unwritable))
    synced: list[Path] = []
    monkeypatch.setattr(f"{Checkpoint.__module__}.sync_directory", synced.append)
    remove(checkpoint, 1)
    assert synced == [directory / "claims"], "the retry finds no file, and its removal not yet certain"
    assert checkpoint.unwritable is None
    assert held(checkpoint) == {}


def staged_while_others_wait(
    checkpoint: Checkpoint, planned: Plan, decided: Plan, between: Callable[[], object]
) -> bool:
    """Put ``decided``, after ``planned`` was staged because another call held the lock; whether a file was staged."""
    staged: list[bool] = []
    written, turn = threading.Event(), threading.Event()

    def call() -> None:
        with checkpoint.staged(planned) as ready:
            staged.append(ready is not None)
            written.set()
            turn.wait(60)
            between()
            with checkpoint.locked():
                checkpoint.put(decided, ready)

    waiting = threading.Thread(target=call)
    with checkpoint.locked():
        waiting.start()
        assert written.wait(60)
    turn.set()
    waiting.join(60)
    return staged == [True]


def test_a_file_is_on_the_disk_before_its_turn_where_calls_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path, boot_id="a")
    put(checkpoint, made(1, 0))
    seen: list[int] = []
    synced: list[int] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", sync)

    def look() -> None:
        (file,) = (tmp_path / "claims").glob(f"{uid(2)}.*.tmp")
        seen.append(file.stat().st_ino)

    assert staged_while_others_wait(checkpoint, made(2, 3), made(2, 3), look)
    assert checkpoint.path(uid(2)).stat().st_ino == seen[0]
    assert seen[0] in synced
    assert held(Checkpoint(tmp_path, boot_id="a")) == {"claim-1": (0,), "claim-2": (3,)}
    assert list((tmp_path / "claims").glob("*.tmp")) == []


def test_what_is_decided_in_the_turn_counts(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, boot_id="a")
    put(checkpoint, made(1, 0))
    assert staged_while_others_wait(checkpoint, made(2, 3), made(2, 4), lambda: None)
    assert held(checkpoint) == held(Checkpoint(tmp_path, boot_id="a")) == {"claim-1": (0,), "claim-2": (4,)}
    assert list((tmp_path / "claims").glob("*.tmp")) == []


def test_another_instance_may_clear_a_staged_file_away(tmp_path: Path) -> None:
    checkpoint, other = Checkpoint(tmp_path, boot_id="a"), Checkpoint(tmp_path, boot_id="a")
    put(checkpoint, made(1, 0))

    def clear() -> None:
        assert held(other) == {"claim-1": (0,)}
        assert list((tmp_path / "claims").glob("*.tmp")) == []

    assert staged_while_others_wait(checkpoint, made(2, 3), made(2, 3), clear)
    assert held(checkpoint) == held(other) == {"claim-1": (0,), "claim-2": (3,)}


class DrowsyLock:
    """A lock whose waiters try for it only once they are told to: those of a real one take a moment to wake up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits, self.awake = threading.Event(), threading.Event()

    def acquire(self, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.waits.set()
        assert self.awake.wait(60)
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


def test_a_call_that_waits_is_seen_by_the_one_that_has_just_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call looks before its turn; if the next were not seen then, all would sync their files one by one."""
    threads = DrowsyLock()
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "lock", lambda: threads)
        checkpoint = Checkpoint(tmp_path, boot_id="a")
    put(checkpoint, made(1, 0))
    other = threading.Thread(target=lambda: put(checkpoint, made(3, 1)))
    with checkpoint.glance():
        other.start()
        assert threads.waits.wait(60)
    with checkpoint.staged(made(2, 3)) as staged:
        threads.awake.set()
        assert staged is not None
    other.join(60)


def test_nothing_is_staged_for_a_call_that_nobody_holds_up(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, boot_id="a")
    put(checkpoint, made(1, 0))
    with checkpoint.staged(made(2, 3)) as staged:
        assert staged is None
