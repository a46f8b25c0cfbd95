"""Which devices must stay on offer although they are not wanted any more, because claims hold them.

A scheduler counts what is allocated by the devices that are offered. If a device vanished while a claim holds it, or
its name came to mean other hardware (another core size), the same hardware would be given away a second time. So when
the setting or the core size changes, or a server ceases to be trusted with counters:

1. Everything that is published and is not wanted any more stays at first, with a taint: nothing of it is given anew.
2. When schedulers have seen that, it is asked who holds what. Only that stays; the rest of it goes.
3. It is asked again from time to time, until nothing is held.

Devices that are prepared here are held, which the checkpoint tells. Only for others all claims of the cluster are
listed: ever more seldom as long as nothing changes here. While it cannot be found out, everything stays.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.model import Plan
from dra_driver.driver.resourceslices.devices import RETIRED, KeptDevice, shapes
from dra_driver.driver.resourceslices.taints import HELD_SECONDS
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.meta import seconds
from dra_driver.kube.objects.resource import AllocatedClaim, Device, PartialResourceClaim
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import device_of
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of

SETTLE_SECONDS: Final = 5.0
"""Between the taint and the question: schedulers see the one, and what they had allocated before gets written."""
MAX_HELD_SECONDS: Final = 600.0
"""Between two lists of all claims, at most."""
HELD_PATIENCE: Final = 5.0
"""Seconds that the question which devices are prepared waits for calls that are under way."""
MAX_CORE_SIZE: Final = 64

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Keeper:
    """For one thread.

    Args:
        prepared: core sizes of the devices that are prepared here, by name (None for what is no core); None: not known.
        held: names of the devices that are prepared here, or allocated to a claim; None: not known.
        settle_seconds: between the taint and the first question.
        held_seconds: between two looks, and between two lists of all claims at least.
        clock: never goes back.
    """

    prepared: Callable[[], Mapping[str, int | None] | None]
    held: Callable[[], Collection[str] | None]
    settle_seconds: float = SETTLE_SECONDS
    held_seconds: float = HELD_SECONDS
    clock: Callable[[], float] = runtime.monotonic
    due: float = 0.0
    """When to look again, by the clock, as long as anything is kept or in doubt."""
    in_doubt: bool = False
    """Whether claims may hold what is neither kept nor published: it has yet to be found out."""
    released: frozenset[str] = frozenset()
    """What no claim holds, and the server still has."""
    _answered_at: float = -math.inf
    """When it was last known what claims hold."""
    _interval: float = 0.0
    """Between the last list of all claims and the next one."""
    _ask_due: float = 0.0
    _here: frozenset[str] | None = frozenset()
    """What was prepared here, of what is kept, at the last question."""
    _tainted: frozenset[str] = frozenset()
    """What has its taint at the server, as far as it was seen."""

    def review(
        self,
        kept: Mapping[str, KeptDevice],
        published: Collection[Device],
        chosen: Collection[Device],
        *,
        doubtful: bool,
        keeps_taints: bool = True,
    ) -> dict[str, KeptDevice]:
        """What is to be kept from now on, by name.

        Args:
            kept: what is.
            published: the devices that the server has.
            chosen: those that it is to have, with what is kept.
            doubtful: the server does not have all that was published, so what is held may be missing there.
            keeps_taints: whether the server stores taints; where it does not, none is waited for.
        """
        since = {
            device.name: moment
            for device in published
            for taint in device.taints
            if taint.key == RETIRED and (moment := seconds(taint.time_added)) is not None
        }
        now = {name: replace(one, since=since.get(name, one.since)) for name, one in kept.items()}
        lost = {name: size for name, size in shapes(published) - shapes(chosen) if name not in now}
        self.released &= lost.keys()
        found = {
            name: KeptDevice(since.get(name, int(runtime.now())), size)
            for name, size in lost.items()
            if name not in self.released and _sane(name, size)
        }
        if found:
            log.info(
                "no longer wanted, but published until it is known which claims hold them: %s",
                first_of(sorted(found), 8),
            )
            self.due = self._ask_due = self.clock() + self.settle_seconds
            self._interval = self.held_seconds
            return now | found
        if doubtful:
            # What is published next looks whole: it does not wait for its turn, but an answer counts for a moment.
            self.due = min(self.due, self._answered_at + self.settle_seconds)
            self.in_doubt = True
        if keeps_taints:
            self.note_published(published)
            if (_with_taint(chosen) & {device.name for device in published}) - self._tainted:
                # It has still to be written, so they may be allocated until then: no answer of before that counts.
                self.due = max(self.due, self.clock() + self.settle_seconds)
        if (now or self.in_doubt) and self.clock() >= self.due:
            return self._still_held(now, {device.name for device in chosen})
        return now

    def note_published(self, published: Collection[Device]) -> None:
        """The server has these devices: from the moment on at which it has their taints, schedulers see them."""
        tainted = _with_taint(published)
        if tainted - self._tainted:
            self.due = max(self.due, self.clock() + self.settle_seconds)
        self._tainted = tainted

    def _still_held(self, kept: Mapping[str, KeptDevice], chosen: set[str]) -> dict[str, KeptDevice]:
        prepared = self.prepared()
        here = None if prepared is None else frozenset(kept.keys() & prepared.keys())
        clock = self.clock()
        self.due = clock + self.held_seconds
        early = here == self._here and clock < self._ask_due
        if here is not None and kept and not self.in_doubt and (here == kept.keys() or early):
            self._here = here
            return dict(kept)
        held = self.held()
        stays = dict(kept)
        if held is not None:
            self.in_doubt, self._answered_at = False, clock
            stays = {name: one for name, one in kept.items() if name in held}
            # Also what they hold that would not be offered at all.
            sizes = {name: (prepared or {}).get(name) for name in set(held) - kept.keys() - chosen}
            stays |= {name: KeptDevice(int(runtime.now()), size) for name, size in sizes.items() if _sane(name, size)}
        if gone := kept.keys() - stays.keys():
            self.released |= gone
            log.info("no claim holds them, so they are no longer offered: %s", first_of(sorted(gone), 8))
        if held is not None and stays and (stays.keys() != kept.keys() or self._interval <= self.held_seconds):
            log.info("offered only while claims hold them: %s", first_of(sorted(stays), 8))
        changed = here != self._here or stays.keys() != kept.keys()
        self._interval = self.held_seconds if changed else min(2 * self._interval, MAX_HELD_SECONDS)
        self._here, self._ask_due = here, clock + self._interval
        return stays


def _with_taint(devices: Collection[Device]) -> frozenset[str]:
    """Names of those that are no longer wanted."""
    return frozenset(device.name for device in devices for taint in device.taints if taint.key == RETIRED)


def _sane(name: str, core_size: int | None) -> bool:
    """Whether there is such a device. What another version has published under other names cannot be offered."""
    return device_of(name, (0,), lambda _: 1) is not None and (core_size is None or 1 <= core_size <= MAX_CORE_SIZE)


def prepared_devices(checkpoint: Checkpoint) -> dict[str, int | None] | None:
    """By name of each prepared device the core size that a logical core was prepared with (None for other devices).

    None when it cannot be found out.
    """
    try:
        with checkpoint.locked(runtime.monotonic() + HELD_PATIENCE) as held:
            plans = [entry.plan for entry in held.entries.values()]
    except DriverError as error:
        log.warning("it is not known which devices are prepared: %s", error)
        return None
    return core_sizes(plans)


def core_sizes(plans: Iterable[Plan]) -> dict[str, int | None]:
    """By name of each device of these claims, as ``prepared_devices``."""
    return {
        device.device: max((len(node.cores) for node in device.nodes), default=0) or None
        for plan in plans
        for device in plan.devices
    }


def held_devices(api: ResourceApi, checkpoint: Checkpoint, node_name: str) -> frozenset[str] | None:
    """Names of the node's devices that are prepared, or allocated to a claim; None when that cannot be found out."""
    try:
        if prepared_names(checkpoint) is None:
            return None
        # First: a claim is allocated before it is prepared, and what is prepared stays so without its claim.
        listed = allocated(api.list_claims(DRIVER_NAME, node_name), DRIVER_NAME, node_name)
        prepared = prepared_names(checkpoint)
        return None if prepared is None else listed | prepared
    except DriverError as error:
        log.warning("it is not known which devices claims hold, so all devices stay published: %s", error)
        return None


def prepared_names(checkpoint: Checkpoint) -> frozenset[str] | None:
    """Names of the prepared devices; None while an unreadable file may have any. Raises DriverError."""
    with checkpoint.locked(runtime.monotonic() + HELD_PATIENCE) as held:
        names = frozenset(device.device for entry in held.entries.values() for device in entry.plan.devices)
        return None if held.quarantined else names


def allocated(claims: Iterable[AllocatedClaim | PartialResourceClaim], driver: str, pool: str) -> frozenset[str]:
    """Names of the pool's devices that are allocated to one of the claims."""
    return frozenset(
        result.device
        for claim in claims
        for result in claim.status.results
        if (result.driver, result.pool) == (driver, pool)
    )
