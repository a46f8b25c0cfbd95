"""Two extenders: one leads, the other passes requests on, and together they choose as one would."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import pytest

from dra_driver.legacy.extender import cluster as picture
from dra_driver.legacy.extender.binding import Binder, BindRequest
from dra_driver.legacy.extender.cluster import Cluster, Followers
from dra_driver.legacy.extender.service import LEASE_NAME
from dra_driver.util.errors import DriverError
from tests.builders.extender import (
    FAST,
    Extender,
    add_node,
    add_pod,
    cores_in_use,
    everything_is_accounted_for,
    extender,
    known,
    limits,
    pod_document,
    sample,
)
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually
from tests.golden import golden_error

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]

BINDING = "/binding$"


def test_a_standby_passes_requests_on_and_takes_over_when_the_leader_ends(server: ApiServer) -> None:
    with extender(server, "two", elect=True) as second:
        with extender(server, "one", elect=True) as first:
            for replica in (first, second):
                known(replica)
            assert first.get("/readyz")[0] == second.get("/readyz")[0] == 200
            leads = [sample(replica, "leads") for replica in (first, second)]
            assert sorted(leads) == [0.0, 1.0]
            for number, replica in enumerate((first, second) * 2):
                assert replica.schedule(add_pod(server, f"p{number}", limits(4)), ["n"]) == "n"
        known(second)
        assert sample(second, "leads") == 1.0
        everything_is_accounted_for(server, second)
        assert second.fits(pod_document("q", limits(1)), ["n"]) == []


@pytest.mark.timeout(90)
def test_while_leaders_change_no_device_is_given_twice(server: ApiServer) -> None:
    """Whatever happens to lease and lists, both replicas together choose as one would."""
    dice = random.Random(7)
    with (
        extender(server, "one", elect=True, times=FAST) as first,
        extender(server, "two", elect=True, times=FAST) as second,
    ):
        for replica in (first, second):
            known(replica)
        names: list[str] = []
        scheduled = 0
        for number in range(60):
            if number % 15 == 7:
                server.fail(503, 12, path=f"/leases/{LEASE_NAME}")
            if number % 20 == 13:
                server.drop(2, path=BINDING, after=dice.random() < 0.5)
            replica = dice.choice((first, second))
            item = add_pod(server, f"p{number}", dice.choice([limits(1), limits(4), limits(cores=2)]))
            names.append(f"p{number}")
            if runs(replica, item):
                scheduled += 1
            else:
                time.sleep(0.2)
            cores_in_use(server)
            if len(names) > 8:
                server.store.delete("pods", f"a/{names.pop(0)}")
        server.faults.clear()
        for name in names:
            server.store.delete("pods", f"a/{name}")
        eventually(lambda: sample(first, "leads") + sample(second, "leads") == 1.0, what="one leader")
        leader = first if sample(first, "leads") else second
        everything_is_accounted_for(server, leader)
        assert scheduled, "something was scheduled"
        for replica in (first, second):
            item = add_pod(server, f"then-{replica.port}", limits(4))
            eventually(partial(runs, replica, item), what="it goes on")


def runs(replica: Extender, item: Object) -> bool:
    """Whether the pod was bound; while nobody leads, the extender refuses with one of its texts for that."""
    try:
        return replica.schedule(item, ["n"]) == "n"
    except AssertionError as error:
        assert "stands by" in str(error) or "lists" in str(error) or "not answer" in str(error), error
        return False


def test_a_standby_that_knows_no_leader_says_so(server: ApiServer) -> None:
    server.fail(503, 1000, path="/leases/")
    with extender(server, "one", elect=True) as only:
        status, text = only.post("/filter", {"Pod": {"metadata": {}}, "NodeNames": []})
        assert (status, "stands by" in str(text)) == (503, True)
        eventually(lambda: only.get("/readyz")[0] == 503, what="not ready")
        assert only.get("/livez") == (200, "ok\n")


def test_a_lease_that_names_nonsense_is_no_address(server: ApiServer) -> None:
    spec = {"holderIdentity": "x@evil/../?#:1", "leaseDurationSeconds": 3600}
    server.store.create("leases", {"metadata": {"namespace": "kube-system", "name": LEASE_NAME}, "spec": spec})
    with extender(server, "one", elect=True) as only:
        eventually(lambda: server.count("GET", "/leases/"), what="a look at the lease")
        status, text = only.post("/filter", {"Pod": {"metadata": {}}, "NodeNames": []})
        assert (status, "not known" in str(text)) == (503, True)


def test_who_leads_no_more_binds_nothing_and_holds_nothing(server: ApiServer) -> None:
    with extender(server) as one:
        known(one)
        item = add_pod(server, "p", limits(4))
        transport = server.transport()
        binder = Binder(transport, one.service.cluster, lambda: False)
        with golden_error(DriverError):
            binder.bind(BindRequest("a", "p", item["metadata"]["uid"], "n"))
        assert not binder.uncertain
        everything_is_accounted_for(server, one)
        transport.close()
    assert server.count("POST", BINDING) == 0


def test_who_leads_no_more_writes_no_usage_maps_but_does_when_it_leads_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "SETTLE_SECONDS", 0.0)
    transport, cluster = server.transport(), Cluster()
    followers = Followers(transport, cluster)
    followers.start()
    try:
        eventually(lambda: cluster.listed, what="nodes and pods")
        leads = False
        maps = picture.UsageMaps(transport, cluster, lambda: leads)
        maps.write_due()
        assert server.count("PATCH", "/nodes/") == 0
        leads = True
        maps.write_due()
        assert server.count("PATCH", "/nodes/") == 1
    finally:
        followers.stop()
        transport.close()


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "no"), (413, "no"), (422, "no"), (500, "etcdserver: request is too large")],
)
def test_a_node_that_cannot_be_written_keeps_no_other_from_its_usage_maps(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr(picture, "SETTLE_SECONDS", 0.0)
    others = ("m", "z")
    for name in others:
        add_node(server, name)
    fault = server.fail(status, times=1000, method="PATCH", path="/nodes/n$", message=message)
    transport, cluster = server.transport(), Cluster()
    followers = Followers(transport, cluster)
    followers.start()
    try:
        eventually(lambda: cluster.listed, what="nodes and pods")
        maps = picture.UsageMaps(transport, cluster, lambda: True)
        for _ in range(3):
            maps.write_due()
        assert [server.count("PATCH", f"/nodes/{name}$") for name in others] == [1, 1]
        assert fault.times == 999
    finally:
        followers.stop()
        transport.close()


def test_what_waits_to_be_delivered_when_a_term_ends_says_nothing_in_the_next_one(server: ApiServer) -> None:
    arrived: set[threading.Thread] = set()

    class Lock:
        """The cluster's, which tells that somebody is about to take it."""

        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def __enter__(self) -> bool:
            arrived.add(threading.current_thread())
            return bool(self._lock.__enter__())

        def __exit__(self, *error: object) -> None:
            self._lock.__exit__(*error)

    transport, cluster = server.transport(), Cluster()
    cluster.begin()
    cluster.lock = Lock(cluster.lock)  # type: ignore[assignment]
    followers = Followers(transport, cluster)
    with cluster.lock:
        followers.start()
        eventually(lambda: len(arrived) == 3, what="the lists of the old term, of pods and of nodes")
        followers.stop()
        cluster.begin()
    try:
        for worker in followers.workers:
            worker.stop(30)
        assert not cluster.knows("n")
        assert not cluster.listed
    finally:
        transport.close()
