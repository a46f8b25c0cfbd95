"""Releases of Kubernetes whose behaviour is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from dra_driver.util.errors import DriverError

Kubernetes = Literal["1.36", "1.37"]
RELEASES: Final[tuple[Kubernetes, ...]] = get_args(Kubernetes)
"""Oldest first. The last is meant where nothing says otherwise."""


@dataclass(frozen=True, slots=True)
class KubernetesRelease:
    """Whose behaviour is meant.

    1.36 has no fields in back quotes, takes ``.x`` for a variable of a macro, lets ``lists.range()`` take negative
    numbers, and finds an empty text anywhere. Its ``add()`` changes quantities of more than 18 digits: that is refused.
    """

    kubernetes: Kubernetes = "1.37"


NEWEST: Final = KubernetesRelease(RELEASES[-1])


def nearest(release: str) -> str:
    """The known release that is nearest to a server's, such as ``1.35``; the newest for a text that is no release."""
    wanted = _numbers(release)
    if not wanted:
        return RELEASES[-1]
    not_newer = [name for name in RELEASES if _numbers(name) <= wanted]
    return not_newer[-1] if not_newer else RELEASES[0]


def release_of(release: str) -> KubernetesRelease:
    """The release of this name; DriverError for another one."""
    for known in RELEASES:
        if known == release:
            return KubernetesRelease(known)
    raise DriverError(
        f"Kubernetes {release} is not one that the simulator knows", remedy=f"give one of {', '.join(RELEASES)}"
    )


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()
