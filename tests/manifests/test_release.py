"""What a release consists of: archives that come out alike, and a bill of materials that leaves nothing out."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from releasing import bill
from releasing.addresses import CHART, set_repository_url
from releasing.main import build_packages, main, pack_chart, repack, write_checksums

from dra_driver.version import VERSION
from tests.golden import golden
from tests.manifests.chart import KUBERNETES, helm, needs_helm
from tests.paths import ROOT

pytestmark = pytest.mark.slow


def packed(path: Path, files: Mapping[str, str], *, mtime: int = 0, links: Mapping[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.uid = len(content.encode()), mtime, "somebody", mtime % 1000
            archive.addfile(member, io.BytesIO(content.encode()))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return path


def image(directory: Path, *layers: Path) -> Path:
    """A docker archive of these layers."""
    path = directory / "image.tar"
    with tarfile.open(path, "w") as archive:
        for layer in layers:
            archive.add(layer, layer.name)
        manifest = json.dumps([{"Layers": [layer.name for layer in layers]}]).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest))
    return path


def test_archives_of_two_runs_are_alike(tmp_path: Path) -> None:
    one = packed(tmp_path / "a.tar.gz", {"x/b": "2", "x/a": "1"}, mtime=1_700_000_000)
    other = packed(tmp_path / "b.tar.gz", {"x/a": "1", "x/b": "2"}, mtime=1_800_000_777)
    assert one.read_bytes() != other.read_bytes()
    for archive in (one, other):
        repack(archive, 1_750_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as made:
        assert [(member.name, member.mtime, member.uname) for member in made] == [
            ("x/a", 1_750_000_000, ""),
            ("x/b", 1_750_000_000, ""),
        ]


STATUS = """\
Package: gcc-12-base
Status: install ok installed
Version: 12.2.0-14

Package: libgcc-s1
Status: install ok installed
Version: 12.2.0-14

Package: was-removed
Status: deinstall ok config-files
Version: 1

"""
SITE, COMMANDS = (f"opt/{name}/lib/python3.13/site-packages" for name in ("node", "commands"))


def test_packages_of_an_image_are_those_of_dpkg_and_of_its_python_environment(tmp_path: Path) -> None:
    base = packed(
        tmp_path / "base.tar",
        {
            "./var/lib/dpkg/status": STATUS,
            "./usr/share/doc/gcc-12-base/copyright": "Files: *\nLicense: GPL-3+ with exception\n text\n",
        },
        links={"./usr/share/doc/libgcc-s1": "gcc-12-base"},
    )
    python = packed(
        tmp_path / "python.tar",
        {
            f"{SITE}/spdx-1.0.dist-info/METADATA": "Name: Spdx\nVersion: 1.0\nLicense-Expression: MIT OR Apache-2.0\n",
            f"{SITE}/old-2.0.dist-info/METADATA": "Name: old\nVersion: 2.0\nLicense: BSD\n",
            f"{SITE}/filed-3.dist-info/METADATA": "Name: filed\nVersion: 3\nLicense: UNKNOWN\n",
            f"{SITE}/filed-3.dist-info/LICENSE": "\n  Apache License\n  Version 2.0\n",
            f"{COMMANDS}/silent-4.dist-info/METADATA": "Name: silent\nVersion: 4\n",
            "opt/build/lib/python3.11/site-packages/pip-1.dist-info/METADATA": "Name: pip\nVersion: 1\n",
        },
    )
    assert bill.of_image(image(tmp_path, base, python)) == [
        bill.Package("deb", "gcc-12-base", "12.2.0-14", "GPL-3+ with exception"),
        bill.Package("deb", "libgcc-s1", "12.2.0-14", "GPL-3+ with exception"),
        bill.Package("pypi", "filed", "3", "Apache License"),
        bill.Package("pypi", "old", "2.0", "BSD"),
        bill.Package("pypi", "silent", "4"),
        bill.Package("pypi", "spdx", "1.0", "MIT OR Apache-2.0"),
    ]


def test_the_bill_of_an_environment_names_every_package_with_its_licence() -> None:
    found = bill.of_distributions(distributions())
    text = bill.document("neuron-dra-driver", VERSION, found, 1_750_000_000)
    assert text == bill.document("neuron-dra-driver", VERSION, reversed(found), 1_750_000_000)
    shown = json.loads(text)
    assert shown["specVersion"] == "1.6"
    assert shown["metadata"]["timestamp"].startswith("2025-06-15T")
    names = {item["name"] for item in shown["components"]}
    assert {"grpcio", "pydantic", "cel-python"} <= names
    assert names == {re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower() for item in distributions()}
    without = [item["name"] for item in shown["components"] if not item.get("licenses")]
    assert len(without) < len(names) / 10, without
    assert "pypi  pydantic" in bill.licence_list("neuron-dra-driver", VERSION, found)


def test_a_package_without_a_licence_is_said_to_have_an_unknown_one() -> None:
    listed = bill.licence_list("image", "1", [bill.Package("pypi", "silent", "4")])
    assert "pypi  silent 4: unknown" in listed
    (component,) = json.loads(bill.document("image", "1", [bill.Package("pypi", "silent", "4")], 0))["components"]
    assert "licenses" not in component


@pytest.mark.parametrize("url", ["http://git.example/x", 'https://git.example/"x', "git.example"])
def test_an_address_that_is_none_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--repository-url", url, "--no-image"]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize("base", ["docker.io/library/python:3.13", "docker.io/library/python@sha256:1"])
def test_a_base_image_that_is_not_pinned_is_refused(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base", base]) == 2
    golden(capsys.readouterr().err)


def sources(directory: Path) -> Path:
    """A file tree with what the packages are built from."""
    directory.mkdir()
    command = ["git", "ls-files", "-z", "dra_driver", "pyproject.toml", "README.md", "LICENSE"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return directory


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with source archive and wheel."""
    directory = tmp_path_factory.mktemp("packages")
    build_packages(sources(directory / "tree"), directory / "made")
    return directory / "made"


