"""What recovery logs when the API server or AWS does not do what it is asked."""

from __future__ import annotations

import pytest

from dra_driver.kube.api.election import Times
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.health.node_events import Change, NodeEvents
from dra_driver.operations.recovery.controller import RecoveryService, RecoverySettings
from dra_driver.operations.recovery.policy import Policy
from tests.builders.recovery import add_node, add_pod, sicken
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden, logged

pytestmark = pytest.mark.slow

FAST = Times(lease=2, act=1.0, renew=0.1)
AT_ONCE = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0)


def service(server: ApiServer, **settings: object) -> RecoveryService:
    chosen = RecoverySettings(policy=AT_ONCE, act=True, **settings)  # type: ignore[arg-type] # fields of it
    return RecoveryService(server.transport(), "kube-system", "one", chosen, FAST)


def test_while_nodes_cannot_be_read_nothing_is_decided(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    add_node(server, "n")
    server.fail(403, 1000, path="^/api/v1/nodes")
    running = service(server)
    running.start()
    eventually(lambda: "no decisions are made" in log.text)
    running.stop()
    golden(logged(log, "no decisions are made")[:1])


def test_pods_that_change_meanwhile_are_evicted_later(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    add_node(server, "n")
    add_pod(server, "p", "n")
    sicken(server, "n")
    server.fail(409, 1, path="/eviction$")
    running = service(server)
    running.start()

    def messages() -> list[str]:
        return [str(event["message"]) for event in server.store.list("events")[0]]

    eventually(lambda: any("just changed" in text for text in messages()))
    running.stop()
    golden(text for text in messages() if "just changed" in text)


def test_an_event_that_is_refused_is_given_up(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    add_node(server, "n")
    api = ResourceApi(server.transport())
    node: Node = api.get_node("n")
    server.fail(403, path="events")
    events = NodeEvents(api, "test")
    events.tell(Change("3 hbm-uncorrectable", "NeuronHasError", True, 1e9, "neuron3: 3 errors"))
    events.write(node)
    golden(logged(log, "no event is written"))


def test_a_node_that_cannot_be_counted_is_acted_on_all_the_same(
    server: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    node = add_node(server, "n")
    server.store.update("nodes", "n", {**node, "spec": {"providerID": "gce://project/zone/n"}})
    sicken(server, "n")
    running = service(server, cloudwatch=True)
    running.start()
    eventually(lambda: "CloudWatch" in log.text)
    eventually(lambda: server.store.get("nodes", "n")["spec"].get("unschedulable"))
    running.stop()
    golden(logged(log, "CloudWatch"))
