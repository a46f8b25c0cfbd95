"""A packed chart as registries have it: an OCI layout, so that its digest is known before anything is pushed."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import yaml
from lab import oci

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_TITLES = "org.opencontainers.image"


def write(archive: Path, directory: Path, epoch: int) -> str:
    """Write a packed chart to a new directory, as `helm push` does, but of the commit's date; returns the digest."""
    chart = _metadata(archive)
    layout = oci.Layout()
    annotations = {
        f"{_TITLES}.created": oci.timestamp(epoch),
        f"{_TITLES}.description": chart.get("description"),
        f"{_TITLES}.source": next(iter(chart.get("sources", ())), None),
        f"{_TITLES}.title": chart["name"],
        f"{_TITLES}.url": chart.get("home"),
        f"{_TITLES}.version": chart["version"],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST,
        "config": layout.add_document(_CONFIG, chart),
        "layers": [layout.add(_CONTENT, archive.read_bytes())],
        "annotations": {name: value for name, value in annotations.items() if value},
    }
    return layout.write_directory(directory, layout.add_document(oci.MANIFEST, manifest))


def _metadata(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as packed:
        (name,) = (
            member.name for member in packed if member.name.count("/") == 1 and member.name.endswith("/Chart.yaml")
        )
        content = packed.extractfile(name)
        return dict(yaml.safe_load(content.read() if content else b""))
