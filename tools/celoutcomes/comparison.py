"""Compares the simulator's CEL and quantities with a recorder's results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from celoutcomes.recorder import Recorder
from celoutcomes.table import minor
from dra_driver.simulator.cel import Kubernetes
from tests.generators.cel_expressions import KUBERNETES, expression
from tests.oracles.cel_outcomes import devices_of, outcome, panicked, quantity_outcome, shape

_DEEPEST, _MAX_LENGTH = 5, 2000


def expressions(random: Random, count: int) -> list[str]:
    """Random selectors."""
    found: list[str] = []
    while len(found) < count:
        text = expression(random, "bool", random.randint(1, _DEEPEST), KUBERNETES)
        if len(text) < _MAX_LENGTH:
            found.append(text)
    return found


def quantities(random: Random, count: int) -> list[str]:
    """Random strings, most of which are quantities."""
    signs, suffixes = ("", "", "", "+", "-"), ("e3", "E-3", "e+20", "e0", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "ei")
    return [
        random.choice(signs)
        + "".join(random.choices("00015.", k=random.randint(0, 2)))
        + "".join(random.choices("0123456789", k=random.randint(0, 21)))
        + random.choice(("", "", ".", ".0", ".5", ".000", ".123456789", ".0000000001"))
        + random.choice(("", "", "000", *suffixes, *"numkMGTPExK."))
        for _ in range(count)
    ]


def quantity_differences(recorder: Recorder, asked: Sequence[str]) -> Iterator[str]:
    """A description of each quantity on which the simulator and Kubernetes disagree."""
    for text, theirs in zip(asked, recorder.ask_quantities(asked), strict=True):
        if (ours := quantity_outcome(text)) != theirs:
            yield f"{recorder.kubernetes}: {text!r}\n  Kubernetes: {theirs}\n  simulator:  {ours}"


def differences(recorder: Recorder, asked: Sequence[str], devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A text for each expression on which the simulator and Kubernetes disagree. Unsupported ones do not count."""
    made = devices_of(devices)
    version: Kubernetes = "1.36" if minor(recorder.kubernetes) == "1.36" else "1.37"
    for text, theirs in zip(asked, recorder.ask(asked, tuple(devices.values())), strict=True):
        ours = outcome(text, version, made)
        if "unsupported" not in ours and not panicked(theirs) and shape(ours) != shape(theirs):
            yield f"{version}: {text}\n  Kubernetes: {theirs}\n  simulator:  {ours}"
