"""Writes slices, and sees what the server has kept of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from dra_driver.driver.resourceslices.changes import Changes, ServerNormalized
from dra_driver.driver.resourceslices.pool import dropped_counters
from dra_driver.kube.api.codec import unrecognised
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi, Stored
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec

log = logging.getLogger(__name__)

TAINTS: Final = "devices[].taints"
"""Path in a slice's ``spec``, as a server's answer names it that has dropped them."""


Unfinished = Literal["counters dropped", "taints dropped", "stopped"]
"""Why writing ended before its end. The server stored a slice without its counters: what is left of it must not stay;
or without its taints: sick chips are offered there as if they were well. Or the program ends."""

Counted = Literal["creates", "updates", "deletes"]
"""Kinds of writes, as ``SliceStatus`` counts them."""


@dataclass(slots=True)
class Writer:
    """Writes the slices of one node. For one thread.

    Args:
        api: the API server.
        annotation: name of the annotation that records who wrote a slice.
        stamp: its value.
        may_write: asked before each write; if not, it is the end of the work.
        count: called after each write that succeeded, with what it was.
    """

    api: ResourceApi
    annotation: str
    stamp: str
    may_write: Callable[[], bool]
    count: Callable[[Counted], None]
    normalized: dict[str, ServerNormalized] = field(default_factory=dict)
    """By slice name, what the server made of a write: to be left as it is."""
    dropped: frozenset[str] = frozenset()
    """Fields that the server did not keep, of all writes."""

    def apply(self, changes: Changes) -> list[ResourceSlice] | Unfinished:
        """Write the changes; returns the slices as stored, or why it ended at one of them.

        Raises:
            ApiError: what has changed meanwhile is a conflict (409).
        """
        for item in changes.delete:
            if not self.may_write():
                return "stopped"
            try:
                self.api.delete_slice(item)
            except ApiError as error:
                if error.status != 404:
                    raise
            self.count("deletes")
        stored: list[ResourceSlice] = []
        writes: list[tuple[Counted, ResourceSlice]] = [("updates", item) for item in changes.update]
        writes += [("creates", item) for item in changes.create]
        for kind, item in writes:
            if not self.may_write():
                return "stopped"
            answer = self._write(self.api.create_slice if kind == "creates" else self.api.update_slice, item)
            self.count(kind)
            if dropped_counters(answer.dropped):
                return "counters dropped"
            if TAINTS in answer.dropped:
                return "taints dropped"
            stored.append(answer.object)
        names = {item.metadata.name for item in (*changes.keep, *stored)}
        self.normalized = {name: value for name, value in self.normalized.items() if name in names}
        return stored

    def _write(
        self, send: Callable[[ResourceSlice], Stored[ResourceSlice]], item: ResourceSlice
    ) -> Stored[ResourceSlice]:
        annotations = {**item.metadata.annotations, self.annotation: self.stamp}
        metadata = msgspec.structs.replace(item.metadata, annotations=annotations)
        answer = send(msgspec.structs.replace(item, metadata=metadata))
        stored = answer.object
        if stored.spec != item.spec or unrecognised(stored):
            # Sending it again would not help: the server does not have the feature, or has one of its own.
            self.normalized[stored.metadata.name] = ServerNormalized(item.spec, stored.spec, unrecognised(stored))
        if answer.dropped:
            log.warning(
                "the API server did not keep %s of slice %s; a feature gate is off or the version is too old",
                ", ".join(answer.dropped),
                stored.metadata.name,
            )
            self.dropped |= frozenset(answer.dropped)
        return answer


def trial(
    api: ResourceApi, driver: str, node: str, devices: tuple[Device, ...] = (), counters: tuple[CounterSet, ...] = ()
) -> tuple[str, ...] | None:
    """Fields of a slice with these that the server would not keep now; None if it does not say. Nothing is stored.

    A feature gate changes without the version, and with a restart of the server that a client may not notice; so
    whoever depends on optional fields asks at each look.
    """
    spec = ResourceSliceSpec(driver, ResourcePool(node, 1, 1), node, devices=devices, shared_counters=counters)
    try:
        return api.create_slice(ResourceSlice(ObjectMeta(generate_name="trial-"), spec), dry_run=True).dropped
    except ApiError as error:
        if error.status not in (400, 403, 405, 422):
            raise
        log.info("the API server does not say which fields it keeps; this is determined from what it stores: %s", error)
        return None
