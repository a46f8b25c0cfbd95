"""Finding and reading the YAML of the project, and running its installer."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.programs import needing
from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "examples/specs").glob("*.yaml"))
OLD_EXAMPLES = sorted((ROOT / "examples/specs/v1beta1").glob("*.yaml"))
LIMIT_EXAMPLES = sorted((ROOT / "examples/specs/extended-resources").glob("*.yaml"))
INSTALLER = ROOT / "scripts/install-dra-driver.sh"
IMAGE = "registry.example/neuron-dra-driver:1.2.3"
KUBECTL = os.environ.get("KUBECTL") or shutil.which("kubectl")
NO_KUBECTL = "there is no kubectl here; KUBECTL=/path/to/kubectl names one"
needs_kubectl = needing(KUBECTL, NO_KUBECTL)
NEEDS_KUBECTL = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL)]
"""For all tests of a module."""

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
    """Run the installer with empty standard input (thus no terminal), and with a kubectl that knows no cluster."""
    return subprocess.run(
        [str(INSTALLER), *arguments],
        env={"PATH": os.environ["PATH"], "KUBECTL": KUBECTL or "kubectl", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rendered(*arguments: str) -> list[Object]:
    """What the installer would apply, without a cluster."""
    return documents(_dry_run(*arguments))


@cache
def _dry_run(*arguments: str) -> str:
    result = install("--dry-run", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def pod_spec(item: Object) -> Object:
    """The pod spec of a Pod or of a workload with a pod template."""
    spec: Object = item["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def ordered(objects: list[Object]) -> list[str]:
    """Objects to compare: without what only helm's own have, and lists whose order means nothing in one order."""
    for item in objects:
        labels = item["metadata"].get("labels", {})
        for name in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            labels.pop(name, None)
        for spec in [pod_spec(item)] if item["kind"] in ("DaemonSet", "Deployment") else []:
            spec["volumes"] = sorted(spec.get("volumes", []), key=lambda volume: str(volume["name"]))
            for container in spec["containers"]:
                container["env"] = sorted(container.get("env", []), key=lambda variable: str(variable["name"]))
                mounts = container.get("volumeMounts", [])
                container["volumeMounts"] = sorted(mounts, key=lambda mount: str(mount["mountPath"]))
    return sorted(json.dumps(item, sort_keys=True) for item in objects)


def printed(output: str, item: Object, directory: Path) -> str:
    """What kubectl prints of an object in this format."""
    assert KUBECTL is not None
    file = directory / "item.json"
    file.write_text(json.dumps(item))
    reading = [KUBECTL, "patch", "--local", f"--filename={file}", "--type=merge", "--patch={}", f"--output={output}"]
    return subprocess.run(reading, capture_output=True, text=True, check=True, timeout=120).stdout


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
