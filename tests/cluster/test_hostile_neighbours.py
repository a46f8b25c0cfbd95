"""Strangers in the cluster attack all that the chart deploys, and it goes on as if they were not there.

One pod, without rights and on a network of its own, holds all connections and calls that it can get at every port that
is open; another one makes claims with the rights of a tenant. ``NEURON_DRA_ATTACK_SECONDS`` says for how long.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from tests.builders.probes import SERVING, probe
from tests.cluster.lib.hostile.neighbour import STYLES
from tests.cluster.lib.installation import EMULATED
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import container_id, restart_count, uid_of, wait_unprepared
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.lib.release import LEGACY, NEURON, SCHEDULER, Release, limited

SECONDS = float(os.environ.get("NEURON_DRA_ATTACK_SECONDS", "600"))

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(SECONDS + 900, func_only=True)]

SCRIPTS = Path(__file__).parent / "lib/hostile"
METRICS = "9100"
ALL = {
    **LEGACY,
    "draDriver.enabled": "true",
    "draDriver.nodeSelector.example\\.com/neuron": "dra",
    "draDriver.metricsPort": METRICS,
    "draDriver.placer.enabled": "true",
    "devicePlugin.metricsPort": METRICS,
    "npd.enabled": "true",
    "npd.metricsPort": METRICS,
    "npd.nodeRecovery.enabled": "true",
}
"""Every workload of the chart, with all ports that it can have open."""
CLAIMS, LIMITS = "node-1", "node-2"
"""The node of the driver, and that of the device plugin."""
PROBE_SECONDS = 2.0
"""Between two probes of a container: no longer than kubelet's."""
MISSES = 0.05
"""Of the probes of a container, which may have no answer in time: the machine may run other clusters beside this one.
Readiness is lost after three in a row."""
GONE_SECONDS = 60.0


@dataclass(frozen=True)
class Daemon:
    """A container of ours, by its pod as it was before."""

    kube: Kube
    pod: Object

    def __str__(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports by their name."""
        return {port["name"]: port["containerPort"] for port in self.pod["spec"]["containers"][0]["ports"]}

    @property
    def seconds(self) -> float:
        """Kubelet's patience with its probe."""
        return float(self.pod["spec"]["containers"][0]["readinessProbe"]["timeoutSeconds"])

    def targets(self) -> Iterator[str]:
        """What the neighbour is told of its ports, which it knows by how they are called."""
        for name, port in self.ports.items():
            yield f"{name}:{self.pod['status']['podIP']}:{port}"

    def probe(self) -> str:
        """What kubelet does, from the same network: a connection of its own, one request; "" or what was wrong."""
        address, limit = self.pod["status"]["podIP"], self.seconds
        if "extender" in self.ports:
            return self._ask_readiness(address, limit)
        answer = probe(f"{address}:{self.ports['health']}", "readiness", limit)
        return "" if answer == SERVING else str(answer)

    def _ask_readiness(self, address: str, limit: float) -> str:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, self.ports["extender"], timeout=limit, context=context)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read().decode()
        except OSError as error:
            return repr(error)
        finally:
            connection.close()
        return "" if answer.status == http.client.OK else f"{answer.status}: {text}"

    def change(self) -> str:
        """What has happened to it since; "": nothing."""
        now = self.kube.get("pods", self.pod["metadata"]["name"], self.pod["metadata"]["namespace"])
        if now is None or uid_of(now) != uid_of(self.pod):
            return "the pod was replaced"
        if (container_id(now), restart_count(now)) != (container_id(self.pod), restart_count(self.pod)):
            last = now["status"]["containerStatuses"][0].get("lastState")
            return f"restarted {restart_count(now)} times: {last}"
        if _readiness(now) != _readiness(self.pod):
            return f"readiness was lost: {_readiness(now)}"
        return ""

    def failures(self) -> int:
        """How many of kubelet's probes have failed so far."""
        fields = f"involvedObject.uid={uid_of(self.pod)},reason=Unhealthy"
        events = self.kube.find("events", self.pod["metadata"]["namespace"], fields=fields)
        return sum(event["count"] for event in events)


