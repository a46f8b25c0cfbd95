"""A container as kubelet starts one, as far as memory goes: a control group with a limit, a pod's service account.

With a kubeconfig instead, the program would load what reads kubeconfigs: 20 MB that no pod has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import cgroups, pki

from dra_driver.kube.api.client import SERVICE_ACCOUNT
from tests.builders.programs import ended
from tests.doubles.apiserver.server import ApiServer
from tests.paths import ROOT

GROUP = "ndt-memory"
_START = f"""
for file in $GROUPS_TO_JOIN; do echo $$ >"$file"; done
mount -t tmpfs -o size=1m run /var/run
mkdir -p {SERVICE_ACCOUNT}
cp "$ACCOUNT"/* {SERVICE_ACCOUNT}/
unset ACCOUNT GROUPS_TO_JOIN
ulimit -n "$(ulimit -Hn)"
exec "$@"
"""


@dataclass(frozen=True)
class Container:
    """A running container."""

    process: subprocess.Popen[bytes]
    output: Path
    _group: Path
    _processes: Path
    """Its control group for processes and threads."""

    @contextmanager
    def no_further_threads(self) -> Iterator[None]:
        """Within the block, it can start neither threads nor processes, as on a node where others have taken all."""
        most = self._processes / "pids.max"
        most.write_text("1")
        try:
            yield
        finally:
            most.write_text("max")

    @property
    def log(self) -> str:
        return self.output.read_text()

    def threads(self) -> int:
        """How many its process has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def kills(self) -> int:
        """How often the kernel has ended a process of it for memory."""
        for name in ("memory.events", "memory.oom_control"):
            if (file := self._group / name).exists():
                return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])
        raise AssertionError(f"{self._group} does not count what it ends")

    def resident(self) -> int:
        """The most bytes that its process had resident; 0 if it has ended."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)

    def kernel(self) -> int:
        """Bytes that the kernel has for it now: sockets with what is in them, stacks, files that are open."""
        if (file := self._group / "memory.kmem.usage_in_bytes").exists():
            return int(file.read_text()) + int((self._group / "memory.kmem.tcp.usage_in_bytes").read_text())
        found = dict(line.split() for line in (self._group / "memory.stat").read_text().splitlines())
        return int(found["kernel"]) + int(found["sock"])


def lacking() -> str:
    """Why no container can be started here, or ""."""
    if os.geteuid() != 0:
        return "control groups and mounts need root"
    mounts = cgroups.read_hierarchies()
    of_v2 = mounts.pure_v2 and mounts.v2 and "memory" in (mounts.v2 / "cgroup.controllers").read_text().split()
    return "" if "memory" in mounts.v1 or of_v2 else "no control groups for memory are mounted"


def account(directory: Path) -> tuple[str, str]:
    """Write what a service account has, and a certificate of its cluster's API server; returns its file and its key."""
    pki.authority(directory, "ca")
    pki.certificate(directory, "ca", pki.Identity("apiserver", "/CN=apiserver", ("IP:127.0.0.1",)))
    pod = directory / "account"
    pod.mkdir()
    (pod / "ca.crt").write_text((directory / "ca.crt").read_text())
    return str(directory / "apiserver.crt"), str(directory / "apiserver.key")


@contextmanager
def container(
    server: ApiServer, root: Path, limit: int, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Container]:
    """Start a program of the project; ended with the block.

    Args:
        server: the API server of its cluster.
        root: a directory in which ``account`` was called.
        limit: bytes of memory.
        command: its name, and arguments.
        environment: variables beside those of the image and of every pod.
    """
    (root / "account/token").write_text(server.token or "")
    mounts, group = cgroups.read_hierarchies(), f"/{GROUP}/{uuid.uuid4().hex[:8]}"
    cgroups.make(mounts, group)
    try:
        directory = mounts.v1.get("memory", mounts.tracking) / group.strip("/")
        _bound(directory, limit)
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            "PYTHONUNBUFFERED": "1",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "ACCOUNT": str(root / "account"),
            "GROUPS_TO_JOIN": " ".join(str(mount / group.strip("/") / "cgroup.procs") for mount in mounts.all),
            **environment,
        }
        program = [str(Path(sys.executable).parent / command[0]), *command[1:]]
        start = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _START, "sh", *program]
        output = root / "output"
        with output.open("wb") as file:
            started = subprocess.Popen(start, stdout=file, stderr=file, env=variables)
        with ended(started):
            processes = mounts.v1.get("pids", mounts.tracking) / group.strip("/")
            yield Container(started, output, directory, processes)
    finally:
        cgroups.clear(mounts, group)
        cgroups.remove_if_empty(mounts, f"/{GROUP}")


def _bound(group: Path, limit: int) -> None:
    """Give a control group a limit of memory in bytes, and no swap beside it."""
    files = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    for name, value in (files | {"memory.max": limit, "memory.swap.max": 0}).items():
        if (group / name).exists():
            (group / name).write_text(str(value))
