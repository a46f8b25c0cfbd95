"""``dra-driver explain`` against an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_driver.cli.main import main
from tests.doubles.apiserver.http import KINDS
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.paths import SPECS

EXAMPLE = SPECS / "1x4-connected-devices.yaml"
CLASS: Object = {"metadata": {"name": "neuron.aws.com"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}


def claim_of(count: int, constraint: str = "") -> Object:
    constraints = [{"matchAttribute": constraint}] if constraint else []
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
    return {"devices": {"requests": [request], "constraints": constraints}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ApiServer:
    """One node, of each row of which a chip is in use; a pod that waits for a row, and one that nobody can help."""
    for plural, kind in (("deviceclasses", "DeviceClass"), ("resourceclaimtemplates", "ResourceClaimTemplate")):
        monkeypatch.setitem(KINDS, plural, kind)
    made = ApiServer()
    made.add_node("node-a")
    assert main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", "node-a", "-o", "json"]) == 0
    for place, item in enumerate(json.loads(capsys.readouterr().out)["items"]):
        made.store.create("resourceslices", {**item, "metadata": {"name": f"node-a-{place}"}})
    made.store.create("deviceclasses", CLASS)
    made.add_claim("default", "used", devices=[("r", f"neuron-device-{i}") for i in (0, 4, 8, 12)], node="node-a")
    template = {"metadata": {"name": "row", "namespace": "shop"}, "spec": {"spec": claim_of(4, ROW)}}
    made.store.create("resourceclaimtemplates", template)
    entry = {"name": "chips", "resourceClaimTemplateName": "row"}
    waits = {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"resourceClaims": [entry]}}
    made.store.create("pods", waits)
    lost = {"name": "chips", "resourceClaimTemplateName": "nowhere"}
    made.store.create("pods", {"metadata": {"name": "lost", "namespace": "shop"}, "spec": {"resourceClaims": [lost]}})
    made.store.create("resourceclaims", {"metadata": {"name": "pair", "namespace": "shop"}, "spec": claim_of(2)})
    return made


ROW = "resource.aws.com/devicegroup4_id"


def explained(server: ApiServer, directory: Path, *arguments: str) -> int:
    kubeconfig = server.kubeconfig(directory / "kubeconfig")
    return main(["explain", *arguments, "--from-cluster", "--kubeconfig", str(kubeconfig)])


def test_a_pod_that_waits(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    out = capsys.readouterr().out
    assert out.startswith("Pod shop/web-0 does not fit on the only node.\n")
    assert f"request chips needs 4 devices with the same {ROW}" not in out
    assert (
        f"Node node-a: request r needs 4 devices with the same {ROW}, and rows 0, 1, 2 and 3 have 3 free each." in out
    )
    assert all(request.method == "GET" for request in server.requests), "nothing is changed"


def test_a_claim_that_waits(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "claim/pair", "-n", "shop") == 0
    out = capsys.readouterr().out
    assert out.startswith("Claim shop/pair fits: it gets its devices on node node-a.\n")
    assert "it would get 1 and 2, which are connected by chance" in out


def test_a_claim_that_has_its_devices(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "claim/used") == 0
    assert capsys.readouterr().out.startswith("Claim default/used has its devices already: claim used has node-a/")


def test_a_pod_whose_template_is_not_there(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path, "pod/lost", "-n", "shop") == 2
    assert "needs the ResourceClaimTemplate shop/nowhere, which is not there" in capsys.readouterr().err


def test_a_pod_that_is_not_there(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "pod/web-0") == 2
    assert "there is no pod with resource claims default/web-0; there are shop/" in capsys.readouterr().err


def test_a_file_beside_what_the_cluster_has(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path, str(EXAMPLE)) == 1
    out = capsys.readouterr().out
    assert out.startswith("Pod default/pod0 does not fit on the only node.\n")
    assert "when this claim ends: default/used (has neuron-device-0, 4, 8 and 12)." in out


@pytest.mark.parametrize(("version", "meant"), [("v1.34.2", "1.36"), ("v1.36.3", "1.36"), ("v1.38.0", "1.37")])
def test_the_nearest_release_is_meant(
    version: str, meant: str, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.git_version = version
    with server:
        explained(server, tmp_path, "claim/pair", "-n", "shop", "-o", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["kubernetes"] == meant
    assert any("is simulated" in note for note in document["notConsidered"]) == (version != "v1.36.3")
    names = [trap["name"] for trap in document["explanations"][0]["traps"]]
    assert ("old-server" in names) == (version == "v1.34.2")


def test_a_cluster_that_does_not_answer(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        pass
    assert explained(server, tmp_path, "pod/web-0") == 2
    assert capsys.readouterr().err.startswith("error: ")
