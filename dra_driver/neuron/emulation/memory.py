"""An in-memory emulated host: what the driver would find on a host that ``write_host`` writes to disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from dra_driver.neuron.emulation.options import EmulationOptions, check
from dra_driver.neuron.emulation.tree import CharacterDevice, Entry, SymbolicLink, TextFile, host_files
from dra_driver.neuron.host.discover import EMULATION_MARKER, discover_files
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.sysfs import MISSING, HostFiles, Reading, follow
from dra_driver.neuron.topology.instance_types import InstanceType

_DIRECTORY: None = None


def emulated_inventory(kind: InstanceType, options: EmulationOptions | None = None) -> NodeInventory:
    """What ``discover`` finds on an emulated host of this type. Raises DriverError for impossible options."""
    chosen = options or EmulationOptions()
    check(kind, chosen)
    return discover_files(TreeFiles({**host_files(kind, chosen, counters=False), EMULATION_MARKER: TextFile("")}))


class TreeFiles(HostFiles):
    """``HostFiles`` for a tree in memory instead of on a disk."""

    def __init__(self, tree: Mapping[str, Entry]) -> None:
        self._entries: dict[str, Entry | None] = {"": _DIRECTORY}
        self._children: dict[str, list[str]] = {"": []}
        for path, entry in tree.items():
            self._add(path, entry)

    def _add(self, path: str, entry: Entry | None) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._entries:
            self._add(parent, _DIRECTORY)
        if path not in self._entries:
            self._children[parent].append(name)
            if entry is _DIRECTORY:
                self._children[path] = []
        self._entries[path] = entry

    def read(self, path: str) -> Reading:
        """The text of a regular file."""
        real = self._resolved(path)
        if real is None:
            return MISSING
        entry = self._entries[real]
        return Reading(entry.text.strip()) if isinstance(entry, TextFile) else Reading(None, "not a regular file")

    def link(self, path: str) -> str | None:
        """What the symbolic link at ``path`` says."""
        entry = self._entries.get(path)
        return entry.target if isinstance(entry, SymbolicLink) else None

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; empty if it does not exist."""
        real = self._resolved(path)
        return () if real is None else tuple(sorted(self._children.get(real, ())))

    def status(self, path: str) -> os.stat_result | None:
        """The type and mode of the file at ``path``, following links; None if there is none."""
        real = self._resolved(path)
        if real is None:
            return None
        entry, number = self._entries[real], 0
        mode = stat.S_IFDIR | 0o755
        if isinstance(entry, TextFile):
            mode = stat.S_IFREG | entry.mode
        elif isinstance(entry, CharacterDevice):
            mode, number = stat.S_IFCHR | entry.mode, os.makedev(entry.major, entry.minor)
        return os.stat_result((mode, *(0,) * 9), {"st_rdev": number})

    def _resolved(self, path: str) -> str | None:
        """The path with all links resolved; None if there is nothing."""
        try:
            return follow(path, self._target)
        except OSError:
            return None

    def _target(self, path: str) -> str | None:
        if path not in self._entries:
            raise FileNotFoundError(path)
        entry = self._entries[path]
        return entry.target if isinstance(entry, SymbolicLink) else None
