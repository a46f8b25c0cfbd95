"""CEL as Kubernetes evaluates device selectors: ``compile(expression).matches(device)``.

celpy's grammar reads the expression; names, types and cost are checked as the API server does, and closures with the
semantics of cel-go evaluate it.
"""

from dra_driver.simulator.cel.device import CelDevice
from dra_driver.simulator.cel.errors import CelError, Position, UnsupportedError
from dra_driver.simulator.cel.program import Environment, Program, compile  # noqa: A004 # the usual word for it
from dra_driver.simulator.cel.quantity import Quantity
from dra_driver.simulator.cel.semver import Semver

__all__ = [
    "CelDevice",
    "CelError",
    "Environment",
    "Position",
    "Program",
    "Quantity",
    "Semver",
    "UnsupportedError",
    "compile",
]
