"""What kube-proxy does, for one Service of a cluster of the lab, which has none."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import threading
from collections.abc import Coroutine, Sequence

from dra_driver.kube.transport import Transport
from tests.cluster.kube import Kube

_LIFETIME = "3600"
"""Seconds after which the machine itself forgets the address, should nobody take it away."""


class ServiceAddress:
    """Passes TCP connections to the Service's address, and to its node port on 127.0.0.1, on to its ready endpoints.

    As with kube-proxy the endpoint is chosen for each connection, among those that the EndpointSlices call ready then.
    """

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        service = kube.get("services", name, namespace)
        assert service is not None, f"there is no Service {namespace}/{name}"
        (self._port,) = service["spec"]["ports"]
        self.address = str(service["spec"]["clusterIP"])
        self.names = (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local")
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={name}"
        self._transport = Transport.from_kubeconfig(str(kube.access.kubeconfig), user_agent="cluster-tests")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service address")
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take the address and serve it."""
        self._thread.start()
        try:
            lifetime = ("valid_lft", _LIFETIME, "preferred_lft", _LIFETIME)
            subprocess.run(["ip", "address", "replace", f"{self.address}/32", "dev", "lo", *lifetime], check=True)
            self._do(self._serve(self.address, self._port["port"]))
            if "nodePort" in self._port:
                self._do(self._serve("127.0.0.1", self._port["nodePort"]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all connections and give the address back."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._transport.close()
        # Not checked: it may have been forgotten by now.
        subprocess.run(["ip", "address", "delete", f"{self.address}/32", "dev", "lo"], check=False, capture_output=True)

    def endpoints(self) -> list[tuple[str, int]]:
        """Address and port of each ready endpoint."""
        found = self._transport.request("GET", self._path, query=[("labelSelector", self._selector)])
        return [
            (address, port["port"])
            for item in json.loads(found.body)["items"]
            for port in item.get("ports") or ()
            for endpoint in item.get("endpoints") or ()
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        ]

    def _do(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve(self, host: str, port: int) -> None:
        self._servers.append(await asyncio.start_server(self._accept, host, port))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._connect(reader, writer)
        except OSError:
            pass  # either end has gone; the other one sees its connection closed
        finally:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = await asyncio.to_thread(self.endpoints)
        if not ready:
            return
        there, back = await asyncio.open_connection(*random.choice(ready))
        try:
            await _first_of(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


async def _first_of(*work: Coroutine[object, object, None]) -> None:
    tasks: Sequence[asyncio.Task[None]] = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
