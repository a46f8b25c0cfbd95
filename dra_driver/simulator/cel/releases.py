"""The Kubernetes releases whose behaviour is simulated."""

from __future__ import annotations

from typing import Final, Literal, get_args

from dra_driver.util.errors import DriverError

Kubernetes = Literal["1.36", "1.37"]
"""The release whose behaviour is simulated.

1.36 has no fields in backquotes, resolves ``.x`` to a macro's variable, accepts negative numbers in ``lists.range()``,
and finds an empty string anywhere. Its ``add()`` modifies quantities of more than 18 digits in place: that is reported
as unsupported.
"""
RELEASES: Final[tuple[Kubernetes, ...]] = get_args(Kubernetes)
"""Oldest first. The last is the default."""


def nearest(release: str) -> str:
    """The known release nearest to a server's release, such as ``1.35``; the newest for a text that is no release."""
    wanted = _numbers(release)
    if not wanted:
        return RELEASES[-1]
    not_newer = [name for name in RELEASES if _numbers(name) <= wanted]
    return not_newer[-1] if not_newer else RELEASES[0]


def release_of(release: str) -> Kubernetes:
    """The release of this name; raises DriverError for an unknown one."""
    for name in RELEASES:
        if name == release:
            return name
    raise DriverError(
        f"Kubernetes {release} is not one that the simulator knows", remedy=f"give one of {', '.join(RELEASES)}"
    )


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()
