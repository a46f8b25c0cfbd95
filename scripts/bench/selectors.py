"""Compares the simulator's CEL with celpy's own evaluator: `scripts/benchmark selectors`. Needs no cluster, no root."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from bench import machine
from dra_driver.cel import CelDevice, KubernetesRelease, Semver
from dra_driver.cel import compile as compile_
from dra_driver.names import DRIVER_NAME
from dra_driver.quantity import parse

MAX_MICROSECONDS, MAX_COMPILE_MILLISECONDS = 1.5, 1.0
"""Targets: evaluation of a compiled program on one device, and compilation."""

ATTRIBUTES: dict[str, bool | int | str] = {
    "instanceType": "trn2.48xlarge",
    "resourceType": "neuron_device",
    "deviceId": 3,
    "coreCount": 8,
    "isShared": False,
}
_OWN = f"device.attributes['{DRIVER_NAME}']"
_MEMORY = f"device.capacity['{DRIVER_NAME}'].memory"
SELECTORS = (
    f"device.driver == '{DRIVER_NAME}'",
    f"{_OWN}.instanceType == 'trn2.48xlarge'",
    f"device.driver == '{DRIVER_NAME}' && {_OWN}.resourceType == 'neuron_device'",
    f"{_OWN}.deviceId in [0, 1, 2, 3]",
    f"{_OWN}.instanceType in ['trn1.32xlarge', 'trn2.48xlarge']",
    f"{_OWN}.coreCount > 4 && {_OWN}.deviceId < 8",
    f"{_OWN}.instanceType.startsWith('trn2.')",
    f"{_OWN}.instanceType.matches('^trn2\\\\.')",
    f"'deviceId' in {_OWN} && !{_OWN}.isShared",
    f"cel.bind(own, {_OWN}, own.coreCount == 8 && own.deviceId < 8)",
    f"{_OWN}.driverVersion.isGreaterThan(semver('2.18.0'))",
    f"{_MEMORY}.compareTo(quantity('64Gi')) >= 0",
)
"""Typical expressions of claims and classes; each is true for the device."""


@dataclass(frozen=True)
class Figures:
    """Figures of one selector.

    Attributes:
        expression: The selector.
        device: Microseconds per device, with the compiled program.
        compiling: Milliseconds, with the grammar loaded.
        celpy: Microseconds per device with celpy's evaluator; None if it lacks a function.
    """

    expression: str
    device: float
    compiling: float
    celpy: float | None


def device() -> CelDevice:
    """Return a chip as described by a slice."""
    attributes: dict[str, bool | int | str | Semver] = {**ATTRIBUTES, "driverVersion": Semver.parse("2.19.64")}
    return CelDevice(DRIVER_NAME, {DRIVER_NAME: attributes}, {DRIVER_NAME: {"memory": parse("96Gi")}})


def measure(expression: str, rounds: int) -> Figures:
    """Measure one selector; the best of several rounds of each kind."""
    chip = device()
    matches = compile_(expression).matches
    # Bypasses the cache of programs.
    compiling = _seconds(lambda: compile_.__wrapped__(expression, KubernetesRelease()), 20, rounds)
    return Figures(
        expression, _seconds(lambda: matches(chip), 2_000, rounds) * 1e6, compiling * 1e3, _celpy(expression, rounds)
    )


def _celpy(expression: str, rounds: int) -> float | None:
    environment = celpy.Environment()
    activation: Any = {"device": json_to_cel({"driver": DRIVER_NAME, "attributes": {DRIVER_NAME: ATTRIBUTES}})}
    runner = environment.program(environment.compile(expression))
    try:
        runner.evaluate(activation)
    except CELEvalError:
        return None
    return _seconds(lambda: runner.evaluate(activation), 100, rounds) * 1e6


def _seconds(call: Callable[[], object], count: int, rounds: int) -> float:
    """The minimum of several rounds, in CPU time: time added by other load on the machine is irrelevant."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(count):
            call()
        found.append((time.process_time() - started) / count)
    return min(found)


def text(found: Sequence[Figures]) -> str:
    """Return the report in Markdown."""
    lines = ["| selector | us per device | celpy, us | compile, ms |", "|---|---|---|---|"]
    for row in found:
        beside = "-" if row.celpy is None else f"{row.celpy:.0f}"
        lines.append(f"| `{row.expression}` | {row.device:.2f} | {beside} | {row.compiling:.2f} |")
    slowest, longest = max(row.device for row in found), max(row.compiling for row in found)
    compiles = _met(longest <= MAX_COMPILE_MILLISECONDS)
    return "\n".join(
        [
            *lines,
            "",
            f"- slowest: {slowest:.2f} us a device; target {MAX_MICROSECONDS:g}: {_met(slowest <= MAX_MICROSECONDS)}",
            f"- longest: {longest:.2f} ms to compile; target {MAX_COMPILE_MILLISECONDS:g}: {compiles}",
        ]
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark selectors",
        description="Compare the CEL of dra-driver simulate with celpy's own evaluator, on common selectors.",
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each measurement (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("rounds must be at least 1")
    print(f"Machine: {machine.describe()}; load before the run {machine.load():.1f}.\n")
    print(text([measure(expression, options.rounds) for expression in SELECTORS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
