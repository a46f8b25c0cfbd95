"""What devices are made of: the one function that says so, whatever the layout."""

from __future__ import annotations

import re

from dra_driver.names import device_name

_CHIP = re.compile(re.escape(device_name(0)).removesuffix("0") + r"(0|[1-9][0-9]{0,4})")


def chips_of(name: str) -> tuple[int, ...] | None:
    """Host indexes of the chips that the device ``name`` is made of, ascending; None when we publish no such device."""
    match = _CHIP.fullmatch(name)
    return (int(match[1]),) if match else None
