"""The table of instance types of ``docs/reference/compatibility.md``, from the table of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from dra_driver.driver.resourceslices.devices import devices, effective_partitions
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.topology.fabric import Chain, Ring, Single, Switched, Torus2D, Unknown
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.partitions import CHIPS
from generating.blocks import filled

_FABRICS: Final = {Single: "", Chain: "chain", Ring: "ring", Torus2D: "torus", Switched: "switch", Unknown: "unknown"}


def types() -> Iterator[str]:
    """What is known of each type, those that are alike in one row; types without a public number of chips last."""
    yield "| Types | Chips | Connected by | Offered | Attributes of connected chips |"
    yield "|---|---|---|---|---|"
    known = [kind for kind in INSTANCE_TYPES.values() if kind.devices]
    for cells, kinds in groupby(known, key=_cells):
        yield f"| {', '.join(kind.name for kind in kinds)} | {cells} |"
    others = ", ".join(kind.name for kind in INSTANCE_TYPES.values() if not kind.devices)
    yield f"| {others} | not public | | | |"


def _cells(kind: InstanceType) -> str:
    inventory = emulated_inventory(kind)
    names = {device.name for device in devices(inventory, effective_partitions(inventory, None))}
    chips = devices(inventory, CHIPS)
    attributes = {name.partition("/")[2] or name for device in chips for name in device.attributes}
    sizes = sorted(
        (int(found[1]), name) for name in attributes if (found := re.fullmatch(r"[a-z]+(\d+)_id", name))
        and not name.startswith("topology")
    )  # fmt: skip
    shared = ", ".join(f"`{name}`" for size, name in sizes if size > 1)
    fabric = f"{_FABRICS[type(kind.fabric)]}{' (inferred)' if 'fabric' in kind.inferred else ''}"
    count = f"{kind.devices}{' (inferred)' if 'devices' in kind.inferred else ''}"
    return f"{count} | {fabric} | {'node' if 'neuron-node' in names else 'chips'} | {shared}"


TABLES: Final = {"types": types}


def page(text: str) -> str:
    """The page with its table as it should be."""
    return filled(text, TABLES)
