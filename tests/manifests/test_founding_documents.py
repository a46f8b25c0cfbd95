"""What AWS's pages show, word for word: each claim of theirs is allocated and prepared as those pages say."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.neuron.names import API_VERSIONS
from tests.manifests.support import Object, as_v1, documents, of_kind
from tests.paths import ROOT

DOCUMENTS = ROOT / "tests/data/founding-documents"
TRN2 = "trn2.48xlarge"
LNC_1 = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}
LNC_2 = {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}


@dataclass(frozen=True)
class Promise:
    """What a page says that a template gives to a pod."""

    template: str
    chips: int
    environment: dict[str, str] = field(default_factory=lambda: LNC_2)
    kernel_driver: str = ""
    namespace: str = "default"


PROMISES = {
    "1x4-connected-neurons.yaml": Promise("1x4-connected-neurons", 4),
    "xl-trn2.yaml": Promise("xl-trn2", 16),
    "l-trn2.yaml": Promise("l-trn2", 8),
    "2.26-driver-trn2.yaml": Promise("2.26-driver-trn2", 8, kernel_driver="2.24.7.0"),
    "lnc-setting-trn2.yaml": Promise("all-neurons-lnc-1", 16, LNC_1),
    "lnc-neurons.yaml": Promise("lnc-neurons", 16, LNC_1, namespace="neuron-test7"),
}


def read(name: str) -> list[Object]:
    return documents((DOCUMENTS / name).read_text())


def pod_for(template: str, namespace: str) -> Object:
    """The pages' own pod, with another template."""
    pod = of_kind(read("1x4-connected-neurons.yaml"), "Pod")
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
    return pod


