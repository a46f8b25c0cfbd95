"""Measures the scheduler extender; one Go program acts as the scheduler and as the API server."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from lab.errors import LabError
from lab.progress import Progress

from bench import procfs
from bench.figures import percentile
from bench.report import table

PORT = 51616
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0

REQUESTS: Mapping[str, Mapping[str, str]] = {
    "4 devices": {"aws.amazon.com/neuron": "4"},
    "16 devices (no node has them)": {"aws.amazon.com/neuron": "16"},
    "7 devices (refused on half of the types)": {"aws.amazon.com/neuron": "7"},
    "2 cores": {"aws.amazon.com/neuroncore": "2"},
}


CONTAINERS = (8, 64)
"""Numbers of containers, each requesting one core or two, with all nodes and all requests different."""


@dataclass(frozen=True)
class Extent:
    """How much is measured: the size of the cluster, and calls of each kind."""

    nodes: int
    pods: int
    calls: int


@dataclass(frozen=True)
class Asked:
    """Responses to one kind of request.

    Attributes:
        milliseconds: Until a response had arrived.
        decoding: Time that the Go client needed to decode it, in milliseconds.
        fitting: Number of nodes on which the pod fits.
        size: Bytes of a response.
        judged: Number of nodes that each response covered.
        livez: Milliseconds until concurrent requests for ``/livez`` were answered.
    """

    milliseconds: Sequence[float]
    decoding: Sequence[float]
    fitting: int
    size: int
    judged: Sequence[int] = ()
    livez: Sequence[float] = ()


@dataclass
class ExtenderFigures:
    """The measurements: memory in MB of 1024 kB, durations in milliseconds; ``alone`` is without the extender."""

    ready_seconds: float = 0.0
    filters: dict[str, Asked] = field(default_factory=dict)
    prioritize: Sequence[float] = ()
    binds: Sequence[float] = ()
    alone: Sequence[float] = ()
    resident_mb: float = 0.0
    peak_mb: float = 0.0
    different: dict[str, Asked] = field(default_factory=dict)
    """Filter and prioritize with all nodes different and nothing cached."""


def measure(load: Path, python: Path, scratch: Path, extent: Extent, progress: Progress) -> ExtenderFigures:
    """Start both programs, send requests, and stop the programs.

    Raises:
        LabError: One of them failed.
    """
    with _load(load, extent) as tasks, _extender(python, tasks.server, scratch) as process:
        found = ExtenderFigures()
        with progress.step(f"waiting until the extender knows {extent.nodes} nodes and {extent.pods} pods"):
            found.ready_seconds = tasks.do("ready")["Milliseconds"][0] / 1000
        for label, limits in REQUESTS.items():
            with progress.step(f"filter for {label}"):
                result = tasks.do("filter", Limits=limits, Calls=extent.calls, Warm=20)
            found.filters[label] = Asked(result["Milliseconds"], result["Decoding"], result["Fitting"], result["Bytes"])
        with progress.step("prioritize and bind"):
            one = REQUESTS["4 devices"]
            found.prioritize = tasks.do("prioritize", Limits=one, Calls=extent.calls, Warm=20, Candidates=500)[
                "Milliseconds"
            ]
            cores = REQUESTS["2 cores"]
            result = tasks.do("bind", Limits=cores, Calls=extent.calls, Warm=20)
            found.binds, found.alone = result["Milliseconds"], result["Alone"]
        status = Path(f"/proc/{process.pid}/status").read_text()
        found.resident_mb = procfs.status_number(status, "VmRSS") / 1024
        found.peak_mb = procfs.status_number(status, "VmHWM") / 1024
    with _load(load, extent, "-different") as tasks, _extender(python, tasks.server, scratch):
        with progress.step(f"waiting until the extender knows {extent.nodes} nodes that are all different"):
            tasks.do("ready")
        for number in CONTAINERS:
            for verb, candidates in (("filter", 0), ("prioritize", 500)):
                with progress.step(f"{verb} for {number} containers"):
                    result = tasks.do(verb, Containers=number, Calls=extent.calls, Candidates=candidates)
                found.different[f"{verb}{' 500 nodes' if candidates else ''} for {number} containers"] = Asked(
                    result["Milliseconds"],
                    result["Decoding"],
                    result["Fitting"],
                    result["Bytes"],
                    result["Judged"] if verb == "filter" else (),
                    result["Livez"],
                )
    return found


def report(machine: str, load: float, extent: Extent, found: ExtenderFigures) -> str:
    """The figures in Markdown."""
    timed = {f"filter for {label}": asked.milliseconds for label, asked in found.filters.items()}
    timed |= {"prioritize 500 nodes": found.prioritize, "bind": found.binds, "that Binding alone": found.alone}
    sizes = {
        f"filter for {label}": (f"{median(asked.decoding):.2f}", asked.fitting, asked.size // 1000)
        for label, asked in found.filters.items()
    }
    rows = [
        (label, f"{median(values):.2f}", f"{percentile(values, 99):.2f}", *map(str, sizes.get(label, ("", "", ""))))
        for label, values in timed.items()
    ]
    judged = [
        (f"{what}: at most {most:g} {unit}", f"{value:.2f}", "met" if value <= most else "MISSED")
        for what, value, most, unit in targets(found)
    ]
    scale = f"{extent.nodes} nodes, {extent.pods} pods, nodeCacheCapable; {extent.calls} calls of each kind"
    ready = f"Ready, with all usage maps written, {found.ready_seconds:.1f} s after its first answer."
    memory = f"Resident memory {found.resident_mb:.0f} MB, at most {found.peak_mb:.0f} MB"
    lines = [
        f"Machine: {machine}; load before the run {load:.1f}. {scale} by a Go client, which stands in for the API",
        "server too.",
        "",
        *table(("request", "p50 ms", "p99 ms", "Go decodes in ms", "nodes that fit", "answer kB"), rows),
        "",
        f"{ready} {memory}; it uses a kubeconfig, whose parser costs about 22 MB that it does not need in a pod.",
        "",
        "No two nodes alike (trn2.48xlarge with 128 cores, a fifth to nearly all of them taken in no order), and other",
        "containers with one core or with two in each request:",
        "",
        *table(("request", "p50 ms", "p99 ms", "nodes judged, median", "/livez at most, ms"), _different(found)),
        "",
        "Targets:",
        "",
        *table(("target", "measured", ""), judged),
    ]
    return "\n".join(lines)


def _different(found: ExtenderFigures) -> list[tuple[str, ...]]:
    return [
        (
            label,
            f"{median(asked.milliseconds):.0f}",
            f"{percentile(asked.milliseconds, 99):.0f}",
            f"{median(asked.judged):.0f}" if asked.judged else "",
            f"{max(asked.livez):.0f}",
        )
        for label, asked in found.different.items()
    ]


def targets(found: ExtenderFigures) -> list[tuple[str, float, float, str]]:
    """The targets: name, measured value, limit and unit."""
    return [
        ("filter p50", max(median(asked.milliseconds) for asked in found.filters.values()), 5.0, "ms"),
        ("filter p99", max(percentile(asked.milliseconds, 99) for asked in found.filters.values()), 20.0, "ms"),
        ("bind p50 above the API server's", median(found.binds) - median(found.alone), 3.0, "ms"),
        ("resident memory", found.resident_mb, 150.0, "MB"),
        (
            "p99 where no two nodes are alike",
            max(percentile(asked.milliseconds, 99) for asked in found.different.values()),
            200.0,
            "ms",
        ),
        ("/livez meanwhile", max(max(asked.livez) for asked in found.different.values()), 1000.0, "ms"),
    ]


class _Tasks:
    """The running load program: its standard input, output and error."""

    def __init__(self, tasks: IO[str], results: IO[str], errors: IO[str]) -> None:
        self._tasks, self._results, self._errors = tasks, results, errors
        self.server = str(self._line()["Server"])

    def do(self, what: str, **task: Any) -> dict[str, Any]:
        task |= {"Do": what, "Extender": f"http://127.0.0.1:{PORT}"}
        try:
            self._tasks.write(json.dumps(task) + "\n")
            self._tasks.flush()
        except BrokenPipeError:
            pass  # it has ended, and `_line` reports why
        return self._line()

    def _line(self) -> dict[str, Any]:
        line = self._results.readline()
        if not line:
            text = self._errors.read().strip()[-2000:]
            raise LabError(f"The load program has ended, so nothing is reported: {text}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def _load(program: Path, extent: Extent, *options: str) -> Iterator[_Tasks]:
    command = [str(program), f"-nodes={extent.nodes}", f"-pods={extent.pods}", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            if process.stdin and process.stdout and process.stderr:
                yield _Tasks(process.stdin, process.stdout, process.stderr)
        finally:
            process.kill()


@contextmanager
def _extender(python: Path, server: str, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = scratch / "kubeconfig"
    context = {"cluster": "load", "user": "load"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "load",
        "clusters": [{"name": "load", "cluster": {"server": server}}],
        "users": [{"name": "load", "user": {}}],
        "contexts": [{"name": "load", "context": context}],
    }
    config.write_text(json.dumps(document))
    log = scratch / "extender.log"
    command = [str(python), "-I", "-m", "dra_driver", "extender", f"--kubeconfig={config}", f"--port={PORT}"]
    command += ["--bind-address=127.0.0.1", "--no-leader-elect"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={"PATH": os.defpath}, cwd="/")
    try:
        _await_answer(process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_answer(process: subprocess.Popen[bytes], log: Path) -> None:
    import urllib.error
    import urllib.request

    pause = threading.Event()
    for _ in range(int(_START_SECONDS / 0.2)):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                break
        pause.wait(0.2)
    raise LabError(f"The extender does not answer; nothing was measured. Its log: {log.read_text()[-2000:]}")
