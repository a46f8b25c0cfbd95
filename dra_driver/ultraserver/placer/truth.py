"""In which order a NeuronUltraServer is written, so that it never says less than what is given.

Its status has no field for a workload's UID, and a write of a status takes no metadata. So the annotation
``neuron.aws.com/workload-uids`` comes before the allocations that it is about, and goes after them. Each write rests on
the resource version that the one before gave. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.ultraserver.placer.workload import Grant, ReleasedMarks, ServerRecord


@dataclass(frozen=True, slots=True)
class WriteUids:
    """Write the annotations: the UID of each workload by ``namespace/name``, and what drivers may go on to say."""

    uids: Mapping[str, str]
    released: ReleasedMarks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteAllocations:
    """Write the status."""

    grants: tuple[Grant, ...]


def writes(
    record: ServerRecord, wanted: tuple[Grant, ...], released: ReleasedMarks | None = None
) -> Iterator[WriteUids | WriteAllocations]:
    """What leads from what the object says to the wanted grants, each with a UID, in this order.

    ``released``: what drivers may go on to say, which is written before what they may not say any more; None: as it is.
    """
    released = record.released if released is None else released
    exact = {grant.workload: grant.uid for grant in wanted}
    meanwhile = {**record.uids, **exact}
    if (meanwhile, released) != (record.uids, record.released):
        yield WriteUids(meanwhile, released)
    if wanted != record.grants:
        yield WriteAllocations(wanted)
    if exact != meanwhile:
        yield WriteUids(exact, released)
