"""For all tests: how long hypothesis searches, what failed, what garbage is looked for in, no logging left behind.

Hypothesis searches shortly by default, four times as long with ``--hypothesis-profile=thorough``.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.generators.effort import THOROUGH

# Without a deadline of its own for each example: the first one loads modules, and machines are busy.
settings.register_profile("thorough", max_examples=THOROUGH, deadline=None)
settings.register_profile("quick", max_examples=THOROUGH // 4, deadline=None)
# The option of the command line is read later, and wins.
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, metavar="FILE", help="write the names of the failed tests to a file")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keep the names of what failed, for those who repeat it."""
    kept = config.getoption("failed_to")
    if kept is not None:
        failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        kept.write_text("".join(dict.fromkeys(f"{report.nodeid}\n" for report in failed)))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the thousands of tests: that was an eighth of the unit tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a program that ran in this process has made of the root logger: its stream is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
