"""``dra-driver plan`` with several claims, and with the objects that ``simulate`` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from tests.builders.documents import document as parsed
from tests.golden import golden
from tests.unit.cli.test_simulate import claim, pod, write

Object = dict[str, Any]
TRN2 = ["--instance-type", "trn2.48xlarge"]


class Shell:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: object, status: int = 0) -> str:
        found = main([*map(str, arguments)])
        out, self.err = self._capsys.readouterr()
        assert found == status, self.err
        return out

    def objects(self, file: str, *options: str, status: int = 0) -> list[Object]:
        """What ``simulate`` prints of a file."""
        items: list[Object] = yaml.safe_load(self("simulate", file, *options, "-o", "yaml", status=status))["items"]
        return items

    def planned(self, file: str, *options: str, status: int = 0) -> Object:
        return parsed(self("plan", "-f", file, *TRN2, *options, "-o", "json", status=status))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def uses(item: Object, *names: str) -> Object:
    """The pod, its container using these claims."""
    item["spec"]["containers"][0]["resources"] = {"claims": [{"name": name} for name in names]}
    return item


def template(name: str, count: int, device_class: str = "neuron.aws.com") -> Object:
    spec = claim("", count, device_class)["spec"]
    return claim(name) | {"kind": "ResourceClaimTemplate", "spec": {"spec": spec}}


def names_of(document: Object) -> list[str]:
    return [row["claim"]["name"] for row in document["items"] if not row["refusal"]]


def test_several_documents_are_planned_and_other_kinds_are_told(shell: Shell, tmp_path: Path) -> None:
    items = shell.objects(write(tmp_path, claim("a", 2), claim("b")), *TRN2)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}}
    document = shell.planned(write(tmp_path, items[0], service, items[1], name="objects.yaml"))
    assert names_of(document) == ["a", "b"]
    assert [[row["hostPath"] for row in one["deviceNodes"]] for one in document["items"]] == [
        ["/dev/neuron0", "/dev/neuron1"],
        ["/dev/neuron2"],
    ]
    assert "Service: 1" in shell.err


def test_a_claim_that_waits_is_refused_by_name_and_the_others_are_planned(shell: Shell, tmp_path: Path) -> None:
    pods = [uses(pod("first", "all"), "all"), uses(pod("second", "more"), "more")]
    items = shell.objects(write(tmp_path, claim("all", 16), claim("more"), *pods), *TRN2, status=1)
    waiting = next(item for item in items if item["kind"] == "Pod" and "nodeName" not in item["spec"])
    (condition,) = waiting["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    document = shell.planned(write(tmp_path, *items, name="objects.yaml"), status=1)
    assert names_of(document) == ["all"]
    (refused,) = [item for item in document["items"] if item["refusal"]]
    assert refused["claim"]["name"] == "more"
    assert f"error: claim default/more: {refused['refusal']}\n" in shell.err
    assert [found["name"] for found in document["pods"]] == ["first"]
    assert "simulate -o yaml" in shell.err


def test_with_the_name_of_a_node_its_claims_alone_are_planned(shell: Shell, tmp_path: Path) -> None:
    nodes = ["--instance-type", "trn2.48xlarge=2"]
    objects = write(tmp_path, *shell.objects(write(tmp_path, claim("a", 16), claim("b", 16)), *nodes), name="o.yaml")
    assert [row["node"] for row in shell.planned(objects)["items"]] == ["node-1", "node-2"]
    assert names_of(shell.planned(objects, "--node-name", "node-2")) == ["b"]
    assert "claim default/a" in shell.err


def test_claims_of_other_drivers_are_passed_over(shell: Shell, tmp_path: Path) -> None:
    (own,) = shell.objects(write(tmp_path, claim("own")), *TRN2)
    other = json.loads(json.dumps(own).replace('"neuron.aws.com"', '"other.example"').replace('"own"', '"other"'))
    objects = write(tmp_path, own, other, name="objects.yaml")
    assert names_of(shell.planned(objects, "--partitions", "chip")) == ["own"]
    assert "claim default/other" in shell.err


def test_pods_that_share_a_claim_are_its_consumers(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("both", 2), uses(pod("a", "both"), "both"), uses(pod("b", "both"), "both"))
    items = shell.objects(file, *TRN2)
    (shared,) = (item for item in items if item["kind"] == "ResourceClaim")
    assert [consumer["name"] for consumer in shared["status"]["reservedFor"]] == ["a", "b"]
    first, second = shell.planned(write(tmp_path, *items, name="objects.yaml"))["pods"]
    assert first["containers"] == second["containers"]


def test_a_pod_with_cores_of_two_claims_in_one_container_is_refused_before_it_is_applied(
    shell: Shell, tmp_path: Path
) -> None:
    asking = uses(pod("p"), "one", "two")
    asking["spec"]["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": "core"} for name in ("one", "two")]
    file = write(tmp_path, template("core", 1, "core.neuron.aws.com"), asking)
    shell("simulate", file, *TRN2, "--partitions", "core", "-o", "json", status=1)
    golden(shell.err)


def test_each_container_gets_its_own_extended_resources(shell: Shell, tmp_path: Path) -> None:
    asking = pod("p")
    del asking["spec"]["resourceClaims"]
    limits = {"resources": {"limits": {"aws.amazon.com/neuroncore": 2}}}
    asking["spec"]["containers"] = [{"name": name, **limits} for name in ("a", "b")]
    offer = [*TRN2, "--partitions", "core", "--extended-resources"]
    items = shell.objects(write(tmp_path, asking), *offer)
    mappings = items[0]["status"]["extendedResourceClaimStatus"]["requestMappings"]
    assert [(item["containerName"], item["resourceName"]) for item in mappings] == [
        (name, "aws.amazon.com/neuroncore") for name in ("a", "b")
    ]
    (found,) = shell.planned(write(tmp_path, *items, name="objects.yaml"))["pods"]
    assert [item["name"] for item in found["containers"]] == ["a", "b"]
    first, second = (item["cdiDevices"] for item in found["containers"])
    assert not {*first} & {*second}


def test_a_claim_of_a_pod_that_is_not_given_is_told(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, claim("x"), claim("y"), uses(pod("p", "x", "y"), "x", "y"))
    kept = [item for item in shell.objects(file, *TRN2) if item["metadata"]["name"] != "y"]
    shell.planned(write(tmp_path, *kept, name="objects.yaml"))
    golden(shell.err)


def test_the_printed_pod_has_all_its_fields(shell: Shell, tmp_path: Path) -> None:
    asking = uses(pod("p", "c"), "c")
    asking["metadata"] |= {"labels": {"a": "b"}, "creationTimestamp": None}
    asking["spec"]["containers"][0] |= {"command": ["sleep"], "env": [{"name": "X", "value": "1"}]}
    printed = shell.objects(write(tmp_path, asking, claim("c")), *TRN2)[0]
    assert printed["spec"] == asking["spec"] | {"nodeName": "node-1"}
    assert printed["metadata"]["labels"] == {"a": "b"}
    assert "creationTimestamp" not in printed["metadata"]


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_templates_without_a_pod_are_taken_as_one_claim_of_each(command: str, shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, template("small", 1), template("large", 16))
    document = parsed(shell(command, file, "--instance-type", "trn2.48xlarge=2", "-o", "json"))
    (note,) = document["notConsidered"]
    assert "one claim" in note
    assert "default/small, default/large" in note
    if command == "simulate":
        assert [len(row["plan"]["deviceNodes"]) for row in document["claims"]] == [1, 16]
    else:
        assert len(document["items"]) == 2


def test_a_template_that_a_pod_uses_makes_no_claim_of_its_own(shell: Shell, tmp_path: Path) -> None:
    asking = uses(pod("p"), "c")
    asking["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "used"}]
    file = write(tmp_path, template("used", 1), template("unused", 1), asking)
    document = parsed(shell("simulate", file, *TRN2, "-o", "json"))
    assert len(document["claims"]) == 1
    assert document["notConsidered"] == []
