"""The chart's scheduler side as processes of this machine: `my-scheduler`, the extender's replicas, and their Service.

Accounts, roles and the scheduler's configuration are those of the chart's files. Only what a cluster would give is
different: the addresses, and where the certificate of the authority and the credentials lie.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from lab import pki
from lab.cluster import Cluster
from lab.layout import API_ADDRESS, API_PORT

from tests.builders.agent import free_port
from tests.cluster.lib.forwarding import Endpoint, Forwarder
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.release import helm_program
from tests.manifests.chart import template
from tests.paths import ROOT

SCHEDULER, EXTENDER, DEVICE_PLUGIN = "my-scheduler", "k8s-neuron-scheduler", "neuron-device-plugin"
WHOLE_NODES = "whole-nodes"
"""Name of a second scheduler."""
SYSTEM = "kube-system"
LEASE = "neuron-scheduler-extender"
TOKEN_TIME = "--duration=3h"
STOP_SECONDS = 40.0
RIGHTS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
"""Kinds of the chart's objects that say what its programs may do."""


def of_chart() -> list[Object]:
    """The chart's objects with a second scheduler."""
    return template("scheduler.enabled=true", program=str(helm_program()))


def scheduler_configuration(port: int, certificates: Path, kubeconfig: Path) -> Object:
    """The chart's KubeSchedulerConfiguration with the addresses and files of this machine."""
    (text,) = (item["data"]["my-scheduler-config.yaml"] for item in of_chart() if item["kind"] == "ConfigMap")
    found: Object = yaml.safe_load(text)
    (extender,) = found["extenders"]
    extender["urlPrefix"] = f"https://127.0.0.1:{port}"
    for entry in ("caFile", "certFile", "keyFile"):
        extender["tlsConfig"][entry] = str(certificates / Path(extender["tlsConfig"][entry]).name)
    found["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    return found


def of_whole_nodes(configuration: Object) -> Object:
    """The same for the scheduler ``WHOLE_NODES``, alone, that sends the extender whole Node objects."""
    (extender,), (profile,) = configuration["extenders"], configuration["profiles"]
    others = {"leaderElection": {"leaderElect": False}, "profiles": [profile | {"schedulerName": WHOLE_NODES}]}
    return configuration | others | {"extenders": [extender | {"nodeCacheCapable": False}]}


def make_certificates(directory: Path) -> None:
    """``ca``, ``tls`` with the names that the chart's certificate has, and ``client``."""
    names = [EXTENDER, f"{EXTENDER}.{SYSTEM}", f"{EXTENDER}.{SYSTEM}.svc", f"{EXTENDER}.{SYSTEM}.svc.cluster.local"]
    alternatives = ("IP:127.0.0.1", "DNS:localhost", *(f"DNS:{name}" for name in names))
    pki.authority(directory, "ca")
    pki.certificate(directory, "ca", pki.Identity("tls", f"/CN={names[2]}", alternatives))
    pki.certificate(directory, "ca", pki.Identity("client", "/CN=kube-scheduler"))


class Program:
    """A process with a log."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.log = name, log
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)

    @property
    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it in order; its status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class Replica(Program):
    """An extender."""

    def __init__(self, name: str, command: list[str], directory: Path, port: int) -> None:
        super().__init__(name, [*command, f"--port={port}"], directory / f"{name}.log")
        self.port = port
        self.tls = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        self.tls.load_cert_chain(directory / "client.crt", directory / "client.key")

    def get(self, path: str) -> int:
        """Status of an answer; 0 without one."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=self.tls)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


@dataclass
class ExtenderLab:
    """A cluster without nodes, `my-scheduler`, and as many extenders as are started."""

    kube: Kube
    lab: Cluster
    directory: Path
    port: int = 0
    """Of what stands for the Service."""
    replicas: list[Replica] = field(default_factory=list)
    ended: list[Replica] = field(default_factory=list)
    """Extenders that are not there any more."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def kubeconfig(self, account: str) -> Path:
        """Credentials of one of the chart's accounts."""
        path = self.directory / f"{account}.kubeconfig"
        if not path.exists():
            token = self.kube.kubectl("create", "token", account, f"--namespace={SYSTEM}", TOKEN_TIME).strip()
            authority = base64.b64encode((self.lab.layout.pki / "ca.crt").read_bytes()).decode()
            cluster = {"server": f"https://{API_ADDRESS}:{API_PORT}", "certificate-authority-data": authority}
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "clusters": [{"name": "lab", "cluster": cluster}],
                "users": [{"name": account, "user": {"token": token}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": account}}],
            }
            path.write_text(json.dumps(document))
        return path

    def start_scheduler(self, *, whole_nodes: bool = False) -> Program:
        """`my-scheduler`, or the one called ``WHOLE_NODES``."""
        kubeconfig = self.kubeconfig(SCHEDULER)
        content = scheduler_configuration(self.port, self.directory, kubeconfig)
        content = of_whole_nodes(content) if whole_nodes else content
        name = content["profiles"][0]["schedulerName"]
        config = self.directory / f"{name}-config.yaml"
        config.write_text(yaml.safe_dump(content))
        command = [
            *(str(self.lab.state.programs["kube-scheduler"]), f"--config={config}", "--v=2"),
            *(f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"),
            *("--bind-address=127.0.0.1", f"--secure-port={free_port()}"),
        ]
        return Program(name, command, self.directory / f"{name}.log")

    def start_extender(self, *options: str) -> Replica:
        """One more replica."""
        name = f"extender-{next(self._numbers)}"
        command = [
            *(sys.executable, "-m", "dra_driver", "extender", f"--kubeconfig={self.kubeconfig(EXTENDER)}"),
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--identity={name}"),
            *(f"--tls-cert={self.directory / 'tls.crt'}", f"--tls-key={self.directory / 'tls.key'}"),
            *(f"--tls-client-ca={self.directory / 'ca.crt'}", *options),
        ]
        started = Replica(name, command, self.directory, free_port())
        self.replicas.append(started)
        return started

    def end_extender(self, replica: Replica, *, hard: bool) -> None:
        """Take one away: at once, or in order."""
        if hard:
            replica.kill()
        else:
            # Before that it is still being started, and ends as any process does.
            eventually(f"{replica.name} to answer", lambda: replica.get("/livez") == 200, 60)
            assert replica.stop() == 0, replica.text[-3000:]
        self.replicas.remove(replica)
        self.ended.append(replica)

    def leader(self) -> Replica | None:
        """The replica that holds the lease."""
        lease = self.kube.get("leases", LEASE, SYSTEM) or {}
        holder = str(lease.get("spec", {}).get("holderIdentity") or "").partition("@")[0]
        return next((replica for replica in self.replicas if replica.name == holder), None)

    def logs(self) -> str:
        """What all extenders have said."""
        return "".join(replica.text for replica in (*self.ended, *self.replicas))

    def check(self) -> None:
        """No extender has ended by itself, or failed in a way that nobody foresaw."""
        for replica in self.replicas:
            assert replica.runs, f"{replica.name} has ended: {replica.text[-3000:]}"
        for replica in (*self.replicas, *self.ended):
            text = replica.text
            assert "Traceback" not in text, text[max(0, text.index("Traceback") - 500) :][:4000]

    def endpoints(self) -> list[Endpoint]:
        """Where the Service leads."""
        return [("127.0.0.1", replica.port) for replica in self.replicas]


@contextmanager
def extender_lab(kube: Kube, lab: Cluster, directory: Path) -> Iterator[ExtenderLab]:
    """Everything but extenders. The controllers that would act on nodes without kubelet stand still meanwhile."""
    lab.control_plane.stop("kube-controller-manager")
    made = ExtenderLab(kube, lab, directory)
    kube.apply(*(item for item in of_chart() if item["kind"] in RIGHTS))
    make_certificates(directory)
    forwarder = Forwarder(made.endpoints)
    forwarder.start()
    made.port = forwarder.listen("127.0.0.1")
    scheduler = made.start_scheduler()
    try:
        yield made
        assert scheduler.runs, scheduler.text[-3000:]
        made.check()
    finally:
        for program in (*made.replicas, scheduler):
            with suppress(subprocess.TimeoutExpired):
                program.stop()
        forwarder.stop()
        lab.control_plane.start("kube-controller-manager")
