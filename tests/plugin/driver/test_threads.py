"""The threads that ``docs/develop/architecture.md`` lists are those of a running agent."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from pathlib import Path

from tests.builders.agent import agent_here, node
from tests.eventually import PATIENCE
from tests.paths import DOCS


def test_the_page_has_the_threads_of_a_resting_agent() -> None:
    page = (DOCS / "develop/architecture.md").read_text()
    listed = page.partition("## Threads and locks\n")[2].partition("\nLocks, in")[0]
    expected = set(re.findall(r"^- `([^`]+)`: ", listed, re.MULTILINE))
    # A short path: sockets lie below it, and theirs may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="a-") as name, node(Path(name)) as world:
        agent = agent_here(world, "trn2u.48xlarge", ports=0, servers="neuron-dra-driver")
        before = set(threading.enumerate())
        agent.start()
        try:
            end = time.monotonic() + PATIENCE
            # Some start only after the first work of another: the slices are watched once they were published.
            while (found := _names(set(threading.enumerate()) - before)) != expected and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            agent.stop()
    assert found == expected


def _names(threads: set[threading.Thread]) -> set[str]:
    """As the page has them: numbers as N, and without the threads of the test's own API server."""
    names = {thread.name for thread in threads if "process_request_thread" not in thread.name}
    return {re.sub(r"-[0-9]+(?=$| )", "-N", name) for name in names} | {"MainThread"}
