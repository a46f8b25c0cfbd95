"""Against celpy's own evaluator, where both mean the same: plain CEL, without what Kubernetes adds."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import celpy
import pytest
from celpy.adapter import CELJSONEncoder
from celpy.celtypes import IntType
from celpy.evaluation import CELEvalError
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator.cel import CelDevice, CelError, compile  # noqa: A004 # the usual word for it
from tests.generators.cel_expressions import COMMON, expression
from tests.generators.effort import examples

# Making an environment raises the recursion limit of the whole process; here it must stay what it is.
LIMIT = sys.getrecursionlimit()
ENVIRONMENT = celpy.Environment()
sys.setrecursionlimit(LIMIT)

# Its log lines of failures fail themselves.
logging.getLogger("celpy").setLevel(logging.CRITICAL)


INT_MIN = -(2**63)


@pytest.fixture(autouse=True, scope="module")
def _without_celpys_faults() -> Iterator[None]:
    """Celpy shows an error with the expression's tree, and fails itself when there is an empty list in that.

    And it has a remainder where cel-go says "integer overflow" (``moduloInt64Checked`` of common/types/overflow.go).
    """
    remainder: Any = IntType.__mod__

    def checked(left: IntType, right: Any) -> Any:
        if left == INT_MIN and right == -1:
            raise ValueError("overflow")
        return remainder(left, right)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CELEvalError, "__repr__", Exception.__repr__)
        patch.setattr(IntType, "__mod__", checked)
        yield


NOTHING = CelDevice("", {}, {})


def of_celpy(text: str) -> object:
    try:
        value: Any = ENVIRONMENT.program(ENVIRONMENT.compile(text)).evaluate({})
    except CELEvalError:
        return "error"
    return CELJSONEncoder.to_python(value)


def ours(text: str) -> object:
    try:
        return compile(text).matches(NOTHING)
    except CelError as error:
        # What Kubernetes computes when it compiles, celpy computes later.
        return "error" if error.kind == "runtime" else str(error)


@settings(max_examples=examples(150))
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_random_expressions_have_the_value_that_celpy_gives_them(random: Random, depth: int) -> None:
    text = expression(random, "bool", depth, COMMON)
    assert ours(text) == of_celpy(text), text


@pytest.mark.parametrize("operator", ["/", "%"])
@pytest.mark.parametrize("left", [f"({INT_MIN})", "(9223372036854775807 + (-9223372036854775808))", "0"])
@pytest.mark.parametrize("right", [f"({INT_MIN})", "(9223372036854775807 + (-9223372036854775808))", "0"])
def test_quotients_and_remainders_at_the_ends_of_the_range(left: str, operator: str, right: str) -> None:
    text = f"{left} {operator} {right} == 0"
    assert ours(text) == of_celpy(text), text
