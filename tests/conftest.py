"""For all tests: how long hypothesis searches, golden files, what failed, what took long, no logging left behind.

By default hypothesis searches shortly, and tries the same examples each time. With ``--hypothesis-profile=thorough`` it
searches four times as long, and tries others.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.generators.effort import THOROUGH
from tests.golden import GoldenFiles

# Without a deadline of its own for each example: the first one loads modules, and machines are busy.
settings.register_profile("thorough", max_examples=THOROUGH, deadline=None)
settings.register_profile("quick", max_examples=THOROUGH // 4, deadline=None, derandomize=True)
# The option of the command line is read later, and wins.
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, metavar="FILE", help="write the names of the failed tests to a file")
    parser.addoption("--timings", type=Path, metavar="FILE", help="write how long each test took to a file")
    parser.addoption("--renew-golden", action="store_true", help="write what tests give golden() to tests/golden")
    help_ = "let writes reach the test API server late, at random: tests that count what is still on its way then fail"
    parser.addoption("--late-writes", action="store_true", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GoldenFiles(config))
    if config.getoption("late_writes"):
        from tests.doubles.apiserver.http import HttpServer

        HttpServer.late_writes = (0.3, 1.5)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keep the names of what failed, for those who repeat it, and the seconds of each test, fixtures included."""
    failed_to, timings = config.getoption("failed_to"), config.getoption("timings")
    if failed_to is not None:
        failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        failed_to.write_text("".join(dict.fromkeys(f"{report.nodeid}\n" for report in failed)))
    if timings is not None:
        seconds: defaultdict[str, float] = defaultdict(float)
        for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
        timings.write_text("".join(f"{spent:.2f}\t{name}\n" for name, spent in seconds.items()))


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
