"""``scripts/release``: everything of a release, made from one commit into one directory."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

import yaml
from lab import components
from lab.basepython import native_architecture
from lab.build import Builder
from lab.errors import LabError
from lab.images import ARCHITECTURES, ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

from releasing import bill, chart_layout, lines, metadata, plugin, publish
from releasing.addresses import CHART, SCRIPT, set_image, set_repository_url
from releasing.publish import PUBLIC_KEY, Cosign, Place, Published, PublishingError, Registry, Signer

ROOT = Path(__file__).resolve().parents[2]
NAME = "neuron-dra-driver"
LayoutWriter = Callable[[Path, Path, int, Progress, str | None, Mapping[str, str]], str]
"""Writes the image of a tree to a layout, of a date and with a base and labels; returns the digest of its index."""
UNSIGNED = """\
nothing is signed: there is neither an identity nor a key. Make a key once, and run this again with it:
   cosign generate-key-pair && scripts/release ... --key cosign.key"""
DESCRIPTION = """\
Make a release of the committed tree: source archive and wheel, kubectl neuron for krew, chart, the image (of this
machine's architecture; with --publish of both), bills of materials with licences, the section of the changelog, and
checksums of all, signed if a key is given. Two runs for one commit give the same bytes.

With --publish, image and chart go to a registry, and chart, script and manifests name the image there. Published before
by the same commit, nothing changes, and nothing is signed again."""
EPILOG = """\
examples:
  scripts/release --repository-url https://git.example/neuron-dra-driver --sign releases@git.example
  scripts/release --repository-url https://git.example/neuron --publish registry.example/team --key cosign.key

Log in to the registry before, with docker login or crane auth login. Who signs is the identity of the environment
(SIGSTORE_ID_TOKEN, or that of a workflow), otherwise --key, whose password is read from COSIGN_PASSWORD. CRANE and
COSIGN name programs to use instead of those that are built here. To try it: scripts/cluster registry.

The image's base is made of the packages of Debian that requirements/base-ARCHITECTURE.txt pins; to take another, name
it by digest, such as --base docker.io/library/python@sha256:.... CONTRIBUTING.md tells the rest.

Exit status 0: done, 1: something could not be made, 2: invalid options, or the tree is not ready for a release."""


def write_image(
    tree: Path, layout: Path, epoch: int, progress: Progress, base: str | None, labels: Mapping[str, str]
) -> str:
    """Write the image of all architectures; nothing of another architecture is run."""
    builder = ImageBuilder(Settings.from_environment(os.environ), progress, tree, epoch)
    return builder.write_layout(layout, ARCHITECTURES, base, labels)


class NotReadyError(Exception):
    """The tree or the options do not allow a release; the text says what to do."""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, write_layout: LayoutWriter = write_image) -> int:
    """Run the command for the checkout `root`; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/release", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--output", metavar="DIR", type=Path, help="directory to make (default: dist)")
    parser.add_argument(
        "--repository-url",
        metavar="URL",
        help="where the project is published; goes into wheel, chart and krew's manifest",
    )
    parser.add_argument("--publish", metavar="REGISTRY[/PATH]", help="push image and chart there")
    parser.add_argument(
        "--artifact-hub",
        metavar="ID",
        help="with --publish: the id that Artifact Hub has given to the chart's repository",
    )
    parser.add_argument("--key", metavar="KEY", help="with --publish: sign with this key of cosign")
    parser.add_argument("--sign", metavar="KEY", help="sign the checksums with this key of gpg")
    parser.add_argument("--base", metavar="IMAGE@DIGEST", help="base image to pull")
    parser.add_argument("--no-image", action="store_true", help="without the image")
    parser.add_argument("--no-chart", action="store_true", help="without the chart (which needs helm)")
    parser.add_argument("--no-plugin", action="store_true", help="without kubectl neuron (which needs a package index)")
    parser.add_argument("--no-site", action="store_true", help="without the site (which needs a package index)")
    options = parser.parse_args(arguments)
    try:
        release(options, root, write_layout)
    except NotReadyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LabError, PublishingError, subprocess.CalledProcessError, OSError, ValueError) as error:
        detail = getattr(error, "stderr", "") or ""
        print(f"error: {error}{detail and ': ' + detail[-2000:]}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Work:
    """A release that is being made.

    Attributes:
        version: Its version.
        commit: The commit that it is made from.
        epoch: The commit's date, which everything bears.
        url: Where the project is published, or None.
        scratch: A directory for everything that is made.
        progress: Reports to the user.
    """

    version: str
    commit: str
    epoch: int
    url: str | None
    scratch: Path
    progress: Progress

    @property
    def tree(self) -> Path:
        """The committed files."""
        return self.scratch / "tree"

    @property
    def made(self) -> Path:
        """The files of the release."""
        return self.scratch / "made"


def release(options: argparse.Namespace, root: Path, write_layout: LayoutWriter) -> None:
    """Make all that the options ask for in a scratch directory, publish it, and move its files to the output."""
    place = _check(options)
    version = _version(root)
    notes = _ready(root, version)
    epoch, commit = _output(root, "git", "log", "-1", "--format=%ct %H").split()
    output: Path = (options.output or root / "dist").absolute()
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        work = Work(version, commit, int(epoch), options.repository_url, Path(name), Progress())
        work.made.mkdir()
        _export(root, work.tree)
        if work.url:
            set_repository_url(work.tree, work.url)
            notes = lines.with_addresses(notes, work.url, version)
        if place:
            told = make_and_publish(work, place, options, notes, output, write_layout)
        else:
            told = make(work, options, notes)
        output.mkdir(parents=True, exist_ok=True)
        # What an earlier release has left in the directory is not listed.
        moved = [Path(shutil.move(path, output / path.name)) for path in sorted(work.made.iterdir())]
    print(f"-- {NAME} {version} is in {output}:")
    for path in moved:
        print(f"   {path.stat().st_size:>11,}  {path.name}")
    print(
        "   Check it with: sha256sum --check SHA256SUMS" + (" && gpg --verify SHA256SUMS.asc" if options.sign else "")
    )
    for line in told:
        print(f"-- {line}")


def make(work: Work, options: argparse.Namespace, notes: str) -> list[str]:
    """Make a release that names no place: its image is a file, and the user says where it is."""
    make_packages(work, options)
    if not options.no_chart:
        with work.progress.step("packing the chart"):
            pack_chart(work.tree, work.made, work.epoch)
    if not options.no_image:
        archive = work.made / f"{NAME}-{work.version}-{native_architecture()}.tar"
        ImageBuilder(Settings.from_environment(os.environ), work.progress, work.tree, work.epoch).build(
            f"{NAME}:{work.version}", archive, options.base
        )
        _bill(work, archive.name, f"{NAME} image", bill.of_image(archive))
    (work.made / "RELEASE-NOTES.md").write_text(notes)
    write_checksums(work.made, options.sign)
    return []


def make_and_publish(
    work: Work, place: Place, options: argparse.Namespace, notes: str, output: Path, write_layout: LayoutWriter
) -> list[str]:
    """Make a release that names its image, and publish it; returns what was done, in words.

    Nothing leaves this machine before all of it is made.
    """
    version, made, url = work.version, work.made, str(work.url)
    signer = publish.signer(options.key, os.environ)
    registry = Registry(_program("crane", components.crane(), work.progress))

    # The image comes first: everything else names it by its digest.
    layout = work.scratch / "image"
    labels = image_labels(url, version, work.commit)
    digest = write_layout(work.tree, layout, work.epoch, work.progress, options.base, labels)
    image = Published("image", place.image, version, digest, layout)
    _bill(work, f"{NAME}-{version}-image", f"{NAME} image", bill.of_layout(layout))
    set_image(work.tree, image, url)
    getting = lines.get_it(url, version, image, place)
    lines.write_into(work.tree, getting)

    with work.progress.step("packing the chart"):
        packed = pack_chart(work.tree, made, work.epoch)
        digest = chart_layout.write(packed, work.scratch / "chart", work.epoch)
    chart = Published("chart", place.chart, version, digest, work.scratch / "chart")
    _bill(work, packed.name, publish.CHART_NAME, [bill.Package("oci", NAME, image.digest, "Apache-2.0")])
    make_packages(work, options)
    pack_installer(work)
    if not options.no_site:
        with work.progress.step("building the site, whose pages name this release"):
            pack_site(work)
    verifying = lines.verify(url, version, (image, chart), signer)
    (made / "RELEASE-NOTES.md").write_text(f"{notes}\n### Get it\n\n{getting}\n### Verify it\n\n{verifying}")
    predicate = publish.predicate(url, version, work.commit, os.environ)
    statement = publish.statement(_subjects(made, (image, chart)), predicate)
    (made / f"{NAME}-{version}.provenance.json").write_text(json.dumps(statement, indent=1) + "\n")
    cosign = _cosign(signer, work)
    write_checksums(made, options.sign)

    # From here on, others see what happens.
    done = []
    for item in publish.missing(registry, (image, chart)):
        with work.progress.step(f"pushing {item.by_tag}"):
            registry.push(item)
        done.append(f"pushed {item.by_tag}, which is {item.digest}")
    if options.artifact_hub:
        registration = metadata.registration(place, options.artifact_hub, work.scratch / "registration")
        if registry.digest(registration.by_tag) != registration.digest:
            registry.push(registration)
            done.append(f"pushed {registration.by_tag}, by which Artifact Hub knows whose the chart is")
    if cosign:
        with work.progress.step("signing"):
            bills = {"image": made / f"{NAME}-{version}-image.cdx.json", "chart": made / f"{packed.name}.cdx.json"}
            provenance = work.scratch / "predicate.json"
            provenance.write_text(json.dumps(predicate))
            done += publish.sign_all(cosign, (image, chart), bills, provenance)
            done += publish.sign_files(cosign, sorted(made.iterdir()), output)
    if not done:
        done.append("already published, nothing to do")
    return [*done, f"image: {image.by_digest}", f"chart: {chart.by_digest}", *([] if cosign else [UNSIGNED])]


def make_packages(work: Work, options: argparse.Namespace) -> None:
    """Make source archive, wheel and kubectl neuron."""
    with work.progress.step("building source archive and wheel"):
        wheel = build_packages(work.tree, work.made, work.epoch)
    if options.no_plugin:
        return
    with work.progress.step("packing kubectl neuron for each platform, and trying the one of this machine"):
        archives = plugin.pack_plugins(work.tree, wheel, work.made, work.epoch)
        contained = _tried(archives, work.tree, work.scratch / "plugin")
    with work.progress.step("installing the wheel with what its commands need"):
        needed = _installed(work.tree, wheel, work.scratch / "site")
    _bill(work, wheel.name, NAME, bill.of_distributions(needed))
    packed = bill.of_distributions(item for item in needed if item.name in contained)
    _bill(work, f"kubectl-neuron-{work.version}", "kubectl neuron", packed)
    if work.url:
        (work.made / "neuron.yaml").write_text(plugin.manifest(archives, work.url))


def _check(options: argparse.Namespace) -> Place | None:
    """Check the options; returns the place to publish to, if they name one."""
    if options.repository_url and not re.fullmatch(r"https://[^\s\"\\]+", options.repository_url):
        raise NotReadyError(
            f"--repository-url is {options.repository_url!r}; give an address that begins with https://"
        )
    if options.base and not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", options.base):
        raise NotReadyError(
            f"--base is {options.base!r}; name it by digest, as IMAGE@sha256:..., since a tag can change"
        )
    if options.publish is None:
        if options.key:
            raise NotReadyError("--key signs what --publish publishes; without that, --sign signs the checksums")
        if options.artifact_hub:
            raise NotReadyError("--artifact-hub registers the chart that --publish publishes; add --publish")
        return None
    if options.no_image or options.no_chart:
        raise NotReadyError("--publish publishes image and chart; leave out --no-image and --no-chart")
    if not options.repository_url:
        raise NotReadyError("--publish needs --repository-url: the lines with which people get the release name it")
    if not publish.is_place(options.publish):
        raise NotReadyError(
            f"--publish is {options.publish!r}; give a registry and a path in lower case, such as registry.example/team"
        )
    return Place(options.publish)


def _version(root: Path) -> str:
    """The version of the checkout."""
    text = (root / "dra_driver/version.py").read_text()
    match = re.search(r'^VERSION = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise NotReadyError("dra_driver/version.py has no VERSION; write it")
    return match[1]


def _ready(root: Path, version: str) -> str:
    """This version's section of the changelog; NotReadyError if something of the tree does not fit the version."""
    changed = _output(root, "git", "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise NotReadyError(f"the tree has changes that are not committed; commit or stash them first:\n{changed}")
    tags = _output(root, "git", "tag", "--points-at", "HEAD", "--list", "v*").split()
    if tags and f"v{version}" not in tags:
        raise NotReadyError(
            f"the commit has the tag {tags[0]}, the driver is {version}; tag the commit whose version is {tags[0][1:]}"
        )
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    for key in ("version", "appVersion"):
        if chart[key] != version:
            raise NotReadyError(f"{CHART}/Chart.yaml has {key} {chart[key]}, the driver is {version}; make them equal")
    section = re.search(rf"(?ms)^## {re.escape(version)}\b.*?(?=^## |\Z)", (root / "CHANGELOG.md").read_text())
    if section is None:
        raise NotReadyError(f"CHANGELOG.md has no section ## {version}; write one")
    return section[0].rstrip() + "\n"


def _export(root: Path, tree: Path) -> None:
    """The committed files."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={tree}"], input=archive, check=True)


def image_labels(url: str, version: str, commit: str) -> dict[str, str]:
    """What the image says of itself; registries link it to the repository by it."""
    title = "org.opencontainers.image"
    return {f"{title}.source": url, f"{title}.version": version, f"{title}.revision": commit}


def pack_installer(work: Work) -> None:
    """Write the archive with the script, the manifests that it applies, and the examples."""
    archive = work.made / lines.installer_name(work.version)
    with tarfile.open(archive, "w:gz") as tar:
        for part in ("LICENSE", SCRIPT, "deploy", "examples"):
            tar.add(work.tree / part, f"{NAME}-{work.version}/{part}")
    repack(archive, work.epoch)


def pack_site(work: Work) -> None:
    """Write the archive of the site of the tree's pages."""
    command = [str(work.tree / "scripts/build-site")]
    environment = {**os.environ, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": str(work.epoch)}
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    archive = work.made / f"{NAME}-site-{work.version}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(work.tree / "out/site", ".")
    repack(archive, work.epoch)


def _subjects(made: Path, published: Iterable[Published]) -> dict[str, str]:
    """The SHA-256 sums of what is published, by name."""
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir()}
    return files | {item.repository: item.digest.partition(":")[2] for item in published}


def _cosign(signer: Signer | None, work: Work) -> Cosign | None:
    """Cosign as the signer, whose public key becomes a file of the release; None if nobody signs."""
    if signer is None:
        return None
    cosign = Cosign(_program("cosign", components.cosign(), work.progress), signer, work.scratch)
    if signer.key:
        cosign.write_public_key()
        shutil.copyfile(work.scratch / PUBLIC_KEY, work.made / PUBLIC_KEY)
    return cosign


def _program(name: str, component: components.Component, progress: Progress) -> Path:
    """A program that the environment names, otherwise one of the lab's."""
    named = os.environ.get(name.upper())
    return Path(named) if named else Builder(Settings.from_environment(os.environ), progress).build([component])[name]


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


def _tried(archives: Iterable[Path], tree: Path, directory: Path) -> set[str]:
    """The packages in the plugin, once that of this machine has simulated a pod with each Python that is here."""
    here = f"-{platform.system().lower()}-{native_architecture()}.tar.gz"
    shutil.unpack_archive(next(path for path in archives if path.name.endswith(here)), directory, filter="data")
    example = tree / "examples/specs/1x4-connected-devices.yaml"
    command = [str(directory / "kubectl-neuron"), "simulate", str(example), "--instance-type", "trn2.48xlarge"]
    others = (path for version in plugin.PYTHONS if (path := shutil.which(f"python{version}")))
    for python in (sys.executable, *filter(_runs, others)):
        environment = {"PATH": os.environ["PATH"], "PYTHON": python}
        shown = subprocess.run(
            command, check=True, cwd=directory, env=environment, capture_output=True, text=True
        ).stdout
        if "neuron-device-0 to 3" not in shown:
            raise ValueError(f"the plugin does not simulate the first example with {python}; it says:\n{shown}")
    return {item.name for item in distributions(path=[str(directory / "lib")])}


def _runs(python: str) -> bool:
    """Whether this is a Python, and not a switch between versions of which none is chosen."""
    return subprocess.run([python, "-I", "-c", ""], capture_output=True, check=False).returncode == 0


def _installed(tree: Path, wheel: Path, directory: Path) -> list[Distribution]:
    """What the wheel needs with all its commands, installed from the pins."""
    pip = [sys.executable, "-I", "-m", "pip", "install", "--only-binary", ":all:", "--no-deps", "--no-compile"]
    pip += ["--quiet", "--disable-pip-version-check", "--target", str(directory)]
    for what in (["--require-hashes", "--requirement", str(tree / "requirements/commands.txt")], [str(wheel)]):
        subprocess.run([*pip, *what], check=True, capture_output=True, text=True)
    return [item for item in distributions(path=[str(directory)]) if item.name.lower() != NAME]


def pack_chart(tree: Path, made: Path, epoch: int) -> Path:
    """Write the packed chart of a file tree to the directory ``made``; returns it."""
    helm = os.environ.get("HELM") or shutil.which("helm")
    if helm is None:
        raise NotReadyError("there is no helm; set HELM=/path/to/helm, or build one: scripts/cluster build --helm")
    metadata.describe_chart(tree)
    command = [helm, "package", str(tree / CHART), "--destination", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (archive,) = made.glob("*.tgz")
    repack(archive, epoch)
    return archive


def _bill(work: Work, file: str, subject: str, packages: Iterable[bill.Package]) -> None:
    listed = list(packages)
    if not listed:
        raise ValueError(f"no package was found in {file}, which cannot be")
    (work.made / f"{file}.cdx.json").write_text(bill.document(subject, work.version, listed, work.epoch))
    (work.made / f"{file}.licences.txt").write_text(bill.licence_list(subject, work.version, listed))


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


def _output(root: Path, *command: str) -> str:
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
