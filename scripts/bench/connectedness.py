"""How often chips asked for by number alone are connected: `scripts/benchmark connectedness`. Needs no cluster.

Pods for one chip, and for 2, 4 and 8 where the nodes have groups of that size, arrive and leave at random. A class with
an extended resource cannot say `matchAttribute`, so `aws.amazon.com/neuron: 4` gets what the scheduler's allocator
finds first: the four free chips of the lowest numbers. `aws.amazon.com/neuron-4: 1` gets the first group of which all
chips are free. Pods that find no room are counted and go.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_driver.topology.cuts import Cuts, devices, group_sizes
from dra_driver.topology.fabric import Fabric, IndexSet
from dra_driver.topology.instance_types import resolve

TYPE = "trn2.48xlarge"
WEIGHTS = {1: 50, 2: 20, 4: 20, 8: 10}
"""How often pods ask for so many chips, as far as the nodes have groups of that size."""
MEAN_STAY = 0.5
"""Hours that a pod stays, exponentially distributed."""
WARM_UP = 1.0
"""Hours from the empty cluster to the first pod that counts."""
MEASURED = 4.0
"""Hours in which pods count."""
LOADS = (0.5, 0.7, 0.9)
"""Chips that are asked for, as a share of those that there are."""
PICKS = ("random", "emptiest", "fullest")
"""Which of the nodes with room a pod gets: any (equal scores), as with LeastAllocated, as with MostAllocated."""


@dataclass
class Tally:
    """What became of the pods of one size."""

    arrived: int = 0
    placed: int = 0
    connected: int = 0
    """Those that got a set that a claim with matchAttribute could have got: a row, or two rows, of a torus."""
    linked: int = 0
    """Those whose chips reach each other over links among themselves, however."""


@dataclass
class Experiment:
    """Nodes of one type, and the sets of chips that pods hold."""

    fabric: Fabric
    groups: bool
    """Whether pods for several chips ask for a group of that size, and not for that many chips."""
    nodes: int = 8
    pick: str = "random"
    tallies: dict[int, Tally] = field(init=False)

    def __post_init__(self) -> None:
        """Take the sizes that the nodes have."""
        self.tallies = {size: Tally() for size in WEIGHTS if size in (1, *group_sizes(self.fabric))}

    def run(self, load: float, seed: int) -> None:
        """Let pods come and go, and count those that arrive after the warm-up."""
        source = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        offered = self._offered()
        free = [set(range(self.fabric.size)) for _ in range(self.nodes)]
        weights = [WEIGHTS[size] for size in self.tallies]
        mean_size = sum(size * WEIGHTS[size] for size in self.tallies) / sum(weights)
        per_hour = load * self.nodes * self.fabric.size / (mean_size * MEAN_STAY)
        leaving: list[tuple[float, int, int, IndexSet]] = []
        hour, number = source.expovariate(per_hour), 0
        while hour < WARM_UP + MEASURED:
            number += 1
            while leaving and leaving[0][0] <= hour:
                _, _, node, chips = heapq.heappop(leaving)
                free[node].update(chips)
            (size,) = source.choices(list(self.tallies), weights)
            stay, tie = source.expovariate(1 / MEAN_STAY), [source.random() for _ in free]
            found = self._place(size, offered, free, tie)
            if found is not None:
                node, chips = found
                free[node].difference_update(chips)
                heapq.heappush(leaving, (hour + stay, number, node, chips))
            if hour >= WARM_UP:
                self._count(size, None if found is None else found[1])
            hour += source.expovariate(per_hour)

    def _offered(self) -> dict[int, tuple[IndexSet, ...]]:
        """The sets of chips that are one device, by size, in the order of publication."""
        found = devices(range(self.fabric.size), self.fabric, None, Cuts(chip=True, group=True), lambda _: 1)
        return {size: tuple(device.chips for device in found if len(device.chips) == size) for size in WEIGHTS}

    def _place(
        self, size: int, offered: dict[int, tuple[IndexSet, ...]], free: list[set[int]], tie: list[float]
    ) -> tuple[int, IndexSet] | None:
        score = {"random": 0, "emptiest": -1, "fullest": 1}[self.pick]
        for node in sorted(range(self.nodes), key=lambda node: (score * len(free[node]), tie[node])):
            chips = first_fit(size, free[node], offered[size] if self.groups and size > 1 else None)
            if chips is not None:
                return node, chips
        return None

    def _count(self, size: int, chips: IndexSet | None) -> None:
        tally = self.tallies[size]
        tally.arrived += 1
        if chips is not None:
            tally.placed += 1
            tally.connected += chips in self.fabric.usable_sets(size) or size == 1
            tally.linked += self.fabric.is_connected(chips)


def first_fit(size: int, free: set[int], groups: Sequence[IndexSet] | None) -> IndexSet | None:
    """What the allocator takes of a node: the first free chips, or the first free group; None: it has not that many."""
    if groups is not None:
        return next((chips for chips in groups if free.issuperset(chips)), None)
    return tuple(sorted(free)[:size]) if len(free) >= size else None


def text(found: Sequence[tuple[float, dict[int, Tally], dict[int, Tally]]]) -> str:
    """The report in Markdown: by load, the tallies of pods that ask for chips, and of pods that ask for groups."""
    lines = [
        "| chips wanted | limit | placed | a connected set | linked at all |",
        "|---|---|---|---|---|",
    ]
    for load, chips, groups in found:
        for size in list(chips)[1:]:
            for name, tally in ((f"neuron: {size}", chips[size]), (f"neuron-{size}: 1", groups[size])):
                shares = (
                    tally.placed / max(tally.arrived, 1),
                    tally.connected / max(tally.placed, 1),
                    tally.linked / max(tally.placed, 1),
                )
                cells = " | ".join(f"{share:.0%}" for share in shares)
                lines.append(f"| {load:.0%} | `{name}` | {cells} |")
    return "\n".join(lines)


def measure(
    kind: str, nodes: int, pick: str, seeds: Sequence[int]
) -> list[tuple[float, dict[int, Tally], dict[int, Tally]]]:
    """Run each load with pods that ask for chips, and with the same pods asking for groups."""
    found = []
    for load in LOADS:
        both = [Experiment(resolve(kind).fabric, groups, nodes, pick) for groups in (False, True)]
        for experiment in both:
            for seed in seeds:
                experiment.run(load, seed)
        found.append((load, both[0].tallies, both[1].tallies))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark connectedness",
        description="Show how often chips that are asked for by number alone are connected, after an hour of random "
        f"arrivals. Pods for {', '.join(map(str, WEIGHTS))} chips (as far as the nodes have groups of that size) come "
        f"in the ratio {':'.join(map(str, WEIGHTS.values()))} and stay for half an hour on average. The same arguments "
        "give the same figures on every machine.",
        epilog="example: scripts/benchmark connectedness --pick fullest",
    )
    parser.add_argument("--type", default=TYPE, help="instance type of the nodes (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=8, help="number of nodes (default: %(default)s)")
    parser.add_argument("--pick", choices=PICKS, default=PICKS[0], help="which node with room a pod gets (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="number of runs of each kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.seeds < 1:
        parser.error("nodes and seeds must be at least 1")
    print(text(measure(options.type, options.nodes, options.pick, range(1, options.seeds + 1))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
