"""Reads and writes NeuronUltraServers and NeuronUltraServerWorkloads: the edge of what ``decide`` says of workloads.

Each write rests on the version of the object that the decision was made from; what is refused for that, or gets no
clear answer, is decided again from what is there then. What cannot be written for one workload or server keeps no other
waiting, and is tried ever less often.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import CUSTOM_RESOURCE_DEFINITIONS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.objects.meta import JsonObject
from dra_driver.neuron.ultraserver_objects import (
    ACCEPTED_SPEC,
    FINALIZER,
    OTHERS,
    ULTRASERVER_WORKLOADS,
    ULTRASERVERS,
    FieldManager,
    NeuronUltraServer,
    NeuronUltraServerWorkload,
    UltraServerMeta,
)
from dra_driver.ultraserver.definitions import NAMES, compare
from dra_driver.ultraserver.placer.fence_watch import CHANGED_TEMPLATE, FenceWatch, if_there
from dra_driver.ultraserver.placer.impostors import foreign_marks, left_out
from dra_driver.ultraserver.placer.objects import (
    accepted_spec,
    finalizers_patch,
    left_out_patch,
    record_of,
    server_status,
    spec_of,
    spec_patch,
    status_patch,
    uids_patch,
    workload_of,
    workload_status,
)
from dra_driver.ultraserver.placer.template import (
    LABEL,
    TEMPLATES,
    TemplateRecord,
    name_of,
    owner_of,
    step_to,
    template_of,
)
from dra_driver.ultraserver.placer.trouble import OURS, Trouble, Turns
from dra_driver.ultraserver.placer.truth import WriteUids, writes
from dra_driver.ultraserver.placer.values import (
    Accept,
    Describe,
    Forget,
    LeaveOut,
    LetGo,
    Report,
    SetGrants,
    Shun,
    Snapshot,
    WorkloadAction,
    WriteTemplate,
)
from dra_driver.ultraserver.placer.workload import Description, Grant, ServerRecord, Verdict, Workload

OWN_MANAGERS: Final = frozenset({"dra-driver"})
"""The API server takes the first part of the user agent where a client names none (``util.managedfields``)."""
MAX_REPORTS: Final = 200
"""Of workloads whose status is written after one decision: nobody waits for a tenant's thousands."""
LOOK_AGAIN_SECONDS: Final = 30.0
"""For so long it is remembered that a template is somebody else's: the watch does not show that."""
LATE_WATCH_SECONDS: Final = 3.0
"""For so long it is remembered what a template says that was written: the watch may show it late."""
log = logging.getLogger(__name__)


