"""Nodes that say that they are a workload's, and are not. Values in, values out.

Pods of a workload go where devices carry its UID, so a node that lies draws them to itself. What the NeuronUltraServers
say is the truth. A mark that they do not give may still be honest:

* The workload has ended, or is about to. Nobody's claims ask for that UID any more, so nothing follows from the mark.
* The node was reserved for the workload, and that was taken back while the workload lives on: its driver has not heard
  of it yet, or does not run. Before a reservation is taken back, the server's object says so
  (``ServerRecord.released``), until the mark is gone and ``RELEASED_SECONDS`` are over. Who was once reserved may thus
  go on for as long as it likes; the workload's condition names it all the same.
* The object was deleted, or is written by half: the workload's status, what the leader remembers, and the annotation
  with UIDs say it still.
* What this leader sees of the objects is older than what the driver sees. So the mark has to be there for
  ``SUSPICION_SECONDS``, and the operator reads the objects again before it writes anything.

All others are left out, until an administrator removes the annotation that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dra_driver.neuron.names import SERVER_2, SERVER_4, object_name
from dra_driver.neuron.ultraserver_objects import LEFT_OUT
from dra_driver.ultraserver.placer.values import Action, LeaveOut, ServerNode, Snapshot, WarnNode
from dra_driver.ultraserver.placer.workload import ReleasedMarks, Workload

SUSPICION_SECONDS: Final = 4.0
"""A mark that nobody has given is looked at again after so long. Decisions are made every five seconds at least."""
RELEASED_SECONDS: Final = 600.0
"""For so long at least, the driver of a node that was reserved may say so. A call of it may be under way."""
LATE_SECONDS: Final = 60.0
"""After so long the workload's condition names it."""
MAX_RELEASED: Final = 40
"""Marks that one object excuses, those first that are there, then the latest: each takes up to 310 bytes."""
MAX_LEFT_OUT: Final = 16
"""Nodes that one object names: any node can say that it is part of a server."""
MAX_IN_CONDITION: Final = 4
"""Nodes that a condition names."""
_DISTRUST: Final = "it is not one of an UltraServer's nodes, so take it out of the cluster, or put its driver in order"
EVENT: Final = "UltraServerMark"


def foreign_marks(snapshot: Snapshot) -> dict[tuple[str, str], Workload]:
    """By node and UID: workloads that live, and that a node says it is of, though nothing gives or excuses that."""
    living = {workload.uid: workload for workload in snapshot.workloads if not workload.ending}
    if not any(uids & living.keys() for uids in snapshot.published.values()):
        return {}
    homes, records = _homes(snapshot), snapshot.records.values()
    grants = [grant for of_server in (*(one.grants for one in records), *snapshot.lost.values()) for grant in of_server]
    given = {(node, grant.uid) for grant in grants for node in grant.nodes}
    given |= {(node, uid) for record in records for node, uids in record.released.items() for uid in uids}
    return {
        (node, uid): living[uid]
        for node, uids in snapshot.published.items()
        for uid in uids & living.keys()
        if (node, uid) not in given and not _is_said(snapshot, living[uid], homes.get(node, ""))
    }


def _is_said(snapshot: Snapshot, workload: Workload, home: str) -> bool:
    """Whether a server's object is written by half, or gone, and somebody else says that the workload has nodes of it.

    Not where it says itself which these are.
    """
    record = snapshot.records.get(home)
    has_other_nodes = record is not None and any(grant.workload == workload.reference for grant in record.grants)
    is_by_half = record is not None and workload.uid in record.uids.values()
    return not has_other_nodes and (is_by_half or home in workload.recorded)


def _homes(snapshot: Snapshot) -> dict[str, str]:
    """By node that says that it is part of a server: the name of that one's object."""
    return {node.name: home_of(node) for node in snapshot.nodes}


def home_of(node: ServerNode) -> str:
    """Name of the object of the server that a node says it is part of."""
    return object_name(node.labels.get(SERVER_4) or node.labels.get(SERVER_2, ""))


def _has_room(snapshot: Snapshot, home: str) -> bool:
    """Whether the server's object can say of one more node that it is left out."""
    return home in snapshot.records and len(snapshot.records[home].left_out) < MAX_LEFT_OUT


