"""The drivers as processes on this machine, each with directories and a Node of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab import files
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

from bench import procfs
from bench.kubelet import Kubelet

OURS = "this driver"
BEFORE = "the driver before"
"""That of another checkout."""
BARE = "Python, two files"
"""The least that a driver in Python does for a claim that must outlive a loss of power; see `bench.bareserver`."""
INSTANCE_TYPE = "trn2.48xlarge"
DEVICES = 16
"""Of each driver; as many as the instance type has."""
_STOP_SECONDS = 20.0
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class Driver:
    """A driver that can be started.

    Attributes:
        label: Its name in the report.
        name: DRA driver name.
        node: Name of its Node.
        command: Command line.
        environment: All environment variables.
        directory: Directory of its sockets, CDI specs and log.
        devices: Names of its devices.
        registers: Whether it has kubelet register it.
    """

    label: str
    name: str
    node: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    devices: tuple[str, ...]
    registers: bool = True

    @property
    def socket(self) -> Path:
        """The DRA service's socket."""
        return self.directory / "plugins" / self.name / "dra.sock"

    @property
    def log(self) -> Path:
        """Standard output and error of all runs."""
        return self.directory / "log"


class Running:
    """A started driver and the kubelet that it registers with; a context manager that stops both.

    Attributes:
        begun: When its process was started, by `time.monotonic`.
    """

    def __init__(self, driver: Driver) -> None:
        # The test driver creates only the last of these directories itself.
        for path in ("registry", "cdi", f"plugins/{driver.name}"):
            (driver.directory / path).mkdir(parents=True, exist_ok=True)
        self._driver = driver
        self._kubelet = ExitStack()
        if driver.registers:
            self._kubelet.enter_context(Kubelet(driver.directory))
        self.begun = time.monotonic()
        with driver.log.open("ab") as log:
            self._process = subprocess.Popen(
                driver.command, env=dict(driver.environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def await_socket(self) -> None:
        """Wait until it serves. Raises LabError if it ends instead, or takes too long."""
        driver, end = self._driver, time.monotonic() + _READY_SECONDS
        while not driver.socket.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise LabError(f"{driver.label} does not serve {driver.socket}; nothing was measured: {driver.log}")
            time.sleep(0.1)

    def cpu_ticks(self) -> int:
        """Return its CPU time so far."""
        return procfs.cpu_ticks(Path(f"/proc/{self._process.pid}/stat").read_text())

    def resident_mb(self) -> float:
        """Return the current VmRSS, in MB of 1024 kB."""
        return self._status("VmRSS") / 1024

    def threads(self) -> int:
        """Return how many threads it has now."""
        return self._status("Threads")

    def _status(self, field: str) -> int:
        return procfs.status_number(Path(f"/proc/{self._process.pid}/status").read_text(), field)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._kubelet.close()


def ours(
    python: Path,
    kubeconfig: Path,
    directory: Path,
    *,
    label: str = OURS,
    number: int = 0,
    options: Sequence[str] = (),
) -> Driver:
    """Return this project's driver, of whichever checkout `python` has it, on an emulated host below `directory`.

    Args:
        python: Of its environment.
        kubeconfig: Of the administrator.
        directory: Its own.
        label: Its name in the report.
        number: Another one for each at the same time.
        options: Of its command line, beside those that it needs here.
    """
    node = f"benchmark-ours-{number}"
    return Driver(
        label=label,
        name="neuron.aws.com",
        node=node,
        command=(
            *(
                str(python),
                "-I",
                "-m",
                "dra_driver",
                "kubelet-plugin",
                f"--node-name={node}",
                f"--kubeconfig={kubeconfig}",
            ),
            *(f"--host-root={directory / 'host'}", f"--cdi-root={directory / 'cdi'}"),
            *(f"--plugins-dir={directory / 'plugins'}", f"--registrar-dir={directory / 'registry'}"),
            *("--healthcheck-address=127.0.0.1", f"--healthcheck-port={51615 + number}", *options),
        ),
        environment={"PATH": os.defpath, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        directory=directory,
        devices=tuple(f"neuron-device-{index}" for index in range(DEVICES)),
    )


def test_driver(program: Path, kubeconfig: Path, directory: Path) -> Driver:
    """Return Kubernetes' DRA test driver, with a client-side rate limit that never delays requests."""
    name, node = "test-driver.cdi.k8s.io", "benchmark-go"
    return Driver(
        label="Go test driver",
        name=name,
        node=node,
        command=(
            *(str(program), "kubelet-plugin", f"--node-name={node}", f"--kubeconfig={kubeconfig}"),
            *(f"--drivername={name}", f"--num-devices={DEVICES}", f"--cdi-dir={directory / 'cdi'}"),
            *(f"--datadir={directory / 'plugins'}", f"--plugin-registration-path={directory / 'registry'}"),
            *("--kube-api-qps=10000", "--kube-api-burst=10000"),
        ),
        environment={"PATH": os.defpath},
        directory=directory,
        devices=tuple(f"device-{index:02d}" for index in range(DEVICES)),
    )


def bare(python: Path, kubeconfig: Path, directory: Path, *, files: bool) -> Driver:
    """Return the least that a driver in Python does, with files that outlive a loss of power or without any."""
    name = "files.bare.example" if files else "bare.example"
    program = REPOSITORY / "tools/bench/bareserver.py"
    return Driver(
        label=BARE if files else "Python, no files",
        name=name,
        node=name,
        # Without the folder of the program on its path, where a module is named as one of Python.
        command=(str(python), "-P", str(program), str(directory), name, str(kubeconfig), *(("--files",) * files)),
        environment={"PATH": os.defpath, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        directory=directory,
        devices=tuple(f"device-{index:02d}" for index in range(DEVICES)),
        registers=False,
    )


def runtime_python(settings: Settings, progress: Progress, checkout: Path = REPOSITORY) -> Path:
    """Return the Python of an environment with the driver and all that its image has, compiled as there.

    What a node loads there is less, but here the driver is given a kubeconfig.

    Args:
        settings: Where the environment is kept; each checkout has one of its own.
        progress: Tells how far it is.
        checkout: Where the driver is taken from.

    Raises:
        LabError: The packages cannot be installed.
    """
    names = ("commands.txt", "runtime.txt")  # the latter where a node and commands had one environment
    requirements = next(path for name in names if (path := checkout / "requirements" / name).exists())
    parts = requirements.read_bytes(), sys.version.encode(), bytes(checkout.resolve())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
    directory = settings.cache / f"runtime-venv-{key}"
    python = directory / "bin/python"
    with files.lock(settings.cache / ".runtime-venv.lock", "installs the driver", progress):
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            with progress.step("installing what the driver needs (requirements/commands.txt)"):
                _run(sys.executable, "-I", "-m", "venv", str(directory))
                wheels = ("--only-binary=:all:", "--require-hashes", "-r", str(requirements))
                _run(str(python), "-I", "-m", "pip", "install", "--quiet", *wheels)
                _run(str(python), "-I", "-m", "compileall", "-q", "-j", "0", str(directory))
            (directory / "complete").touch()
        packages = next(directory.glob("lib/python*/site-packages"))
        with suppress(FileNotFoundError):
            shutil.rmtree(packages / "dra_driver")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout / "dra_driver", packages / "dra_driver", ignore=ignored)
        _run(str(python), "-I", "-m", "compileall", "-q", str(packages / "dra_driver"))
    return python


def emulate_host(python: Path, directory: Path) -> None:
    """Write the emulated host of our driver."""
    _run(
        str(python),
        "-I",
        "-m",
        "dra_driver",
        "emulate-host",
        f"--instance-type={INSTANCE_TYPE}",
        str(directory / "host"),
    )


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=environment, cwd="/", check=False, capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise LabError(f"'{' '.join(command)}' failed; nothing was measured. Its last lines:\n{last}")
