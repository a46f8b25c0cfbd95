"""A real Prometheus on loopback, and promtool; ``scripts/cluster build --prometheus`` builds them."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.builders.agent import free_port
from tests.builders.programs import needing
from tests.eventually import eventually

_NAMED = os.environ.get("PROMETHEUS", "")
PROMETHEUS = str(Path(_NAMED).absolute()) if _NAMED else ""
"""The program; promtool is beside it."""
START_SECONDS = 30.0

WITHOUT = "needs PROMETHEUS=<path>, such as scripts/cluster build --prometheus prints it"

needs_prometheus = needing(PROMETHEUS, WITHOUT)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it; standard error is part of ``stdout``."""
    program = Path(PROMETHEUS).with_name("promtool")
    return subprocess.run(
        [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )


@dataclass(frozen=True)
class Server:
    """A running Prometheus."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """``data`` of an answer of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now: ``metric`` (labels) and ``value`` (time, text)."""
        answer = self.get("query", query=expression)
        assert answer["resultType"] == "vector", expression
        found: list[dict[str, Any]] = answer["result"]
        return found

    def alert_state(self, name: str) -> str:
        """``inactive``, ``pending`` or ``firing`` by the last evaluation of its rule; ``unknown`` before the first."""
        rules = (rule for group in self.get("rules", type="alert")["groups"] for rule in group["rules"])
        (state,) = [str(rule["state"]) for rule in rules if rule["name"] == name]
        return state

    def metric_names(self) -> set[str]:
        return set(self.get("label/__name__/values"))


@contextmanager
def prometheus(targets: Mapping[str, Mapping[str, str]], rules: Path | None = None) -> Iterator[Server]:
    """A server that scrapes each second, with honored labels as the chart's PodMonitors have it.

    Args:
        targets: addresses, each with the labels that Kubernetes discovery would give it.
        rules: a file of rules.
    """
    with tempfile.TemporaryDirectory(prefix="p-") as name:
        directory, port = Path(name), free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [
                {
                    "job_name": "neuron",
                    "honor_labels": True,
                    "static_configs": [
                        {"targets": [address], "labels": dict(labels)} for address, labels in targets.items()
                    ],
                }
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        url = f"http://127.0.0.1:{port}"
        command = [
            PROMETHEUS,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with started(command, directory, url, len(targets)) as server:
            yield server


@contextmanager
def started(command: Sequence[str], directory: Path, url: str, targets: int) -> Iterator[Server]:
    """A server by its command line, once it has scraped so many targets.

    Args:
        command: the program and its options.
        directory: where it runs; gets its log.
        url: what the options say that it serves.
        targets: how many there will be.
    """
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Server(url)
        eventually(lambda: _up(server, targets), START_SECONDS, "the first scrape of each target")
        yield server
    except BaseException as error:
        error.add_note((directory / "log").read_text()[-2000:])
        raise
    finally:
        process.kill()
        process.wait()


def _up(server: Server, count: int) -> bool:
    try:
        urllib.request.urlopen(f"{server.url}/-/ready", timeout=10).close()
    except OSError:  # it does not listen yet, or reads its storage
        return False
    return len(server.query("up == 1")) == count


def asked(expression: str) -> str:
    """As Grafana would ask, with all nodes and namespaces."""
    return expression.replace("$__rate_interval", "10s").replace("$node", ".*").replace("$namespace", ".*")


# What neuron-monitor-prometheus.py serves (aws-neuron/aws-neuron-sdk); a stand-in, since there is no Neuron host here.
NEURON_MONITOR = """\
# TYPE neuroncore_utilization_ratio gauge
neuroncore_utilization_ratio{instance_type="trn2.48xlarge",neuroncore="16",runtime_tag="7"} 0.5
# TYPE hardware_ecc_events_total counter
hardware_ecc_events_total{event_type="mem_ecc_corrected",instance_type="trn2.48xlarge",neuron_device_index="4"} 2.0
hardware_ecc_events_total{event_type="mem_ecc_corrected",instance_type="trn2.48xlarge",neuron_device_index="9"} 1.0
"""


@contextmanager
def served(text: str) -> Iterator[int]:
    """A port with these metrics."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
