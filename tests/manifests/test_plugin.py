"""``kubectl neuron`` as krew installs it: what its archives hold, and what its launcher does."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import grimp
import pytest
import yaml
from releasing import plugin
from releasing.plugin import PLATFORMS, PYTHONS, Platform, pack_plugins

from dra_driver.cli.main import COMMANDS
from dra_driver.version import VERSION
from tests.builders.plugin import PYTHON, Index, plugin_of_here
from tests.builders.programs import needing
from tests.golden import golden
from tests.manifests.support import KUBECTL
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
URL = "https://git.example/neuron-dra-driver"
KREW = os.environ.get("KREW")
needs_krew = needing(
    KREW and KUBECTL, "there is no krew here; KREW=$(scripts/cluster build --krew | cut -f2) names one"
)
SIMULATION = ("simulate", str(ROOT / "examples/specs/1x4-connected-devices.yaml"), "--instance-type", "trn2.48xlarge")
FEW = (PYTHONS[0], PYTHONS[-1])

NATIVE = {
    "linux-amd64": b"\x7fELF\x02\x01".ljust(18, b"\0") + (62).to_bytes(2, "little"),
    "linux-arm64": b"\x7fELF\x02\x01".ljust(18, b"\0") + (183).to_bytes(2, "little"),
    "darwin-amd64": b"\xcf\xfa\xed\xfe" + (0x01000007).to_bytes(4, "little"),
    "darwin-arm64": b"\xcf\xfa\xed\xfe" + (0x0100000C).to_bytes(4, "little"),
}
"""How a native file of each platform begins."""
FOREIGN = {
    "linux on s390x": b"\x7fELF\x02\x02".ljust(18, b"\0") + (22).to_bytes(2, "big"),
    "macOS on PowerPC": b"\xfe\xed\xfa\xce" + (18).to_bytes(4, "big"),
    "Windows": b"MZ\x90\0",
}


def universal(*types: int) -> bytes:
    parts = (number.to_bytes(4, "big") + bytes(16) for number in types)
    return b"\xca\xfe\xba\xbe" + len(types).to_bytes(4, "big") + b"".join(parts)


def abi(platform: Platform, python: str) -> str:
    """What the name of a native module ends in."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[platform.architecture]
    system = f"{machine}-linux-gnu" if platform.system == "linux" else "darwin"
    return f"cpython-{python.replace('.', '')}-{system}.so"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """A pure package, a native one, and one that no command loads; an index of wheels of the first two."""
    index = Index(tmp_path_factory.mktemp("index"))
    licence = {"pure-1.dist-info/licenses/LICENSE": b"MIT\n"}
    scripts = {"pure-1.data/scripts/pure": b"#!python\n"}
    pure = index.add("pure", "1", "py3-none-any", {"pure/__init__.py": b"PURE = 1\n", **licence, **scripts})
    index.pin("pure", "1", pure)
    index.pin("boto3", "1", pure)
    wheels = []
    for platform, python in product(PLATFORMS, FEW):
        number = f"cp{python.replace('.', '')}"
        module = {f"fast/_core.{abi(platform, python)}": NATIVE[platform.name] + python.encode()}
        record = {"fast-2.dist-info/RECORD": f"{platform} {python}".encode()}
        tag = f"{number}-{number}-{platform.tags[-1]}"
        wheels.append(index.add("fast", "2", tag, {"fast/__init__.py": b"", **module, **record}))
    index.pin("fast", "2", *wheels)
    index.drive({"dra_driver/__init__.py": b""})
    with pytest.MonkeyPatch.context() as patch:
        for key, value in index.settings().items():
            patch.setenv(key, value)
        yield index


@pytest.fixture(scope="module")
def archives(index: Index) -> Sequence[Path]:
    return pack_plugins(index.tree, index.driver, index.made, 1_750_000_000, pythons=FEW)


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: (tar.extractfile(member) or tar).read() for member in tar}  # type: ignore[union-attr]


