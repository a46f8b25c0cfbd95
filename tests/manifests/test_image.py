"""The image of all architectures: what is in it, that every build gives the same bytes, and that arm64's programs run.

It downloads what the image is made of, which is kept in the lab's cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lab import debian, filetree, machine
from lab.bases import PulledBase
from lab.filetree import Entry
from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import Settings
from releasing import bill
from releasing.main import write_image

from dra_driver.version import VERSION
from tests.manifests import dockerfile
from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

EPOCH = 1_790_000_000
SOURCE = "https://git.example/neuron-dra-driver"
MACHINES = {"amd64": 62, "arm64": 183}
EXAMPLE = ROOT / "examples/specs/1x4-connected-devices.yaml"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The image in a directory, and its digest."""
    directory = tmp_path_factory.mktemp("image") / "layout"
    labels = {"org.opencontainers.image.source": SOURCE}
    return directory, write_image(ROOT, directory, EPOCH, Progress(), None, labels)


@pytest.fixture(scope="module")
def trees(layout: tuple[Path, str]) -> dict[str, dict[str, Entry]]:
    """The files of each architecture's image."""
    image = PulledBase(layout[0])
    return {architecture: dict(image.tree(architecture)) for architecture in MACHINES}


def test_every_program_and_library_is_for_the_images_architecture(trees: dict[str, dict[str, Entry]]) -> None:
    for architecture, tree in trees.items():
        programs = [path for path, entry in tree.items() if entry.content.startswith(b"\x7fELF")]
        assert {int.from_bytes(tree[path].content[18:20], "little") for path in programs} == {MACHINES[architecture]}
        assert [path for path in programs if path.startswith("opt/node/") and path.endswith(".so")]
        assert [path for path in programs if path.startswith("opt/commands/") and path.endswith(".so")]
        named = [path for path in tree if path.endswith(".so") and "linux" in path]
        other = {"amd64": "aarch64", "arm64": "x86_64"}[architecture]
        assert not [path for path in named if other in path]


def test_both_images_have_the_same_python_files(trees: dict[str, dict[str, Entry]]) -> None:
    amd64, arm64 = ({path for path in tree if path.endswith((".py", ".pyc"))} for tree in trees.values())
    # The only ones that name their architecture, and gdb's of libraries.
    assert {path for path in amd64 ^ arm64 if not re.search("_sysconfigdata_|^usr/share/gdb/", path)} == set()
    uncompiled = [
        path
        for path in amd64
        if path.startswith("opt/")
        and path.endswith(".py")
        and f"{path.rpartition('/')[0]}/__pycache__/{Path(path).stem}.cpython-313.pyc" not in amd64
    ]
    assert not uncompiled


def test_dpkgs_status_names_the_packages_of_the_pins(trees: dict[str, dict[str, Entry]]) -> None:
    for architecture, tree in trees.items():
        pins = debian.read_pins(debian.pins_file(ROOT, architecture).read_text())
        paragraphs = tree["var/lib/dpkg/status"].content.decode().split("\n\n")
        installed = {(bill.fields(paragraph)["Package"], bill.fields(paragraph)["Version"]) for paragraph in paragraphs}
        assert installed == {(package.name, package.version) for package in pins.packages}


def test_the_bill_of_an_image_names_debians_packages_and_pythons(layout: tuple[Path, str]) -> None:
    for architecture in MACHINES:
        packages = bill.of_layout(layout[0], [architecture])
        names = {package.kind: {item.name for item in packages if item.kind == package.kind} for package in packages}
        assert {"libc6", "python3.13-minimal", "ca-certificates"} <= names["deb"]
        assert {"grpcio", "pydantic", "boto3", "neuron-dra-driver"} <= names["pypi"]


def test_the_index_and_each_image_tell_version_source_and_date(layout: tuple[Path, str]) -> None:
    directory, digest = layout
    (top,) = json.loads((directory / "index.json").read_text())["manifests"]
    assert top["digest"] == digest
    index = json.loads((directory / "blobs" / digest.replace(":", "/")).read_text())
    expected = {"version": VERSION, "source": SOURCE, "created": "2026-09-21T14:13:20Z", "licenses": "Apache-2.0"}
    for labels in (index["annotations"], *(PulledBase(directory).settings(name)["Labels"] for name in MACHINES)):
        assert {name: labels[f"org.opencontainers.image.{name}"] for name in expected} == expected


