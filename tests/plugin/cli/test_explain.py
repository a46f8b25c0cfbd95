"""``dra-driver explain`` against an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import kubectl_main, main
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
def server(capsys: pytest.CaptureFixture[str]) -> ApiServer:
    """One node, of each row of which a chip is in use; a pod that waits for a row, and one that nobody can help."""
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


@pytest.fixture
def contexts(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$KUBECONFIG with the context ``shop`` of that namespace, and a current one of a server that is not there."""
    with server:
        content = yaml.safe_load(server.kubeconfig(tmp_path / "one").read_text())
    content["clusters"].append({"name": "gone", "cluster": {"server": "http://127.0.0.1:9"}})
    content["contexts"] = [
        {"name": "shop", "context": {"cluster": "test", "user": "test", "namespace": "shop"}},
        {"name": "gone", "context": {"cluster": "gone", "user": "test"}},
    ]
    content["current-context"] = "gone"
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


def test_a_context_selects_server_and_namespace(
    server: ApiServer, contexts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "web-0", "--from-cluster"]) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
    with server:
        assert main(["explain", "web-0", "--from-cluster", "--context", "shop"]) == 1
    assert capsys.readouterr().out.startswith("Pod shop/web-0 does not fit on the only node.\n")
    assert contexts.exists()


@pytest.mark.usefixtures("contexts")
def test_a_context_that_is_not_there_is_bad_input(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert main(["explain", "pod/web-0", "--from-cluster", "--context", "nowhere"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "it has no context 'nowhere'" in said.err


def test_kubectl_neuron_explains_a_pod_of_the_current_context(
    server: ApiServer, contexts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.write_text(contexts.read_text().replace("current-context: gone", "current-context: shop"))
    with server:
        assert kubectl_main(["explain", "web-0"]) == 1
        by_plugin = capsys.readouterr()
        assert main(["explain", "pod/web-0", "--from-cluster", "-n", "shop"]) == 1
    assert by_plugin == capsys.readouterr()
    assert by_plugin.out.startswith("Pod shop/web-0 does not fit")


def test_without_names_what_waits_in_the_namespace_is_explained(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path) == 0
        assert "pods of other namespaces than default: 2" in capsys.readouterr().out
        for more in (["-n", "shop"], ["-A"]):
            assert explained(server, tmp_path, *more) == 2
            assert "needs the ResourceClaimTemplate shop/nowhere" in capsys.readouterr().err


def test_a_kubeconfig_alone_still_selects_the_cluster_with_a_warning(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        file = server.kubeconfig(tmp_path / "kubeconfig")
        assert main(["explain", "claim/pair", "-n", "shop", "--kubeconfig", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Claim shop/pair fits")
    assert said.err == (
        "warning: --kubeconfig alone no longer selects the cluster: write --from-cluster --kubeconfig FILE\n"
    )


@pytest.mark.parametrize("how", [[], ["-f"]], ids=["positional", "-f"])
def test_objects_without_a_namespace_are_in_the_one_that_is_given(
    how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "-n", "team", "--instance-type", "trn2.48xlarge", *how, str(EXAMPLE)]) == 0
    assert capsys.readouterr().out.startswith("Pod team/pod0 fits")
