"""Command lines of the control plane: pure functions of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.layout import (
    API_ADDRESS,
    API_PORT,
    CONTROLLER_MANAGER_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    SCHEDULER_PORT,
    SERVICE_RANGE,
    ClusterLayout,
)
from lab.spec import ClusterSpec

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def command(name: str, spec: ClusterSpec, layout: ClusterLayout, programs: Mapping[str, Path]) -> list[str]:
    """Return the command line of one of `COMPONENTS`."""
    arguments = {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controller_manager,
        "kube-scheduler": _scheduler,
    }[name](spec, layout)
    return [str(programs[name]), *arguments]


def _etcd(_: ClusterSpec, layout: ClusterLayout) -> list[str]:
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        f"--data-dir={layout.directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]


def _apiserver(spec: ClusterSpec, layout: ClusterLayout) -> list[str]:
    pki = layout.pki
    issuer = "https://kubernetes.default.svc.cluster.local"
    return [
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        # The address known to pods, on the loopback interface: no proxy is needed between them and the API.
        f"--bind-address={API_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={API_ADDRESS}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-account-issuer={issuer}",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
        "--enable-aggregator-routing=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *_listed("--runtime-config", spec.runtime_config),
        *_listed("--feature-gates", spec.feature_gates),
    ]


def _controller_manager(spec: ClusterSpec, layout: ClusterLayout) -> list[str]:
    pki = layout.pki
    return [
        *_client(pki / "controller-manager.kubeconfig", CONTROLLER_MANAGER_PORT),
        "--use-service-account-credentials=true",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        # With the default of 20 requests per second, the default service account is created 4.5 s late, and pods are
        # refused.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        *_listed("--feature-gates", spec.feature_gates),
    ]


def _scheduler(spec: ClusterSpec, layout: ClusterLayout) -> list[str]:
    return [
        *_client(layout.pki / "scheduler.kubeconfig", SCHEDULER_PORT),
        *_listed("--feature-gates", spec.feature_gates),
    ]


def _client(kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
    ]


def _listed(flag: str, values: tuple[str, ...]) -> list[str]:
    return [f"{flag}={','.join(values)}"] if values else []
