"""The differences between the Kubernetes releases whose allocator is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.simulator.cel import Kubernetes, release_of


@dataclass(frozen=True, slots=True)
class Release:
    """The simulated behaviour. Each field names something that holds up to 1.36 (as of 1.36.3) and not from 1.37 on."""

    name: str
    counters_everywhere: bool
    """Slices with shared counters concern every node, even those that they are not for."""
    counters_by_pool_name: bool
    """Available counters are kept by pool name, so that pools of two drivers with the same name share them."""
    distinct_by_request: bool
    """distinctAttribute remembers one value per request instead of one per device."""
    all_counts_remaining: bool
    """``All`` skips devices without available capacity, instead of failing on them."""
    shares_need_capacity: bool
    """A share in use counts only if it consumes capacity; otherwise the next share consumes counters again."""
    keeps_config_requests: bool
    """Configuration for all requests names them, and is repeated for each request that it names."""
    knows_no_groups: bool
    """Compatibility groups are unknown. From 1.37 on, slices with them are skipped (their gate is off)."""
    whole_steps: bool
    """Steps of a capacity range are integers."""
    follows_no_taint_rules: bool
    """The feature gate DRADeviceTaintRules is off by default."""


RELEASES: Mapping[Kubernetes, Release] = {
    "1.36": Release("1.36", *(True,) * 9),
    "1.37": Release("1.37", *(False,) * 9),
}


def release(name: str) -> Release:
    """The release of this name; raises DriverError for any other than 1.36 and 1.37."""
    return RELEASES[release_of(name)]
