"""Lists of what tenants make: as many objects as they like, as large as they like, made while they are listed."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import resources
from dra_driver.kube.api.client import MAX_OBJECT_BYTES
from dra_driver.kube.api.codec import ALLOCATED_CLAIMS, partial_nodes
from dra_driver.kube.api.errors import ApiError, TooLarge
from dra_driver.kube.api.resources import PAGE, Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.resource import AllocatedClaim
from tests.doubles.apiserver.http import Request
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden_error

DRIVER = "neuron.aws.com"
TOP = Path(__file__).parents[4]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


def add(server: ApiServer, count: int, text: str = "", *, prefix: str = "c") -> None:
    for number in range(count):
        meta = {"namespace": "tenant", "name": f"{prefix}{number}", "annotations": {"a": text}}
        server.store.create("resourceclaims", {"metadata": meta, "spec": {}, "status": {}})


def claims(server: ApiServer) -> Collection[AllocatedClaim]:
    return Collection(server.transport(), ALLOCATED_CLAIMS)


def names(items: list[AllocatedClaim]) -> list[str]:
    return [item.metadata.name for item in items]


def pages(server: ApiServer) -> list[tuple[str, int]]:
    """Token and limit of each page that was asked for."""
    found = [request.query for request in server.requests if request.path.endswith("claims") and not request.watch]
    assert all("resourceVersion" not in query for query in found)
    return [(query.get("continue", ""), int(query["limit"])) for query in found]


# Pages


def test_a_list_shows_one_state_and_ends_while_claims_are_made_as_fast_as_it_is_read(server: ApiServer) -> None:
    add(server, 2 * PAGE + 1)
    server.before_page = lambda _: add(server, PAGE, prefix=f"later-{len(server.requests)}-")
    found, version = claims(server).list_all()
    assert len(pages(server)) == 4
    assert names(found) == [
        *(f"c{number}" for number in range(2 * PAGE + 1)),
        *(f"later-1-{number}" for number in range(PAGE)),
    ]
    with claims(server).watch(version, 1.0) as watch:
        first = next(iter(watch))
    assert first.object is not None
    assert first.object.metadata.name == "later-2-0", "what was made after the first page, the watch has"


def test_nothing_of_a_page_is_left_but_what_is_kept(server: ApiServer) -> None:
    add(server, 3, "x" * 1000)
    server.add_claim("ns", "ours", devices=[("r", "neuron-device-0")])
    found, _ = claims(server).select(lambda item: item.metadata.name if item.has_devices(DRIVER) else None)
    assert found == ["ours"]


def test_what_tenants_write_into_claims_is_not_kept(server: ApiServer) -> None:
    text = "x" * 10_000
    meta = {"namespace": "ns", "name": "n", "annotations": {"a": text}, "labels": {"b": text}, "finalizers": [text]}
    opaque = {"source": "FromClaim", "opaque": {"driver": text, "parameters": {"c": text}}}
    result = {"request": "r", "driver": DRIVER, "pool": "p", "device": "d", "tolerations": [{"key": text}]}
    allocation = {"devices": {"results": [result], "config": [opaque]}, "nodeSelector": {"nodeSelectorTerms": []}}
    status = {"allocation": allocation, "devices": [{"driver": text, "pool": "p", "device": "d", "data": text}]}
    server.store.create("resourceclaims", {"metadata": meta, "spec": {"devices": {"e": text}}, "status": status})
    ((claim,), _) = claims(server).list_all()
    assert claim.has_devices(DRIVER, "p")
    assert len(repr(claim)) < 1000


# Bytes


@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_is_too_large_is_asked_for_again_with_fewer_objects(server: ApiServer, seed: int) -> None:
    chance = random.Random(seed)
    texts = {size: "x" * size for size in (10, 2_000, 250_000, 1_500_000, 9_000_000)}
    for number in range(400):
        (size,) = chance.choices(list(texts), (50, 30, 15, 4, 1 if number % 40 == 0 else 0))
        add(server, 1, texts[size], prefix=f"{number}-")
    assert names(claims(server).list_all()[0]) == [f"{number}-0" for number in range(400)]
    asked = pages(server)
    assert asked[0] == ("", PAGE)
    for (before, limit), (token, now) in itertools.pairwise(asked):
        assert now == max(1, limit // 4) if token == before else now in (limit, min(PAGE, 2 * limit))
    assert len(asked) < 200


def test_pages_grow_again_behind_large_objects(server: ApiServer) -> None:
    add(server, 40, "x" * 250_000)
    add(server, 4 * PAGE, prefix="small-")
    assert len(claims(server).list_all()[0]) == 4 * PAGE + 40
    assert pages(server)[-1][1] == PAGE


def test_an_object_that_nobody_should_be_able_to_store_is_named_as_the_reason(server: ApiServer) -> None:
    add(server, 1, "x" * (MAX_OBJECT_BYTES - 1000))
    assert names(claims(server).list_all()[0]) == ["c0"]
    add(server, 1, "x" * MAX_OBJECT_BYTES, prefix="d")
    with golden_error(TooLarge):
        claims(server).list_all()
    assert pages(server)[-1][1] == 1


def test_an_answer_that_is_too_large_is_not_read(server: ApiServer) -> None:
    add(server, 1, "x" * MAX_OBJECT_BYTES)
    with golden_error(TooLarge):
        claims(server).get("tenant", "c0")


def test_a_watch_event_that_is_too_large_is_not_read(server: ApiServer) -> None:
    informer = Informer("claims", claims(server), lambda: None)
    informer.start()
    try:
        eventually(lambda: server.count("GET", "claims", watch=True) == 1)
        add(server, 1, "x" * (MAX_OBJECT_BYTES + (1 << 20)))
        eventually(lambda: "12 MiB" in informer.last_error, within=20.0)
        server.delete_claim("tenant", "c0")
        eventually(lambda: informer.current, within=30.0)
    finally:
        informer.stop()


GROWTH = """
import sys
import dra_driver.driver.agent
from dra_driver.driver.resourceslices.holders import allocated
from dra_driver.kube.api.client import RestConfig, Transport
from dra_driver.kube.api.errors import TooLarge
from dra_driver.kube.api.resources import ResourceApi

