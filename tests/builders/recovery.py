"""Nodes for the tests of recovery: as API objects, and as the values that decisions rest on."""

from __future__ import annotations

from typing import Any

from dra_driver.kube.objects.meta import timestamp
from dra_driver.neuron.names import SERVER_4, SERVER_MODE
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object

LONG_AGO = 1_700_000_000.0


def conditions(fault: str = "", message: str = "", since: float = LONG_AGO, *, ready: bool = True) -> list[Object]:
    """Ready, and NeuronHealth with a reason of the detector's, or without a fault."""
    health = {
        "type": "NeuronHealth",
        "status": "True" if fault else "False",
        "reason": fault or "NeuronHasNoError",
        "message": message,
        "lastTransitionTime": timestamp(since),
    }
    return [{"type": "Ready", "status": "True" if ready else "False"}, health]


def add_node(server: ApiServer, name: str, **labels: str) -> Object:
    """A Ready, healthy node, with an instance of its own."""
    number = sum(name.encode()) % 10**8
    return server.store.create(
        "nodes",
        {
            "metadata": {"name": name, "labels": {"neuron.amazonaws.com/present": "true", **labels}},
            "spec": {"providerID": f"aws:///us-east-1a/i-{number:017x}"},
            "status": {"conditions": conditions()},
        },
    )


def add_server(server: ApiServer, name: str, size: int = 4) -> list[str]:
    """The nodes of an UltraServer, linked with each other."""
    names = [f"{name}-n{index}" for index in range(size)]
    for node in names:
        add_node(server, node, **{SERVER_4: name, SERVER_MODE: "1_2_4"})
    return names


def set_conditions(server: ApiServer, name: str, found: list[Object]) -> None:
    """What kubelet and the driver write."""
    with server.store.changed:
        node = server.store.get("nodes", name)
        node["status"]["conditions"] = found
        server.store.update("nodes", name, node)


def sicken(server: ApiServer, name: str, code: str = "heartbeat-stalled", chip: int = 3) -> None:
    """A chip of the node has had a fault for years."""
    from dra_driver.neuron.health.faults import FAULTS

    set_conditions(server, name, conditions(FAULTS[code].reason, f"neuron{chip}: {code}"))


def cure(server: ApiServer, name: str) -> None:
    """The fault is over, for years."""
    set_conditions(server, name, conditions())


def add_pod(server: ApiServer, name: str, node: str, namespace: str = "work", **changes: Any) -> Object:
    """A running pod that ends at once when it is told to."""
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c"}]}
    meta = {"namespace": namespace, "name": name, "labels": {"app": name}} | changes.pop("metadata", {})
    pod = {"metadata": meta, "spec": spec | changes.pop("spec", {}), "status": {"phase": "Running"}}
    return server.store.create("pods", pod | changes)


def add_budget(server: ApiServer, app: str, allowed: int, namespace: str = "work") -> None:
    """A disruption budget for the pods with a label."""
    spec = {"selector": {"matchLabels": {"app": app}}}
    budget = {"metadata": {"namespace": namespace, "name": app}, "spec": spec}
    server.store.create("poddisruptionbudgets", budget | {"status": {"disruptionsAllowed": allowed}})
