"""A candidate goes on renewing whatever happens around it, and stops in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import Election, Times
from dra_driver.kube.types import LEASES
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually

NAMESPACE, NAME = "default", "lease"
QUICK = Times(lease=5, act=2.0, renew=0.2)


@contextmanager
def candidate(
    server: ApiServer, on_change: Callable[[], None] = lambda: None, transport: Transport | None = None
) -> Iterator[Election]:
    leases = Collection(transport or server.transport(), LEASES)
    election = Election(leases, NAMESPACE, NAME, "one", QUICK, on_change)
    election.start()
    try:
        yield election
    finally:
        election.stop()


def leads_for_long(election: Election) -> bool:
    """Whether it leads for longer than one renewal lasts."""
    end = time.monotonic() + 2 * QUICK.act
    while time.monotonic() < end:
        if not election.may_act():
            return False
        time.sleep(0.02)
    return True


def test_an_answer_that_breaks_off_does_not_end_an_election(server: ApiServer, tmp_path: Path) -> None:
    # As in a pod: with a token that is read again after a 401.
    transport = Transport.from_kubeconfig(str(server.kubeconfig(tmp_path / "kubeconfig")))
    with candidate(server, transport=transport) as election:
        eventually(election.may_act, what="the lease")
        server.fail(401, torn=True)
        assert leads_for_long(election)


def test_a_reaction_to_the_election_that_fails_does_not_end_it_and_is_told(server: ApiServer) -> None:
    calls: list[str] = []

    def fail() -> None:
        calls.append("called")
        raise RuntimeError("on purpose")

    with candidate(server, fail) as election:
        eventually(lambda: calls, what="the call")
        eventually(lambda: "on purpose" in election.worker.problem(), what="the report")
        assert leads_for_long(election)
        assert election.worker.problem() == "", "it has gone well since"


def test_a_server_that_takes_the_last_request_and_does_not_answer_does_not_hold_up_the_stop(server: ApiServer) -> None:
    with candidate(server) as election:
        eventually(election.may_act, what="the lease")
        server.delay(20.0, times=1000)
        started = time.monotonic()
        election.stop(1.0)
        assert time.monotonic() - started < 3.0
        assert not election.may_act()
