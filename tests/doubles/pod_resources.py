"""A test double of kubelet's PodResources service, which gives the same answer always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.kubelet.api import podresources_v1_pb2 as api
from dra_driver.kube.kubelet.podresources import SOCKET


@contextmanager
def answering(kubelet_directory: Path, answer: Callable[[], bytes]) -> Iterator[None]:
    """Kubelet's socket, whose list is what ``answer`` returns, by gRPC's own server."""
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda *_: answer())
    server = grpc.server(
        ThreadPoolExecutor(2),
        handlers=[grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})],
        options=[("grpc.max_send_message_length", -1)],
    )
    path = kubelet_directory / SOCKET
    path.parent.mkdir(exist_ok=True)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def shared_claim(driver: str, *, pods: int, containers: int, devices: int = 8) -> bytes:
    """The list of a node where a tenant shares one claim among all containers of some pods, as kubelet makes it.

    With eight devices, each container has 3.4 kB of it: kubelet names all devices, and of the nth, n CDI names.
    """
    uid = "0f6b1c1e-7a43-4b0e-9c55-1c9a2d7b66e1"
    claim = api.DynamicResource(claim_name="shared", claim_namespace="tenant")
    for number in range(devices):
        names = [api.CDIDevice(name=f"{driver}/device={uid}-part-{part}") for part in range(number + 1)]
        device = f"neuron-device-{number}"
        claim.claim_resources.add(driver_name=driver, pool_name="n" * 40, device_name=device, cdi_devices=names)
    using = [api.ContainerResources(name=f"c{number}", dynamic_resources=[claim]) for number in range(containers)]
    pod = api.PodResources(name="pod", namespace="tenant", containers=using)
    return api.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString() * pods
