"""A registry of container images on the loopback interface, which publishers, clients and the lab's nodes reach.

The nodes are mount namespaces of this machine, so its loopback addresses are theirs; and containerd, crane, cosign and
helm (with `--plain-http`) speak HTTP to a registry on a loopback address, so nobody needs a certificate or a setting.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import components, files, process, waiting
from lab.build import Builder
from lab.progress import Progress
from lab.settings import Settings

ADDRESS = "127.0.0.1"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


@contextmanager
def serving(settings: Settings, progress: Progress, port: int = 0) -> Iterator[str]:
    """Serve a registry that is empty at first, and is removed at the end; provides its `HOST:PORT`.

    Args:
        settings: The lab's directories.
        progress: Reports to the user.
        port: Its port; 0 for a free one.

    Raises:
        LabError: It cannot be built, or does not start, mostly because something else has the port.
    """
    program = Builder(settings, progress).build([components.registry()])["registry"]
    address = f"{ADDRESS}:{port or _free_port()}"
    with tempfile.TemporaryDirectory(prefix="ndl-registry-") as name:
        directory = Path(name)
        files.write(directory / "config.json", _configuration(directory / "store", address))
        log = directory / "log"
        with log.open("wb") as output, _running(program, directory / "config.json", output.fileno()) as record:
            waiting.until(
                f"the registry {address}",
                lambda: _answers(address),
                progress=progress,
                timeout=_START_SECONDS,
                needed=[(record, log)],
            )
            yield address


@contextmanager
def _running(program: Path, configuration: Path, output: int) -> Iterator[process.Record]:
    # No traces: its exporter would look for a collector.
    environment = {"PATH": "/usr/bin:/bin", "OTEL_TRACES_EXPORTER": "none"}
    command = [str(program), "serve", str(configuration)]
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        yield process.Record("registry", child.pid, process.start_time(child.pid) or 0, process.boot_id())
    finally:
        child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _configuration(store: Path, address: str) -> str:
    """The registry's configuration; JSON is YAML, too."""
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(store)}, "delete": {"enabled": True}},
            "http": {"addr": address},
        }
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=2)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
