"""Keeps the schemas of the resources that examples are written for, in tests/data/crd-schemas.json.

They are those of the CRDs in each project's Go module, without descriptions. Pod specs in them are cut out and marked
(``x-pod-spec``): the tests check those as Pods. Needs Go and its module proxy. Kueue's module is not in the proxy; its
schemas are written by hand, in tests/data/kueue-schemas.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    ("sigs.k8s.io/jobset@v0.10.1", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", "v1alpha2"),
    ("github.com/kubeflow/training-operator@v1.8.1", "manifests/base/crds/kubeflow.org_pytorchjobs.yaml", "v1"),
    ("github.com/ray-project/kuberay/ray-operator@v1.4.2", "config/crd/bases/ray.io_rayclusters.yaml", "v1"),
    ("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml", "v1"),
)
"""Go module with version, the CRD's path in it, the version of the API."""


def main() -> int:
    """Write the file."""
    argparse.ArgumentParser(
        prog="scripts/record-crd-schemas", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    ).parse_args()  # fmt: skip
    kept = {}
    for module, path, version in SOURCES:
        with tempfile.TemporaryDirectory() as anywhere:
            told = subprocess.run(
                ["go", "mod", "download", "-json", module], cwd=anywhere, check=True, capture_output=True, text=True
            )
        crd = yaml.safe_load((Path(json.loads(told.stdout)["Dir"]) / path).read_text())
        (found,) = [item for item in crd["spec"]["versions"] if item["name"] == version]
        kind = f"{crd['spec']['group']}/{version} {crd['spec']['names']['kind']}"
        schema = trimmed(found["schema"]["openAPIV3Schema"])
        schema["properties"].pop("status", None)
        kept[kind] = {"source": f"{module}/{path}", "schema": schema}
    text = json.dumps(kept, indent=1, sort_keys=True)
    (ROOT / "tests/data/crd-schemas.json").write_text(text + "\n")
    return 0


def trimmed(schema: Any) -> Any:
    """A schema without descriptions and rules in CEL, and with pod specs cut out."""
    if isinstance(schema, list):
        return [trimmed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if isinstance(properties.get("containers"), dict) and "restartPolicy" in properties:
            return {"type": "object", "x-pod-spec": True}
        return {**_without_words(schema), "properties": {name: trimmed(item) for name, item in properties.items()}}
    return _without_words(schema)


def _without_words(schema: dict[str, Any]) -> dict[str, Any]:
    left = ("description", "properties", "default", "x-kubernetes-validations")
    return {name: trimmed(item) for name, item in schema.items() if name not in left}


if __name__ == "__main__":
    sys.exit(main())
