"""JobSet's own controller with its webhooks, as a process of this machine."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from lab import components, pki
from lab.build import Builder
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings

from tests.builders.agent import free_port
from tests.cluster.lib.kube import Kube, Object, eventually

START_SECONDS = 30.0
_CRD = "jobsets.jobset.x-k8s.io"


@contextmanager
def jobset_controller(lab: Cluster, kube: Kube, directory: Path) -> Iterator[None]:
    """Runs inside of the ``with`` block, with its CustomResourceDefinition; delete JobSets before the end of it.

    Registered as the project's kustomization does, except that the API server calls the webhooks by their URL: there
    is no Service in front of a process.
    """
    built = Builder(Settings.from_environment(os.environ), Progress()).build([components.jobset()])
    webhook, health = free_port(), free_port()
    _write_certificate(lab, directory)
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(directory)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    kube.kubectl("apply", "--server-side", "-f", str(built["jobset.x-k8s.io_jobsets.yaml"]))
    kube.kubectl("wait", "--for=condition=Established", f"crd/{_CRD}")
    command = [str(built["jobset"]), f"--config={directory / 'config.yaml'}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "KUBECONFIG": str(kube.access.kubeconfig)}
    log = directory / "jobset.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    webhooks: list[Object] = []
    try:
        eventually("JobSet's controller to be ready", lambda: _is_ready(health), START_SECONDS)
        certificate = base64.b64encode((lab.layout.pki / "ca.crt").read_bytes()).decode()
        manifests = built["manifests.yaml"].read_text()
        webhooks = [_by_url(item, webhook, certificate) for item in yaml.safe_load_all(manifests) if item]
        kube.apply(*webhooks)
        yield
    except BaseException as error:
        error.add_note(log.read_text()[-6000:])
        raise
    finally:
        for item in webhooks:
            kube.kubectl("delete", "--ignore-not-found", item["kind"], item["metadata"]["name"])
        kube.kubectl("delete", "--ignore-not-found", "--wait=false", f"crd/{_CRD}")
        process.terminate()
        process.wait(15)


def _write_certificate(lab: Cluster, directory: Path) -> None:
    """A certificate of the cluster's authority, under the names that controller-runtime looks for."""
    pki.certificate(lab.layout.pki, "ca", pki.Identity("jobset-webhook", "/CN=jobset-webhook", ("IP:127.0.0.1",)))
    for suffix in ("crt", "key"):
        shutil.copy(lab.layout.pki / f"jobset-webhook.{suffix}", directory / f"tls.{suffix}")


def _by_url(configuration: Object, port: int, authority: str) -> Object:
    """A configuration of webhooks as the project's patches make it (only JobSets' pods), but by URL."""
    for item in configuration["webhooks"]:
        path = item["clientConfig"]["service"]["path"]
        item["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        if item["rules"][0]["resources"] == ["pods"]:
            of_jobsets = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
            item["objectSelector"] = {"matchExpressions": [of_jobsets]}
    metadata = {"name": f"jobset-{configuration['metadata']['name']}"}
    return {**configuration, "metadata": metadata}


def _is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
    except OSError:  # it does not listen yet, or its webhooks do not
        return False
    return True