WHEEL, SOURCES = f"neuron_dra_driver-{VERSION}-py3-none-any.whl", f"neuron_dra_driver-{VERSION}.tar.gz"


@pytest.mark.timeout(180)
def test_wheel_and_source_archive_of_two_builds_are_alike_and_know_their_version(
    packages: Path, tmp_path: Path
) -> None:
    build_packages(sources(tmp_path / "tree"), tmp_path / "made")
    files = sorted(path.name for path in packages.iterdir())
    assert files == [WHEEL, SOURCES]
    for name in files:
        assert (packages / name).read_bytes() == (tmp_path / "made" / name).read_bytes(), name


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [WHEEL, SOURCES])
def test_a_package_simulates_outside_of_the_checkout(packages: Path, tmp_path: Path, name: str) -> None:
    """With the libraries that are here; scripts/release also installs the pinned ones."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, f"--target={site}", str(packages / name)], check=True, capture_output=True, text=True)
    example = shutil.copy(ROOT / "examples/specs/1x4-connected-devices.yaml", tmp_path / "pod.yaml")
    run = partial(
        subprocess.run, cwd=tmp_path, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    where = run([sys.executable, "-c", "import dra_driver; print(dra_driver.__file__)"]).stdout
    assert Path(where.strip()).is_relative_to(site)
    simulated = run([site / "bin/dra-driver", "simulate", example, "--instance-type", "trn2.48xlarge"]).stdout
    assert "neuron-device-0 to 3" in simulated


@needs_helm
def test_packed_charts_of_two_runs_are_alike_and_render_what_the_chart_does(tmp_path: Path) -> None:
    for number, date in ((1, 1_700_000_000), (2, 1_800_000_000)):
        tree = tmp_path / f"tree{number}"
        shutil.copytree(ROOT / CHART, tree / CHART)
        for path in tree.rglob("*"):
            os.utime(path, (date, date))
        (tmp_path / f"made{number}").mkdir()
        pack_chart(tree, tmp_path / f"made{number}", 1_750_000_000)
    one, other = (tmp_path / f"made{number}" / f"neuron-helm-chart-{VERSION}.tgz" for number in (1, 2))
    assert one.read_bytes() == other.read_bytes()
    options = ("--kube-version", KUBERNETES, "--set", "image.repository=registry.example/n,draDriver.enabled=true")
    packed_one, unpacked = (helm("template", "neuron", str(chart), *options) for chart in (one, ROOT / CHART))
    assert packed_one.stdout == unpacked.stdout != ""


def test_the_repository_is_named_in_the_metadata_of_packages_and_chart(tmp_path: Path) -> None:
    url = "https://git.example/neuron-dra-driver"
    for name in ("pyproject.toml", f"{CHART}/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    set_repository_url(tmp_path, url)
    after = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert after["project"].pop("urls") == {"Repository": url, "Changelog": f"{url}/blob/main/CHANGELOG.md"}
    assert after == before
    chart = yaml.safe_load((tmp_path / CHART / "Chart.yaml").read_text())
    assert (chart["home"], chart["sources"]) == (url, [url])


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key of gpg, in a home of its own."""
    if shutil.which("gpg") is None:
        pytest.skip("there is no gpg here")
    # The agent's socket is in it: the path has to be short.
    with tempfile.TemporaryDirectory(prefix="gpg-", ignore_cleanup_errors=True) as home:
        monkeypatch.setenv("GNUPGHOME", home)
        options = ["--batch", "--quiet", "--pinentry-mode=loopback", "--passphrase="]
        subprocess.run(["gpg", *options, "--quick-generate-key", "releases@git.example"], check=True)
        yield "releases@git.example"
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=True)


def test_checksums_are_of_all_files_and_the_signature_is_of_them(tmp_path: Path, key: str) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    write_checksums(tmp_path, key)
    (tmp_path / "SHA256SUMS.asc").rename(tmp_path.with_suffix(".asc"))
    listed = (tmp_path / "SHA256SUMS").read_text()
    assert [line.split()[1] for line in listed.splitlines()] == ["a", "b"]
    for_sums = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    verify = ["gpg", "--verify", str(tmp_path.with_suffix(".asc")), "SHA256SUMS"]
    assert for_sums(["sha256sum", "--check", "--strict", "SHA256SUMS"]).returncode == 0
    assert for_sums(verify).returncode == 0
    (tmp_path / "SHA256SUMS").write_text(listed.replace("  a\n", "  c\n"))
    assert for_sums(verify).returncode != 0


def test_without_a_key_there_are_checksums_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    write_checksums(tmp_path, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", "a"]