api = ResourceApi(Transport(RestConfig(server=sys.argv[1], timeout=60)))
api.server_version()

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

before = status("VmRSS")
try:
    found = sorted(allocated(api.list_claims("neuron.aws.com", "node-a"), "neuron.aws.com", "node-a"))
except TooLarge:
    found = "too large"
print(status("VmHWM") - before, found)
"""


def growth(server: ApiServer) -> tuple[float, str]:
    """MiB by which a process grows that lists claims after it has imported the driver, and what it finds."""
    command = [sys.executable, "-c", GROWTH, server.url]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True, timeout=300)
    grown, _, found = done.stdout.strip().partition(" ")
    return int(grown) / 1024, found


def test_a_tenants_claims_cost_no_memory(server: ApiServer) -> None:
    add(server, 400, "x" * 250_000)
    server.add_claim("ns", "ours", devices=[("r", "neuron-device-0")])
    grown, found = growth(server)
    assert found == "['neuron-device-0']"
    assert grown < 20, f"it grew by {grown:.0f} MiB"


@pytest.mark.parametrize("size", [5_000_000, 60_000_000])
def test_what_is_packed_costs_no_more_than_what_is_not(server: ApiServer, size: int) -> None:
    """60 MB of one letter are 260 kB as gzip."""
    server.gzip = True
    add(server, 1, "x" * size)
    grown, found = growth(server)
    assert found == ("[]" if size < MAX_OBJECT_BYTES else "too large")
    assert grown < 30, f"it grew by {grown:.0f} MiB"


# A state that the server has forgotten


def expire_at(server: ApiServer, *numbers: int) -> None:
    """Have the server compact before these pages."""

    def before(_: Request) -> None:
        if len(pages(server)) in numbers:
            server.store.expire()

    server.before_page = before


def test_a_list_whose_state_is_forgotten_begins_anew_and_keeps_nothing_of_it(server: ApiServer) -> None:
    add(server, 2 * PAGE + 10)
    expire_at(server, 3)
    found, version = claims(server).list_all()
    assert names(found) == [f"c{number}" for number in range(2 * PAGE + 10)]
    assert int(version) > server.store.oldest - 1
    tokens = [token for token, _ in pages(server)]
    assert [bool(token) for token in tokens] == [False, True, True, False, True, True]
    assert not any(token.endswith("@0") for token in tokens), "what the server offers would be of another state"
    third, fourth = [request.at for request in server.requests][2:4]
    assert fourth - third >= 0.5


def test_a_state_that_is_forgotten_again_and_again_is_an_error(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "EXPIRED_TRIES", 1)
    add(server, PAGE + 1)
    expire_at(server, 2, 4)
    with pytest.raises(ApiError) as caught:
        claims(server).list_all()
    assert caught.value.status == 410
    assert len(pages(server)) == 4


def test_more_than_can_be_kept_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_OBJECTS", PAGE)
    add(server, 2 * PAGE)
    assert claims(server).select(lambda _: None)[0] == []
    with golden_error(ApiError):
        claims(server).list_all()


# Informers


def test_an_informer_is_alive_while_it_lists_page_after_page(server: ApiServer) -> None:
    for number in range(3 * PAGE):
        server.add_node(f"n{number}", labels={"wanted": str(number % 2)})
    beats: list[float] = []
    go_on = threading.Event()

    def before(request: Request) -> None:
        if "continue" in request.query:
            beats.append(informer.worker._last_beat)
            go_on.wait(0.05)

    server.before_page = before
    nodes = Collection(server.transport(), partial_nodes())
    informer = Informer("nodes", nodes, lambda: None, lambda node: node.metadata.labels["wanted"] == "1")
    informer.start()
    try:
        eventually(lambda: informer.current)
        assert len(informer.objects()) == 3 * PAGE // 2
        assert beats == sorted(set(beats)), "each page is a heartbeat"
        assert len(beats) == 2
    finally:
        informer.stop()
