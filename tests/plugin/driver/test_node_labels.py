"""The labels of the own Node: through elections, others' changes, restarts and refusals."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from dra_driver.driver.node_labels import KEYS, LABELS, MODE, SERVER_ID, labels
from dra_driver.kube.api.own_node import OwnNodeWriter, PartStatus
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.api.watch import Reflector
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.host.inventory import Membership, ServerSet
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.worker import Backoff
from tests.doubles.apiserver.node_fields import set_label
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually

NODE = "node-a"
CONTEST_SECONDS = 0.2
PAIR, FOUR = ServerSet(2, "0123456789abcdef", 1), ServerSet(4, "fedcba9876543210", 3)
WHOLE = Membership((Mode.X4, Mode.X2V, Mode.X1), (PAIR, FOUR), elected=True)
REMAINDER = Membership((Mode.X2H, Mode.X1), (PAIR,), elected=True)
ELECTING = Membership((), (), elected=True, electing=True)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE, labels={"example.com/zone": "a"})
        yield running


class Labelling:
    """A writer of the UltraServer labels."""

    def __init__(self, writer: OwnNodeWriter) -> None:
        self.worker = writer.worker
        self._writer = writer

    @property
    def status(self) -> PartStatus:
        return self._writer.status(LABELS)

    def want(self, wanted: Mapping[str, str] | None) -> None:
        self._writer.want(LABELS, wanted)


@contextmanager
def labelling(server: ApiServer, membership: Membership | None = None) -> Iterator[Labelling]:
    """A writer that follows its Node; with ``membership`` the Node has its labels."""
    api = ResourceApi(server.transport())
    writer = OwnNodeWriter(
        api,
        NODE,
        [LABELS],
        backoff=lambda: Backoff(first=0.02, cap=0.2),
        contest=lambda: Backoff(first=CONTEST_SECONDS, cap=5.0, free=1, random=lambda: 1.0),
    )
    found = Labelling(writer)

    def on_list(nodes: list[Node]) -> None:
        for node in nodes:
            writer.saw(node)

    reflector = Reflector(
        "own node",
        lambda: api.list_nodes(NODE),
        lambda version, seconds: api.watch_nodes(NODE, version, seconds),
        on_list,
        lambda event: writer.saw(event.object) if event.object is not None else None,
    )
    writer.start()
    reflector.start()
    try:
        if membership is not None:
            found.want(labels(membership))
            eventually(lambda: found.status.current, what="the labels")
        yield found
    finally:
        reflector.stop()
        writer.stop()


def has(server: ApiServer) -> dict[str, str]:
    found = server.store.get("nodes", NODE)["metadata"]["labels"]
    return {key: value for key, value in found.items() if key in KEYS}


def shows(server: ApiServer, membership: Membership) -> None:
    eventually(lambda: has(server) == labels(membership), what=f"{labels(membership)}")


def writes(server: ApiServer) -> int:
    return server.count("PATCH", f"/nodes/{NODE}$")


def history(server: ApiServer) -> list[Mapping[str, str]]:
    """Our labels after each change of the Node, without repetitions."""
    states: list[Mapping[str, str]] = []
    for event in server.store.events:
        if event.kind == "nodes":
            found = {key: value for key, value in event.object["metadata"]["labels"].items() if key in KEYS}
            if not states or states[-1] != found:
                states.append(found)
    return states


def test_labels_are_written_once_and_others_stay(server: ApiServer) -> None:
    with labelling(server, WHOLE) as writer:
        assert has(server) == labels(WHOLE)
        assert server.store.get("nodes", NODE)["metadata"]["labels"]["example.com/zone"] == "a"
        set_label(server.store, NODE, "example.com/zone", "b")
        time.sleep(0.3)
        assert (writes(server), writer.status.writes, writer.status.errors) == (1, 1, 0)


def test_a_restart_writes_nothing(server: ApiServer) -> None:
    for _ in range(3):
        with labelling(server, WHOLE):
            time.sleep(0.1)
    assert writes(server) == 1


def test_labels_of_a_set_that_ceases_are_removed(server: ApiServer) -> None:
    with labelling(server, WHOLE):
        pass
    with labelling(server, REMAINDER):
        assert has(server) == labels(REMAINDER)
    with labelling(server, Membership((), (), elected=True)):
        eventually(lambda: has(server) == {})
    assert writes(server) == 3


def test_nothing_is_asked_of_a_host_that_is_part_of_no_server(server: ApiServer) -> None:
    set_label(server.store, NODE, MODE, "1_2_4")
    with labelling(server) as writer:
        writer.want(labels(None))
        eventually(lambda: writer.status.current)
        assert writes(server) == 0
        assert server.count("GET", f"/nodes/{NODE}$") == 0
        assert has(server) == {MODE: "1_2_4"}, "somebody else's"


@pytest.mark.parametrize("seed", range(4))
def test_elections_write_at_most_twice_and_no_label_flaps(server: ApiServer, seed: int) -> None:
    delays = random.Random(seed)
    outcomes = [WHOLE, REMAINDER, WHOLE, WHOLE]
    with labelling(server, WHOLE) as writer:
        for outcome in outcomes:
            before = writes(server)
            settled = has(server)
            for _ in range(delays.randrange(1, 6)):
                writer.want(labels(ELECTING))
                time.sleep(delays.uniform(0, 0.05))
                assert has(server) == settled, "while the election runs"
            writer.want(labels(outcome))
            shows(server, outcome)
            time.sleep(delays.uniform(0, 0.1))
            assert writes(server) - before <= 2
    assert history(server) == [{}, labels(WHOLE), labels(REMAINDER), labels(WHOLE)]


def test_a_label_that_others_change_is_put_right_ever_more_slowly(server: ApiServer) -> None:
    with labelling(server, WHOLE):
        changed: list[float] = []
        for _ in range(4):
            set_label(server.store, NODE, SERVER_ID[4], "wrong", manager="somebody")
            changed.append(time.monotonic())
            eventually(lambda: has(server) == labels(WHOLE))
        assert time.monotonic() - changed[1] >= CONTEST_SECONDS * (1 + 2 + 4)
        assert writes(server) == 1 + len(changed)


def test_a_label_that_others_remove_comes_back(server: ApiServer) -> None:
    with labelling(server, WHOLE):
        set_label(server.store, NODE, SERVER_ID[4], None)
        eventually(lambda: has(server) == labels(WHOLE))


def test_refusals_and_lost_answers_are_retried(server: ApiServer) -> None:
    server.fail(403, times=2, method="PATCH")
    server.drop(times=1, method="PATCH", after=True)
    with labelling(server) as writer:
        writer.want(labels(WHOLE))
        eventually(lambda: writer.status.errors >= 2)
        eventually(lambda: writer.status.current)
        assert writer.status.last_error == ""
    assert has(server) == labels(WHOLE)


def test_a_new_outcome_does_not_wait_for_the_end_of_a_long_pause(server: ApiServer) -> None:
    server.fail(503, times=1, method="PATCH", retry_after=60)
    with labelling(server) as writer:
        writer.want(labels(WHOLE))
        eventually(lambda: writer.status.errors == 1)
        writer.want(labels(REMAINDER))
        eventually(lambda: has(server) == labels(REMAINDER))


def test_a_node_of_the_same_name_that_is_another_one_is_not_labelled_by_mistake(server: ApiServer) -> None:
    stale = ResourceApi(server.transport()).get_node(NODE)
    server.store.delete("nodes", NODE)
    server.add_node(NODE)
    api = ResourceApi(server.transport())
    with pytest.raises(Exception, match="409"):
        api.apply_node_labels(stale, {MODE: "1"}, "neuron-dra-driver")
    assert has(server) == {}


def test_a_failure_that_nobody_foresaw_is_told_and_does_not_end_it(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = ResourceApi.apply_node_labels, [RuntimeError("odd")]

    def apply(api: ResourceApi, node: Node, wanted: Mapping[str, str], manager: str) -> Node:
        if failures:
            raise failures.pop()
        return real(api, node, wanted, manager)

    monkeypatch.setattr(ResourceApi, "apply_node_labels", apply)
    with labelling(server) as writer:
        writer.want(labels(WHOLE))
        eventually(lambda: "odd" in writer.worker.problem(), what="the report")
        shows(server, WHOLE)
        eventually(lambda: not writer.worker.problem(), what="the end of the trouble")
