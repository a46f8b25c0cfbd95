"""Emulated clusters for tests of workloads."""

from __future__ import annotations

from functools import cache

from dra_driver.simulator.allocator import World
from dra_driver.simulator.cluster import cluster_of
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.fragmentation import Site, Workload, read_workload, sites
from dra_driver.topology.cuts import Cuts

TEXT = """\
nodes:
  trn2.48xlarge: 2
pods:
- name: single
  weight: 5
  count: 1
- name: row
  weight: 3.5
  count: 4
  duration:
    fixed: 30m
- name: half
  weight: 1
  count: 8
arrivals:
  perHour: 6
duration:
  exponential:
    mean: 4h
length: 10d
warmUp: 1d
"""


@cache
def cluster(*types: tuple[str, int], cuts: str = "") -> tuple[World, tuple[Site, ...]]:
    """A cluster with the given number of nodes of each type, which offer these cuts; "": what they do by default."""
    manifests = emulated(types, cuts=Cuts.parse(cuts) if cuts else None)
    world, nodes = cluster_of(manifests, "1.37")
    return world, sites(nodes, manifests.slices)


def workload(text: str = TEXT) -> Workload:
    return read_workload("workload.yaml", text)
