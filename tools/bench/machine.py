"""Describes the machine of a measurement."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe(proc: Path = Path("/proc")) -> str:
    """Return processor, cores, memory, kernel and Python of this machine."""
    memory = re.search(r"^MemTotal:\s*(\d+)", (proc / "meminfo").read_text(), re.MULTILINE)
    model = re.search(r"^model name\s*: (.*)", (proc / "cpuinfo").read_text(), re.MULTILINE)
    return ", ".join(
        [
            model[1].strip() if model else platform.machine(),
            f"{os.cpu_count()} virtual cores",
            f"{int(memory[1]) / 1024 / 1024:.0f} GiB" if memory else "memory unknown",
            f"Linux {platform.release().partition('-')[0]}",
            f"Python {platform.python_version()}",
        ]
    )


def file_system(path: Path, proc: Path = Path("/proc")) -> str:
    """Return the type of the file system that has a path, such as ext4."""
    mounts = [line.split()[1:3] for line in (proc / "self/mounts").read_text().splitlines()]
    # Of those with the same path, the last one counts.
    return max((len(point), place, kind) for place, (point, kind) in enumerate(mounts) if path.is_relative_to(point))[2]


def load() -> float:
    """Return the average number of runnable processes over the last minute."""
    return os.getloadavg()[0]
