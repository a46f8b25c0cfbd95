"""A candidate goes on renewing whatever happens around it, and stops in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.codec import LEASES
from dra_driver.kube.api.election import Election, Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.leading import KeptText
from dra_driver.kube.api.resources import Collection
from tests.builders.threads import no_further_threads
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden

NAMESPACE, NAME = "default", "lease"
QUICK = Times(lease=30, act=5.0, renew=0.2)


@contextmanager
def candidate(
    server: ApiServer,
    on_change: Callable[[], None] = lambda: None,
    transport: Transport | None = None,
    times: Times = QUICK,
) -> Iterator[Election]:
    leases = Collection(transport or server.transport(), LEASES)
    election = Election(leases, NAMESPACE, NAME, "one", times, on_change)
    election.start()
    try:
        yield election
    finally:
        election.stop()


def leads_for_long(election: Election) -> bool:
    """Whether it leads for longer than one renewal lasts."""
    end = time.monotonic() + 1.5 * QUICK.act
    while time.monotonic() < end:
        if not election.may_act():
            return False
        time.sleep(0.02)
    return True


def holder(server: ApiServer) -> str:
    return str(server.store.get("leases", f"{NAMESPACE}/{NAME}")["spec"]["holderIdentity"])


def test_a_lease_that_its_holder_renews_is_not_taken(server: ApiServer) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 4}
    lease = server.store.create("leases", {"metadata": {"namespace": NAMESPACE, "name": NAME}, "spec": spec})
    with candidate(server):
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            lease["spec"]["renewTime"] = f"2026-01-01T00:00:00.{time.monotonic_ns() // 1000 % 10**6:06}Z"
            del lease["metadata"]["resourceVersion"]
            lease = server.store.update("leases", f"{NAMESPACE}/{NAME}", lease)
            time.sleep(0.1)
            assert holder(server) == "other"


def test_a_lease_that_another_one_takes_meanwhile_stays_with_it_and_nothing_is_done_from_then_on(
    server: ApiServer,
) -> None:
    with candidate(server, times=Times(lease=30, act=20.0, renew=0.1)) as election:
        eventually(election.may_act, what="the lease")
        with server.hold(method="PUT", path="leases") as come:
            eventually(come, what="a renewal under way")
            lease = server.store.get("leases", f"{NAMESPACE}/{NAME}")
            lease["spec"]["holderIdentity"] = "two"
            server.store.update("leases", f"{NAMESPACE}/{NAME}", lease)
        eventually(lambda: not election.may_act(), what="the end of its lead")
        time.sleep(0.6)
        assert holder(server) == "two"


def test_the_time_to_act_counts_from_the_question_and_not_from_the_answer(server: ApiServer) -> None:
    act = 6.0
    with candidate(server, times=Times(lease=30, act=act, renew=0.1)) as election:
        eventually(election.may_act, what="the lease")
        with server.hold(method="PUT", path="leases") as come:
            eventually(come, what="a renewal under way")
            server.fail(503, 10**6, path="leases")
            asked = time.monotonic()
            time.sleep(act - 1.0)
        eventually(lambda: not election.may_act())
        assert time.monotonic() - asked < act + 4.0, "from the answer on, it would be five seconds more"


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
        server.delay(120.0, times=1000)
        started = time.monotonic()
        election.stop(1.0)
        assert time.monotonic() - started < 30.0
        assert not election.may_act()


def test_a_leader_that_can_have_no_thread_ends_all_the_same(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    with candidate(server) as election:
        eventually(election.may_act, what="the lease")
        with no_further_threads():
            election.stop(5.0)
        assert not election.may_act()
    golden([message for message in log.messages if "handed over" in message])


def test_a_leader_that_was_replaced_does_not_overwrite_what_its_successor_keeps(server: ApiServer) -> None:
    first, second = (KeptText(server.transport(), NAMESPACE, "kept", "text") for _ in range(2))
    first.write("first")
    second.read()
    second.write("second")
    with pytest.raises(ApiError) as caught:
        first.write("late")
    assert caught.value.status == 409
    assert first.read() == second.read() == "second"
