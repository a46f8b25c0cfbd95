"""What the publisher tells about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """A snapshot. Counters count since the start of the process."""

    published: bool = False
    """The API server was last seen to have what is desired (or what a newer instance desires, see ``superseded``)."""
    superseded: bool = False
    """A newer instance of the driver publishes for this node, and this one leaves it alone."""
    slices: int = 0
    """Slices on the server when last seen."""
    missing: int = 0
    """Desired slices that the server did not have when last seen."""
    generation: int = 0
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    errors: int = 0
    """Failed tries."""
    repairs: int = 0
    """Times that slices had to be written because somebody else had changed or deleted them."""
    last_error: str = ""
    """Why it is not published now; "" when the last try succeeded."""
    failing_since: float | None = None
    """``time.monotonic()`` of the first failure since the last success: a clock that is set must restart nobody."""
    last_success: float | None = None
    """``time.time()`` of the last comparison with the server that ended well."""
    fallback: str = ""
    """Why the fallback is published instead of what is desired; "" when it is not."""
    dropped_fields: tuple[str, ...] = ()
    """Fields that the server did not keep."""

    @property
    def writes(self) -> int:
        """All writes that succeeded."""
        return self.creates + self.updates + self.deletes
