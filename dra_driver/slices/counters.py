"""Shared counters: how a whole node and its chips exclude each other, and when the server can be trusted with that.

One counter set has one counter of value 1 for each chip. A chip consumes its own, the node consumes all, and the
scheduler gives away only what leaves no counter negative. A server that dropped these fields would offer the same chip
twice, so devices with counters go only to servers that keep them: Kubernetes 1.37 and later. 1.36 has the fields, but
its scheduler needs time that grows with the number of all nodes that use counters (half a second for each node asked in
a cluster of 5,000), and mixes up pools of the same name; so there they are used only when an administrator says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from dra_driver.kube.types import Counter, CounterSet, Device, DeviceCounterConsumption, ServerVersion

SharedCounters = Literal["auto", "force"]

COUNTER_SET: Final = "chips"
MOST_COUNTERS: Final = 32
"""Counters of one counter set (Kubernetes limit)."""
LEAST_RELEASE: Final = {"auto": (1, 37), "force": (1, 36)}
"""First release of Kubernetes that counters are used on, by setting."""
_FIELDS: Final = ("sharedCounters", "devices[].consumesCounters")
_ONE: Final = Counter("1")


def consuming(device: Device, chips: Collection[int]) -> Device:
    """The device, consuming the counters of the chips that it is made of."""
    counters = {f"chip-{index}": _ONE for index in sorted(chips)}
    return msgspec.structs.replace(device, consumes_counters=(DeviceCounterConsumption(COUNTER_SET, counters),))


def counter_sets(devices: Sequence[Device]) -> tuple[CounterSet, ...]:
    """The counter sets that these devices consume from: for each counter as much as the greediest device takes."""
    sets: dict[str, dict[str, Counter]] = {}
    for device in devices:
        for consumption in device.consumes_counters:
            counters = sets.setdefault(consumption.counter_set, {})
            for name, counter in consumption.counters.items():
                counters[name] = max(counter, counters.get(name, counter), key=lambda found: int(found.value))
    return tuple(CounterSet(name, counters) for name, counters in sets.items())


def dropped_counters(fields: Collection[str]) -> bool:
    """Whether these paths of a slice's ``spec``, which a server did not keep, concern counters."""
    return any(field.startswith(_FIELDS) for field in fields)


def counters_problem(server: ServerVersion, policy: SharedCounters, dropped_by: ServerVersion | None) -> str:
    """Why devices with counters must not be published on this server; "" when they may.

    Args:
        server: what the API server says it is.
        policy: the administrator's setting.
        dropped_by: the server that did not keep counters when they were last written, or None.
    """
    release = server.release
    least = LEAST_RELEASE[policy]
    if release is None:
        return f"the API server does not tell its version ({server.git_version!r})"
    if release < least:
        hint = ""
        if policy == "auto" and release >= LEAST_RELEASE["force"]:
            hint = "; --shared-counters force uses them all the same, for clusters of some hundred nodes at most"
        return (
            f"shared counters need Kubernetes {least[0]}.{least[1]}, and the API server is {server.git_version}{hint}"
        )
    if dropped_by == server:
        return (
            f"the API server {server.git_version} did not keep shared counters: its feature gate "
            "DRAPartitionableDevices is off; restart this driver when it is on"
        )
    return ""
