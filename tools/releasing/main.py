"""``scripts/release``: everything of a release, made from one commit into one directory."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

import yaml
from lab.errors import LabError
from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

from dra_driver.version import VERSION
from releasing import bill, plugin

ROOT = Path(__file__).resolve().parents[2]
NAME = "neuron-dra-driver"
CHART = "charts/neuron-helm-chart"
DESCRIPTION = """\
Make a release of the committed tree: source archive and wheel, kubectl neuron for krew, chart, the image of this
machine's architecture, bills of materials with licences, the section of the changelog, and checksums of all, signed if
a key is given. Two runs for one commit give the same bytes, if the image's base is the same."""
EPILOG = """\
example:
  scripts/release --repository-url https://git.example/neuron-dra-driver --sign releases@git.example

The image's base is made with debootstrap from today's packages of the Debian release of this machine; to pin it, name a
base by digest, such as --base docker.io/library/python@sha256:..., or keep the cached one. CONTRIBUTING.md
tells the rest, also how to make the image for arm64.

Exit status 0: done, 1: something could not be made, 2: invalid options, or the tree is not ready for a release."""


class NotReadyError(Exception):
    """The tree or the options do not allow a release; the text says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/release", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="DIR", type=Path, default=ROOT / "dist", help="directory to make (default: dist)"
    )
    parser.add_argument(
        "--repository-url",
        metavar="URL",
        help="where the project is published; goes into wheel, chart and krew's manifest",
    )
    parser.add_argument("--sign", metavar="KEY", help="sign the checksums with this key of gpg")
    parser.add_argument("--base", metavar="IMAGE@DIGEST", help="base image that buildah can pull")
    parser.add_argument("--no-image", action="store_true", help="without the image (which needs root)")
    parser.add_argument("--no-chart", action="store_true", help="without the chart (which needs helm)")
    options = parser.parse_args(arguments)
    try:
        release(options)
    except NotReadyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LabError, subprocess.CalledProcessError, OSError, ValueError) as error:
        detail = getattr(error, "stderr", "") or ""
        print(f"error: {error}{detail and ': ' + detail[-2000:]}", file=sys.stderr)
        return 1
    return 0


def release(options: argparse.Namespace) -> None:
    """Make all that the options ask for."""
    if options.repository_url and not re.fullmatch(r"https://[^\s\"\\]+", options.repository_url):
        raise NotReadyError(
            f"--repository-url is {options.repository_url!r}; give an address that begins with https://"
        )
    if options.base and not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", options.base):
        raise NotReadyError(
            f"--base is {options.base!r}; name it by digest, as IMAGE@sha256:..., since a tag can change"
        )
    epoch = int(_output("git", "log", "-1", "--format=%ct"))
    version = VERSION
    notes = _ready(version)
    output: Path = options.output.absolute()
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        tree, made = Path(name) / "tree", Path(name) / "made"
        made.mkdir()
        _export(tree)
        if options.repository_url:
            set_repository_url(tree, options.repository_url)
        with progress.step("building source archive and wheel"):
            wheel = build_packages(tree, made, epoch)
        with progress.step("trying kubectl neuron as krew would install it"):
            archive = plugin.pack_plugin(tree, wheel, made, epoch)
            needed = _tried(archive, tree, Path(name) / "plugin")
        _bill(made, f"{wheel.name}", NAME, version, bill.of_distributions(needed), epoch)
        if options.repository_url:
            (made / "neuron.yaml").write_text(plugin.manifest(archive, options.repository_url))
        if not options.no_chart:
            with progress.step("packing the chart"):
                pack_chart(tree, made, epoch)
        if not options.no_image:
            image = made / f"{NAME}-{version}-{_architecture()}.tar"
            ImageBuilder(Settings.from_environment(os.environ), progress, tree, epoch).build(
                f"{NAME}:{version}", image, options.base
            )
            _bill(made, image.name, f"{NAME} image", version, bill.of_image(image), epoch)
        (made / "RELEASE-NOTES.md").write_text(notes)
        write_checksums(made, options.sign)
        output.mkdir(parents=True, exist_ok=True)
        # What an earlier release has left in the directory is not listed.
        moved = [Path(shutil.move(path, output / path.name)) for path in sorted(made.iterdir())]
    print(f"-- {NAME} {version} is in {options.output}:")
    for path in moved:
        print(f"   {path.stat().st_size:>11,}  {path.name}")
    print(
        "   Check it with: sha256sum --check SHA256SUMS" + (" && gpg --verify SHA256SUMS.asc" if options.sign else "")
    )


def _ready(version: str) -> str:
    """This version's section of the changelog; NotReadyError if something of the tree does not fit the version."""
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise NotReadyError(f"the tree has changes that are not committed; commit or stash them first:\n{changed}")
    chart = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    for key in ("version", "appVersion"):
        if chart[key] != version:
            raise NotReadyError(f"{CHART}/Chart.yaml has {key} {chart[key]}, the driver is {version}; make them equal")
    section = re.search(rf"(?ms)^## {re.escape(version)}\b.*?(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text())
    if section is None:
        raise NotReadyError(f"CHANGELOG.md has no section ## {version}; write one")
    return section[0].rstrip() + "\n"


def _export(tree: Path) -> None:
    """The committed files."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={tree}"], input=archive, check=True)


def set_repository_url(tree: Path, url: str) -> None:
    """Write where the project is published into the metadata of the packages and of the chart in a file tree."""
    project = tree / "pyproject.toml"
    urls = f'[project.urls]\nRepository = "{url}"\nChangelog = "{url}/blob/main/CHANGELOG.md"\n\n'
    project.write_text(project.read_text().replace("[project.scripts]\n", f"{urls}[project.scripts]\n", 1))
    chart = tree / CHART / "Chart.yaml"
    chart.write_text(f"{chart.read_text()}home: {url}\nsources:\n- {url}\n")


def build_packages(tree: Path, made: Path, epoch: int = 0) -> Path:
    """Write source archive and wheel of a file tree to the directory ``made``; returns the wheel.

    The wheel is built from the source archive, which therefore lacks nothing.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-I", "-m", "build", "--no-isolation", "--outdir", str(made), str(tree)]
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    for archive in made.glob("*.tar.gz"):
        repack(archive, epoch)
    (wheel,) = made.glob("*.whl")
    return wheel


def _tried(archive: Path, tree: Path, directory: Path) -> list[Distribution]:
    """What the wheel needs with all its commands: what is in the plugin's environment once it has simulated a pod."""
    shutil.unpack_archive(archive, directory, filter="data")
    example = tree / "examples/specs/1x4-connected-devices.yaml"
    command = [str(directory / "kubectl-neuron"), "simulate", str(example), "--instance-type", "trn2.48xlarge"]
    shown = subprocess.run(command, check=True, cwd=directory, capture_output=True, text=True).stdout
    if "neuron-device-0 to 3" not in shown:
        raise ValueError(f"the installed wheel does not simulate the first example; it says:\n{shown}")
    (packages,) = directory.glob("venv/lib/python3*/site-packages")
    tools = {"pip", "setuptools", NAME}
    return [item for item in distributions(path=[str(packages)]) if item.name.lower() not in tools]


def pack_chart(tree: Path, made: Path, epoch: int) -> None:
    """Write the packed chart of a file tree to the directory ``made``."""
    helm = os.environ.get("HELM") or shutil.which("helm")
    if helm is None:
        raise NotReadyError("there is no helm; set HELM=/path/to/helm, or build one: scripts/cluster build --helm")
    command = [helm, "package", str(tree / CHART), "--destination", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    for archive in made.glob("*.tgz"):
        repack(archive, epoch)


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _bill(made: Path, file: str, subject: str, version: str, packages: Iterable[bill.Package], epoch: int) -> None:
    listed = list(packages)
    if not listed:
        raise ValueError(f"no package was found in {file}, which cannot be")
    (made / f"{file}.cdx.json").write_text(bill.document(subject, version, listed, epoch))
    (made / f"{file}.licences.txt").write_text(bill.licence_list(subject, version, listed))


def repack(archive: Path, epoch: int) -> None:
    """Write a .tar.gz again, sorted, dated ``epoch``, of no user: setuptools and helm write the time of the run."""
    with tarfile.open(archive) as before:
        members = sorted(before.getmembers(), key=lambda member: member.name)
        temporary = archive.with_suffix(".repacked")
        with (
            temporary.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
        ):
            for member in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                after.addfile(member, before.extractfile(member) if member.isfile() else None)
    temporary.replace(archive)


def write_checksums(made: Path, key: str | None) -> None:
    """Write ``SHA256SUMS`` of all files in a directory, and its signature ``SHA256SUMS.asc`` by that key of gpg."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
    sums = made / "SHA256SUMS"
    sums.write_text("".join(lines))
    if key is not None:
        command = ["gpg", "--batch", "--yes", "--armor", "--detach-sign", "--local-user", key, str(sums)]
        subprocess.run(command, check=True, capture_output=True, text=True)


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
