"""What Kubernetes itself does with selectors and quantities, as scripts/record-cel-outcomes recorded it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from dra_driver.simulator.cel import Kubernetes
from tests.oracles.cel_outcomes import Outcome, devices_of, outcome, panicked, quantity_outcome, shape
from tests.paths import DATA

RECORDED: dict[str, Any] = json.loads((DATA / "cel-outcomes.json").read_text())
SECTIONS = {"expression": "expressions", "quantity": "quantities"}
RELEASES: tuple[Kubernetes, ...] = ("1.36", "1.37")

NOT_SIMULATED = re.compile(
    r"\b(?:(?:is)?(?:ip|IP|cidr|CIDR|url|URL)\(|ip\.|family\(|format\b|validate\(|net\.(?:IP|CIDR)\b|timestamp\(|duration\()"
)
"""Libraries that no selector of devices has a use for."""

pytestmark = pytest.mark.parametrize(
    "kubernetes",
    [*(pytest.param(release, marks=pytest.mark.slow) for release in RELEASES[:-1]), RELEASES[-1]],
)


@cache
def recorded(kubernetes: Kubernetes, asked: str = "expression") -> dict[str, Outcome]:
    return {
        row[asked]: row.get(kubernetes, {key: row[key] for key in row if key != asked})
        for row in RECORDED[SECTIONS[asked]]
    }


@cache
def simulated(kubernetes: Kubernetes) -> dict[str, Outcome]:
    devices = devices_of(RECORDED["devices"])
    return {text: outcome(text, kubernetes, devices) for text in recorded(kubernetes)}


def test_refusals_results_and_costs_are_those_of_kubernetes(kubernetes: Kubernetes) -> None:
    wanted = {
        text: shape(given)
        for text, given in recorded(kubernetes).items()
        if not NOT_SIMULATED.search(text) and not panicked(given)
    }
    assert len(wanted) > 1000
    assert {text: shape(simulated(kubernetes)[text]) for text in wanted} == wanted


def test_what_selectors_have_no_use_for_is_not_simulated(kubernetes: Kubernetes) -> None:
    without = {text: shape(given) for text, given in simulated(kubernetes).items() if NOT_SIMULATED.search(text)}
    answered = {text: given for text, given in without.items() if "unsupported" not in given}
    assert len(without) - len(answered) > 300
    assert answered == {text: shape(recorded(kubernetes)[text]) for text in answered}


def test_refusals_name_the_place_that_kubernetes_names(kubernetes: Kubernetes) -> None:
    wanted = {text: given["position"] for text, given in recorded(kubernetes).items() if "position" in given}
    wanted = {text: place for text, place in wanted.items() if not NOT_SIMULATED.search(text)}
    assert len(wanted) > 100
    assert {text: simulated(kubernetes)[text].get("position") for text in wanted} == wanted


def test_quantities_are_those_of_kubernetes(kubernetes: Kubernetes) -> None:
    wanted = recorded(kubernetes, "quantity")
    assert len(wanted) > 100
    assert {text: quantity_outcome(text) for text in wanted} == wanted
