"""The extender as a whole: a server, a candidate in the election, and the watches of the cluster while it leads.

Only the leader answers, so that one process knows every choice. Each term begins with fresh lists, since another leader
may have changed what was known before. The leader's own choices are kept, as a request of its last term may still be
unanswered.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import LEASES
from dra_driver.kube.api.election import Election, Times
from dra_driver.kube.api.resources import Collection
from dra_driver.legacy.extender.answers import FitCache
from dra_driver.legacy.extender.binding import Binder
from dra_driver.legacy.extender.cluster import Cluster, Followers, UsageMaps
from dra_driver.legacy.extender.server import OPERATIONS, ExtenderServer, State, Tls
from dra_driver.util.door import own_addresses
from dra_driver.util.metrics import Operations, Sample
from dra_driver.util.worker import Worker, stop_in_turn

LEASE_NAME: Final = "neuron-scheduler-extender"
LOOK_SECONDS: Final = 0.5
"""How often the extender checks whether it leads, and what has to be written."""
UPKEEP_SECONDS: Final = 900.0
"""How long one round of upkeep may take: a request for each node or pod, and the server may be slow."""
THREAD_GRACE: Final = 1.0
"""Seconds that a thread gets at shutdown."""
_ADDRESS: Final = re.compile(r"[^@/?#\s]{1,255}:[0-9]{1,5}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """How the extender runs.

    Attributes:
        address: to listen on.
        port: to listen on; 0 for any.
        tls: None for plain HTTP.
        namespace: of the lease.
        identity: in the lease; unique to this process.
        advertise: address at which other replicas reach this one; "" if they cannot.
        leader_elect: False for a process that is known to be the only one.
        times: of the election.
        node_address: of this node, or "": some connections are kept for it.
    """

    address: str
    port: int
    tls: Tls | None
    namespace: str
    identity: str
    advertise: str = ""
    leader_elect: bool = True
    times: Times | None = None
    node_address: str = ""


class ExtenderService:
    """Runs in the event loop that calls ``start``, and in threads of its own."""

    def __init__(self, transport: Transport, settings: ExtenderSettings) -> None:
        self._transport = transport
        self._settings = settings
        self.cluster = Cluster()
        """The view of the cluster."""
        self._binder = Binder(transport, self.cluster, self._may_act)
        self._maps = UsageMaps(transport, self.cluster, self._may_act)
        self._operations = Operations(OPERATIONS)
        self._fit_cache = FitCache(self.cluster)
        self._server = ExtenderServer(
            self._fit_cache,
            self._binder,
            self._state,
            self._operations,
            self.stuck,
            self.problems,
            settings.tls,
            own_addresses(settings.node_address),
        )
        self._election: Election | None = None
        self._followers: Followers | None = None
        self._settled = False
        """Whether the objects listed in this term are exempt from garbage collection."""
        self._loops = (
            Worker("following the cluster", self._look),
            self._upkeep("resolving requests without an answer", self._binder.reconcile),
            self._upkeep("writing usage maps", self._maps.write_due),
        )

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._server.port

    @property
    def remembered(self) -> list[int]:
        """Number of cached nodes for each cached request."""
        return self._fit_cache.remembered

    @property
    def operations(self) -> Operations:
        """Durations of requests."""
        return self._operations

    async def start(self) -> None:
        """Listen, and become a candidate. Raises DriverError if the port is not available."""
        await self._server.start(self._settings.address, self._settings.port)
        if self._settings.leader_elect:
            host = self._settings.advertise
            address = f"[{host}]" if ":" in host else host
            identity = f"{self._settings.identity}@{address}:{self.port}" if host else self._settings.identity
            leases = Collection(self._transport, LEASES, timeout=REQUEST_SECONDS)
            self._election = Election(leases, self._settings.namespace, LEASE_NAME, identity, self._settings.times)
            self._election.start()
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        """Answer pending requests, then release the lease."""
        await self._server.stop()
        await asyncio.to_thread(self._end)

    def problems(self) -> list[str]:
        """For a readiness probe: why it should get no requests. Standing by is not a problem."""
        found = [self._election.last_error] if self._election and self._election.last_error else []
        if self._may_act() and not self._ready():
            found.append("the lists of nodes and pods are not available yet")
            found += self._followers.problems() if self._followers else []
        return found + [text for worker in self._workers() if (text := worker.problem())]

    def stuck(self) -> list[str]:
        """For a liveness probe: why the process should be restarted."""
        return [text for worker in self._workers() if (text := worker.stuck())]

    def _workers(self) -> list[Worker]:
        election, followers = self._election, self._followers
        return [
            *([election.worker] if election is not None else ()),
            *self._loops,
            *(followers.workers if followers is not None else ()),
        ]

    def samples(self) -> Iterable[Sample]:
        """The metrics beside the durations."""
        yield Sample("extender_leads", "1 while this replica answers.", float(self._ready()))
        troubles = len(self._followers.problems()) if self._followers else 0
        yield Sample("extender_verdicts", "Answers that are kept until they change.", float(sum(self.remembered)))
        yield Sample("extender_watch_troubles", "Collections that are currently not watched.", float(troubles))
        counts = self.cluster.counts()
        for name, text in _GAUGES.items():
            yield Sample(f"extender_{name}", text, float(counts[name]))

    def _may_act(self) -> bool:
        return self._election.may_act() if self._election else not self._settings.leader_elect

    def _ready(self) -> bool:
        return self._followers is not None and self.cluster.listed and self._may_act()

    def _state(self) -> State:
        if self._ready():
            return State(ready=True)
        if self._may_act():
            return State(ready=False, text="the lists of nodes and pods are not available yet; ask again")
        holder = (self._election.holder if self._election else "").rpartition("@")[2]
        if self._election is not None and _ADDRESS.fullmatch(holder):
            return State(ready=False, leader=holder, text=f"this replica stands by; {holder} leads")
        return State(ready=False, text="this replica stands by, and the leader is not known")

    def _look(self) -> float:
        """Start or stop watching if that is due."""
        if self._may_act() and self._followers is None:
            self.cluster.begin()
            followers = Followers(self._transport, self.cluster)
            try:
                followers.start()
            except RuntimeError:  # no thread can be had: the next look begins anew
                followers.stop()
                raise
            self._followers = followers
            self._settled = False
        elif not self._may_act() and self._followers is not None:
            ended, self._followers = self._followers, None
            ended.stop()
        elif not self._settled and self._ready():
            # Scanning twenty thousand long-lived pods in every full collection would delay a request by 20 ms.
            gc.collect()
            gc.freeze()
            self._settled = True
        return LOOK_SECONDS / 5

    def _upkeep(self, name: str, step: Callable[[], None]) -> Worker:
        """One kind of upkeep, done while this replica leads."""

        def work() -> float:
            if self._ready():
                step()
            return LOOK_SECONDS

        return Worker(name, work, longest=UPKEEP_SECONDS)

    def _end(self) -> None:
        stop_in_turn(*((loop.stop, THREAD_GRACE) for loop in self._loops))
        if self._followers is not None:
            self._followers.stop()
        if self._election is not None:
            # The next leader must not begin before the last write of this one is decided.
            self._election.stop(hand_over=not self._binder.uncertain)


_GAUGES: Final = {
    "nodes": "Nodes with Neuron devices.",
    "uncertain_nodes": "Nodes that keep devices for a pod because what it has is not known.",
    "pods": "Pods with Neuron limits that have not ended.",
    "bound_pods": "Those of them that are bound to a node.",
    "pending_choices": "Choices that the API server has not confirmed.",
    "cores": "Logical NeuronCores of all nodes.",
    "taken_cores": "Those of them that are in use, or kept for a pod that may have them.",
}