class Operator:
    """The servers' objects, the workloads, and their templates.

    Args:
        transport: the API server.
        namespace: of the servers' objects.
        wake: called after each change.
        may_act: asked before each write.
        well: called before each write with the seconds that it may take (see ``Worker.well``).
        clock: Unix time.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        wake: Callable[[], None],
        may_act: Callable[[], bool],
        well: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._namespace = namespace
        self._may_act = may_act
        self._well = well
        self._clock = clock
        self._servers = Collection(transport, ULTRASERVERS, timeout=REQUEST_SECONDS)
        self._workloads = Collection(transport, ULTRASERVER_WORKLOADS, timeout=REQUEST_SECONDS)
        own = Collection(transport, ULTRASERVERS, namespace=namespace)
        self._own_servers = Collection(transport, ULTRASERVERS, namespace=namespace, timeout=REQUEST_SECONDS)
        self._seen_servers = Informer("UltraServers", own, wake, optional=True)
        everywhere = Collection(transport, ULTRASERVER_WORKLOADS)
        self._seen_workloads = Informer("workloads of UltraServers", everywhere, wake, optional=True)
        self._definitions = Collection(transport, CUSTOM_RESOURCE_DEFINITIONS, timeout=REQUEST_SECONDS)
        self._templates = Collection(transport, TEMPLATES, timeout=REQUEST_SECONDS)
        own_templates = Collection(transport, TEMPLATES, (("labelSelector", LABEL),))
        self._seen_templates = Informer("templates of workloads", own_templates, wake)
        self._looks: dict[tuple[str, str], tuple[TemplateRecord, float]] = {}
        """By namespace and name: templates that were read, until when that counts beside the watch."""
        self._refusals: dict[str, str] = {}
        """By UID of a workload: why its template was not written."""
        self._fence = FenceWatch(transport, self._templates, namespace, clock)
        self._trouble = Trouble()
        self._compared = False
        self._foreign: frozenset[str] = frozenset()
        """Field managers that the log has named."""
        self._descriptions: dict[str, Description] = {}
        """By name, as of the last decision."""
        self._said: dict[str, tuple[str, tuple[Grant, ...]]] = {}
        """By name of a server: UID of its object, and what that said last of who has its nodes."""
        self._suspected: dict[tuple[str, str], float] = {}
        """By node and UID of a workload: since when it says that it is that one's, and nobody has given it."""
        self._silent_nodes: dict[str, float] = {}
        """By node that did not say in time whose it was: until when it gets nothing."""
        self.left_out_nodes = 0
        """Nodes that get nothing, since they lied."""
        self._silent: dict[str, tuple[str, Verdict]] = {}
        """By UID of a workload: the version of it to which nothing is to be added, and what was to be said."""

    def informers(self) -> Sequence[Informer[Any]]:
        """What is watched."""
        return self._seen_servers, self._seen_workloads, self._seen_templates

    def add_to(self, seen: Snapshot) -> Snapshot:
        """The same, with all that is known of workloads and their servers."""
        has_operator, records, now = self._may_serve(), self._records(), self._clock()
        self._silent_nodes = {node: until for node, until in self._silent_nodes.items() if now < until}
        seen = dataclasses.replace(
            seen,
            has_operator=has_operator,
            workloads=tuple(map(workload_of, self._seen_workloads.objects())),
            records=records,
            lost=self._lost(),
            closed=self._closed(),
            templates=self._known_templates(),
            refusals=self._refusals,
            tolerations=self._fence.tolerations,
            gaps=self._fence.gaps,
            silent=self._silent_nodes,
            namespace=self._namespace,
        )
        self.left_out_nodes = len(left_out(seen)) if has_operator else 0
        self._suspected = {key: self._suspected.get(key, now) for key in foreign_marks(seen)} if has_operator else {}
        return dataclasses.replace(seen, suspected=self._suspected)

    def _may_serve(self) -> bool:
        """Whether both kinds are there, and nobody else writes them. The log says once what keeps it from that."""
        if self._seen_servers.absent or self._seen_workloads.absent:
            self._compared = False
            return False
        self._fence.look()
        if not self._compared:
            self._compare_definitions()
            self._compared = True
        foreign = frozenset(manager for _, managers in self._rivals() for manager in managers)
        if foreign - self._foreign:
            log.warning("workloads wait: %s", _foreign_text(foreign))
        self._foreign = foreign
        return not foreign

    def _rivals(self) -> Iterator[tuple[NeuronUltraServer, frozenset[str]]]:
        """Servers whose status others write, such as AWS's operator, and these field managers."""
        for item in self._seen_servers.objects():
            if managers := frozenset(entry.manager for entry in item.metadata.managed_fields if _is_foreign(entry)):
                yield item, managers

    def news(self) -> Iterator[tuple[ObjectReference, str]]:
        """What Events say of servers whose status others write."""
        for item, managers in self._rivals():
            meta = item.metadata
            about = ObjectReference(ULTRASERVERS.kind, meta.namespace, meta.name, meta.uid, ULTRASERVERS.versions[0])
            yield about, _foreign_text(managers)

    def uids(self) -> set[str]:
        """Of all servers."""
        return {item.metadata.uid for item in self._seen_servers.objects()}

    def _compare_definitions(self) -> None:
        """Log in what the cluster's definitions differ from ours, which may be those of AWS's chart."""
        for name in NAMES:
            try:
                differences = compare(self._definitions.get("", name))
            except ApiError as error:
                log.warning("the definition %s cannot be compared: %s", name, error)
                continue
            for text in differences:
                log.warning("the definition %s: %s", name, text)

    def _known_templates(self) -> dict[str, TemplateRecord]:
        """By ``namespace/name``: those of the operator, and others that have the name of one."""
        now, seen = self._clock(), {item.metadata.key: item for item in self._seen_templates.objects()}
        self._looks = {key: look for key, look in self._looks.items() if now < look[1] and key not in seen}
        looks = {key: record for key, (record, _) in self._looks.items()}
        return {"/".join(key): record for key, record in (looks | seen).items()}

    def _records(self) -> dict[str, ServerRecord]:
        """By name: who has each server."""
        records = {}
        # A node may name ever other servers.
        self._said = {name: last for name, last in self._said.items() if last[1] or self._server(name) is not None}
        for item in self._seen_servers.objects():
            records[item.metadata.name] = record = record_of(item)
            uid, grants = self._said.get(item.metadata.name, (item.metadata.uid, ()))
            if uid == item.metadata.uid or not grants:
                self._said[item.metadata.name] = item.metadata.uid, record.grants
        return records

    def _lost(self) -> dict[str, tuple[Grant, ...]]:
        """What servers' objects said that somebody has deleted, as of ``_records``, until new ones say it again."""
        present = {item.metadata.name: item.metadata.uid for item in self._seen_servers.objects()}
        return {name: grants for name, (uid, grants) in self._said.items() if grants and present.get(name) != uid}

    def _closed(self) -> frozenset[str]:
        """Servers whose objects take no new allocations: they end, or cannot be written."""
        now = self._clock()
        return frozenset(
            item.metadata.name
            for item in self._seen_servers.objects()
            if item.metadata.deletion_timestamp is not None
            or self._trouble.lasts(("UltraServer", item.metadata.name, "allocations"), now)
        )

    def carry_out(self, actions: Iterable[WorkloadAction]) -> bool:
        """Write what was decided, in this order; returns whether something was not as expected.

        What one namespace makes slow or fail keeps no other waiting. Raises ApiError if the API server gives no clear
        answer to any write, and that is not one namespace's doing.
        """
        todo = list(actions)
        reports = [action for action in todo if isinstance(action, Report)]
        todo = [action for action in todo if not isinstance(action, Report)]
        changes = list(itertools.islice(filter(self._is_news, _in_turns(reports)), MAX_REPORTS + 1))
        more, todo = len(changes) > MAX_REPORTS, [*todo, *changes[:MAX_REPORTS]]
        uids = {report.workload.uid for report in reports}
        self._silent = {uid: version for uid, version in self._silent.items() if uid in uids}
        self._descriptions = {one.description.name: one.description for one in todo if isinstance(one, Describe)}
        self._trouble.forget(self._clock())
        self._refusals = {uid: text for uid, text in self._refusals.items() if uid in uids}
        surprised = more
        without: set[str] = set()
        turns = Turns(self._trouble, self._may_act, self._well, self._clock)
        for action in turns.of(todo, _item, _namespace):
            if isinstance(action, Report) and action.workload.uid in without:
                continue
            item, namespace = _item(action), _namespace(action)
            try:
                self._write(action)
            except ApiError as error:
                surprised = True
                if isinstance(action, WriteTemplate):
                    # What its status says of that is decided anew.
                    without.add(action.workload.uid)
                    self._note_refusal(action.workload, error)
                log.warning("%s is not written: %s", " ".join(item), error)
                if error.undecided:
                    turns.note_unclear(namespace, error)
                else:
                    turns.answered = True
                if error.status not in (404, 409):
                    self._trouble.note_failure(item, namespace, self._clock())
                continue
            self._trouble.note_success(item)
            if isinstance(action, WriteTemplate):
                self._refusals.pop(action.workload.uid, None)
            turns.answered = True
        if turns.failure is not None:
            raise turns.failure
        return surprised or turns.cut

    def _is_news(self, report: Report) -> bool:
        """Whether the workload does not say so yet, and may be written."""
        item = self._workload(report.workload)
        if item is None or not self._trouble.is_due(_item(report), self._clock()):
            return False
        version = item.metadata.resource_version, report.verdict
        if self._silent.get(item.metadata.uid) == version:
            return False
        if workload_status(item, report.verdict, self._clock()).in_short != item.status:
            return True
        self._silent[item.metadata.uid] = version
        return False

    def _write(self, action: WorkloadAction) -> None:
        match action:
            case Accept():
                self._accept(action)
            case LetGo(workload):
                self._let_go(workload)
            case WriteTemplate():
                self._write_template(action)
            case Report(workload, verdict):
                self._report(workload, verdict)
            case Shun(nodes, until):
                self._silent_nodes |= dict.fromkeys(nodes, until)
            case _:
                self._write_of_server(action)

    def _write_of_server(self, action: Describe | SetGrants | LeaveOut | Forget) -> None:
        match action:
            case Describe(description):
                self._describe(description)
            case SetGrants(name, _):
                self._set_grants(name, action)
            case LeaveOut():
                self._leave_out(action)
            case Forget(name):
                server = self._server(name)
                if server is not None:
                    self._servers.delete(self._namespace, name, server.metadata.uid, server.metadata.resource_version)
                    self._seen_servers.gone(self._namespace, name, server.metadata.uid)

    def _describe(self, description: Description) -> None:
        server, spec = self._server(description.name), spec_of(description)
        if server is None:
            meta = UltraServerMeta(name=description.name, namespace=self._namespace)
            server = self._servers.create(self._namespace, NeuronUltraServer(meta, spec))
            log.info("UltraServer %s consists of %s", description.name, ", ".join(m.node for m in description.members))
        elif server.spec.instance_type not in ("", spec.instance_type) and record_of(server) == ServerRecord():
            # The type never changes. It is made again with the one that its nodes have now, which these say themselves:
            # not while it says more than they do.
            self._servers.delete(
                self._namespace, description.name, server.metadata.uid, server.metadata.resource_version
            )
            return
        else:
            spec = replace(spec, instance_type=server.spec.instance_type or spec.instance_type)
            if server.spec != spec:
                server = self._patch_server(server, spec_patch(server, spec))
        record, meta = record_of(server), server.metadata
        if record.grants and FINALIZER not in meta.finalizers and meta.deletion_timestamp is None:
            server = self._patch_server(server, uids_patch(server, WriteUids(record.uids, record.released)))
        status = server_status(server, description, record_of(server).grants, self._clock())
        if status != server.status:
            self._patch_server(server, status_patch(server, status), "status")

    def _set_grants(self, name: str, action: SetGrants) -> None:
        server = self._server(name)
        if server is None:
            return  # it is described first
        for write in writes(record_of(server), action.grants, action.released):
            if not self._may_act():
                return
            if isinstance(write, WriteUids):
                server = self._patch_server(server, uids_patch(server, write))
            else:
                status = server_status(server, self._descriptions.get(name), write.grants, self._clock())
                server = self._patch_server(server, status_patch(server, status), "status")
        self._said[name] = server.metadata.uid, record_of(server).grants
        log.info("UltraServer %s: %s", name, ", ".join(grant.workload for grant in action.grants) or "free")

    def _leave_out(self, action: LeaveOut) -> None:
        """Have nobody get a node that lies, if what is there now still does not give it the mark."""
        node, workload = action.node, action.workload
        alive = if_there(self._workloads, workload.namespace, workload.name)
        if alive is None or alive.metadata.uid != workload.uid or alive.metadata.deletion_timestamp is not None:
            return
        now = {item.metadata.name: item for item in self._own_servers.list_all()[0]}
        for item in now.values():
            record = record_of(item)
            given = any(grant.uid == workload.uid and node in grant.nodes for grant in record.grants)
            if given or workload.uid in record.released.get(node, ()):
                self._seen_servers.wrote(item)
                return
        if action.server in now:
            server = now[action.server]
            self._patch_server(server, left_out_patch(server, {node: f"{workload.reference} {workload.uid}"}))
            log.warning(
                "node %s says that it is of workload %s, which it is not: it is left out", node, workload.reference
            )

    def _report(self, workload: Workload, verdict: Verdict) -> None:
        item = self._workload(workload)
        if item is not None:
            status = workload_status(item, verdict, self._clock())
            if status.in_short != item.status:
                self._patch_workload(item, status_patch(item, status), "status")

    def _accept(self, action: Accept) -> None:
        item = self._workload(action.workload)
        if item is not None:
            change = finalizers_patch(item, present=True)
            change["metadata"]["annotations"] = {ACCEPTED_SPEC: accepted_spec(action.extent)}
            self._patch_workload(item, change)

    def _let_go(self, workload: Workload) -> None:
        item = self._workload(workload)
        # Where not all are kept, its owner has to take some away first.
        if item is not None and FINALIZER in item.metadata.finalizers and OTHERS not in item.metadata.finalizers:
            self._patch_workload(item, finalizers_patch(item, present=False))
            if not [one for one in item.metadata.finalizers if one != FINALIZER]:
                self._seen_workloads.gone(item.metadata.namespace, item.metadata.name, item.metadata.uid)
            log.info("workload %s may go", workload.reference)

    def _write_template(self, action: WriteTemplate) -> None:
        workload, record = action.workload, action.record
        namespace, name = key = workload.namespace, name_of(workload)
        if action.step == "patch" and record is not None:
            meta = {"uid": record.metadata.uid, "resourceVersion": record.metadata.resource_version}
            # Others that somebody has added would let it outlive its workload.
            owners = msgspec.to_builtins([owner_of(workload)])
            change = {"metadata": {**meta, "labels": {LABEL: workload.uid}, "ownerReferences": owners}}
            self._take_template(workload, self._templates.patch(namespace, name, change))
            return
        if record is not None:
            self._templates.delete(namespace, name, record.metadata.uid, record.metadata.resource_version)
            self._seen_templates.gone(namespace, name, record.metadata.uid)
            self._looks.pop(key, None)
        if action.step == "delete":
            return
        wanted = template_of(workload, tolerations=self._fence.tolerations is not False)
        try:
            written = self._templates.create(namespace, wanted)
        except ApiError as error:
            if error.status == 409:
                present = if_there(self._templates, namespace, name)
                if present is not None:
                    self._note_template(present)
            raise
        self._take_template(workload, written)
        log.info("the template %s/%s is there", namespace, name)

    def _take_template(self, workload: Workload, written: TemplateRecord) -> None:
        """Remember the answer to a write; ApiError if it is not what was sent: the next write would change no more."""
        self._note_template(written)
        if step_to(workload, written, tolerations=self._fence.tolerations) is not None:
            what = f"the template {workload.namespace}/{name_of(workload)} is not as it was sent"
            raise ApiError(what, status=200, message=CHANGED_TEMPLATE, remedy=CHANGED_TEMPLATE)

    def _note_template(self, item: TemplateRecord) -> None:
        """Remember what the watch may show late, or never."""
        self._seen_templates.wrote(item)
        counts = LATE_WATCH_SECONDS if LABEL in item.metadata.labels else LOOK_AGAIN_SECONDS
        self._looks[item.metadata.key] = item, self._clock() + counts

    def _note_refusal(self, workload: Workload, error: ApiError) -> None:
        if error.status not in (404, 409):
            self._refusals[workload.uid] = f"its ResourceClaimTemplate is not written: {error.message}"

    def _server(self, name: str) -> NeuronUltraServer | None:
        return self._seen_servers.get(self._namespace, name)

    def _workload(self, workload: Workload) -> NeuronUltraServerWorkload | None:
        item = self._seen_workloads.get(workload.namespace, workload.name)
        return item if item is not None and item.metadata.uid == workload.uid else None

    def _patch_server(self, server: NeuronUltraServer, change: JsonObject, part: str = "") -> NeuronUltraServer:
        written = self._servers.patch(self._namespace, server.metadata.name, change, subresource=part)
        self._seen_servers.wrote(written)
        return written

    def _patch_workload(self, item: NeuronUltraServerWorkload, change: JsonObject, part: str = "") -> None:
        meta = item.metadata
        self._seen_workloads.wrote(self._workloads.patch(meta.namespace, meta.name, change, subresource=part))


