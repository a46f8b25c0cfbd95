"""Pods that come and go over a cluster, to compare orders in which devices and nodes are tried.

``read_workload`` reads the file, ``simulate`` runs one stream under one policy, ``drawing.svg`` draws several runs.
"""

from __future__ import annotations

from dra_driver.simulator.workload.cluster import Site, sites
from dra_driver.simulator.workload.policies import POLICIES, Policy
from dra_driver.simulator.workload.reading import read_workload
from dra_driver.simulator.workload.record import Moment, Run
from dra_driver.simulator.workload.simulation import simulate
from dra_driver.simulator.workload.values import Kind, Workload

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
