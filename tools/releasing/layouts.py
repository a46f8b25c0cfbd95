"""OCI layouts: what is to be pushed, as files by digest, so that the digest is known before anything is pushed."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CHART_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_TITLES = "org.opencontainers.image"

Descriptor = dict[str, Any]


class Layout:
    """A directory that becomes an OCI layout; the same additions give the same bytes."""

    def __init__(self, directory: Path) -> None:
        """Make the directory."""
        self._directory = directory
        (directory / "blobs/sha256").mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add(self, media_type: str, content: bytes) -> Descriptor:
        """Add a blob."""
        name = hashlib.sha256(content).hexdigest()
        (self._directory / "blobs/sha256" / name).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(content)}

    def add_json(self, media_type: str, value: Mapping[str, Any]) -> Descriptor:
        """Add a document."""
        return self.add(media_type, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())

    def finish(self, descriptor: Descriptor) -> str:
        """Make a manifest or an index the layout's only entry; returns its digest."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
        (self._directory / "index.json").write_text(json.dumps(index, sort_keys=True))
        return str(descriptor["digest"])


def architectures(layout: Path) -> list[str]:
    """The architectures of a layout's image index."""
    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    index = json.loads((layout / "blobs" / top["digest"].replace(":", "/")).read_text())
    return [entry["platform"]["architecture"] for entry in index["manifests"]]


def write_chart(archive: Path, layout: Path, epoch: int) -> str:
    """Write a packed chart as an OCI layout, as `helm push` does, but of the commit's date; returns the digest."""
    chart = _chart_metadata(archive)
    written = Layout(layout)
    annotations = {
        f"{_TITLES}.created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        f"{_TITLES}.description": chart.get("description"),
        f"{_TITLES}.source": next(iter(chart.get("sources", ())), None),
        f"{_TITLES}.title": chart["name"],
        f"{_TITLES}.url": chart.get("home"),
        f"{_TITLES}.version": chart["version"],
    }
    return written.finish(
        written.add_json(
            MANIFEST,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": written.add_json(_CHART_CONFIG, chart),
                "layers": [written.add(_CHART_CONTENT, archive.read_bytes())],
                "annotations": {name: value for name, value in annotations.items() if value},
            },
        )
    )


def _chart_metadata(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as packed:
        (name,) = (
            member.name for member in packed if member.name.count("/") == 1 and member.name.endswith("/Chart.yaml")
        )
        content = packed.extractfile(name)
        return dict(yaml.safe_load(content.read() if content else b""))
