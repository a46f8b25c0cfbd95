"""What ``dra-driver migrate`` prints is valid for the API, and the page about it shows what it does."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from dra_driver.cli.main import main
from tests.manifests.support import Object, documents
from tests.manifests.test_examples import validate
from tests.paths import ROOT

PAGE = (ROOT / "docs/use/limits.md").read_text()
BEFORE, AFTER, CORES, EFA = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {%s}}}
"""
SPEC = """\
initContainers:
- {name: init, image: x, resources: {limits: {aws.amazon.com/neuron: 1}}}
containers:
- {name: a, image: x, resources: {limits: {cpu: 1, aws.amazon.com/neurondevice: 1}}}
- {name: b, image: x, resources: {limits: {aws.amazon.com/neuroncore: 1}}}
"""


def migrated(
    directory: Path, capsys: pytest.CaptureFixture[str], text: str, *options: str, name: str = "input.yaml"
) -> list[Object]:
    file = directory / name
    file.write_text(text)
    assert main(["migrate", str(file), *options]) == 0
    return documents(capsys.readouterr().out)


def test_the_page_shows_what_becomes_of_its_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrated(tmp_path, capsys, BEFORE) == documents(AFTER)


def test_the_class_that_is_printed_serves_chips_to_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--extended-resources"]) == 0
    made = documents(capsys.readouterr().out)
    assert [item["spec"]["extendedResourceName"] for item in made] == ["aws.amazon.com/neuron"]
    for version in ("1.36", "1.37"):
        kubernetes_validate.validate(made[0], version, strict=True)


LIMITS = {
    "neuroncore: 2": (CORES, ()),
    "neuron: 4, vpc.amazonaws.com/efa: 4": (EFA, ("--efa",)),
}


@pytest.mark.parametrize("limits", LIMITS)
def test_the_page_shows_the_claims_for_cores_and_efa_devices(
    limits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, options = LIMITS[limits]
    (devices,) = documents(shown)
    template, _ = migrated(tmp_path, capsys, POD % f"aws.amazon.com/{limits}", *options)
    made = template["spec"]["spec"]["devices"]
    for request in made["requests"]:
        request["exactly"].pop("selectors", None)
    assert made == devices


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("inf1.6xlarge", ()),
        ("inf2.48xlarge", ()),
        ("trn1.32xlarge", ()),
        ("trn2.48xlarge", ()),
        ("trn2.48xlarge", ("--logical-core-size", "1")),
    ],
)
def test_the_page_names_the_numbers_of_cores_that_are_possible(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = name + (f" with `{' '.join(options)}`" if options else "")
    (shown,) = re.findall(rf"^\| {re.escape(row)} \| (.*?) \(whole chips\) \|$", PAGE, flags=re.MULTILINE)
    file = tmp_path / "pod.yaml"
    file.write_text(POD % "aws.amazon.com/neuroncore: 129")
    assert main(["migrate", str(file), "--instance-type", name, *options]) == 1
    (listed,) = re.findall(r": ([0-9, ]+) are possible", capsys.readouterr().err)
    found = [int(number) for number in listed.split(", ")]
    part, whole = shown.split("; ")
    named = [int(number) for number in re.findall("[0-9]+", part)]
    chips = [int(number) for number in re.findall("[0-9]+", whole)]
    assert found[: max(named)] == list(range(1, max(named) + 1))
    assert found[max(named) : max(named) + 3] == chips[:3]
    assert found[-1] == chips[-1]


def owners() -> list[Object]:
    spec = {"template": {"metadata": {"labels": {"a": "b"}}, "spec": yaml.safe_load(SPEC)}}
    job = yaml.safe_load(SPEC) | {"restartPolicy": "Never"}
    selector = {"selector": {"matchLabels": {"a": "b"}}}
    kinds = {
        "v1 Pod": yaml.safe_load(SPEC),
        "apps/v1 Deployment": spec | selector,
        "apps/v1 ReplicaSet": spec | selector,
        "apps/v1 StatefulSet": spec | selector | {"serviceName": "s"},
        "apps/v1 DaemonSet": spec | selector,
        "batch/v1 Job": {"template": {"spec": job}},
        "batch/v1 CronJob": {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": job}}}},
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": {
            "replicas": 1,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": yaml.safe_load(SPEC)}},
        },
    }
    return [
        {
            "apiVersion": name.split()[0],
            "kind": name.split()[1],
            "metadata": {"name": "owner", "namespace": "default"},
            "spec": spec,
        }
        for name, spec in kinds.items()
    ]


@pytest.mark.parametrize("instance_type", ["inf1.6xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("owner", owners(), ids=lambda owner: str(owner["kind"]))
def test_what_is_printed_is_valid(
    owner: Object, instance_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = migrated(tmp_path, capsys, yaml.safe_dump(owner), "--instance-type", instance_type)
    assert [item["kind"] for item in made][-1] == owner["kind"]
    assert "aws.amazon.com/neuron" not in yaml.safe_dump(made)
    for item in made:
        for version in ("1.34", "1.36", "1.37"):
            validate(item, version)


@pytest.mark.parametrize("count", range(1, 17))
def test_templates_of_every_count_are_valid(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = POD % f"aws.amazon.com/neuron: {count}"
    for options in ((), ("--groups",)):
        for item in migrated(tmp_path, capsys, pod, "--instance-type", "inf1.24xlarge", *options):
            validate(item, "1.37")
