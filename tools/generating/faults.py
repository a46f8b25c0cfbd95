"""The tables of ``docs/reference/faults.md``, from the tables of the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dra_driver.neuron.emulation.faults import SIGNS, sign_text
from dra_driver.neuron.health.faults import BOOT, DEFAULT_EFFECTS, FAULTS, REMEDIES, SEVERITIES, Fault
from dra_driver.operations.overview import findings as findings_table
from dra_driver.operations.recovery.policy import Policy
from generating.blocks import filled, item

_OVER: Final[Mapping[int | None, str]] = {
    BOOT: "a boot, or `health clear`",
    0: "two readings without it",
    60: "a minute without it",
    300: "5 minutes without it",
    3600: "an hour without it",
}


def faults() -> Iterator[str]:
    """What can be wrong with a chip."""
    for severity in SEVERITIES:
        yield f"**{severity.capitalize()}** (default effect: {DEFAULT_EFFECTS[severity]})"
        yield ""
        yield "| Fault | What it is | Seen when | Ends after | Remedy |"
        yield "|---|---|---|---|---|"
        for row in FAULTS.values():
            if row.severity == severity:
                yield f"| `{row.code}` | {row.text} | {_code(str(row.signal))} | {_over(row)} | {row.remedy} |"
        yield ""


def _code(signal: str) -> str:
    """The signal with its file name as code."""
    return re.sub(r"^([^ ,]*[/_][^ ,]*)", r"`\1`", signal)


def _over(row: Fault) -> str:
    return _OVER.get(row.quiet_seconds, f"{row.quiet_seconds} seconds without it")


def remedies() -> Iterator[str]:
    """What to do about them."""
    for remedy, text in REMEDIES.items():
        yield from item("- ", f"**{remedy}**: {text}.")


def effects() -> Iterator[str]:
    """What the Node's condition and Events call them, what follows, and how an emulated host shows them."""
    policy = Policy()
    yield "| Fault | Reason | Strongest effect | Recovery, by default | What an emulated host shows |"
    yield "|---|---|---|---|---|"
    for code, row in FAULTS.items():
        if code not in SIGNS:
            raise SystemExit(f"{code}: SIGNS of dra_driver/neuron/emulation/faults.py has no row of it")
        steps = ", ".join(policy.steps(code)) or "none"
        yield f"| `{code}` | `{row.reason}` | {row.strongest} | {steps} | {sign_text(code)} |"


def findings() -> Iterator[str]:
    """Codes of what commands tell of pods and nodes."""
    yield "| `code` | What is wrong | `who` |"
    yield "|---|---|---|"
    for code, row in findings_table.REMEDIES.items():
        codes = [code, *(other for other, same in findings_table.SAME.items() if same == code)]
        yield f"| {', '.join(f'`{each}`' for each in codes)} | {row.meaning} | {row.who} |"


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "faults": faults,
    "remedies": remedies,
    "effects": effects,
    "findings": findings,
}


def page(text: str) -> str:
    """The page with its tables as they should be."""
    return filled(text, TABLES)
