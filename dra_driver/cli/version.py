"""``dra-driver version``: the version of this program."""

from __future__ import annotations

import argparse

from dra_driver.cli import vocabulary
from dra_driver.version import VERSION


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    entry.command(
        about="Print the version of this program.",
        examples=["version"],
        done="printed",
        refused="not used",
    )


def run(_args: argparse.Namespace) -> int:
    """Print it."""
    print(f"dra-driver {VERSION}")
    return 0
