"""The three walks through a node's driver: the real agent, with a test API server and a test client of its socket."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Final, Self

import grpc

import dra_driver
from dra_driver.driver import node_labels
from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.driver.resourceslices.controller import SliceController
from dra_driver.driver.settings import Settings
from dra_driver.emulation.writer import EmulationOptions, write_host
from dra_driver.health import node_status
from dra_driver.health.policy import HealthPolicy
from dra_driver.host.watch import HostWatch
from dra_driver.kubelet import grpcserver
from dra_driver.kubelet.api import dra_v1_pb2
from dra_driver.topology.instance_types import INSTANCE_TYPES
from tests.doubles.apiserver.server import ApiServer
from tracewalk.recorder import Recorder

SECONDS: Final = 20.0
"""Timeout of each walk; it takes some hundredths of a second."""
NODE: Final = "node-a"
_PREPARE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"


def _inner(function: CodeType, name: str) -> CodeType:
    """The code object of a nested function."""
    return next(item for item in function.co_consts if isinstance(item, CodeType) and item.co_name == name)


SCAN: Final = HostWatch.scan.__code__
PUBLISH: Final = SliceController._reconcile.__code__  # noqa: SLF001 - where its walk begins
CALL: Final = _inner(grpcserver._handler.__code__, "unary")  # noqa: SLF001 - the same
REPAIR: Final = Reconciler.repair.__code__
ABOUT_THE_NODE: Final = frozenset(
    function.__code__
    for function in (
        node_labels.labels,
        node_status.chips_present,
        node_status.NodeStatusWriter.label,
        node_status.NodeStatusWriter.want,
    )
)
"""Labels and condition of the Node result from the same scan, but are not part of the published slices."""


def traced() -> Mapping[str, Mapping[str, int]]:
    """By walk, how often each file of the package is entered, in the order of first entry.

    ``publish`` is a first start: the scan of the host, and the resulting slices (without the Node). ``prepare`` is a
    claim with one device, on a node that has prepared another one. ``repair`` is a start that finds the CDI specs of
    two claims missing.
    """
    package = Path(dra_driver.__file__).parent
    # A short path: it contains sockets, whose paths are limited to 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="w-"))
    try:
        write_host(root / "host", INSTANCE_TYPES["trn2.48xlarge"], EmulationOptions())
        with ApiServer() as server:
            server.add_node(NODE)
            first = Recorder(package, {SCAN, PUBLISH}, ABOUT_THE_NODE)
            with Running(root, server, first) as agent:
                published = first.entries(SCAN, SECONDS) + first.entries(PUBLISH, SECONDS)
                agent.prepare("warm", 0)
            # gRPC keeps its threads from the first agent; only those of the next agent are recorded.
            second = Recorder(package, {CALL})
            with Running(root, server, second) as agent:
                agent.prepare("traced", 1)
                prepared = second.entries(CALL, SECONDS)
            shutil.rmtree(root / "cdi")
            third = Recorder(package, {REPAIR})
            with Running(root, server, third):
                repaired = third.entries(REPAIR, SECONDS)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"publish": published, "prepare": prepared, "repair": repaired}


class Running:
    """A started agent that is recorded; a context manager.

    Args:
        root: directory with an emulated host in ``host``; everything else is written there too.
        server: the API server, with the Node object.
        recorder: records the threads that the agent starts.
        port: of health and metrics; 0: free ones, -1: none.
    """

    def __init__(self, root: Path, server: ApiServer, recorder: Recorder, *, port: int = -1) -> None:
        self._root = root
        self._server = server
        self._recorder = recorder
        settings = Settings(
            node_name=NODE,
            pod_uid=None,
            host_root=root / "host",
            cdi_root=root / "cdi",
            registrar_dir=root / "registry",
            plugins_dir=root / "plugins",
            health_port=port,
            health_address="127.0.0.1",
            metrics_port=port,
            metrics_address="127.0.0.1",
            device_numbering="renumber",
            contiguity="warn",
            devices=None,
            ultraserver_layout="node",
            shared_counters="auto",
            ultraserver_labels="on",
            present_label="on",
            device_metadata="off",
            rescan_seconds=3600.0,
            health_policy=HealthPolicy.default(),
            health_hints_dir=None,
        )
        self._socket = settings.state_dir / "dra.sock"
        self._agent = NodeAgent(settings, server.transport(), lambda: None)

    def __enter__(self) -> Self:
        self._recorder.install()
        self._agent.start()
        self._recorder.remove()
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.remove()
        self._agent.stop()

    def prepare(self, name: str, chip: int) -> None:
        """Prepare one claim as kubelet would."""
        made = self._server.add_claim("default", name, devices=[("neurons", f"neuron-device-{chip}")], node=NODE)
        claim = dra_v1_pb2.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])
        with grpc.insecure_channel(
            f"unix:{self._socket}", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_PREPARE)
            request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
            answer = dra_v1_pb2.NodePrepareResourcesResponse.FromString(
                send(request.SerializeToString(), timeout=SECONDS)
            )
        if error := answer.claims[claim.uid].error:
            raise RuntimeError(f"the claim was not prepared: {error}")


def listing(name: str, entries: Mapping[str, int]) -> str:
    """A walk as lines of text: files in the order of first entry, with the number of entries."""
    times = Counter(entries)
    head = f"{name}: {len(times)} files, {times.total()} entries"
    return "\n".join([head, *(f"{count:5}  {file}" for file, count in entries.items())])
