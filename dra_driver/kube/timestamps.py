"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(text: str | None) -> float | None:
    """RFC 3339 as seconds since the epoch; None for anything else."""
    try:
        moment = datetime.fromisoformat(text or "")
        return moment.timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def timestamp(moment: float, *, micro: bool = False) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, the form of ``metav1.Time``, or with ``micro`` of ``MicroTime``."""
    text = datetime.fromtimestamp(moment, tz=UTC).isoformat(timespec="microseconds" if micro else "seconds")
    return text.replace("+00:00", "Z")
