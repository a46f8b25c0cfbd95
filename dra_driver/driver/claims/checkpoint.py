"""The one truth about prepared claims: a directory with one small file for each, and an index of it in memory.

What is on the disk when, and why that suffices:

* ``claims/<uid>.json`` is written under another name, synced, and renamed. So it is there whole or not at all, both for
  who reads it after a kill and for who reads it after a loss of power.
* Its name is not synced: no kill takes it back, and the file system writes it to the disk within seconds. A loss of
  power before that ends all containers too, and kubelet, which does not remember what is prepared, has the claim
  prepared again when the node is back (kubernetes#141966). Until then there is at most a spec that no file explains,
  and only where the directory of specs is no tmpfs: such a claim counts as held, see below.
* Where calls wait for the lock, a new file is written and synced before its claim's turn (``Checkpoint.staged``), under
  a name that no other writer uses; what is decided under the lock counts, and only if that has the same bytes is the
  file renamed. So a sync does not keep other calls waiting, and the disk serves several of them at once. With 8 calls
  at once on ext4, beside other load, that made 194 pairs of prepare and unprepare a second, and 152 without it (medians
  of 30 rounds by turns, ``scripts/benchmark --before``). Where a sync costs nothing (tmpfs), it brings nothing.
* Nor is a removal. A loss of power may bring the file back: the entry is then one of an earlier boot, of which no
  container runs, and the reconciler releases it at its first pass if the claim is gone. Where the boot id is not known,
  that cannot be decided, and the directory is synced before kubelet gets the reply.

A file that cannot be read is moved to ``quarantine/`` under its name and reported; the others are not affected. What it
held stays held (``model.Quarantined``) until the claim is prepared again or unprepared, or the API server settles it.
If it can be read later (by a newer driver, say), it comes back by itself. A CDI spec that no file explains counts as
such a claim too: specs are written after the file and removed before it, so the file was removed by somebody else.

What a file says, and to whom: ``files``. How threads and instances exclude each other: ``lock``.

"""

from __future__ import annotations

import itertools
import logging
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.driver.claims.container_edits import shown_in
from dra_driver.driver.claims.files import decoded, encoded
from dra_driver.driver.claims.lock import Mark, StateLock
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, Quarantined
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import (
    MAX_FILE_BYTES,
    is_regular,
    is_uuid,
    read_file,
    remove_file,
    replace_file,
    sync_directory,
    write_file,
)

log = logging.getLogger(__name__)

_GLANCE_SECONDS = 1.0
"""Seconds to wait for a look at the index without the lock between processes; after that, the call waits its turn."""


@dataclass(slots=True)
class Staged:
    """A file that was written and synced and has no name that counts yet."""

    path: str
    data: bytes
    renamed: bool = False


