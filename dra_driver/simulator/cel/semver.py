"""Semantic versions 2.0.0, as strict as Kubernetes reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.cel.values import TYPE_NAMES, UINT_MAX

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PART = r"[0-9A-Za-z-]+"
_SYNTAX = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+({_PART}(?:\.{_PART})*))?", re.ASCII
)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version. ``order`` compares as versions do; what follows ``+`` takes no part in it."""

    major: int
    minor: int
    patch: int
    order: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Read a version; ValueError says what is wrong."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ValueError(_complaint(text))
        major, minor, patch = int(match[1]), int(match[2]), int(match[3])
        if max(major, minor, patch) > UINT_MAX:
            raise ValueError("value out of range")
        release: tuple[Any, ...] = (
            (1,) if match[4] is None else (0, tuple(_release_part(part) for part in match[4].split(".")))
        )
        return cls(major, minor, patch, (major, minor, patch, release))

    @classmethod
    def normalized(cls, text: str) -> Semver:
        """Read a version that may start with ``v``, be short, or have leading zeros."""
        parts = text.removeprefix("v").split(".", 2)
        for place, part in enumerate(parts):
            if len(part) > 1:
                bare = part.lstrip("0")
                parts[place] = bare if bare[:1].isdigit() and bare[:1].isascii() else "0" + bare
        if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):  # major.minor.patch
            raise ValueError("short version cannot contain PreRelease/Build meta data")
        return cls.parse(".".join([*parts, "0", "0"][:3]))


TYPE_NAMES[Semver] = "kubernetes.Semver"


def _release_part(part: str) -> tuple[int, Any]:
    if not _DIGITS.fullmatch(part):
        return (1, part)
    if len(part) > 1 and part[0] == "0":
        raise ValueError(f"Numeric PreRelease version must not contain leading zeroes {part!r}")
    return (0, int(part))


def _complaint(text: str) -> str:
    if not text:
        return "Version string empty"
    parts = text.split(".", 2)
    if len(parts) != 3:  # major.minor.patch
        return "No Major.Minor.Patch elements found"
    return f"Invalid character(s) or leading zeroes found in version {text!r}"
