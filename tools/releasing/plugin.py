"""``kubectl neuron`` as krew installs it: an archive, and the manifest that names it."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path

import yaml

from dra_driver.version import VERSION

LAUNCHER = Path(__file__).with_name("kubectl-neuron")
DESCRIPTION = (
    "Shows the Neuron chips of a cluster: which pods hold them, how they are connected and how healthy they are, why a "
    "pod waits for chips, what a change of a manifest would do, and collects what a bug report needs. Nothing is "
    "changed in the cluster. Works with the DRA driver; migrate and explain also read pods that ask AWS's device "
    "plugin for chips."
)


def pack_plugin(tree: Path, wheel: Path, made: Path, epoch: int) -> Path:
    """Write the archive of a file tree and its wheel to the directory ``made``, the same bytes in each run."""
    archive = made / f"kubectl-neuron-{VERSION}.tar.gz"
    files = [LAUNCHER, wheel, tree / "requirements/commands.txt", tree / "LICENSE"]
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            member = tarfile.TarInfo("requirements.txt" if file.name == "commands.txt" else file.name)
            member.size, member.mtime, member.mode = file.stat().st_size, epoch, 0o755 if file is LAUNCHER else 0o644
            with file.open("rb") as content:
                tar.addfile(member, content)
    return archive


def manifest(archive: Path, repository_url: str) -> str:
    """The plugin manifest of krew (``krew.googlecontainertools.github.com/v1alpha2``)."""
    platform = {
        "selector": {"matchLabels": {"os": "linux"}},
        "uri": f"{repository_url}/releases/download/v{VERSION}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": LAUNCHER.name,
    }
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "neuron"},
        "spec": {
            "version": f"v{VERSION}",
            "homepage": repository_url,
            "shortDescription": "Show Neuron chips, their health and who holds them",
            "description": DESCRIPTION,
            "caveats": "Needs Python 3.11 or later with the module venv; the first call installs its packages.\n",
            "platforms": [platform],
        },
    }
    return yaml.safe_dump(document, sort_keys=False)