def write(path: Path, *objects: Object) -> str:
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def dra_driver(capsys: pytest.CaptureFixture[str], *arguments: str) -> Object:
    status = main([*arguments, "-o", "json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    found: Object = json.loads(out)
    return found


def allocated(template: Object, row: Object) -> Object:
    """The claim that the API server has once it is allocated."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": row["name"],
            "namespace": row["namespace"],
            "uid": "580ac96b-d90a-5364-9372-dc22ae4703a4",
        },
        "spec": as_v1(template)["spec"]["spec"],
        "status": {"allocation": row["allocation"]},
    }


def test_every_file_of_the_pages_is_tried() -> None:
    others = {
        "1x4-connected-neurons-status.yaml",
        "lnc-setting-trn2-pod.yaml",
        "neuroncore-9-pod.yaml",
        "us-4-node-config.yaml",
        "worker-with-claims.yaml",
        "worker-with-limits.yaml",
    }
    assert {path.name for path in DOCUMENTS.glob("*.yaml")} == set(PROMISES) | others


@pytest.mark.parametrize("name", PROMISES)
def test_a_template_of_the_pages_gives_the_chips_and_settings_that_they_promise(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promise = PROMISES[name]
    template = of_kind(read(name), "ResourceClaimTemplate")
    assert template["metadata"]["name"] == promise.template
    pod = write(tmp_path / "pod.yaml", pod_for(promise.template, promise.namespace))
    # The page's own file goes in as it is; a pod that it brings along is joined by a second one.
    own = write(tmp_path / "template.yaml", template) if len(read(name)) > 1 else str(DOCUMENTS / name)
    driver = ("--emulated-driver-version", promise.kernel_driver) if promise.kernel_driver else ()
    (row,) = dra_driver(capsys, "simulate", own, pod, "--instance-type", TRN2, *driver)["claims"]
    assert row["namespace"] == promise.namespace
    claim = write(tmp_path / "claim.yaml", allocated(template, row))
    (plan,) = dra_driver(capsys, "plan", "--instance-type", TRN2, "-f", claim)["items"]
    assert plan["environment"] == promise.environment
    chips = sorted(int(node["hostPath"].removeprefix("/dev/neuron")) for node in plan["deviceNodes"])
    assert len(chips) == promise.chips
    assert (chips[0] % promise.chips, chips[-1] - chips[0]) == (0, promise.chips - 1), "a connected block"
    assert [node["containerPath"] for node in plan["deviceNodes"]] == [f"/dev/neuron{n}" for n in range(promise.chips)]


def test_both_spellings_of_the_configuration_stand_for_the_same() -> None:
    found = {
        entry["opaque"]["parameters"].pop("apiVersion"): entry["opaque"]["parameters"]
        for name in ("lnc-neurons.yaml", "lnc-setting-trn2.yaml")
        for entry in of_kind(read(name), "ResourceClaimTemplate")["spec"]["spec"]["devices"]["config"]
    }
    assert set(found) == {"resource.neuron.aws.com/v1alphav1", "neuron.aws.com/v1alphav1"}
    one, other = found.values()
    assert one == other


def test_our_page_shows_each_spelling_and_an_example_of_the_rarer_one() -> None:
    page = (ROOT / "docs/use/ask-for-chips.md").read_text()
    for version in API_VERSIONS:
        assert f"| `{version}` |" in page
    (template,) = read("lnc-neurons.yaml")
    (shown,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "resource.neuron" in block]
    assert yaml.safe_load(shown)["config"] == template["spec"]["spec"]["devices"]["config"]


@pytest.mark.parametrize(
    "files", [("1x4-connected-neurons.yaml",), ("lnc-setting-trn2.yaml", "lnc-setting-trn2-pod.yaml")]
)
def test_a_pod_of_the_pages_runs_with_the_template_beside_it(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(DOCUMENTS / name) for name in files]
    assert main(["simulate", *paths, "--instance-type", TRN2]) == 0
    assert "1 of 1 placed" in capsys.readouterr().out


def test_the_two_groups_of_the_pages_get_an_ultraserver_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DOCUMENTS / "us-4-node-config.yaml"
    template = of_kind(read(path.name), "ResourceClaimTemplate")
    rows = dra_driver(capsys, "simulate", str(path), "--instance-type", "trn2u.48xlarge=8")["claims"]
    places: dict[str, set[str]] = {}
    for row in rows:
        places.setdefault(row["name"].rsplit("-one-node", 1)[0].split("-")[1], set()).add(row["node"])
    servers = [{f"node-{number}" for number in range(first, first + 4)} for first in (1, 5)]
    assert sorted(places.values(), key=sorted) == servers
    claim = write(tmp_path / "claim.yaml", allocated(template, rows[0]))
    (plan,) = dra_driver(capsys, "plan", "--instance-type", "trn2u.48xlarge", "-f", claim)["items"]
    assert plan["environment"]["NEURON_RT_ULTRASERVER_MODE"] == "1"  # the runtime's word for four nodes
    assert len(plan["deviceNodes"]) == 16


def test_a_claim_with_the_device_names_of_the_beta_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (status,) = read("1x4-connected-neurons-status.yaml")
    template = of_kind(read("1x4-connected-neurons.yaml"), "ResourceClaimTemplate")
    row = {"name": "pod0-neurons-zdk76", "namespace": "default", "allocation": status["status"]["allocation"]}
    claim = write(tmp_path / "claim.yaml", allocated(template, row))
    assert main(["plan", "--instance-type", TRN2, "-f", claim]) == 1
    err = capsys.readouterr().err
    assert "device neurondevice2" in err
    assert "delete the pod" in err


def mpi_job(name: str) -> Object:
    """An MPIJob around the replicas that a page shows."""
    (replicas,) = documents((DOCUMENTS / name).read_text().replace("<aws-account-id>", "111122223333"))
    spec = {"mpiReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "train"}, "spec": spec}


def test_workers_with_limits_become_workers_with_a_claim_of_as_many_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write(tmp_path / "before.yaml", mpi_job("worker-with-limits.yaml"))
    assert main(["migrate", before, "--efa", "--instance-type", "trn1n.32xlarge"]) == 0
    template, job = documents(capsys.readouterr().out)
    requests = template["spec"]["spec"]["devices"]["requests"]
    assert [request["exactly"]["count"] for request in requests] == [16, 16]
    pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "neurons"}]}
    after = write(tmp_path / "after.yaml", template, job)
    rows = dra_driver(capsys, "simulate", after, "--instance-type", "trn1n.32xlarge=4")["claims"]
    assert {row["node"] for row in rows} == {f"node-{number}" for number in range(1, 5)}
    claim = write(tmp_path / "claim.yaml", allocated(template, rows[0]))
    (plan,) = dra_driver(capsys, "plan", "--instance-type", "trn1n.32xlarge", "-f", claim)["items"]
    assert [node["containerPath"] for node in plan["deviceNodes"]] == [f"/dev/neuron{number}" for number in range(16)]


def test_workers_with_a_claim_run_with_the_template_that_the_page_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(tmp_path / "job.yaml", mpi_job("worker-with-claims.yaml"))
    template = of_kind(
        documents((ROOT / "examples/specs/efa-neurons-4-devices.yaml").read_text()), "ResourceClaimTemplate"
    )
    rows = dra_driver(capsys, "simulate", job, write(tmp_path / "template.yaml", template), "--instance-type", TRN2)[
        "claims"
    ]
    assert [row["node"] for row in rows] == ["node-1"] * 4
    claim = write(tmp_path / "claim.yaml", allocated(template, rows[0]))
    (plan,) = dra_driver(capsys, "plan", "--instance-type", TRN2, "-f", claim)["items"]
    assert [node["containerPath"] for node in plan["deviceNodes"]] == [f"/dev/neuron{number}" for number in range(4)]


def test_nine_cores_are_refused_as_a_claim_with_the_numbers_that_are_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extender gives them (tests/plugin/legacy/extender); claims for cores are of one chip or of whole ones."""
    text = (DOCUMENTS / "neuroncore-9-pod.yaml").read_text()
    for place, word in (("<POD_NAME>", "nrt-test-5038"), ("<COMMAND>", "run"), ("<IMAGE_NAME>", "image")):
        text = text.replace(place, word)
    pod = write(tmp_path / "pod.yaml", *documents(text))
    assert main(["migrate", pod, "--instance-type", "inf1.6xlarge"]) == 1
    assert "1, 2, 3, 4, 8, 12, 16 are possible" in capsys.readouterr().err
