"""Does to pods what LeaderWorkerSet does, for tests that make many groups, or groups without DNS.

Its own controller, version 0.9, runs in a few tests (``controllers``). What version 0.10 did with its webhooks on
Kubernetes 1.36 and 1.37 was recorded, and is applied here to real pods, from an unchanged LeaderWorkerSet document:

- a headless Service, and one leader pod for each group (labels, annotations, environment and the leader's affinity:
  ``lwspods``);
- workers once the leader has a node (with exclusive topology), at once (without), or once the leader is Ready
  (``startupPolicy: LeaderReady``); a node selector binds them to the value of the label on the leader's node;
- ``RecreateGroupOnPodRestart``: when a worker is deleted or fails, or a container of any pod was restarted, the leader
  is deleted in the foreground, and everything is recreated once the whole group is gone;
- a leader that was deleted takes its workers along in the background; a new one is made as soon as the name is free;
- fewer replicas, and deletion: leaders are deleted with their grace period, workers once their leader is gone.

Not imitated: StatefulSets (workers are owned by their leader directly), status, rolling updates, subgroups.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

import yaml

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.util.errors import DriverError
from tests.builders.leaderworkerset import (
    GROUP_INDEX,
    NAME,
    POD_IP,
    WORKER_INDEX,
    Group,
    LeaderWorkerSet,
    decode,
    headless_service,
    leader_pod,
    worker_pod,
)
from tests.cluster.lib.kube import Kube, Object

ROUND_SECONDS = 0.1

Pods = dict[str, Object]
"""Pods of one group by name."""


@dataclass(frozen=True, slots=True)
class _Key:
    namespace: str
    name: str


class Groups(Protocol):
    """Groups of LeaderWorkerSets, whoever makes them: the stand-in or the controller itself."""

    def pods(self, name: str, namespace: str = "default") -> list[Object]:
        """Pods of a set, leaders before their workers, by group."""

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a set as with ``kubectl delete --wait=false``."""