def _is_foreign(entry: FieldManager) -> bool:
    """Whether another program than this one writes the status; people may correct it by hand."""
    return entry.subresource == "status" and entry.manager not in OWN_MANAGERS and "kubectl" not in entry.manager


def _foreign_text(managers: Iterable[str]) -> str:
    names = ", ".join(sorted(managers))
    return (
        f"{names} writes the status of NeuronUltraServers as well, so this operator writes none; turn one of the two "
        "off, and delete the NeuronUltraServers that the other one has written"
    )


def _in_turns(reports: Iterable[Report]) -> list[Report]:
    """The first of each namespace, then the second of each, and so on."""
    counts: Counter[str] = Counter()
    turns = []
    for report in reports:
        counts[report.workload.namespace] += 1
        turns.append((counts[report.workload.namespace], report))
    return [report for _, report in sorted(turns, key=lambda item: item[0])]


def _item(action: WorkloadAction) -> tuple[str, ...]:
    """The object that an action writes, and what of it, for ``Trouble`` and the log."""
    match action:
        case Accept(workload) | LetGo(workload) | Report(workload):
            return "workload", workload.reference, type(action).__name__
        case Describe(description):
            return "UltraServer", description.name, "nodes"
        case WriteTemplate(workload):
            return "template", f"{workload.namespace}/{name_of(workload)}", workload.uid
        case SetGrants(name) | Forget(name):
            return "UltraServer", name, "allocations"
        case LeaveOut(server, node):
            return "UltraServer", server, node
        case Shun():
            return ("nodes",)


def _namespace(action: WorkloadAction) -> str:
    return action.workload.namespace if isinstance(action, Accept | LetGo | WriteTemplate | Report) else OURS
