"""Holds the simulator's CEL against a recorder's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from celoutcomes.recorder import Recorder
from celoutcomes.table import minor
from dra_driver.simulator.cel.program import Kubernetes
from tests.celexpressions import KUBERNETES, expression
from tests.celoutcomes import devices_of, outcome, shape

_DEEPEST, _LONGEST = 5, 2000


def expressions(random: Random, count: int) -> list[str]:
    """Random selectors."""
    found: list[str] = []
    while len(found) < count:
        text = expression(random, "bool", random.randint(1, _DEEPEST), KUBERNETES)
        if len(text) < _LONGEST:
            found.append(text)
    return found


def differences(recorder: Recorder, asked: Sequence[str], devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A text for each expression on which the simulator and Kubernetes disagree. Not knowing is no answer."""
    made = devices_of(devices)
    version: Kubernetes = "1.36" if minor(recorder.kubernetes) == "1.36" else "1.37"
    for text, theirs in zip(asked, recorder.ask(asked, tuple(devices.values())), strict=True):
        ours = outcome(text, version, made)
        if "unsupported" not in ours and shape(ours) != shape(theirs):
            yield f"{version}: {text}\n  Kubernetes: {theirs}\n  simulator:  {ours}"
