"""Simulates pods that arrive and leave, to compare orders in which devices and nodes are tried.

``read_workload`` reads the file, ``simulate`` runs one stream under one policy, ``report`` summarises and draws several
runs.
"""

from __future__ import annotations

from dra_driver.simulator.fragmentation.cluster import POLICIES, Policy, Site, sites
from dra_driver.simulator.fragmentation.record import Moment, Run
from dra_driver.simulator.fragmentation.scenario import Kind, Workload, read_workload
from dra_driver.simulator.fragmentation.simulation import simulate

__all__ = [
    "POLICIES",
    "Kind",
    "Moment",
    "Policy",
    "Run",
    "Site",
    "Workload",
    "read_workload",
    "simulate",
    "sites",
]
