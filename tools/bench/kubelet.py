"""As much of kubelet as a driver waits for before it publishes: its registration, and an empty list of pods."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

import grpc

from dra_driver.kube.kubelet.api import pluginregistration_v1_pb2 as registration
from dra_driver.kube.kubelet.api import podresources_v1_pb2 as resources
from dra_driver.kube.kubelet.client import call
from dra_driver.kube.kubelet.grpcserver import Activity, Method, SocketServer
from dra_driver.kube.kubelet.podresources import SOCKET

_SERVICE = "/pluginregistration.Registration"
_LOOK_SECONDS = 0.005


class Kubelet:
    """Registers the one driver whose socket appears in `registry`; a context manager.

    kubelet itself takes up to a second for that, since it looks once a second.
    """

    def __init__(self, directory: Path) -> None:
        self._registry = directory / "registry"
        socket = directory / SOCKET
        for path in (self._registry, socket.parent):
            path.mkdir(parents=True, exist_ok=True)
        listing = Method("/v1.PodResourcesLister/List", resources.ListPodResourcesRequest, _no_pods)
        self._server = SocketServer(socket, [listing], 1, Activity())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._register, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._server.start()
        self._server.publish()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._server.close(1.0)

    def _register(self) -> None:
        while not (sockets := sorted(self._registry.glob("[!.]*.sock"))):
            if self._stopped.wait(_LOOK_SECONDS):
                return
        ask, answer = registration.InfoRequest(), registration.RegistrationStatus(plugin_registered=True)
        call(sockets[0], f"{_SERVICE}/GetInfo", ask, registration.PluginInfo, 5.0)
        reply = registration.RegistrationStatusResponse
        call(sockets[0], f"{_SERVICE}/NotifyRegistrationStatus", answer, reply, 5.0)


def _no_pods(_: resources.ListPodResourcesRequest, __: grpc.ServicerContext) -> resources.ListPodResourcesResponse:
    return resources.ListPodResourcesResponse()
