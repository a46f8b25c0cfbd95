"""What opaque parameters do, and how a user learns that they are wrong."""

from __future__ import annotations

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import DRIVER, config, neuron_config, pod, request, template

FAILED = "FailedPrepareDynamicResources"


def device_class(name: str, *configs: Object) -> Object:
    """A DeviceClass for all Neuron devices, with configuration."""
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, "config": list(configs)},
    }


def lnc(namespace: Namespace, name: str) -> str:
    """The logical core size in a pod."""
    return namespace.environment(name)["NEURON_LOGICAL_NC_CONFIG"]


def test_a_claim_overrides_its_class_and_a_later_entry_an_earlier_one(
    driver: Installation, namespace: Namespace
) -> None:
    one, two = neuron_config(1), neuron_config(2)
    other = {"opaque": {"driver": "gpu.example.com", "parameters": {"logicalNeuronCore": 2}}}
    claims = {
        "class-only": [],
        "claim-wins": [config(two)],
        "says-nothing": [config({"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"})],
        "later-wins": [config(two), config(one, "neurons")],
        "not-ours": [other],
    }
    wanted = request(device_class="test-neuron-lnc-1")
    namespace.apply(
        device_class("test-neuron-lnc-1", config(two), config(one)),
        *(template(name, wanted, configs=configs) for name, configs in claims.items()),
        *(pod(name, templates={"neurons": name}) for name in claims),
    )
    namespace.wait_ready(*claims)
    sizes = {name: lnc(namespace, name) for name in claims}
    assert sizes == {"class-only": "1", "claim-wins": "2", "says-nothing": "1", "later-wins": "1", "not-ours": "1"}


@pytest.mark.parametrize(
    "version", ["neuron.aws.com/v1", "neuron.aws.com/v1alphav1", "resource.neuron.aws.com/v1alphav1"]
)
def test_every_documented_api_version_of_the_parameters_is_understood(
    driver: Installation, namespace: Namespace, version: str
) -> None:
    parameters = neuron_config(1) | {"apiVersion": version}
    namespace.apply(template("one", request(), configs=[config(parameters)]), pod("uses", templates={"neurons": "one"}))
    namespace.wait_ready("uses")
    assert lnc(namespace, "uses") == "1"


REFUSED = {
    "an unknown field": (
        [config({"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCores": 1})],
        'strict decoding error: unknown field "logicalNeuronCores"',
    ),
    "an unknown value": ([config(neuron_config(3))], "logicalNeuronCore: expected 1 or 2, got 3"),
    "a string": ([config(neuron_config("1"))], 'logicalNeuronCore: expected 1 or 2, got "1"'),
    "an unknown kind": (
        [config({"apiVersion": "neuron.aws.com/v1", "kind": "GpuConfig"})],
        'kind: expected NeuronConfig or UltraServerConfig, got "GpuConfig"',
    ),
    "an UltraServer mode for a single chip": (
        [config({"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 2})],
        "UltraServerConfig (ultraserverMode 2) is set for request neurons, but its device neuron-device-",
    ),
    "two sizes in one claim": (
        [config(neuron_config(1), "neurons"), config(neuron_config(2), "more")],
        "it is not known what each of its containers uses",  # without the right to read the pod
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_parameters_are_refused_in_an_event_of_the_pod(
    lenient_driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles], case: str
) -> None:
    configs, text = REFUSED[case]
    namespace.apply(
        template("wrong", request(), request("more"), configs=configs),
        pod("waits", templates={"neurons": "wrong"}, node="node-1"),
    )
    message = namespace.wait_event("waits", text)
    assert FAILED in {event["reason"] for event in namespace.events("waits") if event.get("message") == message}
    assert namespace.phase("waits") == "Pending"
    files = node_files["node-1"]
    assert not files.specs()
    assert not files.checkpoint()
    namespace.delete_pod("waits")


def test_a_wrong_claim_does_not_keep_other_pods_from_starting(
    lenient_driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """Nor does it leave anything when its pod is deleted, though another claim of the pod was right."""
    namespace.apply(
        template("wrong", request(), configs=[config(neuron_config(3))]),
        template("right", request()),
        pod("waits", templates={"a": "right", "b": "wrong"}, node="node-1"),
    )
    namespace.wait_event("waits", "expected 1 or 2, got 3")
    namespace.apply(pod("runs", templates={"neurons": "right"}, node="node-1"))
    namespace.wait_ready("runs")
    namespace.delete_pod("waits")
    uid = namespace.claim_of("runs")["metadata"]["uid"]
    files = node_files["node-1"]
    eventually("only the other claim to be prepared", lambda: set(files.specs()) == set(files.checkpoint()) == {uid})


def test_hardware_without_logical_cores_refuses_a_size_and_sets_no_variables(
    installation: Installation, namespace: Namespace
) -> None:
    """Trainium 1: the type is the one that the machine says, whatever the node's label."""
    installation.ensure("--emulate", "trn1.32xlarge")
    trn1 = request(count=2, selectors=["device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'"])
    namespace.apply(
        template("plain", trn1),
        template("sized", trn1, configs=[config(neuron_config(2))]),
        pod("runs", templates={"neurons": "plain"}),
        pod("waits", templates={"neurons": "sized"}),
    )
    namespace.wait_ready("runs")
    assert (namespace.numbers("runs"), namespace.environment("runs")) == ([0, 1], {})
    namespace.wait_event("waits", "trn1.32xlarge has no logical NeuronCores")
    assert namespace.phase("waits") == "Pending"
