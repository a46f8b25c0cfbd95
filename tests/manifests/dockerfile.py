"""The Dockerfile's image, made with buildah on packages of Debian, and how it differs from that of lab.images."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import debian, debianpins, filetree, hostsettings, oci
from lab.filetree import Entry, Tree
from lab.settings import Settings

ENVIRONMENTS = ("opt/node", "opt/commands")
# What the Dockerfile's commands use beside what the image's base has.
_PACKAGES = (*debianpins.PACKAGES, "python3-venv")


def build(repository: Path, directory: Path) -> dict[str, Entry]:
    """The files of the Dockerfile's image for amd64; buildah's files are below the directory."""
    mirrors = hostsettings.debian_mirrors()
    packages = debianpins.closure(_PACKAGES, debianpins.index("amd64", mirrors))
    cache = Settings.from_environment(os.environ).cache / "images/packages"
    base = debian.base(debian.Archive(cache, mirrors).fetch(debian.Pins("", packages)))
    (directory / "base.tar").write_bytes(filetree.pack(base, 0))
    settings = directory / "containers.conf"
    settings.write_text(f'[network]\nnetwork_config_dir = "{directory}/cni"\n')
    buildah = ["unshare", "--mount", "--propagation", "private", "env", f"CONTAINERS_CONF={settings}", "buildah"]
    buildah += ["--root", str(directory / "root"), "--runroot", str(directory / "run"), "--storage-driver", "vfs"]

    def run(*arguments: str) -> str:
        return subprocess.run([*buildah, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    container = run("from", "scratch")
    run("add", container, str(directory / "base.tar"), "/")
    run("commit", "--rm", container, "localhost/base:latest")
    mounts = [f"--volume={source}:{target}:ro" for source, target in pip_mounts(directory)]
    # Isolation by chroot needs no control groups; pip needs this machine's network.
    options = ["--isolation=chroot", "--network=host", "--build-arg=BASE_IMAGE=localhost/base:latest", *mounts]
    run("build", *options, "--tag", "localhost/driver:latest", str(repository))
    layout = directory / "layout"
    run("push", "localhost/driver:latest", f"oci:{layout}:x")
    return all_files(layout)


def all_files(layout: Path) -> dict[str, Entry]:
    """The files of the only image of a layout."""
    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    tree: dict[str, Entry] = {}
    for layer in json.loads(oci.read_blob(layout, top))["layers"]:
        with tarfile.open(fileobj=io.BytesIO(oci.read_blob(layout, layer))) as archive:
            tree = filetree.overlay(tree, filetree.read_tar(archive))
    return tree


def differences(one: Tree, other: Tree, allowed: str, written_anew: Sequence[str]) -> list[str]:
    """Files of the environments that only one of two trees has, except those allowed, and that are not alike."""
    first, second = (_environments(tree) for tree in (one, other))
    alone = [
        f"only {which}: {path}"
        for which, has, lacks in (("Dockerfile", first, second), ("lab.images", second, first))
        for path in sorted(set(has) - set(lacks))
        if not re.fullmatch(rf"opt/[a-z]+/(?:{allowed})", path)
    ]
    return alone + [
        f"differs: {path}"
        for path in sorted(set(first) & set(second))
        if not path.endswith(tuple(written_anew)) and not _alike(path, first[path], second[path])
    ]


def _alike(path: str, one: Entry, other: Entry) -> bool:
    # A command that pip writes has other lines than ours, by pip's version.
    if re.fullmatch(r"opt/[a-z]+/bin/[^/]+", path) and one.target is None:
        return one.content.splitlines()[0] == other.content.splitlines()[0] and one.mode == other.mode
    return (one.content, one.target, one.mode) == (other.content, other.target, other.mode)


def _environments(tree: Tree) -> Mapping[str, Entry]:
    return {
        path: entry
        for path, entry in tree.items()
        if path.startswith(tuple(f"{name}/" for name in ENVIRONMENTS)) and not entry.is_directory
    }


def pip_mounts(directory: Path) -> list[tuple[str, str]]:
    """The files with which pip works in a build as it does on this machine: its settings and its certificates."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings = {}
    # Those of the environment take precedence.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        if name.rpartition(".")[0] in {"global", "install", ":env:"}:
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value)).replace("\n", "\n    ")
    file = directory / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    paths = [settings.get("cert"), settings.get("find-links"), os.environ.get("SSL_CERT_FILE")]
    return [
        (str(file), "/etc/pip.conf"),
        *((path, path) for path in dict.fromkeys(paths) if path and Path(path).exists()),
    ]
