"""Takes clusters down, whether they were started by this process or by a run that was killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import cgroups, files, machine, process, state
from lab.errors import LabError
from lab.layout import LAB_CGROUP, MACHINE_FILE, ClusterLayout
from lab.progress import Progress

_WASTE = ".removed-"
"""Prefix of the directory of a removed cluster, which the process that took it down then deletes."""


def lives(layout: ClusterLayout) -> bool:
    """Return whether a cluster is up, rather than left behind by a killed run or before a reboot."""
    found = state.load(layout)
    record = process.load("etcd", layout.records)
    return found is not None and found.phase == "ready" and record is not None and process.is_alive(record)


def teardown(layout: ClusterLayout) -> None:
    """Stop every process of a cluster, restore the machine, and remove the cluster's directory.

    Every step finds its work in the cluster's directory and control groups, so this can be repeated, and works on
    whatever a run left when it was killed.

    Raises:
        LabError: Something cannot be stopped or restored; what is left stays for the next attempt.
    """
    cgroups.clear(cgroups.read_hierarchies(), layout.cgroup)
    machine.restore(layout)
    machine.unmount_below(layout.directory)
    waste = layout.directory.with_name(f"{_WASTE}{os.getpid()}-{time.monotonic_ns()}")
    layout.directory.rename(waste)


def _remove_waste(directory: Path) -> None:
    """Delete the directories of clusters that were taken down by this process, or by one that no longer exists."""
    for waste in directory.glob(f"{_WASTE}*"):
        pid = int(waste.name.removeprefix(_WASTE).partition("-")[0])
        if pid == os.getpid() or process.start_time(pid) is None:
            subprocess.run(["rm", "--recursive", "--force", "--one-file-system", str(waste)], check=True)


def remove_remains(directory: Path, name: str, progress: Progress) -> None:
    """Take down the remains of killed runs, of any name; running clusters of other network namespaces stay.

    Raises:
        LabError: A cluster with a name other than `name` is up in this network namespace.
    """
    for layout in state.layouts(directory):
        if layout.name != name and lives(layout):
            if not machine.shares_network(layout):
                continue
            raise LabError(
                f"The cluster {layout.name!r} is up, and one at a time can be; nothing was started. Take it down "
                f"first: scripts/cluster down --name {layout.name}"
            )
        with progress.step(f"removing what an earlier run of {layout.name!r} left"):
            teardown(layout)


@contextmanager
def exclusive(directory: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock for starting and stopping clusters; remove the state directory if no cluster is left at the end."""
    path = directory / "lock"
    try:
        with files.lock(path, "works on a cluster", progress):
            try:
                yield
            finally:
                if not state.layouts(directory):
                    machine.restore_machine(directory / MACHINE_FILE)
                    path.unlink(missing_ok=True)
                    cgroups.remove_if_empty(cgroups.read_hierarchies(), LAB_CGROUP)
    finally:
        # Without the lock: a node's images are thousands of files, and other processes wait to start their clusters.
        _remove_waste(directory)
        with suppress(OSError):  # not empty: it contains other clusters, or foreign files
            directory.rmdir()
