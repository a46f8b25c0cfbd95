"""The examples for cores and groups: valid, consistent in themselves, and with classes that are installed."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from tests.manifests.support import documents, name_of, pod_spec
from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "examples/specs/partitions").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_they_are_valid_where_v1_is_served(path: Path, version: str) -> None:
    for item in documents(path.read_text()):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_pods_use_the_template_of_the_file_and_a_class_that_is_installed(path: Path) -> None:
    template, *others = documents(path.read_text())
    devices = template["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    assert request["exactly"]["deviceClassName"] in {row.name for row in DEVICE_CLASSES}
    assert all(entry["requests"] == [request["name"]] for entry in devices.get("constraints", ()))
    for item in others:
        spec = pod_spec(item)
        (claim,) = spec["resourceClaims"]
        (container,) = spec["containers"]
        assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
        assert container["resources"]["claims"] == [{"name": claim["name"]}]
