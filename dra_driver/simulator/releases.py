"""Releases of Kubernetes whose behaviour the simulator knows."""

from __future__ import annotations

from typing import Final

RELEASES: Final = ("1.36", "1.37")
"""Oldest first. The last is meant where nothing says otherwise."""


def nearest(release: str) -> str:
    """The known release that is nearest to a server's, such as ``1.35``; the newest for a text that is no release."""
    wanted = _numbers(release)
    if not wanted:
        return RELEASES[-1]
    not_newer = [name for name in RELEASES if _numbers(name) <= wanted]
    return not_newer[-1] if not_newer else RELEASES[0]


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()
