"""Random cases in a control plane whose nodes are only objects: what its scheduler answers.

Many cases are played at once, each with names of its own. The pods of a case come one after the other; the first word
of the scheduler about a pod is its answer, since what is tried again is tried later and later.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from dra_driver.kube.api.client import Stream, Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.simulator.cel import Kubernetes
from tests.generators.simulator_cases import TOKEN, Object, renamed, token
from tests.oracles.simulator_cases import Expected, Simulated, accepted, disagreement, unreadable

T = TypeVar("T")

ANSWER_SECONDS = 150.0
"""kube-scheduler searches up to ten seconds on each node for one pod, on processors that other clusters use too."""

_PODS = "/api/v1/namespaces/default/pods"
_RESOURCES = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCES}/namespaces/default/resourceclaims"
_PATHS = {
    "taintRules": f"{_RESOURCES}/devicetaintrules",
    "nodes": "/api/v1/nodes",
    "classes": f"{_RESOURCES}/deviceclasses",
    "slices": f"{_RESOURCES}/resourceslices",
}
"""Where the parts of a case are made."""
_PATH_OF_KIND = {
    "Pod": _PODS,
    "Node": _PATHS["nodes"],
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "ResourceClaim": _CLAIMS,
    "ResourceClaimTemplate": f"{_RESOURCES}/namespaces/default/resourceclaimtemplates",
    "DeviceClass": _PATHS["classes"],
    "DeviceTaintRule": _PATHS["taintRules"],
    "ResourceSlice": _PATHS["slices"],
}
_BATCH = "batch"
_ROOM = {"pods": "10000", "cpu": "1000", "memory": "1000Gi"}


@dataclass
class Played:
    """A case as it was played, under names of its own, and the answers for its pods in order."""

    original: Object
    number: int
    kubernetes: str
    case: Object = field(init=False)
    answers: list[Object] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    illegal: str = ""
    """Why the API server refused more than an expression, or the simulator cannot read it; no answers then."""

    def __post_init__(self) -> None:
        self.case = renamed(self.original, self.number)

    def recorded(self, about: str) -> Object:
        """For ``tests/data/simulator-cases``, under the usual names."""
        row = {"about": about, "kubernetes": self.kubernetes, "case": self.case, "answers": self.answers}
        found: Object = json.loads(json.dumps(row).replace(token(self.number), TOKEN))
        return found


class Bench:
    """The control plane. Its controllers must not run: they would evict pods from nodes without kubelet."""

    def __init__(self, transport: Transport, version: str) -> None:
        self.version = version
        self.kubernetes: Kubernetes = "1.36" if version.startswith("1.36.") else "1.37"
        self._transport = transport
        self._workers = ThreadPoolExecutor(6)
        self._numbers = itertools.count(1)
        self._pods: dict[str, Object] = {}
        self._claims: dict[str, Object] = {}
        self._changed = threading.Condition()
        # Claims with admin access are refused elsewhere.
        labels = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        content_type = "application/merge-patch+json"
        transport.request("PATCH", "/api/v1/namespaces/default", body=labels, content_type=content_type)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow pods and claims meanwhile."""
        with self._following(_PODS, self._pods), self._following(_CLAIMS, self._claims):
            yield
        self._workers.shutdown()

    @contextmanager
    def _following(self, path: str, seen: dict[str, Object]) -> Iterator[None]:
        listed = json.loads(self._transport.request("GET", path).body)
        query = [("watch", "1"), ("resourceVersion", listed["metadata"]["resourceVersion"])]
        with self._transport.stream(path, query=query, timeout=3600) as stream:
            thread = threading.Thread(target=self._follow, args=(stream, seen), daemon=True)
            thread.start()
            try:
                yield
            finally:
                stream.abort()
                thread.join(10)

    def _follow(self, stream: Stream, seen: dict[str, Object]) -> None:
        for line in stream:
            found = json.loads(line)["object"]
            with self._changed:
                seen[found["metadata"].get("name", "")] = found
                self._changed.notify_all()

    def play(self, cases: Sequence[Object]) -> list[Played]:
        """Play cases at once. What they leave is out of the way of the next ones."""
        batch = f"b{next(self._numbers)}"
        played = [Played(case, next(self._numbers), self.version) for case in cases]
        refused = self._create_worlds(played, batch)
        self._wait_seen(batch)
        for item in played:
            item.illegal = item.illegal or unreadable(item.case)
        alive = [item for item in played if not item.illegal]
        simulated = Simulated([item.case for item in alive], self.kubernetes, missing=refused)
        try:
            for turn in range(max((len(item.case["pods"]) for item in alive), default=0)):
                going_on = [item for item in alive if len(item.case["pods"]) > turn and not item.illegal]
                self._turn(going_on, turn, simulated, f"{batch}-{turn}")
        finally:
            self._clear_away(played, batch)
        return played

    def _clear_away(self, played: Sequence[Played], batch: str) -> None:
        self._transport.request("DELETE", _PATHS["slices"], query=[("labelSelector", f"{_BATCH}={batch}")], timeout=60)
        # Those whose devices never become ready would be tried again ten minutes later, in another test.
        names = [pod["name"] for item in played for pod in item.case["pods"]]
        waiting = [name for name in names if name in self._pods and not self._pods[name]["spec"].get("nodeName")]
        self._all(lambda name: self._delete(f"{_PODS}/{name}"), waiting)

    # The worlds

    def _create_worlds(self, played: Sequence[Played], batch: str) -> list[str]:
        """Create everything but claims and pods; return the classes that were refused for their expressions."""
        jobs = [
            (item, path, _labelled(made, batch))
            for item in played
            for kind, path in _PATHS.items()
            for made in item.case.get(kind, ())
            if kind != "taintRules" or self.kubernetes != "1.36"  # which does not serve them by default
        ]
        refused: list[str] = []

        def create(job: tuple[Played, str, Object]) -> None:
            item, path, made = job
            body = {**made, "status": _node_status()} if path == _PATHS["nodes"] else made
            problem = self._create(path, body)
            if not problem:
                return
            name = made["metadata"]["name"]
            if path == _PATHS["classes"] and _blames_expressions(problem):
                refused.append(name)
                if accepted(made, self.kubernetes):
                    item.disagreements.append(f"class {name} is refused: {problem}")
            else:
                item.illegal = problem

        self._all(create, jobs)
        for item in (item for item in played if not item.illegal):
            for made in item.case["classes"]:
                if accepted(made, self.kubernetes) is False and made["metadata"]["name"] not in refused:
                    item.disagreements.append(f"class {made['metadata']['name']} is accepted")
        return refused

    def _wait_seen(self, batch: str) -> None:
        """Return when the scheduler has seen all nodes, slices and classes: it can use the last of each."""
        name = f"seen-{batch}"
        driver = f"{name}.example"
        node: Object = {"metadata": {"name": name}, "status": _node_status()}
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        slice_spec = {"driver": driver, "pool": pool, "nodeName": name, "devices": [{"name": "one"}]}
        request = {"name": "r", "exactly": {"deviceClassName": name}}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        for path, made in (
            (_PATHS["nodes"], node),
            (_PATHS["classes"], {"metadata": {"name": name}, "spec": spec}),
            (_PATHS["slices"], _labelled({"metadata": {"name": name}, "spec": slice_spec}, batch)),
            (_CLAIMS, claim),
            (_PODS, _pod({"name": name, "nodes": [name], "claims": [claim]})),
        ):
            problem = self._create(path, made)
            assert not problem, problem
        self._wait([name], lambda pod: bool(pod["spec"].get("nodeName")))

    # One pod of each case

    def _turn(self, played: Sequence[Played], turn: int, simulated: Simulated, label: str) -> None:
        refused = self._create_claims(played, turn, label)
        pods = {item.case["pods"][turn]["name"]: item for item in played if not item.illegal}
        expected = {name: simulated.ask(item.case["pods"][turn]) for name, item in pods.items()}

        def create(name: str) -> None:
            pods[name].illegal = self._create(_PODS, _pod(pods[name].case["pods"][turn]))

        self._all(create, [name for name in pods if not refused.get(name)])
        started = [name for name, item in pods.items() if not item.illegal and not refused.get(name)]
        self._wait(started, self._answered)
        answers = self._answers(pods, started, turn, label) | {
            name: {"refused": found} for name, found in refused.items()
        }
        for name, item in pods.items():
            if item.illegal:
                continue
            item.expected.append(expected[name])
            item.answers.append(answers[name])
            difference = disagreement(expected[name], answers[name])
            if difference:
                item.disagreements.append(f"pod {name}: {difference}")
            simulated.take(answers[name])
        pending = [name for name in started if answers[name]["node"] is None]
        self._all(lambda name: self._delete(f"{_PODS}/{name}"), pending)

    def _create_claims(self, played: Sequence[Played], turn: int, label: str) -> dict[str, list[str]]:
        """Create the claims of a turn; return the refused ones by pod."""
        refused: dict[str, list[str]] = {}
        jobs = [
            (item, item.case["pods"][turn]["name"], claim)
            for item in played
            for claim in item.case["pods"][turn]["claims"]
        ]

        def create(job: tuple[Played, str, Object]) -> None:
            item, pod, claim = job
            problem = self._create(_CLAIMS, _labelled(claim, label))
            if problem and _blames_expressions(problem):
                refused.setdefault(pod, []).append(claim["metadata"]["name"])
            elif problem:
                item.illegal = problem

        self._all(create, jobs)
        return {pod: sorted(names) for pod, names in refused.items()}

    def _answers(self, pods: dict[str, Played], started: Sequence[str], turn: int, label: str) -> dict[str, Object]:
        query = [("labelSelector", f"{_BATCH}={label}")]
        claims = {
            item["metadata"]["name"]: item
            for item in json.loads(self._transport.request("GET", _CLAIMS, query=query, timeout=60).body)["items"]
        }
        answers: dict[str, Object] = {}
        for name in started:
            pod = self._pods[name]
            node = pod["spec"].get("nodeName") or ("" if _pending(pod) else pods[name].case["pods"][turn]["nodes"][0])
            if node:
                names = [claim["metadata"]["name"] for claim in pods[name].case["pods"][turn]["claims"]]
                allocations = [_without_time(claims[item]["status"]["allocation"]) for item in names]
                answers[name] = {"node": node, "allocations": allocations}
            else:
                condition = _condition(pod)
                answers[name] = {"node": None, "reason": condition["reason"], "message": condition["message"]}
        return answers

    def _answered(self, pod: Object) -> bool:
        """Whether it has a node or got none; a pod whose devices have to become ready has no node yet."""
        return bool(pod["spec"].get("nodeName")) or _pending(pod) or self._waits_for_devices(pod)

    def _waits_for_devices(self, pod: Object) -> bool:
        names = [item["resourceClaimName"] for item in pod["spec"].get("resourceClaims", ())]
        found = [self._claims.get(name, {}).get("status", {}).get("allocation", {}) for name in names]
        results = [item for allocation in found for item in allocation.get("devices", {}).get("results", ())]
        return all(found) and any("bindingConditions" in item for item in results)

    # Requests

    def refusals(self, item: Object) -> str:
        """The API server's text about an object that is not made; "" when it is accepted."""
        return self._create(_PATH_OF_KIND[item["kind"]], item, dry=True)

    def _create(self, path: str, body: Object, *, dry: bool = False) -> str:
        """The API server's text when it refuses the object, else ""."""
        try:
            query = [("dryRun", "All")] if dry else []
            self._transport.request("POST", path, body=body, query=query, timeout=60)
        except ApiError as error:
            if error.status in (400, 422):
                return error.message
            raise
        return ""

    def _delete(self, path: str) -> None:
        try:
            self._transport.request("DELETE", path, query=[("gracePeriodSeconds", "0")])
        except ApiError as error:
            if error.status != 404:
                raise

    def _all(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        list(self._workers.map(work, items))

    def _wait(self, names: Sequence[str], ready: Callable[[Object], bool]) -> None:
        end = time.monotonic() + ANSWER_SECONDS
        left = set(names)
        with self._changed:
            while True:
                left = {name for name in left if name not in self._pods or not ready(self._pods[name])}
                if not left:
                    return
                remaining = end - time.monotonic()
                assert remaining > 0, (
                    f"no answer about {len(left)} pods, such as {self._pods.get(min(left), min(left))}"
                )
                self._changed.wait(remaining)


def _labelled(made: Object, batch: str) -> Object:
    metadata = made["metadata"]
    return {**made, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), _BATCH: batch}}}


def _node_status() -> Object:
    condition = {"type": "Ready", "status": "True", "reason": "Always", "message": ""}
    return {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [condition]}


def _pod(pod: Object) -> Object:
    """Tolerates what the API server taints a new node with; pinned by a field, which is what names a node."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in pod["nodes"]]
    names = [claim["metadata"]["name"] for claim in pod["claims"]]
    return {
        "metadata": {"name": pod["name"]},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            },
            "resourceClaims": [{"name": f"c{place}", "resourceClaimName": name} for place, name in enumerate(names)],
        },
    }


def _condition(pod: Object) -> Object:
    found = (item for item in pod.get("status", {}).get("conditions", ()) if item["type"] == "PodScheduled")
    return next(found, {})


def _pending(pod: Object) -> bool:
    return _condition(pod).get("reason") in ("Unschedulable", "SchedulerError")


def _blames_expressions(problem: str) -> bool:
    return ".cel.expression:" in problem


def _without_time(allocation: Object) -> Object:
    return {key: value for key, value in allocation.items() if key != "allocationTimestamp"}
