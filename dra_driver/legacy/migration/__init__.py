"""Migration: pod specs with limits of Neuron resources become pod specs with claims that request the same devices.

``migrate`` turns texts into objects; ``extended_classes`` makes the DeviceClasses with which existing pod specs run
unchanged. Both work on values alone: no files, no cluster.
"""

from dra_driver.legacy.migration.files import Migration, extended_classes, migrate
from dra_driver.legacy.migration.limits import Nodes

__all__ = ["Migration", "Nodes", "extended_classes", "migrate"]
