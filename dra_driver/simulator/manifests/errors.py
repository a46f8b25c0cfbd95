"""How reading manifests fails."""

from __future__ import annotations

from dra_driver.util.errors import DriverError


class ManifestError(DriverError):
    """What the user gave cannot be used; the text begins with file, line and object, as far as they are known."""
