"""Writes the file tree of a Neuron host for any instance type, for tests, demonstrations and development.

The driver reads it as it reads a real host: nothing but a banner knows the difference.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.host.discover import EMULATION_MARKER
from dra_driver.host.emulation_options import EmulationOptions, check
from dra_driver.host.emulation_tree import DEVICES, MODULE_VERSION, host_files
from dra_driver.host.tree_writer import TreeWriter
from dra_driver.topology.instance_types import InstanceType

__all__ = ["EmulationOptions", "write_host"]


def write_host(root: Path, kind: InstanceType, options: EmulationOptions | None = None) -> None:
    """Make ``root`` an emulated host of type ``kind``, in place of the one that was written there before.

    A driver that reads it meanwhile sees old or new files, never half of one. Device nodes are character devices with
    the numbers of the null device where this process may make them, else plain files.

    Raises:
        DriverError: an option is impossible for the type; ``root`` is ``/``, holds something else, or is not writable.
    """
    chosen = options or EmulationOptions()
    check(kind, chosen)
    TreeWriter(root, EMULATION_MARKER, whole_below=DEVICES, commit=MODULE_VERSION).write(host_files(kind, chosen))
