"""Compiling a selector and evaluating it on devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dra_driver.simulator.cel import allowance
from dra_driver.simulator.cel.checker import check
from dra_driver.simulator.cel.compiler import Compiler
from dra_driver.simulator.cel.cost import estimate
from dra_driver.simulator.cel.device import CelDevice
from dra_driver.simulator.cel.errors import CelError, EvaluationError, InternalError, Position, UnsupportedError
from dra_driver.simulator.cel.libraries import BEFORE_1_37
from dra_driver.simulator.cel.parse import parse, require_installed
from dra_driver.simulator.cel.releases import RELEASES, Kubernetes, release_of
from dra_driver.simulator.cel.types import ANY, BOOL, text_of
from dra_driver.simulator.cel.values import type_name

MAX_BYTES = 10 << 10
"""Maximum length of a selector (limit of the API)."""
MAX_COST = 1_000_000
"""Maximum estimated cost of a selector (limit of the API)."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled selector; safe to use from several threads.

    ``cost`` is the maximum cost that Kubernetes estimates for it.
    """

    expression: str
    cost: int
    _code: Callable[[list[Any]], Any]
    _width: int

    def matches(self, device: CelDevice) -> bool:
        """Whether the selector matches the device; raises CelError (runtime) if Kubernetes' evaluation would fail."""
        value = self.evaluate(device)
        if value is True or value is False:
            return value
        raise CelError("runtime", f"CEL result of type {type_name(value)} could not be converted to bool")

    def evaluate(self, device: CelDevice) -> object:
        """The value of the expression for the device; raises CelError (runtime) if evaluation fails."""
        allowance.renew()
        frame = [device, *(None,) * (self._width - 1)] if self._width > 1 else [device]
        try:
            return self._code(frame)
        except (EvaluationError, InternalError) as error:
            raise CelError("runtime", str(error)) from None
        except RecursionError:
            raise UnsupportedError("runtime", "the expression nests too deeply to be simulated") from None


@lru_cache(maxsize=1024)
def compile(expression: str, release: Kubernetes = RELEASES[-1]) -> Program:  # noqa: A001 # the usual word
    """Compile a selector as the API server does when a claim or class that contains it is created.

    Raises CelError (compile) with the reason why it would be refused; ``position`` is set if the error has one.
    """
    if len(expression.encode(errors="surrogatepass")) > MAX_BYTES:
        raise CelError("compile", f"the expression is longer than {MAX_BYTES} bytes")
    allowance.renew()
    try:
        node = parse(expression, before_1_37=release == "1.36")
        checked = check(node)
        kind = checked.types[node]
        if kind not in (BOOL, ANY):
            raise CelError("compile", f"must evaluate to bool or the unknown type, not {text_of(kind)}", Position(1, 1))
        compiler = Compiler(checked, BEFORE_1_37 if release == "1.36" else {})
        code = compiler.code(node)
        cost = estimate(node, checked)
    except RecursionError:
        raise UnsupportedError("compile", "the expression nests too deeply to be simulated", Position(1, 1)) from None
    if cost > MAX_COST:
        raise CelError(
            "compile", f"too complex: the estimated cost of {cost} exceeds the limit of {MAX_COST}", Position(1, 1)
        )
    return Program(expression, cost, code, compiler.width)


def compile_for(release: str) -> Callable[[str], Program]:
    """``compile`` for the given release.

    Raises DriverError for an unknown release, and if the packages that parse expressions are not installed.
    """
    kubernetes = release_of(release)
    require_installed()
    return lambda expression: compile(expression, kubernetes)
