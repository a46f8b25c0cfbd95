"""What prepared claims hold: an index that answers without looking at every claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dra_driver.claims.values import Consumers, Entry, Plan


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A journal file that cannot be read. What it held stays held until something tells that it is free."""

    uid: str
    path: str
    """Where the file is now."""
    reason: str
    chips: frozenset[int] | None
    """What it held as far as its CDI spec or the API server tells; None: not known, so it may be anything."""
    shown: Mapping[int, int] = field(default_factory=dict)
    """Chips by container number, as far as its CDI spec tells."""


class Held:
    """Prepared claims by UID, by chip and by namespace. Changed only by the journal, under its lock."""

    def __init__(self, entries: Iterable[Entry] = (), quarantined: Iterable[Quarantined] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        self._holders: dict[int, str] = {}
        self._by_namespace: dict[str, dict[str, Plan]] = {}
        self._quarantined = {item.uid: item for item in quarantined}
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Prepared claims by UID."""
        return MappingProxyType(self._entries)

    @property
    def quarantined(self) -> Mapping[str, Quarantined]:
        """Unreadable journal files by the claim UID in their name."""
        return MappingProxyType(self._quarantined)

    def holder(self, chip: int) -> Plan | None:
        """The claim that has the chip for itself."""
        uid = self._holders.get(chip)
        return None if uid is None else self._entries[uid].plan

    def doubtful(self, chip: int, *, but: str) -> Quarantined | None:
        """An unreadable file of another claim than ``but`` that may hold the chip."""
        for item in self._quarantined.values():
            if item.uid != but and (item.chips is None or chip in item.chips):
                return item
        return None

    def shown_by_doubtful(self, *, but: str) -> dict[int, int]:
        """Chips by container number that claims with unreadable files show: in which namespace, nobody knows."""
        return {
            number: chip
            for item in self._quarantined.values()
            if item.uid != but
            for number, chip in item.shown.items()
        }

    def in_namespace(self, namespace: str) -> Iterator[Plan]:
        """Prepared claims that pods of the namespace may use."""
        yield from self._by_namespace.get(namespace, {}).values()

    def add(self, entry: Entry) -> None:
        """Put a claim in, or replace it."""
        plan = entry.plan
        self.discard(plan.uid)
        self._entries[plan.uid] = entry
        self._by_namespace.setdefault(plan.namespace, {})[plan.uid] = plan
        for chip in plan.held_chips:
            self._holders[chip] = plan.uid

    def discard(self, uid: str) -> None:
        """Take a claim out; unknown ones are fine."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        plan = entry.plan
        neighbours = self._by_namespace[plan.namespace]
        del neighbours[uid]
        if not neighbours:
            del self._by_namespace[plan.namespace]
        for chip in plan.held_chips:
            if self._holders.get(chip) == uid:
                del self._holders[chip]

    def quarantine(self, item: Quarantined) -> None:
        """Put an unreadable file in, or what is now known of it."""
        self._quarantined[item.uid] = item

    def settle(self, uid: str) -> None:
        """Forget an unreadable file; unknown ones are fine."""
        self._quarantined.pop(uid, None)


def may_meet(pods: frozenset[str] | None, other: Plan, consumers: Consumers) -> bool | None:
    """Whether a pod that uses a claim uses ``other`` too; None: it has to be asked who uses ``other`` now.

    Args:
        pods: who the claim in hand is reserved for; None: unknown pods.
        other: a prepared claim of the same namespace.
        consumers: who prepared claims are reserved for now, by claim UID; None: could not be found out.
    """
    if pods is not None and not pods:
        return False
    if other.own_pod:
        return pods is None or other.own_pod in pods
    if pods is None or other.pods is None or not pods.isdisjoint(other.pods):
        return True
    if other.uid not in consumers:
        return None
    now = consumers[other.uid]
    return now is None or not pods.isdisjoint(now)
