"""What Kubernetes' own library said of 886 expressions; recorded with its versions 1.36.3 and 1.37.1.

Each row of the file: ``outcome`` is true, false, "compile" or "runtime" (and ``outcome1.36`` where that differs),
``cost`` the estimated maximum, ``position`` line and column of the first error where one place is to blame.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.cel import CelDevice, CelError, Environment, Quantity, Semver, compile  # noqa: A004 # the usual word for it
from dra_driver.simulator.cel.program import Kubernetes
from tests.celexpressions import DOMAIN

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "cel-outcomes.json").read_text())

DEVICE = CelDevice(
    DOMAIN,
    {DOMAIN: {"n": 5, "b": True, "s": "abc", "v": Semver.parse("1.2.3")}, "other.io": {"x": "o"}},
    {DOMAIN: {"memory": Quantity.parse("96Gi")}},
)


def outcome(expression: str, kubernetes: Kubernetes) -> object:
    try:
        return compile(expression, Environment(kubernetes)).matches(DEVICE)
    except CelError as error:
        return error.kind


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_results_and_kinds_of_error_are_those_of_kubernetes(kubernetes: Kubernetes) -> None:
    wanted = {row["expression"]: row.get(f"outcome{kubernetes}", row["outcome"]) for row in ROWS}
    assert {text: outcome(text, kubernetes) for text in wanted} == wanted


def test_estimated_costs_are_those_of_kubernetes() -> None:
    wanted = {row["expression"]: row["cost"] for row in ROWS if row.get("cost", 1 << 62) <= 1_000_000}
    assert len(wanted) > 500
    assert {text: compile(text).cost for text in wanted} == wanted


def test_compile_errors_name_the_place_that_kubernetes_names() -> None:
    wanted = {row["expression"]: tuple(row["position"]) for row in ROWS if "position" in row}
    assert len(wanted) > 90
    assert {text: place(text) for text in wanted} == wanted


def place(expression: str) -> tuple[int, int] | None:
    with pytest.raises(CelError) as caught:
        compile(expression)
    return caught.value.position
