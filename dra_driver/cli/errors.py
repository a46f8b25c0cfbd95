"""How commands fail."""

from __future__ import annotations

from dra_driver.util.errors import DriverError


class UsageError(DriverError):
    """What the user gave cannot be used (arguments, files, types): exit status 2."""
