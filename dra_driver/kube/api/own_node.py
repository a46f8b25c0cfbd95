"""What a program keeps on the Node object of its own node: labels, a condition.

Each part is written by server-side apply under an own field manager, so the API server keeps account of what is ours:
it removes what is no longer applied, and leaves alone what others wrote. A request names our labels, or our condition,
only, so taking over what somebody else had written there (``force``) can concern nothing else. The writer fetches the
Node before it writes, and writes nothing when nothing would change, not after a restart either.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.meta import Condition, timestamp
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker, bounded

if TYPE_CHECKING:  # the simulator needs the labels alone
    from dra_driver.kube.api.resources import ResourceApi

T = TypeVar("T")

CALM_SECONDS: Final = 600.0
"""After so long without a write, the next ones are made at once again."""

log = logging.getLogger(__name__)


class NodePart(ABC, Generic[T]):
    """One thing that is kept on the Node. Without state of its own."""

    name: str
    """For the log and for people, such as ``labels of the node``; a plural."""

    @abstractmethod
    def differs(self, node: Node, wanted: T) -> bool:
        """Whether the Node has to be written."""

    @abstractmethod
    def apply(self, api: ResourceApi, node: Node, wanted: T) -> Node:
        """Write it; returns the Node as stored. ApiError (409: it is another Node of that name)."""

    @abstractmethod
    def text(self, wanted: T) -> str:
        """What was written, for the log."""


class OwnLabels(NodePart[Mapping[str, str]]):
    """Labels.

    Args:
        name: see ``NodePart``.
        keys: all labels that are ever written under this manager.
        manager: field manager; each set of labels needs its own.
    """

    def __init__(self, name: str, keys: frozenset[str], manager: str) -> None:
        self.name = name
        self.keys = keys
        self._manager = manager

    def owned(self, node: Node) -> frozenset[str]:
        """The labels that the Node has because they were written under this manager."""
        return self.keys & {key.removeprefix("f:") for key in _owned(node, self._manager, "f:metadata", "f:labels")}

    def differs(self, node: Node, wanted: Mapping[str, str]) -> bool:
        """Whether the Node lacks a label, has it with another value, or has one of ours that is not wanted.

        A label with the wanted value is right, whoever wrote it; one that is not wanted and not ours stays.
        """
        has = node.metadata.labels
        return any(has.get(key) != value for key, value in wanted.items()) or bool(self.owned(node) - set(wanted))

    def apply(self, api: ResourceApi, node: Node, wanted: Mapping[str, str]) -> Node:
        """See ``NodePart``."""
        return api.apply_node_labels(node, wanted, self._manager)

    def text(self, wanted: Mapping[str, str]) -> str:
        """See ``NodePart``."""
        return ", ".join(f"{key}={value}" for key, value in sorted(wanted.items())) or "none"


class OwnCondition(NodePart[tuple[Condition, ...]]):
    """One condition; wanted are one or none. Its times are not compared: there are no writes to show that we live.

    ``lastTransitionTime`` changes with the status only, ``lastHeartbeatTime`` with each write.
    """

    def __init__(self, type_: str, manager: str, *, clock: Callable[[], float] = runtime.now) -> None:
        self.name = f"conditions {type_} of the node"
        self._type = type_
        self._manager = manager
        self._clock = clock

    def of(self, node: Node) -> Condition | None:
        """The condition that the Node has."""
        return next((item for item in node.status.conditions if item.type == self._type), None)

    def differs(self, node: Node, wanted: tuple[Condition, ...]) -> bool:
        """Whether status, reason or message are others than wanted, or it is ours and not wanted."""
        has = self.of(node)
        if not wanted:
            return has is not None and self._is_ours(node)
        return has is None or _said(has) != _said(wanted[0])

    def apply(self, api: ResourceApi, node: Node, wanted: tuple[Condition, ...]) -> Node:
        """See ``NodePart``."""
        now, has = timestamp(self._clock()), self.of(node)
        fields = []
        for item in wanted:
            since = has.last_transition_time if has is not None and has.status == item.status else None
            times = {"lastHeartbeatTime": now, "lastTransitionTime": since or now}
            names = ("type", "status", "reason", "message")
            fields.append({**dict(zip(names, (item.type, *_said(item)), strict=True)), **times})
        return api.apply_node_conditions(node, fields, self._manager)

    def text(self, wanted: tuple[Condition, ...]) -> str:
        """See ``NodePart``."""
        return "; ".join(f"{item.status}, {item.reason}: {item.message}" for item in wanted) or "none"

    def _is_ours(self, node: Node) -> bool:
        return f'k:{{"type":"{self._type}"}}' in _owned(node, self._manager, "f:status", "f:conditions")


def _said(condition: Condition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


def _owned(node: Node, manager: str, *path: str) -> set[str]:
    """The names below ``path`` in the fields that ``manager`` has applied; none for any other shape."""
    found: set[str] = set()
    for entry in node.metadata.managed_fields:
        if entry.manager == manager and entry.operation == "Apply":
            fields: Any = entry.fields_v1
            for name in path:
                fields = fields.get(name) if isinstance(fields, dict) else None
            found |= set(fields) if isinstance(fields, dict) else set()
    return found


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A snapshot of one part. Counters count since the start of the process."""

    current: bool = False
    """The Node was last seen to have what is wanted."""
    writes: int = 0
    errors: int = 0
    last_error: str = ""
    """Why it is not current; "" when the last try succeeded."""


