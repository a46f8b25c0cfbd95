"""What differs between the releases of Kubernetes whose allocator this follows."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.util.errors import DriverError


@dataclass(frozen=True, slots=True)
class Release:
    """Which behaviour is meant. Each field names what is so up to 1.36 (1.36.3 was read) and not from 1.37 on."""

    name: str
    counters_everywhere: bool
    """Slices with shared counters concern every node, also one that they are not for."""
    counters_by_pool_name: bool
    """Free counters are kept by pool name, so pools of two drivers with one name share them."""
    distinct_by_request: bool
    """distinctAttribute remembers one value for each request instead of one for each device."""
    all_counts_remaining: bool
    """``All`` passes over devices without capacity left, instead of failing on them."""
    shares_need_capacity: bool
    """A share in use counts as such only with consumed capacity; otherwise the next one consumes counters again."""
    keeps_config_requests: bool
    """Configuration that is for all requests names them, and comes once for each request that it names."""
    knows_no_groups: bool
    """Compatibility groups are not known. From 1.37 on slices with them are passed over (their gate is off)."""
    whole_steps: bool
    """Steps of a capacity range are whole numbers."""
    follows_no_taint_rules: bool
    """The gate DRADeviceTaintRules is off by default."""


RELEASES = {
    "1.36": Release("1.36", *(True,) * 9),
    "1.37": Release("1.37", *(False,) * 9),
}


def release(name: str) -> Release:
    """The release by its name; DriverError for another than 1.36 and 1.37."""
    try:
        return RELEASES[name]
    except KeyError:
        raise DriverError(
            f"Kubernetes {name} is not one that the simulator knows", remedy=f"give one of {', '.join(RELEASES)}"
        ) from None
