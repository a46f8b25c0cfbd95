"""The labels that name the UltraServer of a node: what they are, and the worker that keeps the Node object so.

Names and values are those of AWS (aws-neuron-sdk, ``deploy/eks/ultraserver.rst``): LeaderWorkerSets and placement rules
written for the vendor's components find the same labels.

They are written by server-side apply under an own field manager, so the API server keeps account of which labels are
ours: it removes what is no longer applied, and leaves alone what others wrote. The request names our label keys only,
so taking over a key that somebody else had written (``force``) can concern nothing else. The worker fetches the Node
before it writes, and writes nothing when nothing would change, not after a restart either.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dra_driver.host.inventory import Membership
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import Node
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker

if TYPE_CHECKING:  # the simulator needs the labels alone
    from dra_driver.kube.api import ResourceApi

PREFIX: Final = "neuron.amazonaws.com/ultraserver-"
MODE: Final = f"{PREFIX}mode"
SET_SIZES: Final = (2, 4)
"""Nodes of the sets that have labels."""
SERVER_ID: Final = {size: f"{PREFIX}server-id-{size}" for size in SET_SIZES}
NODE_ID: Final = {size: f"{PREFIX}node-id-{size}" for size in SET_SIZES}
KEYS: Final = frozenset({MODE, *SERVER_ID.values(), *NODE_ID.values()})
"""All labels that this driver ever writes."""
MANAGER: Final = "neuron-dra-driver"
"""Field manager of the labels: the API server keeps account of what is ours under this name."""


def labels(membership: Membership | None) -> Mapping[str, str] | None:
    """The labels that the own Node should have; None: leave all as they are, because the election is running.

    The mode is the numbers of nodes that the node can work with now, ascending, such as ``1_2_4``. Sets that do not
    exist have no label. A host that is no UltraServer node (``membership`` None) has none at all.
    """
    if membership is None:
        return {}
    if membership.electing:
        return None
    found = {MODE: "_".join(map(str, sorted({mode.nodes for mode in membership.modes})))} if membership.modes else {}
    for item in membership.sets:
        if item.nodes in SET_SIZES:
            found |= {SERVER_ID[item.nodes]: item.server_id, NODE_ID[item.nodes]: str(item.node_id)}
    return found


def owned(node: Node) -> frozenset[str]:
    """The labels of ours that the Node has because this driver wrote them."""
    return KEYS & {
        key.removeprefix("f:")
        for entry in node.metadata.managed_fields
        if entry.manager == MANAGER and entry.operation == "Apply"
        for key in _fields(entry.fields_v1, "f:metadata", "f:labels")
    }


def needs_write(node: Node, wanted: Mapping[str, str]) -> bool:
    """Whether the Node lacks a label, has it with another value, or has one of this driver that is not wanted.

    A label with the wanted value is right, whoever wrote it; one that is not wanted and not ours stays.
    """
    has = node.metadata.labels
    return any(has.get(key) != value for key, value in wanted.items()) or bool(owned(node) - set(wanted))


def _fields(fields: Any, *path: str) -> Any:
    """The names below ``path`` in a ``fieldsV1``; none for any other shape."""
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields if isinstance(fields, dict) else {}


CALM_SECONDS: Final = 600.0
"""After so long without a write, the next change by others is put right at once again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LabelStatus:
    """A snapshot. Counters count since the start of the process."""

    current: bool = False
    """The Node was last seen to have the labels wanted."""
    writes: int = 0
    errors: int = 0
    last_error: str = ""
    """Why the labels are not current; "" when the last try succeeded."""


class LabelWriter:
    """Labels one Node.

    Args:
        api: the API server.
        node: name of the Node object.
        backoff: waits after errors.
        contest: waits before a label is written again with the same value, because somebody had changed it.
    """

    def __init__(
        self, api: ResourceApi, node: str, *, backoff: Backoff | None = None, contest: Backoff | None = None
    ) -> None:
        self._api = api
        self._node = node
        self._backoff = backoff or Backoff(first=1.0, cap=300.0)
        self._contest = contest or Backoff(first=1.0, cap=600.0, free=1)
        self._lock = threading.Lock()
        self._wanted: Mapping[str, str] | None = None
        self._seen: Node | None = None
        self.worker = Worker("labelling the node", self._round)
        # Of the worker only:
        self._pending: Mapping[str, str] | None = None
        """What is to be written when it is ``_due``."""
        self._due = 0.0
        self._written: Mapping[str, str] | None = None
        self._last_write = 0.0
        self.status = LabelStatus()
        """Replaced as a whole by the worker: read it once, use that."""

    def start(self) -> None:
        """Begin to write as soon as the labels and the Node are known."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write nothing any more, and end; the labels stay."""
        self.worker.stop(timeout)

    def want(self, labels: Mapping[str, str] | None) -> None:
        """The labels that the Node should have from now on; None: leave them as they are."""
        with self._lock:
            self._wanted = labels
        self.worker.wake()

    def saw(self, node: Node) -> None:
        """The Node as it is now."""
        with self._lock:
            self._seen = node
        self.worker.wake()

    # Worker thread

    def _round(self) -> float:
        with self._lock:
            wanted, seen = self._wanted, self._seen
        if wanted is None or seen is None:
            return math.inf
        if not needs_write(seen, wanted):
            self._pending = None
            if not self.status.current:
                self._update(current=True, last_error="")
            return math.inf
        if wanted != self._pending:
            self._pending, self._due = wanted, time.monotonic() + self._pause(wanted)
        if time.monotonic() >= self._due:
            self._attempt(wanted)
        return max(0.0, self._due - time.monotonic())

    def _pause(self, wanted: Mapping[str, str]) -> float:
        """Seconds to wait before labels that were written already are written again: somebody else changes them."""
        if time.monotonic() - self._last_write > CALM_SECONDS:
            self._contest.reset()
        return self._contest.next() if wanted == self._written else 0.0

    def _attempt(self, wanted: Mapping[str, str]) -> None:
        try:
            node = self._api.get_node(self._node)
            if needs_write(node, wanted) and self._still_wants(wanted):
                node = self._api.apply_node_labels(node, wanted, MANAGER)
                self._took(wanted)
        except DriverError as error:
            retry_after = error.retry_after if isinstance(error, ApiError) else None
            wait = self._backoff.next(retry_after)
            self._due = time.monotonic() + wait
            log.warning("the labels of the node are not up to date: %s (next try in %.1f s)", error, wait)
            self._update(current=False, errors=self.status.errors + 1, last_error=str(error))
            return
        with self._lock:
            self._seen = node
        self._pending = None
        self._backoff.reset()
        self._update(current=not needs_write(node, wanted), last_error="")

    def _took(self, wanted: Mapping[str, str]) -> None:
        if wanted != self._written:
            self._contest.reset()
        self._written, self._last_write = wanted, time.monotonic()
        shown = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items())) or "none"
        log.info("labels of the node: %s", shown)
        self._update(writes=self.status.writes + 1)

    def _still_wants(self, wanted: Mapping[str, str]) -> bool:
        """Whether nothing else has come up while the Node was read, such as the beginning of an election."""
        with self._lock:
            return not self.worker.stopping and self._wanted == wanted

    def _update(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type] # names and types are those of the class
