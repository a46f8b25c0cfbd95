"""What names and literals there are, and their types."""

from __future__ import annotations

from dra_driver.simulator.cel.types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
)  # fmt: skip
from dra_driver.simulator.cel.values import Uint

DEVICE_FIELDS = {
    "driver": STRING,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    "allowMultipleAllocations": BOOL,
}
LITERALS: dict[type, Type] = {
    bool: BOOL, int: INT, Uint: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
}  # fmt: skip
TYPE_IDENTS: dict[str, Type] = {
    kind.kind: kind
    for kind in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, IP, CIDR, DURATION, TIMESTAMP, list_of(DYN),
                 map_of(DYN, DYN), optional_of(DYN), type_of(DYN))
}  # fmt: skip
"""Names that stand for types."""
