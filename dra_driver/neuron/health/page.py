"""The tables of ``docs/operate/health.md``, from the tables of the code.

``scripts/generate faults`` writes them into the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dra_driver.neuron.emulation.faults import sign_text
from dra_driver.neuron.health.faults import BOOT, DEFAULT_EFFECTS, FAULTS, REMEDIES, SEVERITIES, Fault

_MARK = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH: Final = 120
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
        for row in FAULTS.values():
            if row.severity == severity:
                ends = f"Ends after {_over(row)}. Remedy: {row.remedy}."
                yield from _item(f"- **`{row.code}`**: {row.text}. Seen when {_code(str(row.signal))}. {ends}")
        yield ""


def _item(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _code(signal: str) -> str:
    """The signal with its file name as code."""
    return re.sub(r"^([^ ,]*[/_][^ ,]*)", r"`\1`", signal)


def _over(row: Fault) -> str:
    return _OVER.get(row.quiet_seconds, f"{row.quiet_seconds} seconds without it")


def remedies() -> Iterator[str]:
    """What to do about them."""
    for remedy, text in REMEDIES.items():
        codes = ", ".join(f"`{row.code}`" for row in FAULTS.values() if row.remedy == remedy)
        yield from _item(f"- **{remedy}**: {text}. For {codes}.")


def reasons() -> Iterator[str]:
    """What the Node's condition and Events call them."""
    yield "| Fault | Reason | Strongest effect |"
    yield "|---|---|---|"
    for row in FAULTS.values():
        yield f"| `{row.code}` | `{row.reason}` | {row.strongest} |"


def rehearsals() -> Iterator[str]:
    """How an emulated host shows them."""
    yield "| Line in the file of faults | What the host then shows |"
    yield "|---|---|"
    for code in FAULTS:
        yield f"| `{code}@3` | {sign_text(code)} |"


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "faults": faults,
    "remedies": remedies,
    "reasons": reasons,
    "rehearsals": rehearsals,
}


def page(text: str) -> str:
    """The page with its tables as they should be. KeyError for a mark of no table."""
    return _MARK.sub(lambda mark: f"{mark[1]}\n" + "\n".join(TABLES[mark[2]]()).rstrip() + f"\n\n{mark[3]}", text)
