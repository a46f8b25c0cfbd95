"""UltraServer workloads of a simulated node: who has it, as its server's object says, and what each driver heard of it.

A driver is held to what it has heard: an answer or an event of the API server counts when the driver asks for the next
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dra_driver.neuron.emulation.tree import DEFAULT_SERVER_ID
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.ultraserver_objects import allocation, ultraserver
from tests.doubles.apiserver.store import Object, Refused
from tests.simulation.scheduler import Life

if TYPE_CHECKING:
    from tests.simulation.node import Node

NAMESPACE: Final = "neuron-dra-driver"
NAME: Final = f"ultraserver-{DEFAULT_SERVER_ID}"
KIND: Final = "neuronultraservers"
KEY: Final = f"{NAMESPACE}/{NAME}"
TAINT: Final = "neuron.aws.com/ultraserver-workload"
BIND_TRIES: Final = 120
"""Seconds in which the operator looks whether a workload can be bound."""
IN_FLUX: Final = "in flux"
"""Stands for what a driver heard, while it may not have heard the rest."""


@dataclass
class Heard:
    """What each instance of the driver has heard of the object last."""

    last: dict[Life, Object | str | None] = field(default_factory=dict)
    """None: it is not there."""
    _listed: dict[Life, Object | None] = field(default_factory=dict)

    def list_answered(self, life: Life, items: list[Object]) -> None:
        self._listed[life] = items[0] if items else None
        self.last[life] = IN_FLUX

    def watch_begins(self, life: Life) -> None:
        if life in self._listed:
            self.last[life] = self._listed.pop(life)

    def event_sent(self, life: Life) -> None:
        self.last[life] = IN_FLUX

    def event_taken(self, life: Life, line: Object) -> None:
        self.last[life] = None if line["type"] == "DELETED" else line["object"]


class Workloads:
    """The workloads that the node is allocated to, one after the other."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        """Of the node."""
        self._number = 0
        self.of_claims: dict[str, str] = {}
        """UID of the workload by UID of the claim."""
        self.unanswered: set[str] = set()
        """Claims of which kubelet got no answer in time: that call may have an effect later."""
        self.changed = -math.inf
        """When somebody wrote the object last."""
        self.marked_by: str | None = None
        """UID of the workload that all slices have named since the object was written last."""
        self.forgetful = False
        """Whether the driver could not write to its disk since then."""
        self._deleted: Object | None = None

    @property
    def server(self) -> Object | None:
        """The object."""
        try:
            return self._node.server.store.get(KIND, KEY)
        except Refused:
            return None

    @property
    def holder(self) -> tuple[str, bool] | None:
        """UID of the workload that has the node, and whether it is bound."""
        return None if self.server is None else holder_of(self.server, self._name)

    @property
    def is_elected(self) -> bool:
        """Whether the host says that the node is part of this server."""
        return self._node.elected == DEFAULT_SERVER_ID

    def reserve(self) -> None:
        """The node is allocated to a new workload."""
        self._number += 1
        uid = f"b2b1e5a0-0000-4000-8000-{self._number:012x}"
        self._write(uid, bound=False)
        self._node.scheduler.spawn(lambda: self._bind(uid), f"operator of {uid}")

    def _bind(self, uid: str) -> None:
        """Once all devices say whose the node is, and nobody else has a claim there."""
        for _ in range(BIND_TRIES):
            self._node.scheduler.sleep(1.0)
            if self._number != int(uid.rpartition("-")[2], 16):
                return
            if self.holder == (uid, False) and self.marked() == {uid} and not self.strangers():
                self.bind(uid)
                return

    def bind(self, uid: str) -> None:
        """Its allocation is complete."""
        self._write(uid, bound=True)

    def release(self) -> None:
        """The node is nobody's."""
        self._store(ultraserver(NAME))

    def delete(self) -> None:
        """Somebody deletes the object."""
        self._deleted = self.server
        self._node.server.store.delete(KIND, KEY)
        self.changed = self._node.scheduler.clock
        self.marked_by = None

    def restore(self) -> None:
        """The operator makes it again, as it was."""
        assert self._deleted is not None
        self._store(ultraserver(NAME) | {name: self._deleted[name] for name in ("spec", "status")}, self._deleted)

    def _write(self, uid: str, *, bound: bool) -> None:
        workload = "default/train"
        self._store(ultraserver(NAME, allocation(workload, [self._name], bound=bound), uids={workload: uid}))

    def _store(self, item: Object, notes_of: Object | None = None) -> None:
        self.changed = self._node.scheduler.clock
        self.marked_by, self.forgetful = None, self._node.disk.full
        if notes_of is not None:
            item["metadata"]["annotations"] = notes_of["metadata"].get("annotations") or {}
        store = self._node.server.store
        if self.server is None:
            store.create(KIND, item)
        else:
            store.update(KIND, KEY, item)

    def config(self, claim: str) -> list[Object]:
        """The configuration in the allocation of a claim."""
        if claim not in self.of_claims:
            return []
        fields = {"kind": "NeuronConfig", "workload": self.of_claims[claim]}
        opaque = {"driver": DRIVER_NAME, "parameters": {"apiVersion": "neuron.aws.com/v1", **fields}}
        return [{"source": "FromClaim", "requests": [], "opaque": opaque}]

    def marked(self) -> set[str | None]:
        """UIDs of workloads that the published devices name."""
        return {mark_of(device) for device in self._node.offered().values()}

    def strangers(self) -> set[str]:
        """UIDs of claims with devices of the node that are not of the workload that has it."""
        holder = self.holder
        own = holder[0] if holder is not None else None
        return {uid for uid in self._node.exclusive_allocations() if self.of_claims.get(uid) != own}

    def watch_call(self, life: Life, claim: str) -> Callable[[bool | None], None]:
        """Kubelet asks a driver to prepare a claim; returns what is to be told whether that succeeded."""
        node, heard = self._node, self._node.server.heard
        before = heard.last.get(life)
        prepared = (node.state / "claims" / f"{claim}.json").exists() or len(node.instances) > 1

        def ended(success: bool | None) -> None:
            if success is None:
                self.unanswered.add(claim)
            excused = prepared or len(node.instances) > 1 or claim in self.unanswered | node.kubelet.left | node.damaged
            if success and not excused and heard.last.get(life) is before:
                node.wrong += self._wrong_guest(claim, before)

        return ended

    def _wrong_guest(self, claim: str, heard: Object | str | None) -> Iterator[str]:
        workload = self.of_claims.get(claim)
        if claim in self._node.watching or not isinstance(heard, dict):
            return
        holder = holder_of(heard, self._name)
        if holder is None and workload is not None:
            yield f"claim {claim} of workload {workload} is prepared, and the driver knows that the node is nobody's"
        elif holder is not None and workload not in ({holder[0]} if holder[1] else {holder[0], None}):
            yield f"claim {claim} of workload {workload} is prepared, and the driver knows that the node is {holder}'s"

    def look_at_slice(self, item: Object) -> Iterator[str]:
        """Nothing is published without the mark that was there before, as long as the object says the same.

        Though kubelet has deleted the slices, an election runs or differs, or the API server does not tell of the
        object for a while. An instance of the driver that ends may not have heard yet what the next one has.
        """
        holder = self.holder
        uids = {mark_of(device) for device in item["spec"].get("devices") or ()}
        if holder is None or not uids:
            return
        self.forgetful = self.forgetful or self._node.disk.full
        alone = len(self._node.instances) == 1 and not self.forgetful
        if self.marked_by == holder[0] and uids != {holder[0]} and alone:
            yield f"the node is {holder}'s, and devices are published as {uids}'s"
        if uids == {holder[0]} and self.marked() == uids:
            self.marked_by = holder[0]

    def unrest(self) -> Iterator[str]:
        """What the devices say is not what the object does."""
        if self.server is None:
            return
        holder = self.holder
        own = holder[0] if holder is not None else None
        for name, device in self._node.offered().items():
            taints = {taint["value"] for taint in device.get("taints") or () if taint["key"] == TAINT}
            if (mark_of(device), taints) != (own, {own} if own else set()):
                yield f"{name} says that it is {mark_of(device)}'s, with taints {taints}, and the node is {own}'s"


def holder_of(server: Any, node: str) -> tuple[str, bool] | None:
    """UID of the workload that has the node by its server's object, and whether it is bound."""
    notes = (server["metadata"].get("annotations") or {}).get("neuron.aws.com/workload-uids", "")
    for item in server["status"]["allocations"]:
        if node in item["allocatedNodes"]:
            return notes.partition('": "')[2].partition('"')[0], item["phase"] == "Bound"
    return None


def mark_of(device: Object) -> str | None:
    """UID of the workload that a published device names."""
    text: str | None = device["attributes"].get("workloadUID", {}).get("string")
    return text
