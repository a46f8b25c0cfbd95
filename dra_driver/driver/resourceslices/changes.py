"""What to write so that the API server's slices of a pool become the desired ones: values in, values out.

The rules are those of Kubernetes' own Go controller: slices are matched by the index at the start of their names; all
slices of a pool carry one generation, which grows when more than one slice changes or a slice is added, so that a
scheduler never mixes old and new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dra_driver.kube.api.codec import unrecognised
from dra_driver.kube.objects.resource import ResourceSlice, ResourceSliceSpec


@dataclass(frozen=True, slots=True)
class ServerNormalized:
    """A server's answer that was not what was sent (it dropped or added fields): to be left as it is."""

    sent: ResourceSliceSpec
    stored: ResourceSliceSpec
    unrecognised: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be done, in this order. ``update`` and ``create`` are the objects to send."""

    delete: tuple[ResourceSlice, ...]
    update: tuple[ResourceSlice, ...]
    create: tuple[ResourceSlice, ...]
    keep: tuple[ResourceSlice, ...]
    """Existing slices that are right as they are."""
    generation: int

    @property
    def empty(self) -> bool:
        """Whether the server has what is desired."""
        return not (self.delete or self.update or self.create)


def decide(
    existing: Sequence[ResourceSlice],
    desired: Sequence[ResourceSlice],
    normalized: Mapping[str, ServerNormalized] | None = None,
) -> Changes:
    """Compare what is with what should be.

    Args:
        existing: slices of the driver on the node as stored, of any pool. Others are left alone.
        desired: at least one slice, all of one pool, as ``pool`` makes them; their generation does not matter.
        normalized: by slice name, what the server made of an earlier write.
    """
    normalized = normalized or {}
    spec = desired[0].spec
    own = [item for item in existing if (item.spec.driver, item.spec.node_name) == (spec.driver, spec.node_name)]
    in_pool = [item for item in own if item.spec.pool.name == spec.pool.name]
    newest = max((item.spec.pool.generation for item in in_pool), default=0)
    current = [item for item in in_pool if item.spec.pool.generation == newest and not _is_terminating(item)]

    matches = dict(_match(current, desired, newest, normalized))
    changes = [index for index, item in matches.items() if not _same(item, _at(desired[index], newest), normalized)]
    is_addition = len(matches) < len(desired)
    generation = newest + 1 if newest == 0 or is_addition or len(changes) > 1 else newest
    updates = [*matches] if generation != newest else changes
    keep = [item for index, item in matches.items() if index not in updates]
    kept_names = {item.metadata.name for item in matches.values()}
    return Changes(
        delete=tuple(item for item in own if item.metadata.name not in kept_names and not _is_terminating(item)),
        update=tuple(_replacement(matches[index], _at(desired[index], generation)) for index in updates),
        create=tuple(_at(item, generation) for index, item in enumerate(desired) if index not in matches),
        keep=tuple(keep),
        generation=generation,
    )


def _match(
    current: Sequence[ResourceSlice],
    desired: Sequence[ResourceSlice],
    generation: int,
    normalized: Mapping[str, ServerNormalized],
) -> Iterator[tuple[int, ResourceSlice]]:
    """The existing slice to keep for each index. Of several, one that needs no write, else the first by name."""
    for index, wanted in enumerate(desired):
        candidates = [item for item in current if item.metadata.name.startswith(wanted.metadata.generate_name)]
        target = _at(wanted, generation)
        if candidates:
            yield index, min(candidates, key=lambda item: (not _same(item, target, normalized), item.metadata.name))


def _same(stored: ResourceSlice, wanted: ResourceSlice, normalized: Mapping[str, ServerNormalized]) -> bool:
    if stored.metadata.owner_references != wanted.metadata.owner_references:
        return False
    if stored.spec == wanted.spec and not unrecognised(stored):
        return True
    return normalized.get(stored.metadata.name) == ServerNormalized(wanted.spec, stored.spec, unrecognised(stored))


def _at(item: ResourceSlice, generation: int) -> ResourceSlice:
    pool = msgspec.structs.replace(item.spec.pool, generation=generation)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, pool=pool))


def _replacement(stored: ResourceSlice, wanted: ResourceSlice) -> ResourceSlice:
    """What to send instead of ``stored``: its identity, labels, annotations and finalizers, our owner and spec."""
    metadata = msgspec.structs.replace(
        stored.metadata,
        owner_references=wanted.metadata.owner_references,
        creation_timestamp=None,
        deletion_timestamp=None,
    )
    return msgspec.structs.replace(wanted, metadata=metadata)


def _is_terminating(item: ResourceSlice) -> bool:
    """Being deleted, held by a finalizer: cannot be kept, and needs no second deletion."""
    return item.metadata.deletion_timestamp is not None
