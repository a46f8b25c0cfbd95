"""Which devices must stay on offer although they are not wanted any more, because claims hold them.

A scheduler counts what is allocated by the devices that are offered. If a device vanished while a claim holds it, or
its name came to mean other hardware (another core size), the same hardware would be given away a second time. So when
the setting or the core size changes, or a server ceases to be trusted with counters:

1. Everything that is published and is not wanted any more stays at first, with a taint: nothing of it is given anew.
2. When schedulers have seen that, it is asked who holds what. Only that stays; the rest of it goes.
3. It is asked again from time to time, until nothing is held.

Devices that are prepared here are held. Only for others all claims of the cluster are listed: ever more seldom as long
as nothing changes here. While it cannot be found out, everything stays.

All of this is a part of the decision about the node (``node.decide``): values in, values out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.driver.claims.model import Plan
from dra_driver.driver.resourceslices.devices import KeptDevice, shapes
from dra_driver.kube.objects.meta import seconds
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.names import RETIRED
from dra_driver.neuron.topology.partitions import chips_of, device_of
from dra_driver.util.text import first_of

SETTLE_SECONDS: Final = 5.0
"""Seconds between taint and question: schedulers see the one, and what they had allocated before gets written."""
HELD_SECONDS: Final = 30.0
"""Seconds between two looks at the claims that hold what is to go once they are free."""
MAX_HELD_SECONDS: Final = 600.0
"""Seconds between two lists of all claims, at most."""
MAX_CORE_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """What the API server has of the node, as it was last seen or written."""

    look: int
    """Number of the look at which it was seen."""
    devices: tuple[Device, ...] = ()
    empty: bool = False
    """There is no slice of it."""
    incomplete: bool = False
    """A part of it is missing, or was never written."""
    counters: bool = True
    """Whether the server is trusted with counters."""
    taints: bool = True
    """Whether the server stores taints, as far as is known; where it does not, none is waited for."""


@dataclass(frozen=True, slots=True)
class PreparedDevices:
    """What is prepared here, by this instance of the driver or by another."""

    core_sizes: Mapping[str, int | None] = field(default_factory=dict)
    """Size of the logical cores that each device was prepared with, by its name (None: no core)."""
    unreadable: frozenset[int] | None = frozenset()
    """Chips that claims hold of which files cannot be read, by host index; None: they may hold any."""

    def holds(self, name: str) -> bool:
        """Whether the device is prepared, or may be."""
        chips = self.unreadable
        return name in self.core_sizes or chips is None or bool(chips.intersection(chips_of(name, chips) or ()))


@dataclass(frozen=True, slots=True)
class Answer:
    """What claims have, as far as it could be found out. What is prepared has to be read after that."""

    question: int
    """Number of the question."""
    allocated: frozenset[str] | None = None
    """Names of the devices that are allocated to a claim; None: not known."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a node keeps on offer, and what is remembered of that from one decision to the next."""

    devices: Mapping[str, KeptDevice] = field(default_factory=dict)
    """The devices that are kept, by name."""
    held: frozenset[str] = frozenset()
    """Those of them that claims are known to hold."""
    released: frozenset[str] = frozenset()
    """What no claim holds, and the server still has."""
    question: int | None = None
    """Number of the question who holds what, to be answered before slices are written; None: there is none."""
    due: float = 0.0
    """When to ask, by the clock that never goes back, as long as anything is kept or in doubt."""
    in_doubt: bool = False
    """Whether claims may hold what is neither kept nor published: it has yet to be found out."""
    look: int = 0
    """Number of the last look at the server."""
    asked: frozenset[str] = frozenset()
    """What was kept when the question came up."""
    tainted_there: frozenset[str] = frozenset()
    """What has its taint at the server, as far as it was seen."""
    here: frozenset[str] | None = frozenset()
    """What was prepared here, of what is kept, at the last question."""
    answered_at: float = -math.inf
    """When it was last known what claims hold."""
    interval: float = 0.0
    """Seconds between the last list of all claims and the next one."""
    list_due: float = 0.0

    @property
    def next_look(self) -> float:
        """When slices have to be looked at for this, by the clock that never goes back."""
        return self.due if self.devices or self.in_doubt else math.inf

    def with_answer(self, answer: Answer, prepared: PreparedDevices | None, moment: float) -> Keeping:
        """The same without what no claim holds.

        Args:
            answer: to the question.
            prepared: what is prepared here, read after the answer had come; None: not known.
            moment: by the clock that never goes back.
        """
        stays, held, here = dict(self.devices), None, self._prepared_here(prepared)
        if answer.allocated is not None and here is not None:
            held = answer.allocated | here
            # Of what was kept after the question had come up, it says nothing.
            stays = {name: one for name, one in stays.items() if name in held or name not in self.asked}
        changed = here != self.here or stays.keys() != self.devices.keys()
        interval = HELD_SECONDS if changed else min(2 * self.interval, MAX_HELD_SECONDS)
        return replace(
            self,
            devices=stays,
            held=self.held if held is None else frozenset(stays.keys() & held),
            released=self.released | (self.devices.keys() - stays.keys()),
            question=None,
            in_doubt=self.in_doubt and held is None,
            here=here,
            answered_at=self.answered_at if held is None else moment,
            interval=interval,
            list_due=moment + interval,
        )

    def missing(
        self,
        chosen: Collection[Device],
        published: Collection[Device],
        prepared: PreparedDevices | None,
        allocated: Collection[str],
        now: int,
    ) -> dict[str, KeptDevice]:
        """What would vanish with these devices chosen, and must be kept as well, by name.

        What is prepared here or allocated is among it even if it is not published: its claim may have been allocated
        before kubelet deleted the slices, and others published since, by another setting.

        Args:
            chosen: the devices that the server is to have.
            published: those that it has.
            prepared: as for ``with_answer``.
            allocated: names of those that claims have, if that was just found out.
            now: Unix time.
        """
        wanted = shapes(chosen)
        since = _taint_times(published)
        lost = shapes(published) - wanted
        gone = {name: size for name, size in lost if name not in self.released}
        if prepared is not None:
            gone |= {name: size for name, size in prepared.core_sizes.items() if (name, size) not in wanted}
        gone |= dict.fromkeys(set(allocated) - gone.keys() - {name for name, _ in wanted})
        return {
            name: KeptDevice(since.get(name, now), size)
            for name, size in gone.items()
            if name not in self.devices and _sane(name, size)
        }

    def with_look(
        self,
        before: Keeping,
        chosen: Collection[Device],
        pool: PublishedPool,
        prepared: PreparedDevices | None,
        moment: float,
        *,
        doubtful: bool,
    ) -> Keeping:
        """The same with what follows from the devices kept now: when to ask who holds them, and whether it is time.

        Args:
            before: at the last decision.
            chosen: the devices that the server is to have, with what is kept.
            pool: what it has.
            prepared: as for ``with_answer``.
            moment: by the clock that never goes back.
            doubtful: the server does not have all that was published, so what is held may be missing there.
        """
        since = _taint_times(pool.devices)
        devices = {name: replace(one, since=since.get(name, one.since)) for name, one in self.devices.items()}
        lost = {name for name, _ in shapes(pool.devices) - shapes(chosen)}
        published = {device.name for device in pool.devices}
        keeping = replace(
            self, devices=devices, held=self.held & devices.keys(), released=self.released & lost, look=pool.look
        )
        if more := devices.keys() - before.devices.keys():
            keeping = replace(keeping, interval=HELD_SECONDS, list_due=min(self.list_due, moment + HELD_SECONDS))
            if more & published:
                keeping = replace(keeping, due=moment + SETTLE_SECONDS, list_due=moment + SETTLE_SECONDS)
        if doubtful and pool.look != before.look:
            # What is published next looks whole: it does not wait for its turn, but an answer counts for a moment.
            keeping = replace(keeping, in_doubt=True, due=min(keeping.due, self.answered_at + SETTLE_SECONDS))
        if pool.taints:
            tainted = _with_taint(pool.devices)
            if tainted - self.tainted_there or (_with_taint(chosen) & published) - tainted:
                # From the moment on at which the server has them, schedulers see the taints. Until then they allocate
                # the devices: no question of before that counts.
                due = keeping.due if keeping.question is None else 0.0
                keeping = replace(keeping, due=max(due, moment + SETTLE_SECONDS), question=None)
            keeping = replace(keeping, tainted_there=tainted)
        is_due = (devices or keeping.in_doubt) and moment >= keeping.due
        # Only at a look, of which the answer is a part: slices are written after it.
        return keeping.with_question(prepared, moment) if is_due and pool.look != before.look else keeping

    def with_question(self, prepared: PreparedDevices | None, moment: float) -> Keeping:
        """The same with the question, if a list of claims is what it takes to answer it."""
        here, asked = self._prepared_here(prepared), frozenset(self.devices)
        keeping = replace(self, due=moment + HELD_SECONDS)
        if here is None:
            return keeping
        early = here == self.here and moment < self.list_due
        if asked and not self.in_doubt and (here == asked or early):
            return replace(keeping, here=here, held=self.held | here)
        return replace(keeping, question=self.look, asked=asked)

    def _prepared_here(self, prepared: PreparedDevices | None) -> frozenset[str] | None:
        """What is prepared of what is kept; None: not known."""
        if prepared is None or prepared.unreadable is None:
            return None
        return frozenset(name for name in self.devices if prepared.holds(name))