def test_an_archive_holds_the_native_modules_of_its_platform_for_each_python(archives: Sequence[Path]) -> None:
    for platform, archive in zip(PLATFORMS, archives, strict=True):
        files = members(archive)
        natives = {f"lib/fast/_core.{abi(platform, python)}" for python in FEW}
        assert {name for name in files if name.endswith(".so")} == natives
        assert all(files[name].startswith(NATIVE[platform.name]) for name in natives)
        others = {name for name in files if name not in natives}
        assert {name for name in others if not name.startswith("lib/")} == {
            "LICENSE",
            "kubectl-neuron",
            "kubectl_neuron.py",
        }
        assert {name.removeprefix("lib/") for name in others if name.startswith("lib/")} == {
            "dra_driver/__init__.py",
            "fast/__init__.py",
            "fast-2.dist-info/METADATA",
            f"neuron_dra_driver-{VERSION}.dist-info/METADATA",
            "pure/__init__.py",
            "pure-1.dist-info/METADATA",
            "pure-1.dist-info/licenses/LICENSE",
        }


def test_archives_of_two_runs_are_alike(index: Index, archives: Sequence[Path], tmp_path: Path) -> None:
    platforms = PLATFORMS[1:3]
    again = pack_plugins(index.tree, index.driver, tmp_path, 1_750_000_000, platforms=platforms, pythons=FEW)
    assert [path.name for path in again] == [path.name for path in archives[1:3]]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in archives[1:3]]
    with tarfile.open(archives[0]) as tar:
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(1_750_000_000, 0, "")}
        assert {member.name: member.mode for member in tar if member.mode & 0o111} == {"kubectl-neuron": 0o755}


def test_the_manifest_names_each_archive_by_its_platform(archives: Sequence[Path]) -> None:
    spec = yaml.safe_load(plugin.manifest(archives, URL))["spec"]
    assert (spec["version"], spec["homepage"]) == (f"v{VERSION}", URL)
    assert f"CPython {PYTHONS[0]} to {PYTHONS[-1]}" in spec["caveats"]
    for platform, archive, listed in zip(PLATFORMS, archives, spec["platforms"], strict=True):
        assert listed["selector"]["matchLabels"] == {"os": platform.system, "arch": platform.architecture}
        assert listed["uri"] == f"{URL}/releases/download/v{VERSION}/{archive.name}"
        assert listed["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert listed["bin"] in members(archive)


def test_a_package_without_a_wheel_for_a_platform_is_told_and_nothing_is_packed(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"for linux-arm64 and Python 3\.10 cannot be had"):
        pack_plugins(index.tree, index.driver, tmp_path, 0, platforms=[PLATFORMS[1]], pythons=["3.10"])
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_pinned_without_a_hash_is_not_packed(index: Index, tmp_path: Path) -> None:
    assert index.wheels.is_dir()
    with pytest.raises(ValueError, match="Hashes are required"):
        plugin.download({"pure": "pure==1\n"}, tmp_path / "wheels", PLATFORMS[0], PYTHONS[0])


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
def test_native_files_are_those_of_the_platform_whatever_they_are_called(platform: Platform) -> None:
    fitting = {name: content for name, content in NATIVE.items() if name == platform.name}
    if platform.system == "darwin":
        fitting["both"] = universal(0x01000007, 0x0100000C)
    others = {name: content for name, content in NATIVE.items() if name != platform.name} | FOREIGN
    others["one of an old phone"] = universal(12)
    if platform.system == "linux":
        others["both"] = universal(0x01000007, 0x0100000C)
    for name in ("a/b.so", "a/b", "a/b.py"):
        for content in fitting.values():
            plugin.check(name, content, platform)
        for kind, content in others.items():
            with pytest.raises(ValueError, match=f"{name} is a native file of"):
                plugin.check(name, content, platform)
                pytest.fail(f"{kind} was taken for {platform.name}")
    plugin.check("a/b.py", b"print()\n", platform)
    with pytest.raises(ValueError, match="is none of"):
        plugin.check("a/b.so", b"print()\n", platform)


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "a/../../outside.py", "one-1.data/purelib/one.py"])
def test_a_file_that_an_archive_has_no_place_for_is_refused(name: str, tmp_path: Path) -> None:
    wheel = Index(tmp_path).add("one", "1", "py3-none-any", {name: b""})
    with pytest.raises(ValueError, match="has no place"):
        plugin.unpacked([wheel])


