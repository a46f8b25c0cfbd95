"""Keeps the API server's slices of this node equal to what the host offers.

One worker thread does everything that asks or writes; a watch only says when to look. Before it decides, the worker
lists the slices (field-selected: one small answer), so no write ever rests on a stale cache. It looks

* when the desired devices change or ``trigger`` is called (kubelet deletes slices around registrations): at once,
* when the watch goes on after a break, if what is desired has fields that depend on the server's feature gates,
* when the watch shows slices that it did not write itself: within 0.3 s, slower if that happens again and again,
* every half hour or so in any case, which also finds what a watch has missed, and servers that were changed unseen.

It makes no first slice before kubelet knows the driver: a scheduler would send pods that kubelet refuses, and tries
again only after a minute. Slices that are there are kept up from the start.

What health alone changes, it writes only as often as ``taints`` allows; the last state is always written in the end.

An unchanged node is written once in its life. ``stop`` leaves the slices in place. What a newer instance of the driver
has written is left alone (``instance``).
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from dra_driver.driver.resourceslices.changes import Changes, decide
from dra_driver.driver.resourceslices.counters import CounterPolicy
from dra_driver.driver.resourceslices.instance import YIELD_SECONDS, DriverInstance, InstancePriority
from dra_driver.driver.resourceslices.kept import HELD_SECONDS, PublishedPool
from dra_driver.driver.resourceslices.messages import Desired, Message, Observed, Reconnected, Trigger, versions
from dra_driver.driver.resourceslices.pool import SharedCounters, incomplete, pool
from dra_driver.driver.resourceslices.taints import Publication, TaintPolicy, bare, is_worse
from dra_driver.driver.resourceslices.writer import Counted, Unfinished, Writer
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.api.desired import DesiredWriter, Outcome, Target, Waits
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi, WatchEvent
from dra_driver.kube.api.watch import WATCH_SECONDS, Reflector
from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.resource import Device, ResourceSlice
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """A snapshot. Counters count since the start of the process."""

    published: bool = False
    """The API server was last seen to have what is desired (or what a newer instance desires, see ``superseded``; or
    all of it but taints that wait for their turn, see ``postponed``)."""
    superseded: bool = False
    """A newer instance of the driver publishes for this node, and this one leaves it alone."""
    slices: int = 0
    """Slices on the server when last seen."""
    missing: int = 0
    """Desired slices that the server did not have when last seen."""
    generation: int = 0
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    errors: int = 0
    """Failed tries."""
    repairs: int = 0
    """Times that slices had to be written because they had been changed or deleted by somebody else."""
    last_error: str = ""
    """Why it is not published now; "" when the last try succeeded."""
    failing_since: float | None = None
    """``runtime.monotonic()`` of the first failure since the last success: setting the clock restarts no driver."""
    fallback: str = ""
    """Why the fallback is published instead of what is desired; "" when it is not."""
    dropped_fields: tuple[str, ...] = ()
    """Fields that the server did not keep."""
    taints_problem: str = ""
    """Why devices that have taints are not published with them; "" when they are."""
    withdrawn: tuple[str, ...] = ()
    """Unhealthy devices that are not offered for that reason."""
    postponed: bool = False
    """A change of taints waits for its turn."""

    @property
    def writes(self) -> int:
        """All writes that succeeded."""
        return self.creates + self.updates + self.deletes


class DeviceSource:
    """Who says what is desired, and is asked meanwhile. As it stands: one whose devices no claim holds for long."""

    def held(self, devices: Collection[str]) -> Collection[str] | None:  # noqa: ARG002 # for those that have something to say
        """Which of these devices claims hold now, by their names; None when that cannot be found out.

        Asked only where the server keeps no taints, of unhealthy devices.
        """
        return None

    def review(self, pool: PublishedPool) -> tuple[Desired | None, float]:  # noqa: ARG002
        """What to publish, before that is compared with what the server has; None: what is desired already.

        With it, nothing vanishes that claims hold. And when to be asked again (``runtime.monotonic()``).
        """
        return None, math.inf

    def note_published(self, pool: PublishedPool) -> float:  # noqa: ARG002
        """The server has this after a write. Returns when to be asked again, as ``review`` does."""
        return math.inf

    def too_early(self) -> bool:
        """Whether there is to be no first slice yet; ``SliceController.trigger`` says when that is over."""
        return False


log = logging.getLogger(__name__)


RESYNC_SECONDS: Final = 2100.0
"""Mean time between looks without a reason; varies by a seventh, so at most two an hour."""
SETTLE_SECONDS: Final = (0.1, 0.3)
"""Seconds between a change by others and the look at it."""
CALM_SECONDS: Final = 60.0
"""Without news from the watch for so long, the next is followed by a look at once again."""
TOLERATED_CONFLICTS: Final = 3
"""Conflicts in a row that are no trouble: two instances meet during an update."""
HEALTH_SETTLE_SECONDS: Final = 0.5
"""Seconds between a change of health and its publication: what breaks several chips is seen on one after the other."""
REFUSALS: Final = frozenset({400, 403, 413, 422})
"""HTTP statuses that seldom heal by themselves: asked again ever more slowly."""


_REVIEWS: Final = 8
"""How often what is desired may become something else in one look: with what is kept, the choice may be another."""


@dataclass(frozen=True, slots=True)
class SlicePolicy:
    """When slices are looked at and written."""

    resync_seconds: float = RESYNC_SECONDS
    """Mean time between looks without a reason."""
    watch_seconds: float = WATCH_SECONDS
    """How long one watch lasts."""
    yield_seconds: float = YIELD_SECONDS
    """How long a newer instance's content is left alone at first."""
    held_seconds: float = HELD_SECONDS
    """Seconds between two questions who holds what, while a claim holds an unhealthy device."""
    shared_counters: SharedCounters = "auto"
    """Which servers are trusted with counters."""
    budget: Callable[[], WriteBudget] = WriteBudget
    """How often changes of health alone are written."""
    backoff: Callable[[], Backoff] = field(default=partial(Backoff, free=1))
    """Waits after errors."""


