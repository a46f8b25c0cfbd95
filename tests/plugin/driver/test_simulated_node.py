"""Histories of a simulated node by seeds: whatever happens in whatever order, no promise to containers is broken.

And once all is quiet, what is published, written and prepared follows from what is true, and nothing is written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest

from tests.generators.effort import SEED
from tests.simulation.histories import (
    ALL_TYPES,
    EVENTS,
    TYPES,
    WORKLOAD_EVENTS,
    BrokenRuleError,
    Story,
    counts,
    live,
    shrink,
    story_of,
    story_with_workloads,
    with_neighbours,
)

FEW = 15
"""Histories of a test in ``scripts/test``: seconds of processor time, so that a busy machine ends them in time, too."""
MANY = 500
"""In ``scripts/test ci``."""
HOUR = 12_000
"""In an hour."""


def live_all(stories: Iterable[Story]) -> list[list[str]]:
    """Let histories happen; the first that fails is told, as small as it can be made."""
    events = []
    for story in stories:
        try:
            events.append(live(story))
        except BrokenRuleError as error:
            short = shrink(story)
            steps = "\n".join(f"    {step}" for step in short.steps)
            begin = f"partitions {short.partitions!r}, API server away for {short.away:g} s"
            pytest.fail(
                f"story_of({story.seed}): {error}\nit happens on {short.kind} ({begin}) with\n{steps}", pytrace=False
            )
    return events


@pytest.mark.parametrize("part", range(8))
def test_promises_are_kept(part: int) -> None:
    live_all(story_of(part * FEW + number) for number in range(FEW))


@pytest.mark.parametrize("part", range(4))
def test_promises_are_kept_where_nodes_are_allocated_to_workloads(part: int) -> None:
    live_all(story_with_workloads(part * FEW + number) for number in range(FEW))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_promises_are_kept_in_many_histories_of_workloads(part: int) -> None:
    first, count = 10_000 + part * MANY // 4, MANY // 4
    events, _ = counts(live_all(story_with_workloads(first + number) for number in range(count)))
    # The others happen in the histories below.
    assert not WORKLOAD_EVENTS.keys() - EVENTS.keys() - events.keys(), "what never happens is not tested"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_promises_are_kept_in_many_histories(part: int) -> None:
    events, _ = counts(live_all(story_of(10_000 + part * MANY + number) for number in range(MANY)))
    assert set(events) == set(EVENTS), "what never happens is not tested"


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_promises_are_kept_for_an_hour() -> None:
    first = int(SEED) * HOUR
    seen: set[tuple[str, str]] = set()
    unseen = deque((one, other) for one in EVENTS for other in EVENTS if (one, other) not in IMPOSSIBLE)
    for number in range(HOUR):
        story = story_of(first + number, kinds=ALL_TYPES if number % 10 == 0 else TYPES)
        while unseen and unseen[0] in seen:
            unseen.popleft()
        if unseen:  # two that are seldom would hardly ever meet
            story = with_neighbours(story, *unseen[0])
            unseen.rotate(-1)
        _, pairs = counts(live_all([story]))
        seen |= pairs.keys()
    assert not set(unseen) - seen


IMPOSSIBLE: frozenset[tuple[str, str]] = frozenset(
    {
        ("device_plugin_comes", "device_plugin_comes"),
        ("device_plugin_goes", "device_plugin_goes"),
        ("reboot", "chip_is_well_again"),
        ("reboot", "chip_is_back"),
        ("power_fails", "chip_is_well_again"),
        ("power_fails", "chip_is_back"),
        ("disk_has_room", "disk_has_room"),
        ("quiet", "disk_has_room"),
        *((event, "server_is_back") for event in EVENTS if event == "quiet" or event.startswith("server_")),
    }
    - {("server_is_away", "server_is_back")}
)
"""Pairs of neighbours that cannot be."""
