"""Watches the object of the node's own UltraServer, which says whose workload the node is allocated to.

Only where UltraServers are allocated to workloads is it loaded, with the kinds of objects that it reads.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.driver.workload import NodeWorkload, Seat, SeenServer
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.resources import Collection, WatchEvent
from dra_driver.kube.api.watch import Reflector
from dra_driver.kube.objects.meta import seconds
from dra_driver.neuron.names import is_uid
from dra_driver.neuron.ultraserver_objects import BOUND, ULTRASERVERS, Allocation, NeuronUltraServer, workload_uids
from dra_driver.util import runtime
from dra_driver.util.worker import Worker


class UltraServerWatch:
    """Follows one object, another one when the node becomes part of another server.

    Args:
        transport: the API server.
        namespace: of the object.
        node: name of the own Node.
        news: called with each state of the object, as what gives it: None if another object is followed by then.
    """

    def __init__(
        self, transport: Transport, namespace: str, node: str, news: Callable[[Callable[[], SeenServer | None]], None]
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._node = node
        self._news = news
        self._lock = runtime.lock()
        self._name = ""
        self._reflector: Reflector[NeuronUltraServer] | None = None
        self._stopped = False

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its loop, for health reports, as long as there is an object to follow."""
        reflector = self._reflector
        return () if reflector is None else (reflector.worker,)

    def follow(self, name: str) -> None:
        """Follow the object of this name from now on, or ("") none."""
        with self._lock:
            if name == self._name or self._stopped:
                return
            former_name, self._name = self._name, name
            reflector = self._reflector_of(name) if name else None
            try:
                if reflector is not None:
                    reflector.start()
            except RuntimeError:
                self._name = former_name  # no thread can be had: whoever asks again tries again
                raise
            former, self._reflector = self._reflector, reflector
        if former is not None:
            former.stop(0)

    def stop(self, timeout: float = 5.0) -> None:
        """Follow nothing any more."""
        with self._lock:
            self._stopped = True
        if self._reflector is not None:
            self._reflector.stop(timeout)

    def _reflector_of(self, name: str) -> Reflector[NeuronUltraServer]:
        own = Collection(
            self._transport, ULTRASERVERS, [("fieldSelector", f"metadata.name={name}")], namespace=self._namespace
        )

        def tell(server: NeuronUltraServer | None) -> None:
            seen = seen_server(name, server, self._node)
            self._news(lambda: seen if self._name == name else None)

        def happened(event: WatchEvent[NeuronUltraServer]) -> None:
            tell(None if event.type == "DELETED" else event.object)

        return Reflector(
            "own UltraServer", own.list_all, own.watch, lambda servers: tell(next(iter(servers), None)), happened
        )


def seen_server(name: str, server: NeuronUltraServer | None, node: str) -> SeenServer:
    """What the object of that name says of a node; None: there is none.

    An allocation whose workload has no UID counts as none: it is about to be completed.
    """
    if server is None:
        return SeenServer(name)
    uids = workload_uids(server)
    own = [
        NodeWorkload(
            uid=uids.get(item.workload_ref, ""),
            name=item.workload_ref.partition("/")[2],
            namespace=item.workload_ref.partition("/")[0],
            bound=item.phase == BOUND,
            since=seconds(item.allocated_at) or 0.0,
            seat=_seat(item, node),
        )
        for item in server.status.allocations
        if node in item.allocated_nodes
    ]
    whole = [workload for workload in own if is_uid(workload.uid)]
    # Somebody has edited the object where there are several.
    return SeenServer(name, exists=True, workload=max(whole, key=lambda workload: workload.bound, default=None))


def _seat(item: Allocation, node: str) -> Seat:
    nodes, position = len(item.allocated_nodes), item.allocated_nodes.index(node)
    return Seat(item.ultraserver_index * nodes + position, position, nodes, item.leader_node_name)
