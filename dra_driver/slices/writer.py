"""Carries out what ``reconcile.decide`` decided, and remembers what the server made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from dra_driver.kube.api import ResourceApi, Stored
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import ResourceSlice
from dra_driver.slices.counters import dropped_counters
from dra_driver.slices.reconcile import Changes, ServerNormalized

log = logging.getLogger(__name__)


class CountersDropped(Exception):  # noqa: N818 # the server's answer, not its error
    """The server stored a slice without its counters: what is left of it must not stay."""


@dataclass(slots=True)
class Writer:
    """For one thread.

    Args:
        api: the API server.
        annotation: name of the annotation that tells who wrote a slice.
        stamp: its value.
        before_each: called before each write; what it raises ends the work.
        count: called after each write that succeeded, with ``creates``, ``updates`` or ``deletes``.
    """

    api: ResourceApi
    annotation: str
    stamp: str
    before_each: Callable[[], None]
    count: Callable[[str], None]
    normalized: dict[str, ServerNormalized] = field(default_factory=dict)
    """By slice name, what the server made of a write: to be left as it is."""
    dropped: frozenset[str] = frozenset()
    """Fields that the server did not keep, of all writes."""

    def apply(self, changes: Changes) -> list[ResourceSlice]:
        """Write; gives the slices as stored.

        Raises:
            ApiError: what has changed meanwhile is a conflict (409).
            CountersDropped: at the first slice that lost its counters; nothing is written after it.
        """
        for item in changes.delete:
            self.before_each()
            try:
                self.api.delete_slice(item)
            except ApiError as error:
                if error.status != 404:
                    raise
            self.count("deletes")
        stored = [self._write(self.api.update_slice, item, "updates") for item in changes.update]
        return stored + [self._write(self.api.create_slice, item, "creates") for item in changes.create]

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget what the server made of slices that are no more."""
        self.normalized = {name: value for name, value in self.normalized.items() if name in names}

    def _write(
        self, send: Callable[[ResourceSlice], Stored[ResourceSlice]], item: ResourceSlice, counted_as: str
    ) -> ResourceSlice:
        self.before_each()
        annotations = {**item.metadata.annotations, self.annotation: self.stamp}
        metadata = msgspec.structs.replace(item.metadata, annotations=annotations)
        answer = send(msgspec.structs.replace(item, metadata=metadata))
        self.count(counted_as)
        stored = answer.object
        if stored.spec != item.spec or stored.unrecognised:
            # Sending it again would not help: the server does not have the feature, or has one of its own.
            self.normalized[stored.metadata.name] = ServerNormalized(item.spec, stored.spec, stored.unrecognised)
        if answer.dropped:
            log.warning(
                "the API server did not keep %s of slice %s; a feature gate is off or the version is too old",
                ", ".join(answer.dropped),
                stored.metadata.name,
            )
            self.dropped |= frozenset(answer.dropped)
            if dropped_counters(answer.dropped):
                raise CountersDropped
        return stored
