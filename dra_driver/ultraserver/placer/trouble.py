"""Which objects could not be written, when they are tried again, and whose turn it is to have something written.

Tenants have webhooks, and make objects as large as can be: what is written into their namespaces may take as long as
they like, whether it succeeds or not, and nobody else is to wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, TypeVar

from dra_driver.kube.api.errors import ApiError
from dra_driver.util.worker import MAX_ROUND_SECONDS, Backoff

MAX_RETRY_SECONDS: Final = 300.0
"""Longest wait until what could not be written is tried again."""
TROUBLE_SECONDS: Final = 60.0
"""A namespace comes after all others for so long after a write there has failed."""

LASTING_SECONDS: Final = 10.0
"""Nobody waits for a write that has failed for so long."""

SHARE_SECONDS: Final = 2.0
"""What one namespace's writes take after one decision; the rest of them is decided again."""
MAX_SECONDS: Final = 10.0
"""What the writes of all namespaces take together after one decision."""
PAYS_BACK: Final = 0.1
"""Of each second that passes: so much less counts of the time that a namespace has taken."""
MAX_DEBT_SECONDS: Final = TROUBLE_SECONDS * PAYS_BACK
OURS: Final = ""
"""The namespace of what no tenant makes slow, such as objects in the driver's own one."""

_Write = TypeVar("_Write")


class Trouble:
    """Writes that have failed or taken long: when each object is tried again, and which namespaces come last."""

    def __init__(self) -> None:
        self._retries: dict[Hashable, tuple[Backoff, float, float]] = {}
        """By object: when it is tried again, and since when that fails."""
        self._namespaces: dict[str, float] = {}
        self._debts: dict[str, tuple[float, float]] = {}
        """By namespace: the seconds that its writes have taken, as of when."""

    def note_failure(self, item: Hashable, namespace: str, now: float) -> None:
        """A write of the object, which is in that namespace, has failed."""
        backoff, _, since = self._retries.get(item, (Backoff(first=1.0, cap=MAX_RETRY_SECONDS), 0.0, now))
        self._retries[item] = backoff, now + backoff.next(), since
        self._namespaces[namespace] = now

    def note_success(self, item: Hashable) -> None:
        """A write of the object has succeeded."""
        self._retries.pop(item, None)

    def is_due(self, item: Hashable, now: float) -> bool:
        """Whether the object may be tried."""
        _, due, _ = self._retries.get(item, (None, now, now))
        return now >= due

    def lasts(self, item: Hashable, now: float) -> bool:
        """Whether no write of the object has succeeded for so long that it may never do."""
        return item in self._retries and now >= self._retries[item][2] + LASTING_SECONDS

    def note_time(self, namespace: str, seconds: float, now: float) -> None:
        """A write there has taken so long, whatever became of it."""
        self._debts[namespace] = min(self._debt(namespace, now) + seconds, MAX_DEBT_SECONDS), now

    def _debt(self, namespace: str, now: float) -> float:
        seconds, at = self._debts.get(namespace, (0.0, now))
        return max(0.0, seconds - PAYS_BACK * (now - at))

    def place(self, namespace: str, now: float) -> tuple[bool, int]:
        """Where it stands in the order of namespaces: who needs no more than a second keeps the place that it has."""
        return (False, 0) if namespace == OURS else (self._fails(namespace, now), int(self._debt(namespace, now)))

    def _fails(self, namespace: str, now: float) -> bool:
        return now < self._namespaces.get(namespace, -TROUBLE_SECONDS) + TROUBLE_SECONDS

    def namespaces(self, now: float) -> frozenset[str]:
        """Those in which writes have failed a short time ago: others go first."""
        return frozenset(name for name in self._namespaces if self._fails(name, now))

    def forget(self, now: float) -> None:
        """Forget what is over: objects and namespaces come and go."""
        self._retries = {item: retry for item, retry in self._retries.items() if now < retry[1] + MAX_RETRY_SECONDS}
        self._namespaces = {name: at for name, at in self._namespaces.items() if now < at + TROUBLE_SECONDS}
        self._debts = {name: debt for name, debt in self._debts.items() if self._debt(name, now)}


class Turns:
    """The writes after one decision: whose turn is next, and for which there was no clear answer.

    Args:
        trouble: of the decisions before.
        may_act: asked before each write.
        well: called before each write with the seconds that it may take (see ``Worker.well``).
        clock: Unix time.
    """

    def __init__(
        self, trouble: Trouble, may_act: Callable[[], bool], well: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._trouble = trouble
        self._may_act = may_act
        self._well = well
        self._clock = clock
        self._spent: dict[str, float] = {}
        """Seconds, by namespace."""
        self._of_tenants = 0.0
        """Seconds of all namespaces that are not ours."""
        self._unclear: dict[str, ApiError] = {}
        """By namespace."""
        self.answered = False
        """Whether the API server has given a clear answer to any write."""
        self.cut = False
        """Whether something was left for the next decision, since it would have taken too long."""

    def of(
        self, writes: Iterable[_Write], item: Callable[[_Write], Hashable], namespace: Callable[[_Write], str]
    ) -> Iterator[_Write]:
        """Those that may be made now, in order; what the caller does with each takes its namespace's time.

        Args:
            writes: in the order in which they are to be made as long as nobody takes long.
            item: what a write is of, for ``Trouble``.
            namespace: whose time it takes.
        """
        todo = [(one, namespace(one)) for one in writes]
        now = self._clock()
        places = {name: self._trouble.place(name, now) for name in {name for _, name in todo}}
        for one, name in sorted(todo, key=lambda entry: places[entry[1]]):
            if name in self._unclear or not self._trouble.is_due(item(one), self._clock()):
                continue
            if not self._has_time(name):
                self.cut = True
                continue
            if not self._may_act():
                return
            self._well(MAX_ROUND_SECONDS)
            began = self._clock()
            yield one
            now = self._clock()
            self._spent[name] = self._spent.get(name, 0.0) + now - began
            self._of_tenants += now - began if name != OURS else 0.0
            self._trouble.note_time(name, now - began, now)

    def _has_time(self, namespace: str) -> bool:
        spent = self._spent.get(namespace, 0.0)
        if namespace == OURS:
            return spent <= MAX_SECONDS
        return spent <= SHARE_SECONDS and self._of_tenants <= MAX_SECONDS

    def note_unclear(self, namespace: str, error: ApiError) -> None:
        """Nobody knows whether a write there was made: nothing else is written there after this decision."""
        self._unclear[namespace] = error

    @property
    def failure(self) -> ApiError | None:
        """The error if there was no clear answer to anything, unless that may be one tenant's doing."""
        is_general = OURS in self._unclear or len(self._unclear) > 1
        return next(reversed(self._unclear.values())) if is_general and not self.answered else None
