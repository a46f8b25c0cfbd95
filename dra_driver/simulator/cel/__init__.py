"""CEL as Kubernetes evaluates it for device selectors: ``compile(expression).matches(device)``. A library.

Expressions are parsed with celpy's grammar, checked (names, types and cost) as the API server checks them, and compiled
to closures with cel-go's semantics. This module is the public API.
"""

from dra_driver.simulator.cel.device import CelDevice
from dra_driver.simulator.cel.errors import CelError, Position, UnsupportedError
from dra_driver.simulator.cel.parts import Reference, clauses, references
from dra_driver.simulator.cel.program import Program, compile, compile_for  # noqa: A004 # the usual word for it
from dra_driver.simulator.cel.releases import RELEASES, Kubernetes, nearest, release_of
from dra_driver.simulator.cel.values import Semver

__all__ = [
    "RELEASES",
    "CelDevice",
    "CelError",
    "Kubernetes",
    "Position",
    "Program",
    "Reference",
    "Semver",
    "UnsupportedError",
    "clauses",
    "compile",
    "compile_for",
    "nearest",
    "references",
    "release_of",
]