class OwnNodeWriter:
    """Keeps the parts of one Node as they are wanted, in one thread. A part that cannot be written delays no other.

    Args:
        api: the API server.
        node: name of the Node object.
        parts: what is kept.
        chore: called in each round after the parts, with the Node as last seen; returns seconds until it has to be
            called again (``math.inf``: not before something changes).
        backoff: makes a part's waits after errors.
        contest: makes a part's waits before it is written again with the same value, because somebody had changed it.
        pace: makes a part's waits between any two writes: what is wanted may change all the time.
    """

    def __init__(
        self,
        api: ResourceApi,
        node: str,
        parts: Sequence[NodePart[Any]],
        *,
        chore: Callable[[Node], float] = lambda _: math.inf,
        backoff: Callable[[], Backoff] = lambda: Backoff(first=1.0, cap=300.0),
        contest: Callable[[], Backoff] = lambda: Backoff(first=1.0, cap=600.0, free=1),
        pace: Callable[[], Backoff] = lambda: Backoff(first=2.0, cap=60.0, free=4),
    ) -> None:
        self._api = api
        self._node = node
        self._lock = runtime.lock()
        self._seen: Node | None = None
        self._wanted: dict[NodePart[Any], Any] = {}
        self._kept = {part: _Kept(part, backoff(), contest(), pace()) for part in parts}
        self._chore = chore
        self.worker = Worker("writing to its node", self._round)

    def start(self) -> None:
        """Begin to write as soon as what is wanted and the Node are known."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write nothing any more, and end; what was written stays."""
        self.worker.stop(timeout)

    def conclude(self, part: NodePart[T], value: T, seconds: float) -> None:
        """After ``stop``: write a part once more, within so many seconds or not at all."""
        with self._lock:
            seen = self._seen
        if seen is None:
            return
        late = ApiError(f"the API server did not answer within {seconds:.0f} s")
        try:
            bounded(lambda: part.apply(self._api, seen, value), seconds, lambda: late)
        except DriverError as error:
            log.warning("the %s stay as they are: %s", part.name, error)

    def want(self, part: NodePart[T], value: T | None) -> None:
        """What the Node should have from now on; None: leave it as it is."""
        with self._lock:
            if part in self._wanted and self._wanted[part] == value:
                return
            self._wanted[part] = value
        self.worker.wake()

    def saw(self, node: Node) -> None:
        """The Node as it is now."""
        with self._lock:
            self._seen = node
        self.worker.wake()

    def status(self, part: NodePart[Any]) -> PartStatus:
        """How a part stands."""
        return self._kept[part].status

    # Worker thread

    def _round(self) -> float:
        waits = [math.inf]
        for part, kept in self._kept.items():
            with self._lock:
                wanted, seen = self._wanted.get(part), self._seen
            if wanted is None or seen is None:
                continue
            if kept.is_due(seen, wanted):
                self._attempt(kept, seen, wanted)
                self.worker.beat()
            waits.append(kept.wait())
        with self._lock:
            seen = self._seen
        if seen is not None and not self.worker.stopping:
            waits.append(self._chore(seen))
        return min(waits)

    def _attempt(self, kept: _Kept, seen: Node, wanted: Any) -> None:
        part = kept.part
        try:
            node = self._api.get_node(self._node)
            if part.differs(node, wanted) and self._still_wants(part, wanted):
                node = part.apply(self._api, node, wanted)
                kept.took(wanted)
        except DriverError as error:
            kept.failed(error)
            return
        with self._lock:
            if self._seen is seen:  # else the watch was quicker, and the next round looks at what it brought
                self._seen = node
            else:
                self.worker.wake()
        kept.succeeded(current=not part.differs(node, wanted))

    def _still_wants(self, part: NodePart[Any], wanted: Any) -> bool:
        """Whether nothing else has come up while the Node was read, such as the beginning of an election."""
        with self._lock:
            return not self.worker.stopping and bool(self._wanted[part] == wanted)


