"""Keeps objects of the API server as they are wanted: in one thread, one at a time, each with its own waits.

Who wants something says so at any time and from any thread; the last word counts. When an object's turn comes, a
``Target`` looks, compares and writes. Whose turn it is, and after what pause, is decided here:

* An object's own trouble, such as a webhook that answers 500, makes that object alone wait, ever longer.
* An API server that is away, or asks for a pause, is left alone by all objects together.
* But a namespace where such a request took long waits alone, and so does one where alone there is such trouble, and
  both come after all others: a tenant's webhook may let each write there hang, or spoil the answer.
* What was written already is written again only because somebody else has changed it: ever later, while that goes on.
* Between two writes of one object is a pause, which grows while what is wanted changes all the time.
* What was read before a write ended may be older than the write: it counts as not known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, Generic, TypeVar

from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
S = TypeVar("S")

SLOW_SECONDS: Final = 1.0
"""Of a turn, from which on its namespace comes last; and trouble after that says nothing of others."""
_TURNS: Final = 64
"""So many have their turns before it is looked anew whose turn it is: a tenant may have thousands of objects."""
SLOW_MEMORY_SECONDS: Final = 3600.0
"""That a namespace is known for it, where nothing else has its turn: longer than any object of it waits."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[S]):
    """What came of an object's turn."""

    stored: S | None = None
    """What the API server has now; None: not known."""
    wrote: bool = False
    again: float = math.inf
    """Seconds until its next turn, if nothing happens before."""
    over: bool = False
    """Whether nothing is wanted of it any more: it is forgotten."""


class Target(ABC, Generic[K, V, S]):
    """What is kept, and how: an object by its key, a value that is wanted of it, and what the API server has stored."""

    @abstractmethod
    def reconcile(self, key: K, value: V, stored: S | None) -> Outcome[S]:
        """Have the object be as wanted. DriverError: it is not; its next turn is decided by the error.

        ``stored``: what the API server was last seen to have; None: not known.
        """

    def same(self, one: S, other: S) -> bool:
        """Whether two readings of an object say the same."""
        return one == other

    def concerns_object(self, error: DriverError) -> bool:
        """Whether an error is about the one object: no other one waits then.

        500 is also the answer where a webhook fails, or an object would get too long.
        """
        if not isinstance(error, ApiError) or error.of_a_webhook:
            return True
        return not (isinstance(error, Unreachable) or error.status == 429 or error.status > 500)

    def report_failure(self, key: K, error: DriverError, wait: float) -> None:
        """An object is not as wanted; ``wait``: seconds until it is tried again, at the earliest."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Makes the pauses of a writer."""

    own: Callable[[], Backoff]
    """After errors that are about one object."""
    server: Callable[[], Backoff]
    """After other errors, of all objects."""
    contest: Callable[[], Backoff] = lambda: Backoff(first=1.0, cap=600.0, free=1)
    """Before something is written again that somebody else has changed."""
    pace: Callable[[], Backoff] = lambda: Backoff(first=0.0)
    """Between two writes of one object."""
    namespace: Callable[[], Backoff] = lambda: Backoff(first=30.0, cap=600.0)
    """After errors that took long, of one namespace; after others, it waits as for the server."""
    calm: float = 600.0
    """Seconds without a write, or a change by somebody else, after which contest and pace begin anew."""


@dataclass(slots=True, eq=False)
class _Object(Generic[V, S]):
    value: V
    namespace: str
    stored: S | None
    own: Backoff
    contest: Backoff
    pace: Backoff
    due: float = math.inf
    not_before: float = -math.inf
    """By its pace."""
    insists: bool = False
    """Whether its next turn waits for no pause after errors."""
    revision: int = 0
    """Grows with each word about it."""
    written: V | None = None
    last_write: float = -math.inf
    last_contest: float = -math.inf


@dataclass(slots=True)
class _Namespace:
    """Where a turn took long, or met with trouble that is about no object."""

    hanging: Backoff
    troubled: Backoff
    since: float
    """When that was last."""
    not_before: float = -math.inf


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    until: float = -math.inf
    namespaces: dict[str, _Namespace] = field(default_factory=dict)
    in_trouble: set[str] = field(default_factory=set)
    """Namespaces of turns with such trouble, since the last turn without."""


