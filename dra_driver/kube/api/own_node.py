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
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dra_driver.kube.api.desired import DesiredWriter, Outcome, Target, Waits
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.meta import Condition, timestamp
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, bounded

if TYPE_CHECKING:  # the simulator needs the labels alone
    from dra_driver.kube.api.resources import ResourceApi

T = TypeVar("T")

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
        return has is None or _content(has) != _content(wanted[0])

    def apply(self, api: ResourceApi, node: Node, wanted: tuple[Condition, ...]) -> Node:
        """See ``NodePart``."""
        now, has = timestamp(self._clock()), self.of(node)
        fields = []
        for item in wanted:
            since = has.last_transition_time if has is not None and has.status == item.status else None
            times = {"lastHeartbeatTime": now, "lastTransitionTime": since or now}
            names = ("type", "status", "reason", "message")
            fields.append({**dict(zip(names, (item.type, *_content(item)), strict=True)), **times})
        return api.apply_node_conditions(node, fields, self._manager)

    def text(self, wanted: tuple[Condition, ...]) -> str:
        """See ``NodePart``."""
        return "; ".join(f"{item.status}, {item.reason}: {item.message}" for item in wanted) or "none"

    def _is_ours(self, node: Node) -> bool:
        return f'k:{{"type":"{self._type}"}}' in _owned(node, self._manager, "f:status", "f:conditions")


def _content(condition: Condition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


def _owned(node: Node, manager: str, *path: str) -> set[str]:
    """The names below ``path`` in the fields that ``manager`` has applied; none for any other shape."""
    keys: set[str] = set()
    for entry in node.metadata.managed_fields:
        if entry.manager == manager and entry.operation == "Apply":
            fields: Any = entry.fields_v1
            for name in path:
                fields = fields.get(name) if isinstance(fields, dict) else None
            keys |= set(fields) if isinstance(fields, dict) else set()
    return keys


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A snapshot of one part. Counters count since the start of the process."""

    current: bool = False
    """The Node was last seen to have what is wanted."""
    writes: int = 0
    errors: int = 0
    last_error: str = ""
    """Why it is not current; "" when the last try succeeded."""


class OwnNodeWriter(Target[NodePart[Any], Any, Node]):
    """Keeps the parts of one Node as they are wanted, in one thread. A part that cannot be written delays no other.

    Args:
        api: the API server.
        node: name of the Node object.
        parts: what is kept.
        chore: called in each round after the parts, with the Node as last seen; returns seconds until it has to be
            called again (``math.inf``: not before something changes).
        backoff: makes the waits after errors: of each part, and of all while the API server is in trouble.
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
        self._statuses = dict.fromkeys(parts, PartStatus())
        self._chore = chore
        waits = Waits(own=backoff, server=backoff, contest=contest, pace=pace)
        self._writer: DesiredWriter[NodePart[Any], Any, Node] = DesiredWriter(
            "writing to its node", self, waits, before_turn=self._compare, at_rest=self._do_chore
        )
        self.worker = self._writer.worker

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
        return self._statuses[part]

    # Worker thread

    def _compare(self) -> float:
        """Let the parts have their turns that differ from what was last seen."""
        with self._lock:
            seen, wanted = self._seen, dict(self._wanted)
        if seen is None:
            return math.inf
        for part, value in wanted.items():
            if value is not None and part.differs(seen, value):
                self._writer.want(part, value, insist=True)
                continue
            self._writer.rest(part)
            if value is not None and not self._statuses[part].current:
                self._update(part, current=True, last_error="")
        return math.inf

    def _do_chore(self) -> float:
        with self._lock:
            seen = self._seen
        return math.inf if seen is None or self.worker.stopping else self._chore(seen)

    def reconcile(self, key: NodePart[Any], value: Any, stored: Node | None) -> Outcome[Node]:  # noqa: ARG002 # read anew
        """See ``Target``."""
        with self._lock:
            seen = self._seen
        node = self._api.get_node(self._node)
        wrote = key.differs(node, value) and self._still_wants(key, value)
        if wrote:
            node = key.apply(self._api, node, value)
            log.info("%s: %s", key.name, key.text(value))
            self._update(key, writes=self._statuses[key].writes + 1)
        with self._lock:
            if self._seen is seen:  # else the watch was quicker: what it brought is looked at next
                self._seen = node
        self._update(key, current=not key.differs(node, value), last_error="")
        return Outcome(wrote=wrote)

    def report_failure(self, key: NodePart[Any], error: DriverError, wait: float) -> None:
        """See ``Target``."""
        log.warning("the %s are not up to date: %s (next try in %.1f s)", key.name, error, wait)
        self._update(key, current=False, errors=self._statuses[key].errors + 1, last_error=str(error))

    def _still_wants(self, part: NodePart[Any], wanted: Any) -> bool:
        """Whether nothing else has come up while the Node was read, such as the beginning of an election."""
        with self._lock:
            return not self.worker.stopping and bool(self._wanted[part] == wanted)

    def _update(self, part: NodePart[Any], **changes: object) -> None:
        self._statuses[part] = replace(self._statuses[part], **changes)  # type: ignore[arg-type] # those of the class
