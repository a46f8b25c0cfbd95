"""What is printed for people: columns, colour and progress.

Colour and progress are rich's, which is an extra: without it, and where output is no terminal, the same is printed as
plain text.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from dra_driver.util.text import lines_to_print

if TYPE_CHECKING:
    import rich.progress

STYLES: Final = {
    "good": ("green", r"\bhealthy\b|\bfits\b|\byes\b|\[\*[ 0-9]+\*\]|\[\+[ 0-9]+\+\]"),
    "bad": (
        "bold red",
        r"\b(?:not placed|does not fit|failed|error|unhealthy)\b|[(\[][x!][ 0-9]+[x!][)\]]",
    ),
    "doubtful": ("yellow", r"\bdegraded\b|\bwarning\b|^not considered$"),
    "heading": ("bold", r"^(?:Pod|ResourceClaim|Deployment|node|nodes) [^:\n]+(?=:)|^[A-Z]{2,}(?:  +[A-Z]{2,})+$"),
}
"""Style and regular expression of what is coloured, by a name for rich's theme."""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns with two spaces between them, as kubectl prints them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def print_object(document: Any, output: str) -> None:
    """Print a plain object as YAML or JSON."""
    if output == "json":
        import json

        print(json.dumps(document, indent=2))
    else:
        import yaml

        from dra_driver.kube.scalars import Dumper

        print(yaml.dump(document, Dumper=Dumper, sort_keys=False), end="")


def coloured() -> bool:
    """Whether standard output is a terminal that shows colour, and NO_COLOR (https://no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb")


def say(text: str) -> None:
    """Print lines; names and messages of others in them drive no terminal."""
    print(lines_to_print(text))


def show(text: str) -> None:
    """Print lines as ``say`` does, with colour where there is any."""
    if not coloured():
        say(text)
        return
    try:
        from rich.console import Console
        from rich.highlighter import RegexHighlighter
        from rich.theme import Theme
    except ImportError:
        say(text)
        return

    class Words(RegexHighlighter):
        base_style = "neuron."
        highlights = [f"(?m)(?P<{name}>{words})" for name, (_, words) in STYLES.items()]  # noqa: RUF012 - rich's

    theme = Theme({f"neuron.{name}": style for name, (style, _) in STYLES.items()}, inherit=False)
    console = Console(theme=theme, highlighter=Words(), soft_wrap=True, emoji=False, markup=False)
    console.print(lines_to_print(text))


class Progress:
    """A bar with units and an estimate on standard error, if that is a terminal, for what takes longer than a second.

    Args:
        what: what is being done.
        unit: what is counted.
    """

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._start = time.monotonic() + 1.0
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Say how far it is."""
        if self._bar is None:
            if time.monotonic() < self._start or not sys.stderr.isatty():
                return
            self._bar = self._started()
            if self._bar is None:
                self._start = float("inf")
                return
        counted = f"{done} of {total} {self._unit}"
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, counted=counted)

    def _started(self) -> rich.progress.Progress | None:
        """None where rich is not installed."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return None
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}, left:"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(self._what, counted="")
        bar.start()
        return bar
