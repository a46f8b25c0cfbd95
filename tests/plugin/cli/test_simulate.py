"""``dra-driver simulate --from-cluster`` against an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_driver.cli.main import main
from tests.builders.documents import document as parsed
from tests.doubles.apiserver.http import Fault
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.golden import golden
from tests.paths import SPECS

pytestmark = pytest.mark.slow

EXAMPLE = SPECS / "1x4-connected-devices.yaml"
CLASS = {"metadata": {"name": "neuron.aws.com"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}


@pytest.fixture
def server(capsys: pytest.CaptureFixture[str]) -> ApiServer:
    """A cluster with two nodes of chips, of which the first is in use, and a pod that waits."""
    made = ApiServer()
    for name in ("node-a", "node-b"):
        made.add_node(name)
        assert main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", name, "-o", "json"]) == 0
        for place, item in enumerate(json.loads(capsys.readouterr().out)["items"]):
            item["metadata"] = {"name": f"{name}-{place}"}
            item["spec"]["somethingNewer"] = True
            made.store.create("resourceslices", item)
    made.store.create("deviceclasses", CLASS)
    made.add_claim("default", "used", devices=[("r", f"neuron-device-{i}") for i in range(16)], node="node-a")
    waiting: Object = {
        "metadata": {"name": "waits", "namespace": "default"},
        "spec": {
            "containers": [{"name": "x", "resources": {"claims": [{"name": "mine"}]}}],
            "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}],
        },
    }
    made.store.create("pods", waiting)
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 2}}
    mine = {"metadata": {"name": "mine", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
    made.store.create("resourceclaims", mine)
    return made


def simulated(server: ApiServer, directory: Path, *arguments: str) -> int:
    kubeconfig = server.kubeconfig(directory / "kubeconfig")
    return main(["simulate", "--from-cluster", "--kubeconfig", str(kubeconfig), *arguments])


def test_a_file_is_placed_beside_what_the_cluster_has(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert simulated(server, tmp_path, str(EXAMPLE)) == 0
    out = capsys.readouterr().out
    golden(out)
    assert "NEURON_LOGICAL_NC_CONFIG=2" in out


def test_without_a_file_what_waits_is_placed(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert simulated(server, tmp_path, "-o", "json") == 0
    claims = {item["name"]: item for item in parsed(capsys.readouterr().out)["claims"]}
    assert claims["mine"]["node"] == "node-b"
    assert [item["device"] for item in claims["mine"]["allocation"]["devices"]["results"]] == [
        "neuron-device-0",
        "neuron-device-1",
    ]
    assert all(request.method == "GET" for request in server.requests), "nothing is changed"


def test_the_older_versions_of_the_api_are_read(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.versions, server.git_version = ("v1beta2",), "v1.35.2"
    with server:
        assert simulated(server, tmp_path, str(EXAMPLE)) == 0
    golden(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("versions", "status", "device"),
    [
        (("v1",), 200, "neuron-device-1"),
        (("v1beta2", "v1beta1"), 200, "neuron-device-1"),
        (("v1", "v1alpha3"), 404, "neuron-device-1"),
        (("v1",), 404, "neuron-device-0"),
        (("v1",), 403, "neuron-device-0"),
    ],
)
def test_device_taint_rules_are_read_in_the_version_that_is_served(
    versions: tuple[str, ...],
    status: int,
    device: str,
    server: ApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server that serves none, and one that shows none to this user, is taken for one that has none."""
    server.versions = versions
    selector = {"driver": "neuron.aws.com", "pool": "node-b", "device": "neuron-device-0"}
    spec = {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoSchedule"}}
    server.store.create("devicetaintrules", {"metadata": {"name": "rule"}, "spec": spec})
    if status != 200:
        server.faults.append(Fault(path="/v1/devicetaintrules", status=status, reason="NotFound", times=1))
    with server:
        assert simulated(server, tmp_path, "-o", "json") == 0
    out, err = capsys.readouterr()
    claims = {item["name"]: item for item in parsed(out)["claims"]}
    assert claims["mine"]["allocation"]["devices"]["results"][0]["device"] == device
    golden(err)


def test_a_cluster_that_cannot_be_asked_is_an_explained_error(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        server.faults.append(Fault(path="deviceclasses", status=403, reason="Forbidden", times=9))
        assert simulated(server, tmp_path, str(EXAMPLE)) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert simulated(server, tmp_path, str(EXAMPLE)) == 2
