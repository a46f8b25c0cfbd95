"""Changes of an emulated host that its kernel driver would make."""

from __future__ import annotations

from pathlib import Path


def renumber(host: Path, chip: int, major: int) -> None:
    """Give a chip's device node another major number, as a kernel driver that is loaded again does."""
    file = host / f"sys/devices/virtual/neuron_device/neuron{chip}/dev"
    # Nobody may write it, as in sysfs; only root could nevertheless.
    file.unlink()
    file.write_text(f"{major}:{chip}\n")
