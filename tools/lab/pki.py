"""Certificates and kubeconfigs of a cluster, created with openssl; they are removed with the cluster's directory."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import files
from lab.errors import LabError
from lab.layout import API_ADDRESS, API_PORT, ClusterLayout

_DAYS = "365"


@dataclass(frozen=True)
class Identity:
    """The subject of a certificate.

    Attributes:
        file: Base name of the certificate's files.
        subject: Distinguished name in openssl's form.
        names: Subject alternative names in openssl's form, such as `IP:127.0.0.1`.
    """

    file: str
    subject: str
    names: tuple[str, ...] = ()


_SERVER_NAMES = (
    "IP:127.0.0.1",
    f"IP:{API_ADDRESS}",
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
)
_CONTROL_PLANE = (
    Identity("apiserver", "/CN=kube-apiserver", _SERVER_NAMES),
    Identity("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
    Identity("admin", "/O=system:masters/CN=kubernetes-admin"),
    Identity("controller-manager", "/CN=system:kube-controller-manager"),
    Identity("scheduler", "/CN=system:kube-scheduler"),
)


def make(layout: ClusterLayout, nodes: int) -> None:
    """Create everything: authorities, certificates, the service accounts' key, and a kubeconfig for each client."""
    pki = layout.pki
    pki.mkdir(parents=True, exist_ok=True)
    authority(pki, "ca")
    authority(pki, "front-proxy-ca")
    for identity in _CONTROL_PLANE:
        certificate(pki, "ca", identity)
    certificate(pki, "front-proxy-ca", Identity("front-proxy-client", "/CN=front-proxy-client"))
    key, public = str(pki / "service-account.key"), str(pki / "service-account.pub")
    _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    _openssl("pkey", "-in", key, "-pubout", "-out", public)
    for client in ("controller-manager", "scheduler"):
        write_kubeconfig(pki / f"{client}.kubeconfig", layout, client)
    write_kubeconfig(layout.kubeconfig, layout, "admin")
    for index in range(1, nodes + 1):
        node = layout.node(index)
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        certificate(pki, "ca", Identity(node.name, subject, (f"IP:{node.address}", f"DNS:{node.name}")))
        write_kubeconfig(pki / f"{node.name}.kubeconfig", layout, node.name)


def write_kubeconfig(path: Path, layout: ClusterLayout, client: str) -> None:
    """Write a self-contained kubeconfig, which can be copied; commands show the name of its context."""
    embedded = {name: _base64(layout.pki / name) for name in ("ca.crt", f"{client}.crt", f"{client}.key")}
    files.write(
        path,
        f"""apiVersion: v1
kind: Config
current-context: "{layout.name}"
clusters:
- name: "{layout.name}"
  cluster:
    server: https://{API_ADDRESS}:{API_PORT}
    certificate-authority-data: {embedded["ca.crt"]}
contexts:
- name: "{layout.name}"
  context:
    cluster: "{layout.name}"
    user: {client}
users:
- name: {client}
  user:
    client-certificate-data: {embedded[f"{client}.crt"]}
    client-key-data: {embedded[f"{client}.key"]}
""",
    )


def authority(pki: Path, name: str) -> None:
    """Create a CA: NAME.crt and NAME.key."""
    extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign")
    _request(pki, Identity(name, f"/CN={name}"), extensions)


def certificate(pki: Path, signer: str, identity: Identity) -> None:
    """Create a certificate for servers and clients, signed by a CA in the same directory."""
    extensions = (
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=serverAuth,clientAuth",
        "authorityKeyIdentifier=keyid",
        *((f"subjectAltName={','.join(identity.names)}",) if identity.names else ()),
    )
    _request(pki, identity, extensions, ("-CA", str(pki / f"{signer}.crt"), "-CAkey", str(pki / f"{signer}.key")))


def _request(pki: Path, identity: Identity, extensions: Sequence[str], signer: Sequence[str] = ()) -> None:
    config = pki / f"{identity.file}.cnf"
    lines = ["[req]", "distinguished_name=name", "x509_extensions=extensions", "[name]", "[extensions]"]
    files.write(config, "\n".join([*lines, "subjectKeyIdentifier=hash", *extensions, ""]))
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS),
        *("-config", str(config), "-subj", identity.subject, *signer),
        *("-keyout", str(pki / f"{identity.file}.key"), "-out", str(pki / f"{identity.file}.crt")),
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"openssl {arguments[0]} failed, so the cluster has no certificates: {done.stderr.strip()}")
