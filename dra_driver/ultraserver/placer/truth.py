"""In which order a NeuronUltraServer is written, so that it never says less than what is given.

Its status has no field for a workload's UID, and a write of a status takes no metadata. So the annotation
``neuron.aws.com/workload-uids`` comes before the allocations that it is about, and goes after them. Each write rests on
the resource version that the one before gave. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.ultraserver.placer.workload import Grant, ServerRecord


@dataclass(frozen=True, slots=True)
class WriteUids:
    """Write the annotation: the UID of each workload by ``namespace/name``."""

    uids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WriteAllocations:
    """Write the status."""

    grants: tuple[Grant, ...]


def writes(record: ServerRecord, wanted: tuple[Grant, ...]) -> Iterator[WriteUids | WriteAllocations]:
    """What leads from what the object says to the wanted grants, each with a UID, in this order."""
    exact = {grant.workload: grant.uid for grant in wanted}
    meanwhile = {**record.uids, **exact}
    if meanwhile != record.uids:
        yield WriteUids(meanwhile)
    if wanted != record.grants:
        yield WriteAllocations(wanted)
    if exact != meanwhile:
        yield WriteUids(exact)