def _readiness(item: Object) -> tuple[str, str]:
    """Status, and since when."""
    (ready,) = [entry for entry in item["status"]["conditions"] if entry["type"] == "Ready"]
    return ready["status"], ready["lastTransitionTime"]


def daemons(release: Release, kube: Kube) -> list[Daemon]:
    """All containers of ours that the chart has deployed; the driver's first."""
    pods: list[Daemon] = []
    for kind in ("daemonset", "deployment"):
        for item in release.made(kind):
            if item["metadata"]["name"] != SCHEDULER:  # that is kube-scheduler
                labels = ",".join(f"{key}={value}" for key, value in item["spec"]["selector"]["matchLabels"].items())
                namespace = item["metadata"]["namespace"]
                pods += [Daemon(kube, each) for each in kube.find("pods", namespace, labels=labels)]
    return sorted(pods, key=lambda daemon: daemon.pod["metadata"]["namespace"] != "neuron-dra-driver")


@dataclass
class Probes:
    """Probes of daemons within the ``with`` block, as kubelet makes them.

    Attributes:
        seconds: how long each answer took, by container.
        failures: by container, what was wrong with those that were no good answer in time.
    """

    daemons: Sequence[Daemon]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self.seconds = {str(daemon): [] for daemon in self.daemons}
        self.failures = {str(daemon): [] for daemon in self.daemons}
        self._threads = [threading.Thread(target=self._probe, args=(daemon,)) for daemon in self.daemons]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _probe(self, daemon: Daemon) -> None:
        while not self._over.wait(PROBE_SECONDS):
            begin = time.monotonic()
            problem = daemon.probe()
            seconds = time.monotonic() - begin
            self.seconds[str(daemon)].append(seconds)
            if problem or seconds > daemon.seconds:
                self.failures[str(daemon)].append(f"after {seconds:.1f} s: {problem}")

    def check(self) -> None:
        """Raise AssertionError if a container has missed too many."""
        for name, failures in self.failures.items():
            assert len(failures) <= max(MISSES * SECONDS / PROBE_SECONDS, 1), f"{name}: {failures}"


@pytest.fixture
def everything(release: Release, kube: Kube) -> Iterator[Release]:
    """All workloads of the chart: the driver on one node, the device plugin on the other one."""
    if release.settings:
        release.uninstall()
    kube.kubectl("label", "node", CLAIMS, "example.com/neuron=dra")
    try:
        release.ensure(ALL, EMULATED)
        eventually(f"the slices of {CLAIMS}", lambda: kube.slices(CLAIMS))
        eventually(f"the devices of {LIMITS}", lambda: offered(kube) == "16", 60)
        yield release
    finally:
        release.uninstall()
        kube.kubectl("label", "node", CLAIMS, "example.com/neuron-")


def offered(kube: Kube) -> str:
    node = kube.get("nodes", LIMITS) or {}
    return str(node["status"]["allocatable"].get(NEURON, "0"))


@pytest.fixture
def strangers(kube: Kube) -> Iterator[Namespace]:
    """Where the attackers are: not where diagnosis would print all their claims."""
    namespace = Namespace(kube, f"strangers-{os.getpid()}")
    namespace.create()
    yield namespace
    namespace.kubectl("delete", "pods", "--all", "--grace-period=1")
    # To delete all claims by one request takes longer than a request may.
    kube.kubectl("delete", "namespace", namespace.name, timeout=150)


def stranger(name: str, image: str, *arguments: str, account: str = "") -> Object:
    """A pod that runs one of the scripts: nothing that a tenant may not have."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", f"/scripts/{name}.py", *arguments],
        # Some times that of our daemons: more would keep them from the processor without any connection.
        "resources": {"requests": {"cpu": "50m"}},
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 65534,
        },
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": CLAIMS},
        "containers": [container],
        "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
        "automountServiceAccountToken": bool(account),
    }
    spec |= {"serviceAccountName": account} if account else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def tenant_rights(namespace: str) -> list[Object]:
    """An account that may make and delete claims in one namespace."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "tenant", "namespace": namespace}
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create", "delete"]}
    role = {"apiGroup": group, "kind": "Role", "name": "tenant"}
    subject = {"kind": "ServiceAccount", **metadata}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