class Checkpoint:
    """Prepared claims below ``directory``. Thread-safe; several processes may use one directory.

    Args:
        directory: state directory, made when missing.
        boot_id: identity of this boot of the node.
        cdi: specs, which show the chips of claims whose files cannot be read.
        lock_timeout: seconds to wait for the directory's lock.

    Methods raise DriverError when the directory cannot be read or written. All but ``locked``,
    ``glance``, ``staged``, ``counts`` and ``close`` are for use inside ``locked``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        boot_id: str = "",
        cdi: SpecDirectory | None = None,
        lock_timeout: float = 30.0,
    ) -> None:
        self.boot_id = boot_id
        self.unusable: str | None = None
        """Why it could not be locked or read the last time; None when it could."""
        self.unwritable: str | None = None
        """Why a claim could not be kept or forgotten the last time; None when it could."""
        self._claims = directory / "claims"
        self._quarantine = directory / "quarantine"
        self._own_tag = secrets.token_hex(4)
        """Part of names of files that are written without the lock: a second instance may write for the same claim."""
        self._stagings = itertools.count()
        self._cdi = cdi
        self._lock = StateLock(directory / "journal.lock", lock_timeout)
        self._index = PreparedClaims()
        self._mark: Mark | None = None
        """While the lock's mark is this, no other instance has changed anything since the index was made."""
        self._in_doubt = True
        """Whether a change by this process ended half-way since."""
        self._changed = runtime.condition()
        """Wakes whoever waits for another index, or for a change of this one."""

    @contextmanager
    def locked(self, deadline: float = math.inf) -> Iterator[PreparedClaims]:
        """Hold the state lock and see what is held. Nothing slow (no API call) belongs into the body.

        ``deadline``: see ``StateLock.hold``.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._lock.hold(deadline))
                self._load()
            except DriverError as error:
                self.unusable = error.what
                raise
            self.unusable = None
            yield self._index

    @contextmanager
    def glance(self, deadline: float = math.inf) -> Iterator[PreparedClaims]:
        """See what is held as this process knows it, with its other threads kept out, but no other process.

        What follows from it counts if its revision is the same under ``locked``. ``deadline``: as for that.
        """
        with self._lock.exclude_threads(_GLANCE_SECONDS) as has_lock:
            if has_lock and self._mark is not None and not self._in_doubt:
                yield self._index
                return
        with self.locked(deadline) as prepared:
            yield prepared

    def wait_for_change(self, revision: int, seconds: float) -> None:
        """Wait until this process has changed what is prepared since a revision, for so many seconds at most.

        Not for use inside ``locked``.
        """
        with self._changed:
            if self._index.revision == revision:
                self._changed.wait(seconds)

    @contextmanager
    def staged(self, plan: Plan | None) -> Iterator[Staged | None]:
        """The file of a claim, written and synced without the lock, for ``put``; None where that is not worth it.

        It is worth it where other calls hold the lock, and the claim is not kept yet. Not for use inside ``locked``.
        """
        staged = None
        if plan is not None and self._lock.contended and plan.uid not in self._index.entries:
            with suppress(DriverError, OSError):  # the call's own turn reports it
                staged = self._stage(plan)
        try:
            yield staged
        finally:
            if staged is not None and not staged.renamed:
                with suppress(OSError):  # who reads the directory next removes it
                    os.unlink(staged.path)  # noqa: PTH108

    def _stage(self, plan: Plan) -> Staged:
        path = os.path.join(self._claims, f"{plan.uid}.{self._own_tag}-{next(self._stagings)}.tmp")  # noqa: PTH118
        staged = Staged(path, encoded(CheckpointEntry(plan, self.boot_id)))
        write_file(staged.path, staged.data, mode=0o600, synced=True)
        return staged

    def put(self, plan: Plan, staged: Staged | None = None) -> bool:
        """Keep a plan as prepared in this boot. False when exactly this is kept already."""
        return self.keep(CheckpointEntry(plan, self.boot_id), staged)

    def keep(self, entry: CheckpointEntry, staged: Staged | None = None) -> bool:
        """Keep an entry, and end the quarantine of its claim. False when exactly this is kept already."""
        uid, data = entry.plan.uid, encoded(entry)
        if len(data) > MAX_FILE_BYTES:
            raise DriverError(
                f"what claim {entry.plan.reference} is to have takes {len(data):,} bytes, more than {MAX_FILE_BYTES:,}",
                consequence="it could not be read after a restart, so the claim is not prepared",
                remedy="use fewer devices, requests and containers for the claim",
            )
        with self._change("keep", uid):
            if self._index.entries.get(uid) == entry and uid not in self._index.missing and self._entry(uid) == entry:
                return False
            self._mark = self._lock.announce()
            self._store(uid, data, staged)
            self._index.add(entry)
            if uid in self._index.quarantined:
                self._drop_quarantined(uid)
        return True

    def remove(self, uid: str) -> bool:
        """Forget a claim; also what of it was unreadable. False when nothing was known of it."""
        has_entry = uid in self._index.entries or is_regular(self.path(uid))
        doubtful = uid in self._index.quarantined
        with self._change("forget", uid):
            if not has_entry and not doubtful:
                return False
            self._mark = self._lock.announce()
            if has_entry:
                with suppress(IsADirectoryError):  # somebody else's, in the place of a file that is gone
                    remove_file(self.path(uid))
                if not self.boot_id:
                    sync_directory(self._claims)
                self._index.discard(uid)
            if doubtful:
                self._drop_quarantined(uid)
        return True

    def learn(self, uid: str, chips: frozenset[int]) -> None:
        """Note what an unreadable file held, as the API server reports it. A restart forgets it and asks again."""
        item = self._index.quarantined[uid]
        self._index.quarantine(replace(item, chips=chips))

    def verify(self) -> PreparedClaims:
        """Compare the directory with the index, file by file; what is held then.

        A file that has become unreadable is written again from memory; so are all when the directory is gone. A single
        one that was removed makes its claim ``missing``.
        """
        try:
            self._load(anyway=True)
        except DriverError as error:
            self.unusable = error.what
            raise
        return self._index

    @property
    def counts(self) -> tuple[int, int] | None:
        """Prepared claims and unreadable files as seen last, without a look at the files; None: that is not known."""
        if self.unusable is not None or self._mark is None:
            return None
        return len(self._index.entries), len(self._index.quarantined)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Plans of the prepared claims as seen last, without a lock and without a look at the files."""
        # Copied in one step, which no other thread's change interrupts.
        return tuple(entry.plan for entry in tuple(self._index.entries.values()))

    def close(self) -> None:
        """Let go of the lock file."""
        self._lock.close()

    @contextmanager
    def _change(self, verb: str, uid: str) -> Iterator[None]:
        in_doubt, self._in_doubt = self._in_doubt, True
        try:
            yield
        except OSError as error:
            self.unwritable = f"cannot {verb} claim {uid} in {self._claims}: {error.strerror or error}"
            raise DriverError(
                self.unwritable,
                consequence="the call fails and kubelet tries again",
                remedy="check the free space and the health of the disk that has the state directory",
            ) from error
        self._in_doubt = in_doubt
        self.unwritable = None
        with self._changed:
            self._changed.notify_all()

    def _store(self, uid: str, data: bytes, staged: Staged | None = None) -> None:
        if staged is not None and staged.data == data:
            with suppress(FileNotFoundError):  # somebody who read the directory meanwhile took it for a killed writer's
                os.replace(staged.path, self.path(uid))  # noqa: PTH105
                staged.renamed = True
                return
        try:
            replace_file(self.path(uid), data, temporary=f"{uid}.tmp", mode=0o600, synced=True)
        except FileNotFoundError:
            self._make_claims_directory()
            replace_file(self.path(uid), data, temporary=f"{uid}.tmp", mode=0o600, synced=True)

    def _entry(self, uid: str) -> CheckpointEntry | None:
        """The entry that a new instance would find, if any."""
        try:
            return decoded(read_file(self.path(uid)), uid)
        except (ValueError, OSError):
            return None

    def _make_claims_directory(self) -> None:
        if not self._claims.exists():
            self._claims.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self._claims.parent)

    def _load(self, *, anyway: bool = False) -> None:
        """Read the directory into a new index if the present one is not known to be valid, or ``anyway``.

        The present index counts where no other instance can have changed anything.
        """
        try:
            mark = self._lock.mark()
            # The driver itself never removes the directory.
            vanished = bool(self._index.entries) and not os.path.exists(self._claims)  # noqa: PTH110 - at each call
            if not (anyway or vanished or self._in_doubt or mark != self._mark):
                return
            self._in_doubt = True
            previous = self._index.entries if vanished or mark == self._mark else {}
            if vanished:
                log.error("%s was removed; its %d claims are written again from memory", self._claims, len(previous))
                for entry in previous.values():
                    self._write_again(entry)
            self._index = self._read_all(previous)
        except OSError as error:
            raise DriverError(
                f"cannot read the checkpoint in {self._claims}: {error.strerror or error}",
                consequence="no claim can be prepared or unprepared",
                remedy="check the disk and the mount of the state directory",
            ) from error
        self._mark = mark
        self._in_doubt = False

    def _read_all(self, previous: Mapping[str, CheckpointEntry]) -> PreparedClaims:
        """What the files say; of those that cannot be read or are missing, ``previous``, or what specs show."""
        former = self._index.quarantined
        prepared = PreparedClaims()
        self._restore_quarantined()
        for uid in self._names(self._claims, clean=True):
            entry = self._read(uid, previous.get(uid))
            if entry is not None:
                prepared.add(entry)
        for uid in self._names(self._quarantine):
            self._add_quarantined(prepared, uid, self._quarantine / f"{uid}.json", former.get(uid))
        for uid in self._names(self._claims):
            if uid not in prepared.entries:
                self._add_quarantined(prepared, uid, self.path(uid), former.get(uid))
        self._add_missing(prepared, previous)
        for uid in self._without_file(prepared):
            self._add_quarantined(prepared, uid, self.path(uid), former.get(uid))
        return prepared

    def _add_missing(self, prepared: PreparedClaims, previous: Mapping[str, CheckpointEntry]) -> None:
        for uid in set(previous).difference(prepared.entries, prepared.quarantined):
            if uid not in self._index.missing:
                log.warning("%s was removed; the API server is asked whether its claim still exists", self.path(uid))
            prepared.add(previous[uid], missing=True)

    def _without_file(self, prepared: PreparedClaims) -> set[str]:
        """Claims that runtimes are shown and of which neither file nor memory is left."""
        if self._cdi is None:
            return set()
        try:
            uids = self._cdi.list().keys() - prepared.entries.keys() - prepared.quarantined.keys()
        except DriverError:  # the next write or removal of a spec reports it
            return set()
        return {uid for uid in uids if self._cdi.read(uid) is not None}

    def _read(self, uid: str, previous: CheckpointEntry | None) -> CheckpointEntry | None:
        """The entry of a file; None when it cannot be read: then it is moved aside."""
        try:
            return decoded(read_file(self.path(uid)), uid)
        except (ValueError, OSError) as error:
            if previous is not None:
                log.warning(
                    "checkpoint file %s could not be read (%s); written again from memory", self.path(uid), error
                )
                self._write_again(previous)
                return previous
            self._move_aside(uid, error)
            return None

    def _write_again(self, entry: CheckpointEntry) -> None:
        """Write an entry from memory, which keeps it if that fails: then the next look tries again."""
        try:
            with self._change("keep", entry.plan.uid):
                self._store(entry.plan.uid, encoded(entry))
        except DriverError as error:
            log.error("%s", error.what)  # noqa: TRY400 - no defect

    def _move_aside(self, uid: str, problem: Exception) -> None:
        log.error(
            "checkpoint file %s cannot be read (%s); it is moved to %s, and the devices of claim %s are held back "
            "until the claim is prepared again, unprepared, or gone from the API server",
            self.path(uid),
            problem,
            self._quarantine,
            uid,
        )
        try:
            self._quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path(uid).replace(self._quarantine / f"{uid}.json")
        except OSError as error:
            log.error("it cannot be moved (%s) and counts as moved where it is", error)  # noqa: TRY400 - no defect

    def _restore_quarantined(self) -> None:
        """Bring back files that can be read after all, unless the claim has a newer file."""
        for uid in self._names(self._quarantine):
            path = self._quarantine / f"{uid}.json"
            if self.path(uid).exists():
                continue
            try:
                decoded(read_file(path), uid)
            except (ValueError, OSError):
                continue
            log.info("checkpoint file %s can be read again", path)
            with suppress(OSError):  # then it stays where it is
                self._make_claims_directory()
                path.replace(self.path(uid))

    def _add_quarantined(self, prepared: PreparedClaims, uid: str, path: Path, former: Quarantined | None) -> None:
        if uid in prepared.entries:  # prepared again, then killed before the old file was removed
            with suppress(OSError):  # tried again at the next look
                remove_file(path)
            return
        try:
            decoded(read_file(path), uid)
            reason = "not readable when the driver started"
        except (ValueError, OSError) as error:
            reason = str(error)
        if former is not None and former.chips is not None:
            prepared.quarantine(replace(former, path=str(path), reason=reason))
            return
        spec = self._cdi.read(uid) if self._cdi is not None else None
        shown = None if spec is None else shown_in(spec, uid)
        chips = None if shown is None else frozenset(chip for _, chip in shown)
        prepared.quarantine(Quarantined(uid, str(path), reason, chips, shown or frozenset()))

    def _drop_quarantined(self, uid: str) -> None:
        remove_file(Path(self._index.quarantined[uid].path))
        self._index.settle(uid)

    def _names(self, directory: Path, *, clean: bool = False) -> list[str]:
        """Claim UIDs of the files in a directory; ``clean`` removes what killed writers left."""
        try:
            paths = sorted(directory.iterdir())
        except FileNotFoundError:
            return []
        for path in paths if clean else ():
            if _is_temporary(path) and is_regular(path):
                with suppress(OSError):  # the next write under this name reports it
                    remove_file(path)
        return [path.stem for path in paths if _is_claims_file(path)]

    def others(self) -> list[Path]:
        """What is in the directory and no claim's file."""
        try:
            paths = sorted(self._claims.iterdir())
        except OSError:  # the next look at the claims reports it
            return []
        return [path for path in paths if not _is_claims_file(path) and not _is_temporary(path)]

    def path(self, uid: str) -> Path:
        """Where a claim is kept."""
        return self._claims / f"{uid}.json"


def _is_claims_file(path: Path) -> bool:
    return path.suffix == ".json" and is_uuid(path.stem) and is_regular(path)


def _is_temporary(path: Path) -> bool:
    """Whether it is a temporary file, by its name alone: it may be renamed at any time."""
    return path.suffix == ".tmp" and is_uuid(path.name.partition(".")[0])
