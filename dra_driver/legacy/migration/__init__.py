"""Migration: pod specs with limits of Neuron resources become pod specs with claims that request the same devices.

``migrate`` turns texts into objects; ``unchanged`` makes the DeviceClasses with which existing pod specs run as they
are. Both work on values alone: no files, no cluster.
"""

from dra_driver.legacy.migration.files import Migration, Unchanged, migrate, unchanged
from dra_driver.legacy.migration.limits import Nodes, Wishes

__all__ = ["Migration", "Nodes", "Unchanged", "Wishes", "migrate", "unchanged"]