class SliceController(Target[str, None, None]):
    """Publishes one node's pool: all its slices are one object to the ``DesiredWriter``.

    Args:
        api: the API server.
        driver: DRA driver name.
        node: name of the Node object; it owns the slices and names the pool.
        instance: this run of the driver.
        source: where the desired devices come from.
        policy: when slices are looked at and written.
    """

    def __init__(
        self,
        api: ResourceApi,
        driver: str,
        node: str,
        *,
        instance: DriverInstance | None = None,
        source: DeviceSource | None = None,
        policy: SlicePolicy | None = None,
    ) -> None:
        self._api = api
        self._driver = driver
        self._node = node
        instance = instance or DriverInstance.here("")
        self._annotation = f"{driver}/published-by"
        self._source = source = source or DeviceSource()
        self._policy = policy = policy or SlicePolicy()
        self._priority = InstancePriority(instance, policy.yield_seconds)
        waits = Waits(
            own=partial(Backoff, cap=300.0),
            server=policy.backoff,
            contest=partial(Backoff, first=1.0, free=3),
            calm=CALM_SECONDS,
        )
        self._turns: DesiredWriter[str, None, None] = DesiredWriter(
            "publishing slices", self, waits, before_turn=self._take_messages
        )
        self._turns.want(node, None, at=math.inf)
        self._worker = self._turns.worker
        self._messages: deque[Message] = deque()
        """Put by any thread, taken by the worker."""
        self._published = runtime.event()
        self._reflector: Reflector[ResourceSlice] = Reflector(
            "own slices",
            lambda: api.list_slices(driver, node),
            lambda version, seconds: api.watch_slices(driver, node, version, seconds),
            lambda slices: self._put(Observed(dict(versions(slices)), complete=True)),
            self._on_event,
            on_reconnect=lambda: self._put(Reconnected()),
            watch_seconds=policy.watch_seconds,
        )
        self._following = False

        # Of the worker only:
        self._desired: Desired | None = None
        self._counter_policy = CounterPolicy(api, driver, node, policy.shared_counters)
        self._taint_policy = TaintPolicy(api, driver, node, source.held)
        self._budget = policy.budget()
        self._looks = 0
        self._review_due = math.inf
        self._chosen: tuple[Device, ...] | None = None
        """What the last write, or the look that found none necessary, was made from; None: none of this run yet."""
        self._withdrawn: frozenset[str] = frozenset()
        """The devices left out of that because they are unhealthy."""
        self._versions: dict[str, str] | None = None
        """Resource versions of the slices by name."""
        self._writer = Writer(api, self._annotation, instance.stamp, self._may_write, self._count)
        self._not_before = 0.0
        """The earliest time of the next try, as the API server has asked for."""
        self._failures = 0
        """Failures in a row."""
        self._repairing = False
        self.status = SliceStatus()
        """Replaced as a whole by the worker: read it once, use that."""

    def start(self) -> None:
        """Begin to publish as soon as there are desired devices."""
        self._worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write nothing any more, and end within ``timeout`` seconds; the slices stay."""
        deadline = runtime.monotonic() + timeout
        self._worker.stop(0)
        self._reflector.stop(timeout)
        self._worker.stop(max(0.0, deadline - runtime.monotonic()))

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its loops, for health reports."""
        return self._worker, self._reflector.worker

    def set_desired(self, desired: Desired) -> None:
        """Publish these devices from now on. The same as before is no reason to look."""
        self._put(desired)

    def trigger(self, reason: str) -> None:
        """Look at once: something happened that may have removed slices, such as a registration with kubelet."""
        self._put(Trigger(reason))

    def wait_published(self, timeout: float) -> bool:
        """Whether the slices were published within ``timeout`` seconds."""
        return self._published.wait(timeout)

    def _on_event(self, event: WatchEvent[ResourceSlice]) -> None:
        if event.object is not None:
            version = None if event.type == "DELETED" else event.object.metadata.resource_version
            self._put(Observed({event.object.metadata.name: version}, complete=False))

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._worker.wake()

    # Worker thread

    def reconcile(self, key: str, value: None, stored: None) -> Outcome[None]:  # noqa: ARG002 # listed anew at each look
        """See ``Target``."""
        if self._desired is None:
            return Outcome()  # what is desired is looked at when it comes
        again = self._compare_with_server(self._desired)
        if again == "stopped":
            return Outcome()
        if isinstance(again, str):
            raise RuntimeError(f"{again} of slices that had none")  # noqa: TRY004 # a defect
        self._follow()
        return Outcome(again=again)

    def concerns_object(self, error: DriverError) -> bool:
        """See ``Target``."""
        return isinstance(error, ApiError) and error.status in REFUSALS

    def _take_messages(self) -> float:
        while self._messages:
            self._take(self._messages.popleft())
        return math.inf

    def _take(self, message: Message) -> None:
        now = runtime.monotonic()
        match message:
            case Desired() if self._desired is not None and message.revision < self._desired.revision:
                pass  # a look has asked for what is desired meanwhile
            case Desired() if message != self._desired:
                before, self._desired = self._desired, message
                if before is None or not message.differs_by_taints_only(before):
                    self._look(now)
                elif not self.status.last_error:
                    # After errors the next try, which is due anyway, takes it along.
                    wait = self._budget.wait(now, worse=is_worse(self._chosen or (), message.devices))
                    self._turns.look(self._node, now + max(wait, HEALTH_SETTLE_SECONDS))
            case Trigger(reason):
                log.info("reconciling the slices: %s", reason)
                self._look(now)
            case Reconnected() if self._desired is not None and self._desired.depends_on_gates:
                self._look_soon()
            case Observed() if (
                self._versions is not None and message.differs(self._versions) and not self.status.last_error
            ):
                self._repairing = True
                self.status = replace(self.status, published=False)
                self._look_soon()

    def _look(self, now: float) -> None:
        self._turns.look(self._node, max(now, self._not_before), insist=True)

    def _look_soon(self) -> None:
        """Look after a moment, and ever later while there is news again and again."""
        # Slices are wiped, or replaced by another instance, one by one: let that end. The jitter lets one of two equal
        # instances find that the other has repaired already.
        self._turns.contest(self._node, random.uniform(*SETTLE_SECONDS))  # noqa: S311 # no secret

    def _follow(self) -> None:
        """Have the watch say when others change slices: from the first comparison on, before which all is news."""
        if not self._following:
            self._reflector.start()  # raises where no thread can be had; then the next comparison tries again
            self._following = True

    def _compare_with_server(self, wanted: Desired) -> float | Unfinished:
        """Compare with the server, and write what is needed; seconds until the next look."""
        existing = self._list_slices()
        if not existing and self._source.too_early():
            return math.inf
        chosen = self._review(existing, wanted, self._counter_policy.choose)
        again = self._compare_with_taints(*chosen, existing)
        if again == "counters dropped":
            # What there was before the first write is what claims may hold.
            chosen = self._review(existing, wanted, self._counter_policy.choose_without_counters)
            again = self._compare_with_taints(*chosen, self._list_slices())
        return again

    def _list_slices(self) -> list[ResourceSlice]:
        return self._api.list_slices(self._driver, self._node)[0]

    def _review(
        self, existing: Sequence[ResourceSlice], wanted: Desired, choose: Callable[[Desired], tuple[Device, ...]]
    ) -> tuple[Desired, tuple[Device, ...]]:
        """What is desired and the devices chosen of it, with which nothing vanishes that claims hold."""
        chosen = choose(wanted)
        for _ in range(_REVIEWS):
            self._looks += 1
            own = [item for item in existing if item.spec.pool.name == self._node]
            published_pool = self._pool([device for item in own for device in item.spec.devices])
            published_pool = replace(published_pool, empty=not own, incomplete=incomplete(own))
            other, self._review_due = self._source.review(published_pool)
            if other is None:
                break
            is_same, self._desired, wanted = other == wanted, other, other
            if is_same:
                break
            chosen = choose(wanted)
        return wanted, chosen

    def _pool(self, devices: Sequence[Device]) -> PublishedPool:
        """What the server has, with these devices, and what it is trusted with."""
        counters, taints = not self._counter_policy.problem, not self._taint_policy.problem
        return PublishedPool(self._looks, tuple(devices), counters=counters, taints=taints)

    def _compare_with_taints(
        self, wanted: Desired, chosen: tuple[Device, ...], existing: Sequence[ResourceSlice]
    ) -> float | Unfinished:
        again = self._compare(wanted, chosen, self._taint_policy.choose(chosen), existing)
        if again == "taints dropped":
            publication = self._taint_policy.weaker(chosen)
            again = self._compare(wanted, chosen, publication, self._list_slices(), at_once=True)
        return again

    def _compare(
        self,
        wanted: Desired,
        chosen: tuple[Device, ...],
        publication: Publication,
        existing: Sequence[ResourceSlice],
        *,
        at_once: bool = False,
    ) -> float | Unfinished:
        """Have the server's slices be those of the publication, which the server gets of the ``chosen`` devices.

        Returns seconds until the next look, or why not all was written.
        """
        devices, withdrawn = publication.devices, publication.withdrawn
        node = self._get_node()
        counters = wanted.counters if any(device.consumes_counters for device in devices) else ()
        current = versions(existing)
        stamps = [item.metadata.annotations.get(self._annotation, "") for item in existing]
        desired = pool(devices, self._node, node.metadata.uid, self._driver, counters)
        changes = decide(existing, desired, self._writer.normalized)
        now = runtime.monotonic()
        if not changes.empty and self._priority.defers(stamps, now, as_before=current == self._versions):
            self._versions = current
            return self._note_success(changes, superseded=True)
        by_health = (
            not changes.empty
            and current == self._versions
            and not at_once
            and self._chosen is not None
            and bare(chosen) == bare(self._chosen)
        )
        if by_health:
            worse = is_worse(self._chosen or (), chosen) or not withdrawn <= self._withdrawn
            if (wait := self._budget.wait(now, worse=worse)) > 0:
                return self._note_success(changes, superseded=False, postponed=wait)
        stored = self._writer.apply(changes)
        if isinstance(stored, str):
            return stored
        if by_health:
            self._budget.note(now)
        if self._repairing and not changes.empty:
            self.status = replace(self.status, repairs=self.status.repairs + 1)
        self._versions = versions([*changes.keep, *stored])
        self._chosen, self._withdrawn = chosen, withdrawn
        if not changes.empty:
            self._review_due = self._source.note_published(self._pool(devices))
        return self._note_success(changes, superseded=False, look_again=bool(publication.held))

    def _get_node(self) -> Node:
        try:
            return self._api.get_node(self._node)
        except ApiError as error:
            if not error.object_missing:
                raise
            raise ApiError(
                f"there is no Node object named {self._node!r}",
                status=404,
                consequence="its devices are not published, because the Node owns the slices",
                remedy="check NODE_NAME; if kubelet has yet to register the node, this resolves itself",
            ) from error

    def _may_write(self) -> bool:
        self._worker.beat()
        return not self._worker.stopping

    def _note_success(
        self, changes: Changes, *, superseded: bool, postponed: float = 0.0, look_again: bool = False
    ) -> float:
        """A look has ended well; returns seconds until the next one.

        Args:
            changes: what it found.
            superseded: they were left to a newer instance.
            postponed: or for so many seconds, since they come from health alone.
            look_again: claims hold devices that are to be withdrawn once they are free.
        """
        now = runtime.monotonic()
        if self.status.last_error:
            log.info("publishing slices works again")
        if not changes.empty and not superseded and not postponed:
            log.info(
                "published generation %d: %d deleted, %d updated, %d created",
                changes.generation,
                len(changes.delete),
                len(changes.update),
                len(changes.create),
            )
        self._not_before, self._failures = 0.0, 0
        self._repairing = False
        again = self._policy.resync_seconds * random.uniform(6 / 7, 8 / 7)  # noqa: S311 # jitter is no secret
        if superseded:
            again = min(again, self._priority.until - now)
            if not self.status.superseded:
                log.info("a newer instance of the driver publishes for this node; this instance stops publishing")
        if postponed:
            again = min(again, postponed)
            if not self.status.postponed:
                log.info("changes of health are published in %.0f s, because there were many recently", postponed)
        if look_again:
            again = min(again, self._policy.held_seconds)
        self.status = replace(
            self.status,
            published=True,
            superseded=superseded,
            slices=len(self._versions or ()),
            missing=len(changes.create) if superseded else 0,
            generation=self.status.generation if postponed else changes.generation,
            last_error="",
            failing_since=None,
            fallback=self._counter_policy.problem,
            dropped_fields=tuple(sorted(self._writer.dropped)),
            taints_problem=self._taint_policy.problem,
            withdrawn=tuple(sorted(self._withdrawn)),
            postponed=bool(postponed),
        )
        self._published.set()
        return max(0.0, min(again, self._review_due - now))

    def report_failure(self, key: str, error: DriverError, wait: float) -> None:  # noqa: ARG002 # there is one
        """See ``Target``."""
        now = runtime.monotonic()
        if isinstance(error, ApiError):
            self._not_before = now + (error.retry_after or 0.0)
        self._failures += 1
        if isinstance(error, ApiError) and error.status == 409 and self._failures <= TOLERATED_CONFLICTS:
            log.info("another program changed the slices at the same time; looking again")
            return
        log.warning("slices are not up to date: %s (next try in %.1f s)", error, wait)
        self.status = replace(
            self.status,
            published=False,
            errors=self.status.errors + 1,
            last_error=str(error),
            failing_since=self.status.failing_since or now,
        )

    def _count(self, what: Counted) -> None:
        self.status = replace(self.status, **{what: getattr(self.status, what) + 1})