def released_marks(snapshot: Snapshot, server: str, wanted: ReleasedMarks, now: float) -> ReleasedMarks:
    """What drivers of a server's nodes may go on to say.

    ``wanted``: by node, the living workloads that lose it now.
    """
    record = snapshot.records.get(server)
    living = {workload.uid for workload in snapshot.workloads if not workload.ending}
    before = record.released if record is not None else {}
    kept: dict[str, dict[str, float]] = {}
    for node, uids in before.items():
        for uid, at in uids.items():
            is_over = now >= at + RELEASED_SECONDS and uid not in snapshot.published.get(node, ())
            if uid in living and not is_over:
                kept.setdefault(node, {})[uid] = at
    for node, uids in wanted.items():
        kept[node] = {**kept.get(node, {}), **uids}

    def rank(item: tuple[str, str, float]) -> tuple[bool, float]:
        node, uid, at = item
        return uid not in snapshot.published.get(node, ()), -at

    entries = sorted(((node, uid, at) for node, uids in kept.items() for uid, at in uids.items()), key=rank)
    for node, uid, _ in entries[MAX_RELEASED:]:
        del kept[node][uid]
    return {node: uids for node, uids in kept.items() if uids}


def left_out(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """By node that is left out: the name of the object that says so, and the workload as ``namespace/name UID``."""
    return {
        node: (server, workload)
        for server, record in sorted(snapshot.records.items())
        for node, workload in record.left_out.items()
    }


def trouble_of(workload: str) -> str:
    """Why nobody gets a node that is left out. ``workload``: as ``namespace/name UID``."""
    return f"is left out: it said that it was of workload {workload.partition(' ')[0]}, which it was not"


def remedy_of(snapshot: Snapshot, server: str) -> str:
    """The command after which the nodes of a server are no longer left out."""
    return f"kubectl annotate neuronultraservers -n {snapshot.namespace} {server} {LEFT_OUT}-"


def actions_of(snapshot: Snapshot, now: float) -> Iterator[Action]:
    """What is to be written of nodes that lie."""
    nodes, homes, out = {node.name: node for node in snapshot.nodes}, _homes(snapshot), left_out(snapshot)
    for (node, _), workload in sorted(_lies(snapshot, now).items()):
        home = homes.get(node, "")
        if node in out:
            continue  # one lie is enough
        if _has_room(snapshot, home):
            yield LeaveOut(home, node, workload)
        else:
            text = f"it says that it is of workload {workload.reference}, which it is not; {_DISTRUST}"
            yield WarnNode(nodes.get(node, ServerNode(node, {})), text, EVENT)
    for node, (server, reference) in out.items():
        text = f"it {trouble_of(reference)}; once its driver is in order: {remedy_of(snapshot, server)}"
        yield WarnNode(nodes.get(node, ServerNode(node, {})), text, EVENT)


def _lies(snapshot: Snapshot, now: float) -> dict[tuple[str, str], Workload]:
    """The foreign marks that have been there for long enough."""
    workloads = {workload.uid: workload for workload in snapshot.workloads}
    return {
        (node, uid): workloads[uid]
        for (node, uid), since in snapshot.suspected.items()
        if now - since >= SUSPICION_SECONDS
    }


def warnings_of(snapshot: Snapshot, now: float) -> Mapping[str, str]:
    """By UID of a workload: which nodes say that they are its own, and what to do."""
    texts: dict[str, list[str]] = {}
    homes, out = _homes(snapshot), left_out(snapshot)
    named = {(node, workload.rpartition(" ")[2]) for node, (_, workload) in out.items()}
    lies = _lies(snapshot, now)
    for node, uid in sorted(named | lies.keys()):
        what = f"{node} said that it is a node of this workload, and no NeuronUltraServer does: pods might go there"
        if node in out:
            remedy = f"it is left out until somebody who trusts it runs: {remedy_of(snapshot, out[node][0])}"
            texts.setdefault(uid, []).append(f"{what}; {remedy}")
        elif not _has_room(snapshot, homes.get(node, "")):
            texts.setdefault(uid, []).append(f"{what}; {_DISTRUST}")
    for record in snapshot.records.values():
        for node, times in sorted(record.released.items()):
            for uid, at in times.items():
                if now >= at + LATE_SECONDS and uid in snapshot.published.get(node, ()):
                    what = f"{node} was reserved for this workload, and still says so: pods might go there"
                    texts.setdefault(uid, []).append(f"{what}; see whether its driver runs")
    return {uid: "; ".join(some[:MAX_IN_CONDITION]) for uid, some in texts.items()}
