"""What ``docs/architecture.md`` says of walks and threads is what the agent does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracewalk.recorder import Recorder
from tracewalk.walks import NODE, Running

from dra_driver.emulation.writer import EmulationOptions, write_host
from dra_driver.topology.instance_types import INSTANCE_TYPES
from tests.doubles.apiserver.server import ApiServer
from tests.paths import DOCS, ROOT

PAGE = DOCS / "architecture.md"
MAX_FILES = {"publish": 20, "prepare": 20}


def test_the_page_has_the_walks_that_a_trace_shows(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    # A process of its own: what others have cached there would be missing in the walks.
    done = subprocess.run(
        [sys.executable, "-m", "tracewalk.main", "--write", str(copy)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert copy.read_text() == PAGE.read_text(), "run scripts/trace-walk --write docs/architecture.md"


@pytest.mark.parametrize("walk", MAX_FILES)
def test_a_reader_can_follow_a_walk_through_few_files(walk: str) -> None:
    found = re.search(rf"^{walk}: ([0-9]+) files", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1]) <= MAX_FILES[walk]


@pytest.fixture
def root() -> Iterator[Path]:
    # A short path: sockets lie below it, and theirs may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="a-") as name:
        write_host(Path(name) / "host", INSTANCE_TYPES["trn2.48xlarge"], EmulationOptions())
        yield Path(name)


def test_the_page_has_the_threads_of_a_resting_agent(root: Path) -> None:
    listed = PAGE.read_text().partition("## Threads and locks\n")[2].partition("\nLocks, in")[0]
    expected = set(re.findall(r"^- `([^`]+)`: ", listed, re.MULTILINE))
    with ApiServer() as server:
        server.add_node(NODE)
        before = set(threading.enumerate())
        with Running(root, server, Recorder(ROOT, ()), port=0):
            end = time.monotonic() + 10
            # Some start only after the first work of another: the slices are watched once they were published.
            while (found := _names(set(threading.enumerate()) - before)) != expected and time.monotonic() < end:
                time.sleep(0.02)
    assert found == expected


def _names(threads: set[threading.Thread]) -> set[str]:
    """As the page has them: numbers as N, and without the threads of the test's own API server."""
    names = {thread.name for thread in threads if "process_request_thread" not in thread.name}
    return {re.sub(r"-[0-9]+(?=$| )", "-N", name) for name in names} | {"MainThread"}
