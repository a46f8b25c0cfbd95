"""The one truth about prepared claims: a directory with one small file for each, and an index of it in memory.

``claims/<uid>.json`` (see ``journalfile``) is written under another name, flushed, renamed, and the directory flushed:
after a loss of power it is there whole or not at all.

A file that cannot be read is moved to ``quarantine/`` under its name and reported; the others are not affected. What it
held stays held (see ``held.Quarantined``) until the claim is prepared again or unprepared, or the API server settles
it. If it can be read later (by a newer driver, say), it comes back by itself.

The index is valid as long as the lock file's mark is the one that was left there; so a call costs the same with one
claim as with a hundred, and a second instance of the driver may write in between.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from dra_driver.claims.held import Held, Quarantined
from dra_driver.claims.journalfile import decoded, encoded
from dra_driver.claims.lock import Mark, StateLock
from dra_driver.claims.values import UID, Entry, Plan
from dra_driver.errors import DriverError
from dra_driver.files import read_file, remove_file, replace_file

log = logging.getLogger(__name__)


class Journal:
    """Prepared claims below ``directory``. Thread-safe; several processes may use one directory.

    Args:
        directory: state directory, made when missing.
        boot_id: identity of this boot of the node.
        recover: chips by container number of a claim whose file cannot be read, as far as something else (its CDI spec)
            tells; None when nothing does.
        lock_timeout: seconds to wait for the directory's lock.

    Methods raise DriverError when the directory cannot be read or written. All but ``locked`` and ``close`` are for use
    inside ``locked``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        boot_id: str = "",
        recover: Callable[[str], Mapping[int, int] | None] = lambda uid: None,  # noqa: ARG005 - nothing else tells
        lock_timeout: float = 30.0,
    ) -> None:
        self.boot_id = boot_id
        self._cannot_use: str | None = None
        self._cannot_change: str | None = None
        self._claims = directory / "claims"
        self._quarantine = directory / "quarantine"
        self._recover = recover
        self._lock = StateLock(directory / "journal.lock", lock_timeout)
        self._held = Held()
        self._valid_at: Mark | None = None

    @property
    def problem(self) -> str | None:
        """Why the journal could not be used the last time, or not be changed; None when it could. For health checks."""
        return self._cannot_use or self._cannot_change

    @contextmanager
    def locked(self, deadline: float = math.inf) -> Iterator[Held]:
        """Hold the state lock and see what is held. Nothing slow (no API call) belongs into the body.

        ``deadline``: see ``StateLock.held``.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._lock.held(deadline))
                if self._valid_at != self._lock.mark():
                    self._load(trusted=None)
            except DriverError as error:
                self._cannot_use = error.what
                raise
            self._cannot_use = None
            yield self._held

    def put(self, plan: Plan) -> bool:
        """Keep a plan as prepared in this boot, lastingly. False when exactly this is kept already."""
        return self.keep(Entry(plan, self.boot_id))

    def keep(self, entry: Entry) -> bool:
        """Keep an entry, lastingly, and end the quarantine of its claim. False when exactly this is kept already."""
        uid = entry.plan.uid
        if self._held.entries.get(uid) == entry:
            return False
        with self._change("keep", uid):
            self._store(entry)
            self._held.add(entry)
            if uid in self._held.quarantined:
                self._drop_quarantined(uid)
        return True

    def remove(self, uid: str) -> bool:
        """Forget a claim, lastingly; also what of it was unreadable. False when nothing was known of it."""
        known, doubtful = uid in self._held.entries, uid in self._held.quarantined
        if not known and not doubtful:
            return False
        with self._change("forget", uid):
            if known:
                remove_file(self.path(uid), durable=True)
                self._held.discard(uid)
            if doubtful:
                self._drop_quarantined(uid)
        return True

    def learn(self, uid: str, chips: frozenset[int]) -> None:
        """Note what an unreadable file held, as the API server tells. A restart forgets it and asks again."""
        item = self._held.quarantined[uid]
        self._held.quarantine(replace(item, chips=chips))

    def verify(self) -> Held:
        """Compare the directory with the index, file by file; what is held then.

        A file that has become unreadable is written again from memory. One that somebody removed is taken as an
        administrator's word that the claim is done with.
        """
        try:
            self._load(trusted=self._held)
        except DriverError as error:
            self._cannot_use = error.what
            raise
        return self._held

    def close(self) -> None:
        """Let go of the lock file."""
        self._lock.close()

    @contextmanager
    def _change(self, verb: str, uid: str) -> Iterator[None]:
        self._valid_at = None
        try:
            mark = self._lock.announce()
            yield
        except OSError as error:
            self._cannot_change = f"cannot {verb} claim {uid} in {self._claims}: {error.strerror or error}"
            raise DriverError(
                self._cannot_change,
                consequence="the call fails and kubelet tries again",
                remedy="check free space and errors of the disk with the state directory",
            ) from error
        self._valid_at = mark
        self._cannot_change = None

    def _store(self, entry: Entry) -> None:
        uid = entry.plan.uid
        data = encoded(entry)
        try:
            replace_file(self.path(uid), data, temporary=f"{uid}.tmp", mode=0o600, durable=True)
        except FileNotFoundError:
            self._claims.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path(uid), data, temporary=f"{uid}.tmp", mode=0o600, durable=True)

    def _load(self, trusted: Held | None) -> None:
        """Read the directory into a new index; ``trusted`` is an index that is known to be up to date."""
        self._valid_at = None
        try:
            mark = self._lock.mark()
            learned = self._held.quarantined
            held = Held()
            self._restore_quarantined()
            names = self._names(self._claims, clean=True)
            for uid in names:
                entry = self._read(uid, None if trusted is None else trusted.entries.get(uid))
                if entry is not None:
                    held.add(entry)
            for uid in self._names(self._quarantine):
                self._add_quarantined(held, uid, self._quarantine / f"{uid}.json", learned.get(uid))
            for uid in self._names(self._claims):
                if uid not in held.entries:
                    self._add_quarantined(held, uid, self.path(uid), learned.get(uid))
        except OSError as error:
            raise DriverError(
                f"cannot read the journal in {self._claims}: {error.strerror or error}",
                consequence="no claim can be prepared or unprepared",
                remedy="check the disk and the mount of the state directory",
            ) from error
        for uid in set(trusted.entries if trusted is not None else ()).difference(held.entries, held.quarantined):
            log.warning("somebody removed %s; the claim counts as unprepared and its devices as free", self.path(uid))
        self._held = held
        self._valid_at = mark

    def _read(self, uid: str, trusted: Entry | None) -> Entry | None:
        """The entry of a file; None when it cannot be read: then it is moved aside."""
        try:
            return decoded(read_file(self.path(uid)), uid)
        except (ValueError, OSError) as error:
            if trusted is not None:
                log.warning("journal file %s could not be read (%s); written again from memory", self.path(uid), error)
                self._store(trusted)
                return trusted
            self._move_aside(uid, error)
            return None

    def _move_aside(self, uid: str, problem: Exception) -> None:
        log.error(
            "journal file %s cannot be read (%s); it is moved to %s, and the devices of claim %s are held back until "
            "the claim is prepared again, unprepared, or gone from the API server",
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
            log.info("journal file %s can be read again", path)
            self._claims.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.replace(self.path(uid))

    def _add_quarantined(self, held: Held, uid: str, path: Path, learned: Quarantined | None) -> None:
        if uid in held.entries:  # prepared again, then killed before the old file was removed
            remove_file(path, durable=False)
            return
        try:
            decoded(read_file(path), uid)
            reason = "not readable when the driver started"
        except (ValueError, OSError) as error:
            reason = str(error)
        if learned is not None and learned.chips is not None:
            held.quarantine(replace(learned, path=str(path), reason=reason))
            return
        shown = self._recover(uid)
        chips = None if shown is None else frozenset(shown.values())
        held.quarantine(Quarantined(uid, str(path), reason, chips, shown or {}))

    def _drop_quarantined(self, uid: str) -> None:
        remove_file(Path(self._held.quarantined[uid].path), durable=False)
        self._held.settle(uid)

    def _names(self, directory: Path, *, clean: bool = False) -> list[str]:
        """Claim UIDs of the files in a directory; ``clean`` removes what killed writers left."""
        found = []
        try:
            names = sorted(path.name for path in directory.iterdir())
        except FileNotFoundError:
            return []
        for name in names:
            if clean and name.endswith(".tmp"):
                remove_file(directory / name, durable=False)
            uid = name.removesuffix(".json")
            if uid != name and UID.fullmatch(uid):
                found.append(uid)
        return found

    def path(self, uid: str) -> Path:
        """Where a claim is kept."""
        return self._claims / f"{uid}.json"