class DesiredWriter(Generic[K, V, S]):
    """Gives objects their turns. All methods but ``round`` return at once; any thread may call them.

    Args:
        name: what it does, as ``Worker.name``.
        target: what is kept.
        waits: the pauses.
        before_turn: called before each turn, in the writer's thread; returns seconds until it has to be called again.
        at_rest: the same, when nobody's turn has come.
        settle: see ``Worker``.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        name: str,
        target: Target[K, V, S],
        waits: Waits,
        *,
        before_turn: Callable[[], float] = lambda: math.inf,
        at_rest: Callable[[], float] = lambda: math.inf,
        settle: float = 0.0,
        clock: Callable[[], float] = runtime.monotonic,
    ) -> None:
        self._target = target
        self._waits = waits
        self._before_turn = before_turn
        self._at_rest = at_rest
        self._clock = clock
        self._lock = runtime.lock()
        self._objects: dict[K, _Object[V, S]] = {}
        self._pause = _Pause(waits.server())
        self.worker = Worker(name, self.round, settle=settle)

    # What is wanted

    def want(
        self,
        key: K,
        value: V,
        *,
        namespace: str = "",
        stored: S | None = None,
        at: float | None = None,
        insist: bool = False,
    ) -> None:
        """What an object should be from now on.

        Args:
            key: the object.
            value: what is wanted. What waits for its turn already goes on waiting, if ``at`` is None.
            namespace: the object's.
            stored: as the API server had it just now. It counts where it says the same as what was known before, for
                it may have been read before the last write; None: not known.
            at: when its turn is to come; None: as soon as contest and pace allow.
            insist: something has changed that is worth a try while others wait for the API server.
        """
        now = self._clock()
        with self._lock:
            item = self._objects.get(key)
            if item is None:
                waits = self._waits
                item = _Object(value, namespace, stored, waits.own(), waits.contest(), waits.pace())
                self._objects[key] = item
            elif at is None and item.due < math.inf and item.value == value:
                return
            elif stored is None or item.stored is None or not self._target.same(item.stored, stored):
                item.stored = None
            item.due = self._due(item, value, now) if at is None else at
            item.value, item.insists = value, insist
            item.revision += 1
        self.worker.wake()

    def look(self, key: K, at: float, *, insist: bool = False) -> None:
        """An object's turn is to come then, or earlier; ``insist``: see ``want``."""
        with self._lock:
            item = self._objects.get(key)
            if item is None:
                return
            item.insists = item.insists or insist
            item.due = min(item.due, max(at, item.not_before))
        self.worker.wake()

    def contest(self, key: K, pause: float) -> None:
        """Somebody else has changed an object: its turn comes after a pause, of so many seconds at least."""
        now = self._clock()
        with self._lock:
            if (item := self._objects.get(key)) is not None:
                item.due = min(item.due, now + self._contest(item, now, pause))
        self.worker.wake()

    def rest(self, key: K) -> None:
        """An object was seen to be as wanted."""
        with self._lock:
            if (item := self._objects.get(key)) is not None:
                item.due = math.inf

    def doubt(self, key: K, at: float) -> None:
        """What the API server has of an object is to be read again, at that time."""
        with self._lock:
            if (item := self._objects.get(key)) is not None:
                item.stored, item.due = None, at
                item.revision += 1
        self.worker.wake()

    def forget(self, key: K, value: V | None = None) -> None:
        """Nothing is wanted of an object any more; ``value``: only if that is what was wanted last."""
        with self._lock:
            item = self._objects.get(key)
            if item is not None and (value is None or item.value is value):
                del self._objects[key]

    def objects(self) -> list[tuple[K, V, S | None]]:
        """All objects: what is wanted, and what the API server was last seen to have."""
        with self._lock:
            return [(key, item.value, item.stored) for key, item in self._objects.items()]

    # When

    def _due(self, item: _Object[V, S], value: V, now: float) -> float:
        if now - item.last_write > self._waits.calm:
            item.pace.reset()
        # What was written already is written again only because somebody else has changed it.
        wait = self._contest(item, now, 0.0) if value == item.written else 0.0
        return max(now + wait, item.not_before)

    def _contest(self, item: _Object[V, S], now: float, at_least: float) -> float:
        if now - max(item.last_write, item.last_contest) > self._waits.calm:
            item.contest.reset()
        item.last_contest = now
        return item.contest.next(at_least)

    def _turn(self, item: _Object[V, S], now: float) -> tuple[float, bool, float]:
        """What is least comes first: when it can be its turn, now if that has come; is it bad there; since when."""
        bad = self._pause.namespaces.get(item.namespace)
        pause = -math.inf if item.insists else self._pause.until
        due = max(item.due, pause, bad.not_before if bad is not None else -math.inf)
        return max(due, now), bad is not None, item.due

    # Worker thread

    def round(self) -> float:
        """Give a turn to each object whose time has come; returns the seconds until the next one."""
        while not self.worker.stopping:
            wait = self._before_turn()
            now = self._clock()
            with self._lock:
                turns = [(self._turn(item, now), key, item) for key, item in self._objects.items()]
            turns = nsmallest(_TURNS, turns, key=lambda turn: turn[0])
            if not turns or turns[0][0][0] > now:
                until_turn = turns[0][0][0] - now if turns else math.inf
                return min(wait, until_turn, self._at_rest())
            for (due, _, _), key, item in turns:
                self.worker.beat()
                if due > now or not self._give_turn(key, item, now):
                    break
        return math.inf

    def _give_turn(self, key: K, item: _Object[V, S], now: float) -> bool:
        """Whether it went so well that the order of the others is as it was."""
        with self._lock:
            if self._objects.get(key) is not item or item.due > now or self.worker.stopping:
                return False  # a newer wish counts
            value, stored, revision = item.value, item.stored, item.revision
            item.due, item.insists = math.inf, False
        began = self._clock()
        try:
            outcome = self._target.reconcile(key, value, stored)
        except DriverError as error:
            with self._lock:
                wait = self._after_error(item, error, revision, began)
                self._outdate(key, item, revision)
                if not (isinstance(error, ApiError) and 400 <= error.status < 500):
                    item.stored = None  # the write may have taken effect all the same
            self._target.report_failure(key, error, wait)
            return False
        except Exception:  # a defect, which the worker reports: others have their turns before its own comes again
            with self._lock:
                item.due = min(item.due, self._clock() + item.own.next())
            raise
        with self._lock:
            slow = self._after_success(item, value, outcome, began)
            self._outdate(key, item, revision)
            if outcome.over and item.revision == revision and self._objects.get(key) is item:
                del self._objects[key]
        return not slow

    def _outdate(self, key: K, item: _Object[V, S], revision: int) -> None:
        """What callers say of an object during its turn may have been read before the write."""
        newer = self._objects.get(key)
        if newer is not None and (newer is not item or newer.revision != revision):
            newer.stored = None

    def _after_success(self, item: _Object[V, S], value: V, outcome: Outcome[S], began: float) -> bool:
        """Whether it took long."""
        now = self._clock()
        item.own.reset()
        self._pause.backoff.reset()
        self._pause.in_trouble.clear()
        slow = now - began > SLOW_SECONDS
        self._note_namespace(item.namespace, now, bad=slow)
        if outcome.wrote:
            if value != item.written:
                item.contest.reset()
            item.written, item.last_write = value, now
            item.not_before = now + item.pace.next()
        item.stored = outcome.stored
        # A newer wish has its turn as soon as the pace allows.
        item.due = min(max(item.due, item.not_before), now + outcome.again)
        return slow

    def _after_error(self, item: _Object[V, S], error: DriverError, revision: int, began: float) -> float:
        """Seconds until the next try, at the earliest."""
        now = self._clock()
        slow = now - began > SLOW_SECONDS
        retry_after = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
        if self._target.concerns_object(error):
            self._note_namespace(item.namespace, now, bad=slow)
            wait = item.own.next(retry_after)
            if item.revision == revision:
                item.due = min(item.due, now + wait)
            return wait
        namespace = self._note_namespace(item.namespace, now, bad=True)
        if not slow:
            self._pause.in_trouble.add(item.namespace)
        if namespace is not None and (slow or len(self._pause.in_trouble) == 1):
            wait = (namespace.hanging if slow else namespace.troubled).next(retry_after)
            namespace.not_before = now + wait
        else:
            wait = self._pause.backoff.next(retry_after)
            self._pause.until = now + wait
        if item.revision == revision:
            # After all others that are due: it may be this object's own trouble.
            item.due = min(item.due, now + retry_after)
        return wait

    def _note_namespace(self, namespace: str, now: float, *, bad: bool) -> _Namespace | None:
        """Remember whether it went badly there; None for objects without a namespace."""
        former = self._pause.namespaces.pop(namespace, None)
        if not namespace or not bad:
            return None
        others = self._pause.namespaces
        self._pause.namespaces = {name: of for name, of in others.items() if now - of.since < SLOW_MEMORY_SECONDS}
        noted = former or _Namespace(self._waits.namespace(), self._waits.server(), now)
        noted.since = now
        self._pause.namespaces[namespace] = noted
        return noted
