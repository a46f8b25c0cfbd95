"""What the documents say can be found where they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from dra_driver.driver.device_health import device_health
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth
from dra_driver.ultraserver.definitions import DEFINITIONS
from tests.manifests.pages import commands_of, is_shown
from tests.manifests.support import Object, documents, install, name_of, needs_kubectl, printed
from tests.paths import ROOT

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("charts/*/*.md")]
)


def anchors(path: Path) -> set[str]:
    """The anchors that hosting sites make from headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), f"{link}: no such file (a directory is a page only on hosting sites)"
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_options_of_the_installer_exist(path: Path) -> None:
    text = install("--help").stdout
    commands = re.findall(r"install-dra-driver\.sh( [^\n`]*)", path.read_text())
    for option in re.findall(r" (--[a-z-]+)", " ".join(commands)):
        assert option in text


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_example_files_exist(path: Path) -> None:
    for name in re.findall(r"examples/specs/[A-Za-z0-9./-]+\.yaml", path.read_text()):
        assert (ROOT / name).is_file(), name


def objects_in(path: Path) -> list[Object]:
    """The complete Kubernetes objects that a document shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = [item for block in blocks if "apiVersion:" in block for item in documents(block)]
    # Karpenter's are checked against its own resources, in tests/cluster/test_karpenter.py.
    return [item for item in shown if "metadata" in item and not item["apiVersion"].startswith("karpenter.sh/")]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if objects_in(path)], ids=name_of)
def test_objects_in_documents_are_valid(path: Path) -> None:
    schemas = {
        (f"{definition['spec']['group']}/{version['name']}", definition["spec"]["names"]["kind"]): version["schema"]
        for definition in DEFINITIONS
        for version in definition["spec"]["versions"]
    }
    for item in objects_in(path):
        if schema := schemas.get((item["apiVersion"], item["kind"])):
            jsonschema.validate(item, schema["openAPIV3Schema"])
        else:
            kubernetes_validate.validate(item, "1.37", strict=True)


@needs_kubectl
def test_the_owner_of_a_pod_reads_the_health_of_its_chips_as_the_page_shows(tmp_path: Path) -> None:
    (command,) = [
        command
        for block in commands_of(ROOT / "docs/use/ask-for-chips.md")
        for command in block.commands()
        if "allocatedResourcesStatus" in command.text
    ]
    health = NodeHealth((ChipHealth(3, (ActiveFault("hbm-uncorrectable", 1),)),))
    told = device_health(health, [3], (), "node-1")[0]
    chips = [
        {"resourceID": "k8s.neuron.aws.com/claim=a", "health": "Healthy"},
        {"resourceID": "k8s.neuron.aws.com/claim=b", "health": told.health.capitalize(), "message": told.message},
    ]
    statuses = [
        {"name": "other"},
        {"name": "main", "allocatedResourcesStatus": [{"name": "claim:c", "resources": chips}]},
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": {"containerStatuses": statuses}}
    assert is_shown(command.printed, printed(shlex.split(command.text)[-1], pod, tmp_path))


def test_the_pod_that_learns_its_place_is_valid() -> None:
    text = (ROOT / "docs/use/ultraserver.md").read_text()
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "args: [rank]" in block]
    (template,) = documents(block)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vllm-0"}, **template}
    kubernetes_validate.validate(pod, "1.34", strict=True)
