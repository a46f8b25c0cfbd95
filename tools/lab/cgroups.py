"""Control groups, version 1, 2 or both: creates, lists, empties and removes the lab's own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab import process
from lab.errors import LabError

_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_PATIENCE_SECONDS = 15.0


@dataclass(frozen=True)
class Hierarchies:
    """Where control groups are mounted.

    Attributes:
        v1: Mount points of the version 1 hierarchies, by the name of their first controller or `name=...`.
        v2: Mount point of version 2, or None.
    """

    v1: dict[str, Path]
    v2: Path | None

    @property
    def pure_v2(self) -> bool:
        """Whether only version 2 is mounted."""
        return not self.v1

    @property
    def all(self) -> tuple[Path, ...]:
        """All mount points."""
        return (*self.v1.values(), *(() if self.v2 is None else (self.v2,)))

    @property
    def tracking(self) -> Path:
        """The hierarchy that every process of the lab joins, so that none of its children can escape.

        Raises:
            LabError: There is none.
        """
        found = self.v1.get("pids") or next(iter(self.v1.values()), None) or self.v2
        if found is None:
            raise LabError("No control groups are mounted at /sys/fs/cgroup; no node can run here. Mount them first.")
        return found


def parse_mounts(mountinfo: str) -> Hierarchies:
    """Return the hierarchies below /sys/fs/cgroup that are listed in /proc/self/mountinfo."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or not fields[4].startswith("/sys/fs/cgroup"):
            continue
        if kind[0] == "cgroup":
            options = kind[2].split(",")
            name = next((option for option in options if option not in {"rw", "ro", "xattr"}), fields[4])
            v1["pids" if "pids" in options else name] = Path(fields[4])
        elif kind[0] == "cgroup2":
            v2 = Path(fields[4])
    return Hierarchies(v1=v1, v2=v2)


def read_hierarchies() -> Hierarchies:
    """Return the machine's hierarchies."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text())


def make(hierarchies: Hierarchies, group: str) -> None:
    """Create the group (a path such as /ndl/default/n1) in every hierarchy, with all controllers enabled for children.

    Raises:
        LabError: The controllers cannot be enabled for it.
    """
    for mount in hierarchies.all:
        current = mount
        for part in group.strip("/").split("/"):
            if mount == hierarchies.v2 and hierarchies.pure_v2:
                _hand_down(current)
            parent, current = current, current / part
            current.mkdir(exist_ok=True)
            _fill_cpuset(parent, current)


def _fill_cpuset(parent: Path, child: Path) -> None:
    # In version 1, a group with an empty cpuset accepts no processes.
    for name in ("cpuset.cpus", "cpuset.mems"):
        source, target = parent / name, child / name
        if source.exists() and target.exists() and not target.read_text().strip():
            target.write_text(source.read_text())


def _hand_down(group: Path) -> None:
    offered = (group / "cgroup.controllers").read_text().split()
    enabled = (group / "cgroup.subtree_control").read_text().split()
    for controller in _CONTROLLERS:
        if controller not in offered or controller in enabled:
            continue
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            raise LabError(
                f"The control group {group} cannot hand the controller {controller} to its children "
                f"({error.strerror}), so no node can run here. In a container, move its processes out of the root "
                "control group first, or give the container a control group namespace of its host."
            ) from error


def processes(hierarchies: Hierarchies, group: str) -> set[int]:
    """Return the processes of the group and of those below it, in any hierarchy."""
    found: set[int] = set()
    for directory in _directories(hierarchies, group):
        with suppress(OSError):
            found |= {int(pid) for pid in (directory / "cgroup.procs").read_text().split()}
    return found


def clear(hierarchies: Hierarchies, group: str) -> None:
    """Kill every process of the group and of those below it, and remove all of them.

    A process that joins in the meantime (because it was just being started) is killed too.

    Raises:
        LabError: Some still exist after a while.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        living = {pid for pid in processes(hierarchies, group) if pid > 1 and process.start_time(pid) is not None}
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = [directory for directory in _directories(hierarchies, group) if not _removed(directory)]
        if not left:
            return
        if time.monotonic() > deadline:
            reason = f"processes {sorted(living)} do not end" if living else "it is busy"
            raise LabError(f"The control group {left[0]} cannot be removed: {reason}. What is left stays; try again.")
        time.sleep(0.02)
        for pid in living:
            process.reap(pid)


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _directories(hierarchies: Hierarchies, group: str) -> list[Path]:
    """Return the group's directories in all hierarchies, children first."""
    found: list[Path] = []
    for mount in hierarchies.all:
        for directory, _, _ in os.walk(mount / group.strip("/"), topdown=False):
            found.append(Path(directory))
    return found


def remove_if_empty(hierarchies: Hierarchies, group: str) -> None:
    """Remove the group, but not its children, if it has neither processes nor children."""
    for mount in hierarchies.all:
        _removed(mount / group.strip("/"))