def test_two_packages_with_different_files_of_one_name_are_refused(tmp_path: Path) -> None:
    index = Index(tmp_path)
    one, same, other = (
        index.add(name, "1", "py3-none-any", {"shared.py": content})
        for name, content in (("one", b"1"), ("same", b"1"), ("other", b"2"))
    )
    assert plugin.unpacked([one, same])["shared.py"] == b"1"
    with pytest.raises(ValueError, match=r"other-1.* has another shared\.py"):
        plugin.unpacked([one, same, other])


def test_what_is_left_out_is_pinned_and_loaded_by_no_command() -> None:
    pins = (ROOT / "requirements/commands.txt").read_text()
    kept = plugin.needed(pins)
    assert len(kept) + len(plugin.LEFT_OUT) == pins.count("==")
    graph = grimp.build_graph(
        "dra_driver", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    for command in ("main", *COMMANDS):
        module = f"dra_driver.cli.{command}"
        loaded = graph.find_upstream_modules(module) if module in graph.modules else set()
        assert loaded.isdisjoint({"aiohttp", "boto3", "botocore", "google", "grpc", "h2", "hpack", "pendulum"}), command


def test_the_launcher_looks_for_the_versions_that_the_archives_have() -> None:
    text = plugin.LAUNCHER.read_text()
    assert " ".join(f"python{version}" for version in reversed(PYTHONS)) in text
    for told in (text, plugin.START.read_text()):
        assert f"{PYTHONS[0]} to {PYTHONS[-1]}" in told


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin of this machine, where krew would put it, in a directory whose name has a space."""
    with pytest.MonkeyPatch.context() as patch:
        archive = plugin_of_here(tmp_path_factory.mktemp("plugin"), patch)
    directory = archive.parent / "a store"
    shutil.unpack_archive(archive, directory, filter="data")
    return directory


def call(launcher: Path, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"PATH": os.defpath, "PYTHON": sys.executable, **environment}
    return subprocess.run(
        [str(launcher), *words], cwd=cwd, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def state(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in directory.rglob("*")}


def test_the_plugin_simulates_through_links_from_anywhere_and_writes_nothing(store: Path, tmp_path: Path) -> None:
    home, elsewhere, bin_directory = (tmp_path / name for name in ("home", "else where", "bin"))
    for folder in (home, elsewhere, bin_directory):
        folder.mkdir()
    (bin_directory / "first").symlink_to(store / "kubectl-neuron")
    (bin_directory / "kubectl-neuron").symlink_to("first")
    before = [state(store), state(tmp_path)]
    for launcher in (bin_directory / "kubectl-neuron", Path("../bin/kubectl-neuron")):
        done = call(launcher, *SIMULATION, cwd=elsewhere, HOME=str(home))
        assert (done.returncode, done.stderr) == (0, "")
        assert "neuron-device-0 to 3" in done.stdout
    by_path = call(Path("kubectl-neuron"), "version", cwd=elsewhere, PATH=f"{bin_directory}:{os.defpath}")
    assert by_path.stdout.startswith("dra-driver"), by_path.stderr
    assert [state(store), state(tmp_path)] == before


def test_the_plugin_reads_a_kubeconfig(store: Path, tmp_path: Path) -> None:
    cluster = {"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "contexts": [context],
        "current-context": "a",
    }
    (tmp_path / "config").write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {"token": "t"}}]}))
    done = call(store / "kubectl-neuron", "top", cwd=tmp_path, KUBECONFIG=str(tmp_path / "config"))
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr


def test_each_command_starts_with_the_packages_of_the_plugin_alone(store: Path, tmp_path: Path) -> None:
    for command in COMMANDS:
        words = (
            (command.replace("_", "-"),) if command in ("help", "version") else (command.replace("_", "-"), "--help")
        )
        done = call(store / "kubectl-neuron", *words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), command


def programs(directory: Path, **texts: str) -> Path:
    """A directory with what the launcher itself calls, and these programs."""
    directory.mkdir()
    for name in ("sh", "readlink"):
        (directory / name).symlink_to(shutil.which(name) or name)
    for name, text in texts.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


TOO_OLD = "#!/bin/sh\nexit 1\n"
FITTING = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


def test_the_first_python_that_can_load_the_packages_is_used(store: Path, tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", python3=TOO_OLD, **{"python3.14": TOO_OLD, "python3.12": FITTING})
    done = call(store / "kubectl-neuron", "version", cwd=tmp_path, PATH=str(path), PYTHON="")
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_that_cannot_be_read_are_told_and_no_python_is_blamed(tmp_path: Path) -> None:
    """As when another user has installed the plugin."""
    (tmp_path / "store").mkdir()
    launcher = Path(shutil.copy(plugin.LAUNCHER, tmp_path / "store"))
    done = call(launcher, "version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr.replace(str(tmp_path), ""))


@pytest.mark.parametrize("python", ["", "/nope", "python3"])
def test_what_is_missing_is_told_with_what_to_do(python: str, store: Path, tmp_path: Path) -> None:
    """Without a Python; with one that is not there, or that cannot load the packages, which is named on purpose."""
    others = {"python3.12": FITTING} if python else {}
    path = programs(tmp_path / "bin", python3=TOO_OLD, **others)
    done = call(store / "kubectl-neuron", "version", cwd=tmp_path, PATH=str(path), PYTHON=python)
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr)


def test_a_package_that_this_python_cannot_load_is_told_by_the_commands_that_need_it(
    store: Path, tmp_path: Path
) -> None:
    """As on a system that is older than its wheel asks for."""
    lacking = shutil.copytree(store, tmp_path / "store", copy_function=os.link)
    for module in (lacking / "lib/re2").glob("*.so"):
        module.unlink()
        module.write_bytes(b"of another system")
    pattern = ("select", "device.driver.matches('^(a|b)+$')", "--instance-type", "trn2.48xlarge")
    assert call(store / "kubectl-neuron", *pattern, cwd=tmp_path).returncode in (0, 1)
    done = call(lacking / "kubectl-neuron", *pattern, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    shown = done.stderr.replace(f"Python {PYTHON}", "PYTHON").replace(str(lacking), "STORE")
    assert shown.startswith("error: this command needs the package _re2, which PYTHON on ")
    assert shown.endswith("; set PYTHON to another CPython of 3.11 to 3.14\n")
    assert shown.count("\n") == 1
    assert call(lacking / "kubectl-neuron", *SIMULATION, cwd=tmp_path).returncode == 0


def cut_off() -> list[str]:
    """What runs a command without any network, where that is possible."""
    command = ["unshare", "--user", "--map-root-user", "--net"]
    able = shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if able and able.returncode == 0 else []


@needs_krew
def test_krew_installs_and_removes_the_plugin_without_a_network(store: Path, tmp_path: Path) -> None:
    """In an empty home, as its manifest says. Times are of the processor: others may keep it busy."""
    assert KREW is not None
    assert KUBECTL is not None
    home, bin_directory = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    bin_directory.mkdir()
    (bin_directory / "kubectl").symlink_to(KUBECTL)
    (bin_directory / "kubectl-krew").symlink_to(KREW)
    (archive,) = store.parent.glob("*.tar.gz")
    (tmp_path / "neuron.yaml").write_text(plugin.manifest([archive], URL))
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    search = f"{home}/.krew/bin:{bin_directory}:{os.defpath}"
    environment = {**nowhere, "HOME": str(home), "PATH": search, "PYTHON": sys.executable}

    def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*cut_off(), str(KUBECTL), *words], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    kubectl("krew", "version")
    (home / ".krew/index/default/.git").mkdir(parents=True)  # krew looks whether there is an index, even to uninstall
    empty = set(state(home))
    installing = kubectl("krew", "install", f"--manifest={tmp_path}/neuron.yaml", f"--archive={archive}")
    assert installing.returncode == 0, installing.stderr
    assert "Needs CPython 3.11 to 3.14" in installing.stderr
    installed = state(home)
    seconds = []
    for _ in range(5):
        started = _processor_seconds()
        shown = kubectl("neuron", "--help")
        seconds.append(_processor_seconds() - started)
        assert shown.stdout.startswith("usage: kubectl neuron "), shown.stderr
    assert statistics.median(seconds) < 1
    simulated = kubectl("neuron", *SIMULATION)
    assert "neuron-device-0 to 3" in simulated.stdout, simulated.stderr
    assert {path: value for path, value in state(home).items() if ".kube" not in path} == installed
    removing = kubectl("krew", "uninstall", "neuron")
    assert removing.returncode == 0, removing.stderr
    assert {path for path in state(home) if ".kube" not in path} - {str(home / ".krew/store/neuron")} == empty


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
