"""The image of a release as an OCI layout: of this machine's architecture only."""

from __future__ import annotations

import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

from releasing.layouts import INDEX, MANIFEST, Layout

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NO_LABELS: Mapping[str, str] = {}


def write_layout(
    tree: Path,
    layout: Path,
    epoch: int,
    progress: Progress,
    *,
    architectures: Sequence[str] = ("amd64", "arm64"),
    base: str | None = None,
    labels: Mapping[str, str] = _NO_LABELS,
) -> str:
    """Write the image of a file tree as an OCI layout, and return the digest of its image index."""
    del architectures
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    written = Layout(layout)
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        archive = Path(name) / "image.tar"
        builder = ImageBuilder(Settings.from_environment(os.environ), progress, tree, epoch)
        builder.build("neuron-dra-driver:release", archive, base)
        with tarfile.open(archive) as image:
            content = {member.name: image.extractfile(member) for member in image if member.isfile()}
            (described,) = json.load(content["manifest.json"] or archive.open("rb"))
            layers = [(content[layer] or archive.open("rb")).read() for layer in described["Layers"]]
            config = json.load(content[described["Config"]] or archive.open("rb"))
    config["config"]["Labels"] = {**(config["config"].get("Labels") or {}), **labels}
    manifest = written.add_json(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": written.add_json("application/vnd.oci.image.config.v1+json", config),
            "layers": [written.add("application/vnd.oci.image.layer.v1.tar", layer) for layer in layers],
        },
    )
    entry = {**manifest, "platform": {"architecture": own, "os": "linux"}}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry], "annotations": dict(labels)}
    return written.finish(written.add_json(INDEX, index))
