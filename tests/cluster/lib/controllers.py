"""JobSet's and LeaderWorkerSet's own controllers with their webhooks, as processes of this machine.

Registered as the projects' kustomizations do, except that the API server calls the webhooks by their URL: there is no
Service in front of a process.
"""

from __future__ import annotations

import base64
import os
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from lab import components, pki
from lab.build import Builder
from lab.cluster import Cluster
from lab.components import Component
from lab.progress import Progress
from lab.settings import Settings

from tests.builders.agent import free_port
from tests.builders.leaderworkerset import NAME
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import in_order

START_SECONDS = 30.0


@dataclass(frozen=True)
class _Project:
    """What differs between the two.

    Attributes:
        component: the program, then its CustomResourceDefinitions, then the registration of its webhooks.
        configuration: ``apiVersion`` of its configuration file.
        label: its pods have it; the webhooks for pods are asked about no others.
    """

    component: Component
    configuration: str
    label: str


_JOBSET = _Project(components.jobset(), "config.jobset.x-k8s.io/v1alpha1", "jobset.sigs.k8s.io/jobset-name")
_LEADERWORKERSET = _Project(components.leaderworkerset(), "config.lws.x-k8s.io/v1alpha1", NAME)


@contextmanager
def jobset_controller(lab: Cluster, kube: Kube, directory: Path) -> Iterator[None]:
    """Runs inside of the ``with`` block, with its CustomResourceDefinition; delete JobSets before the end of it."""
    with _controller(_JOBSET, lab, kube, directory):
        yield


@contextmanager
def leaderworkerset_controller(lab: Cluster, kube: Kube, directory: Path) -> Iterator[OwnLeaderWorkerSets]:
    """Runs inside of the ``with`` block, with its definitions; delete LeaderWorkerSets before the end of it.

    The stand-in must not act at the same time: its pods have the labels that this controller looks for.
    """
    with _controller(_LEADERWORKERSET, lab, kube, directory):
        yield OwnLeaderWorkerSets(kube)


class OwnLeaderWorkerSets:
    """LeaderWorkerSets of the API server, as tests look at those of the stand-in."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def pods(self, name: str, namespace: str = "default") -> list[Object]:
        """Pods of a set, leaders before their workers, by group."""
        return in_order(self._kube.find("pods", namespace, labels=f"{NAME}={name}"))

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a set as with ``kubectl delete --wait=false``."""
        self._kube.kubectl(f"--namespace={namespace}", "delete", "leaderworkerset", name, "--wait=false")


@contextmanager
def _controller(project: _Project, lab: Cluster, kube: Kube, directory: Path) -> Iterator[None]:
    built = Builder(Settings.from_environment(os.environ), Progress()).build([project.component])
    program, *crds, registration = project.component.products
    webhook, health = free_port(), free_port()
    _write_certificate(lab, program, directory)
    config = {
        "apiVersion": project.configuration,
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(directory)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    definitions = [yaml.safe_load(built[crd].read_text())["metadata"]["name"] for crd in crds]
    kube.kubectl("apply", "--server-side", *(f"--filename={built[crd]}" for crd in crds))
    kube.wait_established(*definitions)
    authority = lab.layout.pki / "ca.crt"
    manifests = [item for item in yaml.safe_load_all(built[registration].read_text()) if item]
    webhooks = [_by_url(item, program, project.label, webhook, authority) for item in manifests]
    urls = [item["clientConfig"]["url"] for configuration in webhooks for item in configuration["webhooks"]]
    command = [str(built[program]), f"--config={directory / 'config.yaml'}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "KUBECONFIG": str(kube.access.kubeconfig)}
    log = directory / f"{program}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        answering = [f"http://127.0.0.1:{health}/readyz", *urls]
        eventually(f"{program}'s controller to be ready", lambda: _all_answer(answering, authority), START_SECONDS)
        kube.apply(*webhooks)
        yield
    except BaseException as error:
        error.add_note(log.read_text()[-6000:])
        raise
    finally:
        for item in webhooks:
            kube.kubectl("delete", "--ignore-not-found", item["kind"], item["metadata"]["name"])
        kube.kubectl("delete", "--ignore-not-found", "--wait=false", "crd", *definitions)
        process.terminate()
        process.wait(15)


def _write_certificate(lab: Cluster, program: str, directory: Path) -> None:
    """A certificate of the cluster's authority, under the names that controller-runtime looks for."""
    name = f"{program}-webhook"
    pki.certificate(lab.layout.pki, "ca", pki.Identity(name, f"/CN={name}", ("IP:127.0.0.1",)))
    for suffix in ("crt", "key"):
        shutil.copy(lab.layout.pki / f"{name}.{suffix}", directory / f"tls.{suffix}")


def _by_url(configuration: Object, program: str, label: str, port: int, authority: Path) -> Object:
    """A configuration of webhooks as the project's patches make it (only its own pods), but by URL."""
    certificate = base64.b64encode(authority.read_bytes()).decode()
    for item in configuration["webhooks"]:
        path = item["clientConfig"]["service"]["path"]
        item["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": certificate}
        if item["rules"][0]["resources"] == ["pods"]:
            item["objectSelector"] = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    metadata = {"name": f"{program}-{configuration['metadata']['name']}"}
    return {**configuration, "metadata": metadata}


def _all_answer(urls: Sequence[str], authority: Path) -> bool:
    """Whether all are served; LeaderWorkerSet calls itself ready before its webhooks are."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        for url in urls:
            urllib.request.urlopen(url, timeout=5, context=context).close()
    except OSError:  # nothing listens yet, or it does not know the path yet
        return False
    return True
