"""CEL as Kubernetes evaluates device selectors: ``compile(expression).matches(device)``. A library.

celpy's grammar reads the expression; names, types and cost are checked as the API server does, and closures with the
semantics of cel-go evaluate it. All that others use is here.
"""

from dra_driver.cel.device import CelDevice
from dra_driver.cel.errors import CelError, Position, UnsupportedError
from dra_driver.cel.parts import Reference, clauses, references
from dra_driver.cel.program import Program, compile, compile_for  # noqa: A004 # the usual word for it
from dra_driver.cel.releases import RELEASES, Kubernetes, KubernetesRelease, nearest
from dra_driver.cel.values import Semver

__all__ = [
    "RELEASES",
    "CelDevice",
    "CelError",
    "Kubernetes",
    "KubernetesRelease",
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
]
