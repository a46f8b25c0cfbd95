"""The ids behind ``resource.aws.com/devicegroupN_id``: equal for chips whose EFA devices belong together.

They are computed, never stored, by the public rule of ``aws-neuron/connected-device-maps-over-efa-for-neuron``: the id
of size 1 is the EFA device's PCI address; the id of size N is the start of a SHA-256 over the addresses of the block's
EFA devices. AWS's EFA driver publishes the same ids, so that one claim can ask for chips and EFA devices side by side.
"""

from __future__ import annotations

import hashlib
from functools import cache

from dra_driver.topology.fabric import GROUP_SIZES
from dra_driver.topology.instance_types import InstanceType

ID_DIGITS = 16
"""Hexadecimal digits of an id of size 4 and up."""


def device_group_ids(instance_type: InstanceType, index: int) -> dict[int, str]:
    """Group size (1, 4, 8, 16) to the id of the group that chip ``index`` is in.

    Empty where the type has no EFA pairing or the pairing does not know the chip.
    """
    bdfs = instance_type.efa_bdfs
    if bdfs is None or not 0 <= index < len(bdfs):
        return {}
    return {size: _group_id(bdfs, size, index // size) for size in GROUP_SIZES}


@cache
def _group_id(bdfs: tuple[str, ...], size: int, block: int) -> str:
    members = bdfs[block * size : (block + 1) * size]
    if size == 1:
        return members[0]
    # Two chips may share an EFA device, which counts once.
    return hashlib.sha256(",".join(sorted(set(members))).encode()).hexdigest()[:ID_DIGITS]
