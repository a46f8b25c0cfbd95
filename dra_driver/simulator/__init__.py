"""What Kubernetes would do with a claim, computed without a cluster. Values in, values out; no files, no network."""

from __future__ import annotations

from dra_driver.util.errors import DriverError


def not_installed(package: str | None) -> DriverError:
    """The error of an installation without the simulator's packages, such as the node agent's image."""
    return DriverError(
        f"the simulator needs the Python package {package}, which is not installed",
        remedy="in the driver's source directory, scripts/setup-venv or pip install '.[simulator]' installs it",
    )