@contextmanager
def attack(strangers: Namespace, image: str, targets: Sequence[str]) -> Iterator[None]:
    """Both attackers run within the block."""
    texts = {path.name: path.read_text() for path in SCRIPTS.glob("*.py")}
    scripts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": texts}
    strangers.apply(
        scripts,
        *tenant_rights(strangers.name),
        stranger("neighbour", image, str(SECONDS), *targets),
        stranger("tenant", image, str(SECONDS), strangers.name, account="tenant"),
    )
    for name in ("neighbour", "tenant"):
        strangers.wait_phase(name, "Running")
    yield
    for name in ("neighbour", "tenant"):
        strangers.wait_phase(name, "Succeeded", within=60)


def summary_of(strangers: Namespace, name: str) -> Object:
    """What an attacker says that it did."""
    summary: Object = json.loads(strangers.kubectl("logs", name).splitlines()[-1])
    return summary


def test_claims_and_limits_are_served_probes_are_answered_and_nothing_is_restarted(
    everything: Release,
    strangers: Namespace,
    namespace: Namespace,
    node_files: Mapping[str, NodeFiles],
    kube: Kube,
    driver_image: str,
    figures: list[str],
) -> None:
    ours = daemons(everything, kube)
    targets = [target for daemon in ours for target in daemon.targets()]
    before = sum(daemon.failures() for daemon in ours)
    namespace.apply(template("chip", request()))

    def check() -> None:
        changes = {str(daemon): text for daemon in ours if (text := daemon.change())}
        assert not changes, changes
        probes.check()

    def serve_claim() -> None:
        kube.create("pods", pod("claims", templates={"neurons": "chip"}, node=CLAIMS), namespace.name)
        namespace.wait_ready("claims")
        uid = uid_of(namespace.claim_of("claims"))
        assert uid in node_files[CLAIMS].specs()
        namespace.delete_pod("claims", within=GONE_SECONDS)
        wait_unprepared(node_files[CLAIMS], uid)

    def serve_limit() -> None:
        kube.create("pods", limited("limits", {NEURON: 1}, node=LIMITS), namespace.name)
        namespace.wait_ready("limits")
        namespace.delete_pod("limits", within=GONE_SECONDS)

    rounds: dict[str, list[float]] = {"a pod with a claim": [], "a pod with a limit": []}
    probes = Probes(ours)
    try:
        with attack(strangers, driver_image, targets), probes:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for seconds, serve in zip(rounds.values(), (serve_claim, serve_limit), strict=True):
                    begin = time.monotonic()
                    serve()
                    seconds.append(time.monotonic() - begin)
                    check()
        check()
    finally:
        late = sum(map(len, probes.failures.values()))
        figures.append(f"probes that failed: {late} of ours, {sum(map(Daemon.failures, ours)) - before} of kubelet's")
        figures += [f"probes of {name}: {times(seconds)}" for name, seconds in probes.seconds.items()]
        figures += [f"{name}, from its creation to its end: {times(seconds)}" for name, seconds in rounds.items()]

    network, claims = summary_of(strangers, "neighbour"), summary_of(strangers, "tenant")
    count = sum(sum(styles.values()) for styles in network["connections"].values())
    figures.append(
        f"{count} connections to {len(targets)} ports, in the end {network['flood']:.0f} a second to the driver's; "
        f"the tenant: {claims}"
    )
    assert network["connections"].keys() == set(targets)
    for target, styles in network["connections"].items():
        missed = STYLES[target.partition(":")[0]].keys() - styles.keys()
        assert not missed, f"{target} was not attacked so: {missed}"
    assert claims["large"] > 100, claims


def times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    return f"{len(seconds)}, median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s"
