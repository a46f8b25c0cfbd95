"""The least that any driver in Python does for a claim: what this driver takes beyond it is its own.

    python bareserver.py DIRECTORY DRIVER KUBECONFIG [--files]

It serves ``DIRECTORY/plugins/DRIVER/dra.sock`` with grpcio, GETs each claim with the driver's own client, and answers
with what the claim was allocated. It checks nothing. With ``--files`` it keeps what this driver keeps, as this driver
does: a checkpoint, synced before it gets its name, and a CDI spec.
"""

from __future__ import annotations

import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec
from google.protobuf.message import Message

from dra_driver.kube.api.client import Transport
from dra_driver.kube.kubelet.api import dra_v1_pb2 as api
from dra_driver.util.files import replace_file

_SERVICE = api.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
_WORKERS = 16


class _Plugin:
    def __init__(self, transport: Transport, driver: str, checkpoints: Path | None, specs: Path) -> None:
        self._transport = transport
        self._driver = driver
        self._checkpoints = checkpoints
        self._specs = specs

    def prepare(self, request: api.NodePrepareResourcesRequest, _: grpc.ServicerContext) -> object:
        return api.NodePrepareResourcesResponse(claims={claim.uid: self._prepared(claim) for claim in request.claims})

    def unprepare(self, request: api.NodeUnprepareResourcesRequest, _: grpc.ServicerContext) -> object:
        for claim in request.claims:
            if self._checkpoints is not None:
                (self._specs / f"{claim.uid}.json").unlink(missing_ok=True)
                (self._checkpoints / claim.uid).unlink(missing_ok=True)
        empty = api.NodeUnprepareResourceResponse()
        return api.NodeUnprepareResourcesResponse(claims={claim.uid: empty for claim in request.claims})

    def _prepared(self, claim: api.Claim) -> api.NodePrepareResourceResponse:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        body = self._transport.request("GET", path).body
        results = msgspec.json.decode(body)["status"]["allocation"]["devices"]["results"]
        if self._checkpoints is not None:
            kept = self._checkpoints / claim.uid
            replace_file(kept, msgspec.json.encode(results), temporary=f".{claim.uid}", mode=0o600, synced=True)
            spec = msgspec.json.encode({"cdiVersion": "0.6.0", "kind": f"{self._driver}/claim", "devices": results})
            kept = self._specs / f"{claim.uid}.json"
            replace_file(kept, spec, temporary=f".{claim.uid}", mode=0o644, synced=False)
        return api.NodePrepareResourceResponse(
            devices=[
                api.Device(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"{self._driver}/claim={claim.uid}"],
                )
                for result in results
            ]
        )


def _encode(reply: Message) -> bytes:
    return reply.SerializeToString()


def main() -> None:
    """Serve until a signal ends the process."""
    directory, driver, kubeconfig = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    checkpoints = directory / "checkpoints" if "--files" in sys.argv else None
    if checkpoints is not None:
        checkpoints.mkdir(exist_ok=True)
    transport = Transport.from_kubeconfig(kubeconfig, user_agent="bareserver")
    plugin = _Plugin(transport, driver, checkpoints, directory / "cdi")
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
            plugin.prepare, api.NodePrepareResourcesRequest.FromString, _encode
        ),
        "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
            plugin.unprepare, api.NodeUnprepareResourcesRequest.FromString, _encode
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(_WORKERS))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(f"unix:{directory}/plugins/{driver}/dra.sock")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