def changes(before: Keeping, keeping: Keeping) -> Iterator[str]:
    """What became of devices that are no longer wanted, for people."""
    if unknown := keeping.devices.keys() - before.devices.keys() - keeping.held:
        yield (
            f"no longer wanted, but published until it is known which claims hold them: {first_of(sorted(unknown), 8)}"
        )
    if released := keeping.released - before.released:
        yield f"no claim holds them, so they are no longer offered: {first_of(sorted(released), 8)}"
    if keeping.held and keeping.held != before.held:
        yield f"offered only while claims hold them: {first_of(sorted(keeping.held), 8)}"


def core_sizes(plans: Iterable[Plan]) -> dict[str, int | None]:
    """Size of the logical cores that each device of these claims was prepared with, by its name (None: no core)."""
    return {
        device.device: max((len(node.cores) for node in device.nodes), default=0) or None
        for plan in plans
        for device in plan.devices
    }


def _taint_times(devices: Collection[Device]) -> dict[str, float]:
    """Since when devices are kept, as the server has it: for people, from one run of the driver to the next."""
    return {
        device.name: moment
        for device in devices
        for taint in device.taints
        if taint.key == RETIRED and (moment := seconds(taint.time_added)) is not None
    }


def _with_taint(devices: Collection[Device]) -> frozenset[str]:
    """Names of those that are no longer wanted."""
    return frozenset(device.name for device in devices for taint in device.taints if taint.key == RETIRED)


def _sane(name: str, core_size: int | None) -> bool:
    """Whether there is such a device. What another version has published under other names cannot be offered."""
    return device_of(name, (0,), lambda _: 1) is not None and (core_size is None or 1 <= core_size <= MAX_CORE_SIZE)
