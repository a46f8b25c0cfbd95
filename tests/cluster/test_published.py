"""A release that nodes pull from a registry: installed by its own lines in each way, and upgraded to the next one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab import components, registry
from lab.build import Builder
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings
from releasing import lines, publish

from dra_driver.version import VERSION
from tests.builders.publishing import LATER, Publisher, commit_all, packed_image, raise_version
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import SliceWatch, uid_of, unchanged
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.release import NAME, Release
from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

ONE = template("one", request())


@dataclass(frozen=True)
class Versions:
    """Two versions in a registry, and the unpacked installer of the first.

    Attributes:
        place: Where they are.
        notes: The notes of the first.
        installer: Its script and manifests.
        digests: The digests of the images, by version.
    """

    place: publish.Place
    notes: str
    installer: Path
    digests: dict[str, str]


@pytest.fixture(scope="module")
def versions(lab: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    """A registry that the nodes reach, with two versions of what is here."""
    del lab  # its nodes share the network of this process
    directory = tmp_path_factory.mktemp("published")
    archive, tree = directory / "image.tar", directory / "tree"
    subprocess.run([ROOT / "scripts/build-image", "--tag", "neuron-dra-driver:test", archive], check=True)
    tree.mkdir()
    commit_all(tree)
    settings, progress = Settings.from_environment(os.environ), Progress()
    with registry.serving(settings, progress) as address, pytest.MonkeyPatch.context() as patch:
        crane = Builder(settings, progress).build([components.crane()])["crane"]
        patch.setenv("CRANE", str(crane))
        place = publish.Place(f"{address}/team")
        digests = {}
        for version in (VERSION, LATER):
            if version == LATER:
                raise_version(tree)
            assert Publisher(packed_image(archive), tree, place.name, directory / version).run() == 0
            done = subprocess.run(
                [crane, "digest", f"{place.image}:{version}"], check=True, capture_output=True, text=True
            )
            digests[version] = done.stdout.strip()
        archive.unlink()
        shutil.unpack_archive(directory / VERSION / lines.installer_name(VERSION), directory, filter="data")
        notes = (directory / VERSION / "RELEASE-NOTES.md").read_text()
        yield Versions(place, notes, directory / f"neuron-dra-driver-{VERSION}", digests)


def runs(installation: Installation, versions: Versions, version: str) -> None:
    """Assert that all of the driver's pods run the image of that version, as the registry has it."""
    installation.wait_ready()
    wanted = f"{versions.place.image}:{version}@{versions.digests[version]}"
    assert {item["spec"]["containers"][0]["image"] for item in installation.pods()} == {wanted}


def first_pod(namespace: Namespace) -> None:
    """A pod gets a chip."""
    namespace.apply(ONE, pod("first", templates={"neurons": "one"}))
    namespace.wait_ready("first")
    assert namespace.numbers("first") == [0]


def test_the_script_of_a_release_needs_no_image(
    versions: Versions, installation: Installation, lab: Cluster, namespace: Namespace
) -> None:
    installation.ensure_absent()
    installation.changed()
    script = versions.installer / "scripts/install-dra-driver.sh"
    command = [str(script), "--yes", "--kubectl", shlex.join(lab.kubectl_command()), "--emulate", EMULATED]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs(installation, versions, VERSION)
    first_pod(namespace)


def test_kustomize_has_the_image_of_a_release(
    versions: Versions, installation: Installation, kube: Kube, namespace: Namespace
) -> None:
    installation.ensure_absent()
    installation.changed()
    # With the component that stands for hardware.
    directory = versions.installer / "deploy/kustomize/driver-example"
    kube.kubectl("apply", "--server-side", "-k", str(directory))
    eventually("the driver's pods", installation.pods)
    installation.wait_ready(90)
    (image,) = {item["spec"]["containers"][0]["image"] for item in installation.pods()}
    assert image.endswith(f"@{versions.digests[VERSION]}")
    first_pod(namespace)


def test_helm_installs_a_release_from_the_registry_and_upgrades_to_the_next_while_chips_are_in_use(
    versions: Versions, installation: Installation, release: Release, kube: Kube, namespace: Namespace
) -> None:
    installation.ensure_absent()
    release.label_nodes(EMULATED)
    (line,) = re.findall(r"(?m)^\$ helm ((?:.*\\\n)*.*)$", versions.notes)
    # What the lines do not say: that this registry speaks HTTP, and that there is no hardware.
    here = ("--plain-http", "--set", f"emulate={EMULATED}")
    release.helm(*shlex.split(line.replace("\\\n", " ")), *here)
    runs(installation, versions, VERSION)
    first_pod(namespace)
    (before,) = (item for item in namespace.pods() if item["metadata"]["name"] == "first")
    instances = {uid_of(item) for item in installation.pods()}

    upgrade = ("upgrade", NAME, f"oci://{versions.place.chart}", "--version", LATER, "--plain-http")
    kept = release.helm(*upgrade, "--reuse-values", check=False)
    assert kept.returncode != 0
    assert "--reset-then-reuse-values" in kept.stderr
    with SliceWatch(kube) as watch:
        release.helm(*upgrade, "--reset-then-reuse-values")
        eventually("the next version", lambda: not {uid_of(item) for item in installation.pods()} & instances, 120)
        runs(installation, versions, LATER)
        assert watch.events() == []
    assert unchanged(namespace.pod("first") or {}, before)
    namespace.delete_pod("first")
    first_pod(namespace)
