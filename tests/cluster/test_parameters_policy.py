"""Wrong parameters are refused when they are applied, by the same rules as by the driver when a pod starts."""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.neuron.names import API_VERSIONS, CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.neuron.opaque_config import ConfigError, decode
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.objects import DRIVER, claim, config, first_available, neuron_config, request
from tests.generators.effort import SEED
from tests.oracles.opaque_parameters import ILLEGAL, LEGAL, UID
from tests.paths import ROOT

pytestmark = [pytest.mark.control_plane, pytest.mark.kubernetes("1.37", "1.34"), pytest.mark.nightly]

POLICY: Final = "neuron-dra-driver-parameters"
OLD_CLASS: Final = "older-than-the-policy"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
PATHS: Final = {
    "resourceclaims": "spec.devices",
    "resourceclaimtemplates": "spec.spec.devices",
    "deviceclasses": "spec",
}
KIND: Final = {
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "deviceclasses": "DeviceClass",
}


def installed(name: str = POLICY) -> list[Object]:
    """Policy and binding, as installer and kustomize have them."""
    objects = yaml.safe_load_all((ROOT / "deploy/kustomize/driver/driver.yaml").read_text())
    return [item for item in objects if item["metadata"]["name"] == name]


class Server:
    """Creates objects by a dry run."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def send(self, version: str, resource: str, sent: Object, method: str = "POST", name: str = "") -> str:
        """What the API server says against an object; "" if it takes it."""
        place = "" if resource == "deviceclasses" else "/namespaces/default"
        path = f"/apis/resource.k8s.io/{version}{place}/{resource}{name and '/' + name}"
        body = {"apiVersion": f"resource.k8s.io/{version}", "kind": KIND[resource], **sent}
        try:
            self.transport.request(method, path, query=[("dryRun", "All")], body=body)
        except ApiError as error:
            return str(error)
        return ""

    def ask(self, resource: str, configs: Sequence[Object], version: str = "v1") -> str:
        """The same for an object with these configurations."""
        asked: Object = {"name": "r"} | ({"exactly": of_class()} if version != "v1beta1" else of_class())
        devices = {"requests": [asked], "config": list(configs)}
        specs: dict[str, Object] = {
            "resourceclaims": {"devices": devices},
            "resourceclaimtemplates": {"spec": {"devices": devices}},
            "deviceclasses": {"config": list(configs)},
        }
        return self.send(version, resource, {"metadata": {"name": "tried"}, "spec": specs[resource]})

    def judge(self, text: str) -> str:
        """What it says against parameters in a claim."""
        return self.ask("resourceclaims", [config(msgspec.Raw(text.encode()))])  # type: ignore[arg-type]


def of_class() -> Object:
    return {"deviceClassName": DRIVER}


@pytest.fixture(scope="module")
def server(lab: Cluster, kube: Kube) -> Iterator[Server]:
    """The API server with all versions, the policy, and a class that is older than that."""
    lab.control_plane.stop("kube-apiserver")
    served = ",".join(f"resource.k8s.io/{version}=true" for version in VERSIONS)
    lab.control_plane.start("kube-apiserver", f"--runtime-config={served}")
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="parameters-test")
    made = Server(transport)
    eventually("the API server to be back", lambda: not made.ask("resourceclaims", []), 60)
    # The tests before may have started it only just, and it ends where it finds no API server at its start.
    lab.control_plane.stop("kube-controller-manager")
    lab.control_plane.start("kube-controller-manager")
    kube.create("deviceclasses", device_class(OLD_CLASS, config(neuron_config(7))))
    kube.apply(*installed())
    eventually("the policy to be in force", lambda: made.judge("{}"), 60)
    yield made
    transport.close()


def device_class(name: str, *configs: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": list(configs)},
    }


def test_the_type_check_of_the_api_server_finds_nothing(server: Server, kube: Kube) -> None:
    def checked() -> Object | None:
        status: Object = (kube.get("validatingadmissionpolicies", POLICY) or {}).get("status") or {}
        return status if "typeChecking" in status else None

    assert eventually("the type check", checked, 60)["typeChecking"] == {}


def test_parameters_are_refused_as_the_driver_refuses_them(server: Server) -> None:
    assert {text: server.judge(text) for text in LEGAL} == dict.fromkeys(LEGAL, "")
    said = {text: server.judge(text) for text in ILLEGAL}
    assert {
        text: answer for text, answer in said.items() if f"spec.devices.config[0].opaque.{ILLEGAL[text]}" not in answer
    } == {}
    assert {text: answer for text, answer in said.items() if "422" not in answer or "\n" in answer} == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", PATHS)
def test_every_object_and_version_is_looked_at(server: Server, resource: str, version: str) -> None:
    other: Object = {"opaque": {"driver": "gpu.example.com", "parameters": {"logicalNeuronCore": 9}}}
    wrong = config(neuron_config(3))
    assert server.ask(resource, [other, config(neuron_config(2))], version) == ""
    said = server.ask(resource, [other, config(neuron_config(1)), wrong, wrong], version)
    expected = f"{PATHS[resource]}.config[2].opaque.parameters.logicalNeuronCore: expected 1 or 2, got 3, and 1 more"
    assert expected in said


def test_a_class_is_judged_when_its_configuration_changes(server: Server) -> None:
    patch = {"metadata": {"labels": {"a": "b"}}}
    path = f"/apis/resource.k8s.io/v1/deviceclasses/{OLD_CLASS}"

    def patched(body: Object) -> str:
        try:
            server.transport.request(
                "PATCH", path, query=[("dryRun", "All")], body=body, content_type="application/merge-patch+json"
            )
        except ApiError as error:
            return str(error)
        return ""

    assert patched(patch) == ""
    assert "spec.config[0].opaque.parameters.logicalNeuronCore" in patched(
        {"spec": {"config": [config(neuron_config(9))]}}
    )
    assert patched({"spec": {"config": [config(neuron_config(2))]}}) == ""


def mode(nodes: int, *requests: str) -> Object:
    return config({"apiVersion": API_VERSIONS[0], "kind": "UltraServerConfig", "ultraserverMode": nodes}, *requests)


TWO: Final = (request("a"), request("b"))
FOREIGN: Final = request("b", device_class="gpu.example.com")
MODES: Final[dict[str, tuple[tuple[Object, ...], tuple[Object, ...], bool]]] = {
    "one for all": (TWO, (mode(4),), True),
    "the same twice": (TWO, (mode(4, "a"), mode(4, "b")), True),
    "a later one for all": (TWO, (mode(4, "a"), mode(2, "b"), mode(1)), True),
    "a later one for each": (TWO, (mode(4), mode(2, "a"), mode(2, "b")), True),
    "one of two": (TWO, (mode(4, "a"),), True),
    "two": (TWO, (mode(4, "a"), mode(2, "b")), False),
    "all but one": (TWO, (mode(4), mode(2, "b")), False),
    "all but one, of a class of one's own": (
        (request("a", device_class="mine"), TWO[1]),
        (mode(4), mode(2, "b")),
        True,
    ),
    "all but one, of another driver": ((TWO[0], FOREIGN), (mode(4), mode(2, "a")), True),
    "alternatives": (
        (first_available("a", request("x"), request("y")),),
        (mode(4, "a/x"), mode(1, "a/y")),
        True,
    ),
    "core sizes may differ": (TWO, (config(neuron_config(1), "a"), config(neuron_config(2), "b"), mode(4)), True),
}


@pytest.mark.parametrize("case", MODES)
def test_a_node_is_in_one_mode(server: Server, case: str) -> None:
    requests, configs, legal = MODES[case]
    said = server.send("v1", "resourceclaims", claim("tried", *requests, configs=configs))
    assert (said == "") == legal
    if not legal:
        assert "spec.devices.config: requests have the ultraserverModes 4, 2, expected one for all of them" in said


def test_what_asks_for_nothing_is_let_through(server: Server, kube: Kube) -> None:
    """Requests that nobody has given are null for a policy."""
    fence = installed(CLASSES_POLICY)
    kube.apply(*fence)
    fenced: Object = {"devices": {"requests": [request("r", device_class=WORKLOAD_CLASS)]}}
    refused = {"metadata": {"name": "tried"}, "spec": fenced}
    eventually("the policy to be in force", lambda: server.send("v1", "resourceclaims", refused), 60)
    specs: tuple[Object, ...] = ({"devices": {}}, {"devices": {"config": [mode(4), mode(2)]}})
    for version, spec in itertools.product(VERSIONS, specs):
        for resource, sent in (("resourceclaims", spec), ("resourceclaimtemplates", {"spec": spec})):
            assert server.send(version, resource, {"metadata": {"name": "tried"}, "spec": sent}) == ""


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
VALUE: Final = st.sampled_from([1, 2, 3, 4, 1.0, 4.0, True, "2", UID, UID.upper(), f"{UID}\n"]) | JSON
FIELD: Final = {"NeuronConfig": "logicalNeuronCore", "UltraServerConfig": "ultraserverMode"}
NEARLY_LEGAL: Final = st.builds(
    lambda version, kind, number: {"apiVersion": version, "kind": kind, FIELD[kind]: number},
    st.sampled_from(API_VERSIONS),
    st.sampled_from(list(FIELD)),
    st.sampled_from([1, 2, 4]),
)
CHANGES: Final = st.dictionaries(
    st.sampled_from(["apiVersion", "kind", "workload", *FIELD.values()]) | st.text(max_size=6), VALUE, max_size=9
)
PARAMETERS: Final = NEARLY_LEGAL | st.builds(
    lambda given, changes: given | changes, st.just({}) | NEARLY_LEGAL, CHANGES
)


def test_random_parameters_have_the_same_verdict_as_with_the_driver(server: Server, figures: list[str]) -> None:
    verdicts: list[bool] = []

    @seed(SEED)
    @settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PARAMETERS)
    def compare(parameters: dict[str, Any]) -> None:
        try:
            decode(parameters)
        except ConfigError:
            legal = False
        else:
            legal = True
        verdicts.append(legal)
        said = server.judge(json.dumps(parameters))
        assert (said == "") == legal, (parameters, said)

    compare()
    figures.append(f"random parameters: {len(verdicts)} compared, {sum(verdicts)} legal")
    assert sum(verdicts) >= 20


def large(text: str) -> Object:
    """An entry that makes the policy read as much as an entry may have: 10 KiB."""
    return config(msgspec.Raw(text.encode()))  # type: ignore[arg-type]


def filled(head: str, keys: int) -> str:
    """Parameters of 10 KiB with so many more keys."""
    each = (10 * 1024 - len(head) - 40) // keys
    return (
        "{"
        + head
        + "".join(f', "{number}{"k" * (each // 2)}": "{"v" * (each // 2 - 12)}"' for number in range(keys))
        + "}"
    )


V1: Final = f'"apiVersion": "{API_VERSIONS[0]}"'
LARGEST: Final = {
    "keys": [large(filled(f'{V1}, "kind": "NeuronConfig"', 6))] * 32,
    "many keys": [large(filled(f'{V1}, "kind": "NeuronConfig"', 200))] * 32,
    "a version": [large(f'{{"apiVersion": "{"v" * 10_000}", "kind": "NeuronConfig"}}')] * 32,
    "a kind": [large(f'{{{V1}, "kind": "{"NeuronConfig" * 830}"}}')] * 32,
    "a value": [large(f'{{{V1}, "kind": "NeuronConfig", "logicalNeuronCore": "{"1" * 10_000}"}}')] * 32,
    "a workload": [large(f'{{{V1}, "kind": "NeuronConfig", "workload": "{"0" * 10_000}"}}')] * 32,
    "legal ones": [config(neuron_config(2), *(f"r{number}" for number in range(32)))] * 32,
    "modes": [mode(2 if number else 4, *(f"r{other}" for other in range(32))) for number in range(32)],
}


def repeated(tens: int) -> tuple[Object, Object]:
    """The policy with each expression evaluated ten times, or 100 or 1,000 times: in one expression, and all of it."""
    policy, binding = copy.deepcopy(installed())
    for item in (policy, binding):
        item["metadata"] = {"name": "ten-times"}
    spec = policy["spec"]
    binding["spec"]["policyName"] = "ten-times"
    dear = [
        item["expression"]
        for item in spec["variables"]
        if item["name"] in ("ours", "faults", "modes", "asked", "asking")
    ]
    texts = [f"size({text}) >= 0" for text in dear]
    texts += [f"(({item['expression']}) ? 1 : 0) >= 0" for item in spec["validations"]]
    # The API server repeats the expression in its refusal, of which the client keeps 4,096 characters.
    head = "".join(f"{list(range(10))}.all({name}, " for name in "klm"[:tens])
    spec["validations"] = [{"expression": f"{head}{text}{')' * tens}"} for text in texts]
    spec["validations"].append({"expression": "object.metadata.name != 'wrong'", "message": "it is in force"})
    return policy, binding


@pytest.mark.parametrize(("tens", "enough"), [(1, True), (3, False)])
def test_the_largest_objects_need_less_than_a_tenth_of_what_policies_may_cost(
    server: Server, kube: Kube, tens: int, enough: bool
) -> None:
    """A second policy evaluates all of it ten times, instead of the first; a thousand times is too much."""
    kube.kubectl("delete", "validatingadmissionpolicybinding", POLICY)
    kube.apply(*repeated(tens))

    def in_force() -> bool:
        sent = {"metadata": {"name": "wrong"}, "spec": {"devices": {}}}
        return "it is in force" in server.send("v1", "resourceclaims", sent) and not server.judge("{}")

    try:
        eventually("the other policy to be in force", in_force, 60)
        requests = [request(f"r{number}") for number in range(32)]
        said = {
            what: server.send("v1", "resourceclaims", claim("large", *requests, configs=configs))
            for what, configs in LARGEST.items()
        }
        if enough:
            assert said == dict.fromkeys(LARGEST, "")
        else:
            assert "cost limit exceeded" in said["keys"]
    finally:
        kube.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "ten-times")
        kube.apply(*installed())
        eventually("the policy to be in force", lambda: POLICY in server.judge("{}"), 60)
