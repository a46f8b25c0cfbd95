"""Finding and reading the YAML of the project, and running its installer."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.paths import ROOT

MANIFESTS = sorted((ROOT / "scripts/manifests").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples/specs").glob("*.yaml"))
OLD_EXAMPLES = sorted((ROOT / "examples/specs/v1beta1").glob("*.yaml"))
LIMIT_EXAMPLES = sorted((ROOT / "examples/specs/extended-resources").glob("*.yaml"))
INSTALLER = ROOT / "scripts/install-dra-driver.sh"
IMAGE = "registry.example/neuron-dra-driver:1.2.3"

Object = dict[str, Any]


def name_of(path: Path) -> str:
    """Test id of a file."""
    return str(path.relative_to(ROOT))


def documents(text: str) -> list[Object]:
    """The objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(objects: list[Object], kind: str) -> Object:
    """The only object of that kind."""
    (found,) = [item for item in objects if item["kind"] == kind]
    return found


def install(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installer with empty standard input (thus no terminal)."""
    return subprocess.run(
        [str(INSTALLER), *arguments],
        env={"PATH": os.environ["PATH"], **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def rendered(*arguments: str) -> list[Object]:
    """What the installer would apply, without a cluster (PATH has no kubectl that it could ask)."""
    result = install("--dry-run", *arguments, environment={"KUBECTL": "/nonexistent/kubectl"})
    assert result.returncode == 0, result.stderr
    return documents(result.stdout)


def pod_spec(item: Object) -> Object:
    """The pod spec of a Pod or of a workload with a pod template."""
    spec: Object = item["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def as_v1(item: Object) -> Object:
    """What the API server makes of a v1beta1 object: the fields of a request move into `exactly`."""
    item = copy.deepcopy(item)
    if item["apiVersion"] != "resource.k8s.io/v1beta1":
        return item
    item["apiVersion"] = "resource.k8s.io/v1"
    if item["kind"] == "ResourceClaimTemplate":
        requests = item["spec"]["spec"]["devices"]["requests"]
        requests[:] = [
            {"name": request["name"], "exactly": {key: value for key, value in request.items() if key != "name"}}
            for request in requests
        ]
    return item
