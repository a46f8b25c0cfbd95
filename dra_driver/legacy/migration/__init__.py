"""The way out: pod specs with limits of Neuron resources become pods with claims that ask for the same.

``migrate`` turns texts into objects; ``extended_classes`` makes the DeviceClasses by which old pod specs run unchanged.
Values in, values out: no files, no cluster.
"""

from dra_driver.legacy.migration.files import Migration, extended_classes, migrate
from dra_driver.legacy.migration.limits import Nodes

__all__ = ["Migration", "Nodes", "extended_classes", "migrate"]