class _Kept:
    """When a part has to be written; of the worker only, but for ``status``."""

    def __init__(self, part: NodePart[Any], backoff: Backoff, contest: Backoff, pace: Backoff) -> None:
        self.part = part
        self._backoff = backoff
        self._contest = contest
        self._pace = pace
        self._pending: Any = None
        """What is to be written when it is ``_due``."""
        self._due = math.inf
        self._written: Any = None
        self._last_write = self._next_write = -math.inf
        self.status = PartStatus()
        """Replaced as a whole: read it once, use that."""

    def is_due(self, seen: Node, wanted: Any) -> bool:
        """Whether the part has to be written now."""
        if not self.part.differs(seen, wanted):
            self._pending, self._due = None, math.inf
            if not self.status.current:
                self._update(current=True, last_error="")
            return False
        now = runtime.monotonic()
        if self._pending is None or wanted != self._pending:
            self._pending = wanted
            if now - self._last_write > CALM_SECONDS:
                self._contest.reset()
                self._pace.reset()
            # What was written already is written again only because somebody else has changed it.
            self._due = max(now + (self._contest.next() if wanted == self._written else 0.0), self._next_write)
        return now >= self._due

    def wait(self) -> float:
        """Seconds until it has to be looked at again."""
        return max(0.0, self._due - runtime.monotonic())

    def took(self, wanted: Any) -> None:
        """It was written."""
        if wanted != self._written:
            self._contest.reset()
        self._written, self._last_write = wanted, runtime.monotonic()
        self._next_write = self._last_write + self._pace.next()
        log.info("%s: %s", self.part.name, self.part.text(wanted))
        self._update(writes=self.status.writes + 1)

    def succeeded(self, *, current: bool) -> None:
        """The Node was read, and written if it had to be."""
        self._pending, self._due = None, math.inf
        self._backoff.reset()
        self._update(current=current, last_error="")

    def failed(self, error: DriverError) -> None:
        """It could not be written: try again later."""
        wait = self._backoff.next(error.retry_after if isinstance(error, ApiError) else None)
        self._due = runtime.monotonic() + wait
        log.warning("the %s are not up to date: %s (next try in %.1f s)", self.part.name, error, wait)
        self._update(current=False, errors=self.status.errors + 1, last_error=str(error))

    def _update(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type] # names and types are those of the class