def test_another_build_from_nothing_gives_the_same_digest(
    layout: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DRA_CACHE", str(tmp_path / "another cache, with a longer name"))
    labels = {"org.opencontainers.image.source": SOURCE}
    assert write_image(ROOT, tmp_path / "again", EPOCH, Progress(), None, labels) == layout[1]


@pytest.fixture(scope="module")
def arm64(trees: dict[str, dict[str, Entry]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arm64 image's files, unpacked."""
    machine.bootstrap("images")
    root = tmp_path_factory.mktemp("arm64") / "root"
    filetree.write(trees["arm64"], root)
    return root


def emulated(root: Path, environment: str, *arguments: str) -> str:
    """What a Python of the arm64 image prints, which qemu runs without a container."""
    python = f"{root}/usr/bin/python3.13"
    command = ["qemu-aarch64", "-L", str(root), "-0", f"/opt/{environment}/bin/python", python, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout


def test_arm64s_packages_can_be_imported(arm64: Path) -> None:
    where = "import platform, sys; print(sys.prefix, platform.machine())"
    node = emulated(arm64, "node", "-Ic", f"import grpc, google.protobuf, msgspec, dra_driver.driver; {where}")
    assert node.split() == ["/opt/node", "aarch64"]
    imported = "boto3, kubernetes, aiohttp, re2, pendulum, yaml, lark, rich, grpc, pydantic, ssl, sqlite3"
    commands = emulated(arm64, "commands", "-Ic", f"import {imported}; {where}")
    assert commands.split() == ["/opt/commands", "aarch64"]


def test_arm64s_commands_simulate_the_first_example(arm64: Path) -> None:
    simulate = ("-I", "-m", "dra_driver", "simulate", str(EXAMPLE), "--instance-type", "trn2.48xlarge")
    assert "neuron-device-0 to 3" in emulated(arm64, "commands", *simulate)
    assert emulated(arm64, "node", "-I", "/opt/node/bin/dra-driver", "--version").split()[-1] == VERSION


class Registry(BaseHTTPRequestHandler):
    """A registry that has what is in a layout."""

    def __init__(self, layout: Path, *arguments: object) -> None:
        self._layout = layout
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with a blob by its digest."""
        file = self._layout / "blobs" / self.path.rpartition("/")[2].replace(":", "/")
        content = file.read_bytes() if file.is_file() else b"{}"
        self.send_response(200 if file.is_file() or self.path == "/v2/" else 404)
        kind = json.loads(content).get("mediaType") if content.startswith(b"{") else None
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry(layout: tuple[Path, str]) -> Iterator[str]:
    """The address of a registry that has the image."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Registry, layout[0]))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_image_of_a_registry_can_be_the_base(layout: tuple[Path, str], registry: str, tmp_path: Path) -> None:
    """Here our own image is, which has all that a base needs."""
    base = f"{registry}/neuron-dra-driver@{layout[1]}"
    builder = ImageBuilder(Settings.from_environment(os.environ), Progress(), ROOT, EPOCH)
    builder.write_layout(tmp_path / "layout", ["arm64"], base, {})
    below, above = PulledBase(layout[0]), PulledBase(tmp_path / "layout")
    lower, upper = (image.diff_ids("arm64") for image in (below, above))
    assert upper[: len(lower)] == lower
    assert len(upper) == len(lower) + 3
    assert above.tree("arm64") == below.tree("arm64")
    assert above.settings("arm64")["Labels"]["org.opencontainers.image.source"] == SOURCE


# What `venv` writes for people's shells and for git, and what pip notes of a wheel that it was given as a file.
ALLOWED = r"\.gitignore|bin/activate(\..+)?|bin/Activate\.ps1|.*\.dist-info/(REQUESTED|direct_url\.json)"
# Which differ by who wrote them: pip or lab.wheels, `venv` or lab.wheels.
WRITTEN_ANEW = (".dist-info/RECORD", "/pyvenv.cfg", ".pyc")


def test_the_dockerfile_makes_the_same_environments(trees: dict[str, dict[str, Entry]], tmp_path: Path) -> None:
    machine.require_root("buildah runs the Dockerfile's commands")
    machine.bootstrap("images")
    built = dockerfile.build(ROOT, tmp_path)
    assert dockerfile.differences(built, trees["amd64"], ALLOWED, WRITTEN_ANEW) == []


def test_the_archive_for_this_machine_is_loaded_by_its_name(tmp_path: Path) -> None:
    output = tmp_path / "driver.tar"
    subprocess.run([ROOT / "scripts/build-image", "--tag", "registry.example/x:1", output], check=True)
    shutil.unpack_archive(output, tmp_path / "archive", filter="data")
    (docker,) = json.loads((tmp_path / "archive/manifest.json").read_text())
    (entry,) = json.loads((tmp_path / "archive/index.json").read_text())["manifests"]
    assert docker["RepoTags"] == ["registry.example/x:1"]
    assert entry["annotations"] == {"io.containerd.image.name": "registry.example/x:1"}
    assert all((tmp_path / "archive" / name).exists() for name in (docker["Config"], *docker["Layers"]))
    assert bill.of_image(output)
