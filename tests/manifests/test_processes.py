"""Every daemon that the chart deploys outlives that the processes of others take all that the node may have.

The real program runs in a control group that lets it start no further thread, until its watchdog has missed one. Then
it does its work, without having been started again.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.builders import benches
from tests.builders.agent import free_port
from tests.builders.container import account, container, lacking
from tests.eventually import eventually
from tests.manifests.test_memory import PROGRAMS, limit_of

NAMES = [name for name in PROGRAMS if name != "check-unused"]
SECONDS = 90.0


@pytest.mark.skipif(bool(lacking()), reason=lacking())
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == NAMES[0] else pytest.mark.nightly) for name in NAMES]
)
def test_a_daemon_that_can_have_no_further_thread_goes_on(name: str) -> None:
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory(prefix="p-") as directory, ExitStack() as stack:
        root = Path(directory)
        bench = stack.enter_context(program.bench(root, account(root)))
        for kind in program.ports:
            bench.environment |= {f"{kind}_PORT": str(free_port()), f"{kind}_ADDRESS": benches.LOOPBACK}
        started = stack.enter_context(container(bench.server, root, limit_of(name), program.command, bench.environment))

        def ready() -> bool:
            assert started.process.poll() is None, started.log[-2000:]
            with suppress(OSError):
                return bench.ready()
            return False

        def rests() -> bool:
            """All threads that it starts with are there: one that cannot even start is started again."""
            threads = started.threads()
            time.sleep(1.0)
            return ready() and started.threads() == threads

        def has_looked() -> bool:
            assert started.process.poll() is None, started.log[-2000:]
            return "unable to start watchdog thread" in started.log

        eventually(rests, SECONDS, "readiness")
        with started.no_further_threads():
            eventually(has_looked, SECONDS, "a look of the watchdog")
        eventually(ready, SECONDS, "readiness, once there are threads again")
        bench.lists()
        bench.works()
        assert started.process.poll() is None, started.log[-2000:]
