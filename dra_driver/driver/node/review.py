"""Sees to it, before slices are written, that nothing vanishes that claims hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.model import PreparedClaims
from dra_driver.driver.node.decide import Wanted
from dra_driver.driver.node.loop import NodeLoop
from dra_driver.driver.resourceslices.controller import DeviceSource
from dra_driver.driver.resourceslices.holders import HELD_PATIENCE
from dra_driver.driver.resourceslices.kept import (
    HELD_SECONDS,
    SETTLE_SECONDS,
    Answer,
    PreparedDevices,
    PublishedPool,
    core_sizes,
)
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError

log = logging.getLogger(__name__)


def desired(wanted: Wanted) -> Desired:
    """What is to be published of a decision."""
    offer = wanted.offer
    return Desired(offer.devices, offer.fallback, offer.counters, wanted.revision)


class SliceReview(DeviceSource):
    """What the slice controller asks before it writes: it tells the loop what the server has, and answers its question.

    Args:
        loop: of the node.
        read_prepared: tells the loop what is prepared here.
        allocated: names of the node's devices that are allocated to a claim; None: not known.
        registered: whether kubelet has registered the driver: before that, no first slice.
        holders: which of some devices claims hold, by their names; None: not known.
    """

    def __init__(
        self,
        loop: NodeLoop,
        *,
        read_prepared: Callable[[], None],
        allocated: Callable[[], frozenset[str] | None],
        registered: Callable[[], bool] = lambda: True,
        holders: Callable[[Collection[str]], Collection[str] | None] = lambda _: None,
    ) -> None:
        self._loop = loop
        self._read_prepared = read_prepared
        self._allocated = allocated
        self._registered = registered
        self._holders = holders

    def held(self, devices: Collection[str]) -> Collection[str] | None:
        """See ``DeviceSource``."""
        return self._holders(devices)

    def too_early(self) -> bool:
        """See ``DeviceSource``."""
        return not self._registered()

    def review(self, pool: PublishedPool) -> tuple[Desired, float]:
        """See ``DeviceSource``."""
        if pool.empty or self._loop.wanted.keeping.next_look <= runtime.monotonic():
            self._read_prepared()
        self._loop.post(pool=pool)
        if (question := self._loop.wanted.keeping.question) is not None:
            answer = Answer(question, self._allocated())
            # After it: a claim is allocated before it is prepared, and what is prepared stays so without its claim.
            self._read_prepared()
            self._loop.post(answer=answer)
        decision = self._loop.wanted
        now, next_look = runtime.monotonic(), decision.keeping.next_look
        # Its moment is over where the answer took long, or the offer cannot be decided: then the question stays.
        wait = HELD_SECONDS if decision.failures else SETTLE_SECONDS
        return desired(decision), next_look if next_look > now else now + wait

    def note_published(self, pool: PublishedPool) -> float:
        """See ``DeviceSource``."""
        self._loop.post(pool=pool)
        return self._loop.wanted.keeping.next_look


def read_prepared(checkpoint: Checkpoint, loop: NodeLoop) -> None:
    """Tell the loop what is prepared, by this instance of the driver or by another."""
    try:
        with checkpoint.locked(runtime.monotonic() + HELD_PATIENCE) as claims:
            post_prepared(claims, loop)
    except DriverError as error:
        log.warning("it is not known which devices are prepared: %s", error)
        loop.post(prepared=None)


def post_prepared(claims: PreparedClaims, loop: NodeLoop) -> None:
    """Tell the loop what is prepared. With the lock held, so that no older word comes after a newer one."""
    sizes = core_sizes(entry.plan for entry in claims.entries.values())
    chips = [item.chips for item in claims.quarantined.values()]
    unreadable = None if None in chips else frozenset(chip for some in chips for chip in some or ())
    loop.post(prepared=PreparedDevices(sizes, unreadable))
