"""Changes of an emulated host that correspond to its kernel driver's actions."""

from __future__ import annotations

from pathlib import Path


def renumber(host: Path, chip: int, major: int) -> None:
    """Give a chip's device node another major number, as a reloaded kernel driver does."""
    file = host / f"sys/devices/virtual/neuron_device/neuron{chip}/dev"
    # The file is read-only, as in sysfs; only root could write it nevertheless.
    file.unlink()
    file.write_text(f"{major}:{chip}\n")