class LeaderWorkerSets:
    """The stand-in for the controller; it acts inside of the ``with`` block.

    Args:
        kube: the cluster.
        leader_address: ``name`` as LeaderWorkerSet does it, or ``pod-ip`` where pods have no DNS: workers are made once
            the leader has an address then.
    """

    def __init__(self, kube: Kube, *, leader_address: Literal["name", "pod-ip"] = "name") -> None:
        self._kube = kube
        self._by_ip = leader_address == "pod-ip"
        self._transport = Transport.from_kubeconfig(os.fspath(kube.access.kubeconfig), user_agent="leaderworkersets")
        self._lock = threading.Lock()
        self._wanted: dict[_Key, LeaderWorkerSet] = {}
        self._ending: set[_Key] = set()
        self._made: dict[str, set[str]] = {}  # names of workers by the leader's UID
        self._events: list[str] = []
        self._fault: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leaderworkersets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop acting; pods stay as they are."""
        self._stop.set()
        self._thread.join(30)
        self._transport.close()
        if kind is None:
            self._check()

    def apply(self, *documents: Object | str, namespace: str = "") -> None:
        """Apply documents or YAML texts: LeaderWorkerSets here, everything else to the API server.

        The same document with another number of replicas scales the set.

        Raises:
            msgspec.ValidationError: a field of a LeaderWorkerSet is wrong or not imitated.
            ValueError: a set of this name has another template: rolling updates are not imitated.
        """
        self._check()
        for item in _documents(documents):
            if item["kind"] != "LeaderWorkerSet":
                self._kube.apply(item, namespace=namespace)
                continue
            wanted = decode(item)
            key = _Key(namespace or wanted.metadata.namespace or "default", wanted.metadata.name)
            self._kube.apply(headless_service(wanted, key.namespace))
            with self._lock:
                old = self._wanted.get(key)
                if old and old.spec.leader_worker_template != wanted.spec.leader_worker_template:
                    raise ValueError(f"{key.name} exists with another template; rolling updates are not imitated")
                self._wanted[key] = wanted
                self._ending.discard(key)

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a set as with ``kubectl delete --wait=false``."""
        self._check()
        with self._lock:
            self._ending.add(_Key(namespace, name))
        self._send("DELETE", f"/api/v1/namespaces/{namespace}/services/{name}")

    def pods(self, name: str, namespace: str = "default") -> list[Object]:
        """Pods of a set, leaders before their workers, by group."""
        self._check()
        return in_order(self._list(_Key(namespace, name)))

    @property
    def events(self) -> list[str]:
        """What LeaderWorkerSet would have said in events about recreated groups, oldest first."""
        self._check()
        return list(self._events)

    def _check(self) -> None:
        if self._fault is not None:
            raise AssertionError("the stand-in for LeaderWorkerSet has failed") from self._fault

    def _run(self) -> None:
        while not self._stop.wait(ROUND_SECONDS):
            with self._lock:
                wanted, ending = dict(self._wanted), set(self._ending)
            try:
                for key, item in wanted.items():
                    self._reconcile(key, item, 0 if key in ending else item.spec.replicas)
            except DriverError:
                continue  # the API server is away, or somebody else was faster: the next round sees
            except Exception as error:  # noqa: BLE001 - the test's own thread is told by the next call
                self._fault = error
                return

    def _reconcile(self, key: _Key, wanted: LeaderWorkerSet, replicas: int) -> None:
        groups: dict[int, Pods] = {index: {} for index in range(replicas)}
        for pod in self._list(key):
            groups.setdefault(int(pod["metadata"]["labels"][GROUP_INDEX]), {})[pod["metadata"]["name"]] = pod
        for index, pods in sorted(groups.items()):
            group = Group(wanted, key.namespace, index)
            if index < replicas:
                self._reconcile_group(group, pods)
            elif group.leader in pods:
                self._delete(pods[group.leader], "Background")
        if not groups:
            with self._lock:
                if key in self._ending:
                    self._ending.discard(key)
                    self._wanted.pop(key, None)

    def _reconcile_group(self, group: Group, pods: Pods) -> None:
        leader = pods.get(group.leader)
        if leader is None:
            self._create(leader_pod(group, POD_IP if self._by_ip else None))
            return
        if "deletionTimestamp" in leader["metadata"]:
            return
        if leader["status"].get("phase") in {"Failed", "Succeeded"}:
            self._delete(leader, "Background")
            return
        uid = leader["metadata"]["uid"]
        made = self._made.setdefault(uid, set())
        # Older ones of the same name may still be about to end.
        own = {name: pod for name, pod in pods.items() if name != group.leader and _owner(pod) == uid}
        failed = _failed(leader, own, made)
        if failed and group.wanted.spec.leader_worker_template.restart_policy != "None":
            self._delete(leader, "Foreground")
            text = f"Worker pod {failed} failed, deleted leader pod {group.leader} to recreate group {group.index}"
            self._events.append(text)
            return
        self._create_workers(group, leader, pods, made)

    def _create_workers(self, group: Group, leader: Object, pods: Pods, made: set[str]) -> None:
        size = group.wanted.spec.leader_worker_template.size
        missing = [number for number in range(1, size) if group.worker(number) not in pods]
        address = leader["status"].get("podIP", "")
        if not missing or not _may_have_workers(group, leader) or (self._by_ip and not address):
            return
        domain = self._domain(group, leader["spec"].get("nodeName", ""))
        for number in missing:
            pod = worker_pod(group, number, leader, domain, {"value": address} if self._by_ip else None)
            if self._create(pod):
                made.add(group.worker(number))

    def _domain(self, group: Group, node: str) -> str:
        if not group.wanted.topology:
            return ""
        labels = json.loads(self._transport.request("GET", f"/api/v1/nodes/{node}").body)["metadata"]["labels"]
        return str(labels.get(group.wanted.topology, ""))

    def _list(self, key: _Key) -> list[Object]:
        query = (("labelSelector", f"{NAME}={key.name}"),)
        answer = self._transport.request("GET", f"/api/v1/namespaces/{key.namespace}/pods", query=query)
        items: list[Object] = json.loads(answer.body)["items"]
        return items

    def _create(self, pod: Object) -> bool:
        """Whether it was made; not while one of that name is there."""
        return self._send("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def _delete(self, pod: Object, propagation: Literal["Foreground", "Background"]) -> None:
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata:
            return
        options = {"propagationPolicy": propagation, "preconditions": {"uid": metadata["uid"]}}
        self._send("DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", options)

    def _send(self, method: str, path: str, body: Object | None = None) -> bool:
        """Whether it was done; False when the object is gone, or is another one of the same name."""
        try:
            self._transport.request(method, path, body=body)
        except ApiError as error:
            if error.status in {404, 409}:
                return False
            raise
        return True


def in_order(pods: list[Object]) -> list[Object]:
    """Pods of a set, leaders before their workers, by group."""

    def place(pod: Object) -> tuple[int, int]:
        labels = pod["metadata"]["labels"]
        return int(labels[GROUP_INDEX]), int(labels[WORKER_INDEX])

    return sorted(pods, key=place)


def _documents(documents: tuple[Object | str, ...]) -> Iterator[Object]:
    for item in documents:
        if isinstance(item, str):
            yield from (part for part in yaml.safe_load_all(item) if part)
        else:
            yield item


def _owner(pod: Object) -> str:
    return next((str(owner["uid"]) for owner in pod["metadata"].get("ownerReferences", ())), "")


def _failed(leader: Object, workers: Pods, made: set[str]) -> str:
    """Name of a pod because of which the group is recreated; "" when all is well."""
    for name, pod in workers.items():
        if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in {"Failed", "Succeeded"}:
            return name
    for pod in (leader, *workers.values()):
        statuses = (*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ()))
        if any(status["restartCount"] > 0 for status in statuses):
            return str(pod["metadata"]["name"])
    return next(iter(sorted(made - set(workers))), "")


def _may_have_workers(group: Group, leader: Object) -> bool:
    if group.wanted.spec.startup_policy == "LeaderReady":
        conditions = leader["status"].get("conditions", ())
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return not group.wanted.topology or bool(leader["spec"].get("nodeName"))
