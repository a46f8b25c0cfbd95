"""How a server is reached and who is let in: URLs, TLS, client certificates, exec plugins, proxies."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dra_driver.kube.api import client
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.util.errors import DriverError
from tests.golden import golden, golden_error
from tests.paths import ROOT

VARIABLES = [name for kind in ("https", "http", "all", "no") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]


@pytest.fixture(autouse=True)
def no_proxies_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Pair(NamedTuple):
    """Files of a certificate that vouches for itself, and of its key."""

    certificate: Path
    key: Path


def pair(directory: Path, name: str, *alternatives: str) -> Pair:
    made = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}".split()
    words += ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
    files = ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    return made


@dataclass
class Seen:
    """One request as a server has seen it."""

    method: str
    target: str
    headers: Message
    client: str
    """Common name in the client's certificate, or ""."""
    server_name: str | None
    """What the client called the server when it opened the connection."""


@dataclass
class Server:
    """Answers ``{}``, or 401 to whom ``lets_in`` does not want; as a proxy it passes on what is sent to it."""

    port: int = 0
    lets_in: Callable[[Seen], bool] = lambda _: True
    seen: list[Seen] = field(default_factory=list)
    tunnels: list[Seen] = field(default_factory=list)


@contextmanager
def serving(tls: Pair | None = None, host: str = "127.0.0.1", trusted: tuple[Path, ...] = ()) -> Iterator[Server]:
    running = Server()
    names: dict[Any, str | None] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = self._request()
            running.seen.append(request)
            self.send_response(200 if running.lets_in(request) else 401)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_CONNECT(self) -> None:
            running.tunnels.append(self._request())
            address, _, port = self.path.rpartition(":")
            with socket.create_connection((address.strip("[]"), int(port))) as server:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=passed_on, args=(server, self.connection))
                back.start()
                passed_on(self.connection, server)
                back.join()
            self.close_connection = True

        def _request(self) -> Seen:
            name = ""
            if isinstance(self.connection, ssl.SSLSocket):
                subject: Any = (self.connection.getpeercert() or {}).get("subject", ())
                name = next((value for part in subject for key, value in part if key == "commonName"), "")
            return Seen(self.command, self.path, self.headers, name, names.get(self.connection))

        def log_message(self, *_: object) -> None:
            pass

    class Listener(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def get_request(self) -> Any:
            connection, address = super().get_request()
            return (context.wrap_socket(connection, server_side=True) if context else connection), address

        def handle_error(self, *_: object) -> None:
            pass  # a client that does not trust us

    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        context.verify_mode = ssl.CERT_OPTIONAL if trusted else ssl.CERT_NONE
        for file in trusted:
            context.load_verify_locations(file)
        context.sni_callback = lambda connection, name, _: names.update({connection: name})
    with Listener((host, 0), Handler) as listener:
        running.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield running
        listener.shutdown()
        thread.join()


def passed_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):  # the other one has hung up
        while sent := source.recv(65536):
            target.sendall(sent)
        target.shutdown(socket.SHUT_WR)


def kubeconfig(
    directory: Path, server: str | None, user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None
) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {**({"server": server} if server else {}), **(cluster or {})}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
        "users": [{"name": "u", "user": user or {}}],
    }
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def tokens(server: Server) -> list[str]:
    """In the order of the requests."""
    return [seen.headers["Authorization"].removeprefix("Bearer ") for seen in server.seen]


def version(transport: Transport) -> None:
    try:
        transport.request("GET", "/version", timeout=5)
    finally:
        transport.close()


def test_a_kubeconfig_is_read_without_what_the_image_leaves_out(tmp_path: Path) -> None:
    """The Dockerfile removes the asyncio client of the kubernetes package."""
    program = (
        "import sys; sys.modules['kubernetes.aio'] = None; from dra_driver.kube.api.client import Transport; "
        "Transport.from_kubeconfig(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, kubeconfig(tmp_path, "https://127.0.0.1")], check=True, cwd=ROOT)
    assert "site-packages/kubernetes/aio" in (ROOT / "Dockerfile").read_text()


# URLs


@pytest.mark.parametrize("path", ["/k8s/clusters/c-m-abc", "/k8s/clusters/c-m-abc/"])
def test_the_api_may_be_below_a_path(path: str, tmp_path: Path) -> None:
    with serving() as server:
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}{path}")))
    assert [seen.target for seen in server.seen] == ["/k8s/clusters/c-m-abc/version"]


@pytest.mark.parametrize("in_cluster", [False, True])
def test_the_host_may_be_an_address_of_ipv6(in_cluster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = pair(tmp_path, "ca", "IP:::1")
    (tmp_path / "token").write_text("t")
    with serving(tls, "::1") as server:
        if in_cluster:
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
            version(Transport.in_cluster(directory=tmp_path))
        else:
            url = f"https://[::1]:{server.port}"
            authority = {"certificate-authority": "ca.crt"}
            version(Transport.from_kubeconfig(kubeconfig(tmp_path, url, {"token": "t"}, authority)))
    assert tokens(server) == ["t"]


@pytest.mark.parametrize(
    ("server", "cluster", "reason"),
    [
        (None, {}, "its cluster has no server"),
        ("ftp://127.0.0.1", {}, "ftp"),
        ("https://127.0.0.1:many", {}, "https://127.0.0.1:many"),
        ("https://127.0.0.1", {"proxy-url": "socks5://me:secret@127.0.0.1:1"}, "socks5"),
        ("https://127.0.0.1", {"certificate-authority": "absent.crt"}, "absent.crt"),
        (
            "https://127.0.0.1",
            {"certificate-authority-data": "bm9uZQ=="},
            "the certificate of its authority cannot be used",
        ),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_an_explained_error(
    server: str | None, cluster: dict[str, str], reason: str, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path, server, None, cluster)
    with pytest.raises(DriverError) as caught:
        Transport.from_kubeconfig(file)
    golden(str(caught.value))
    assert reason in str(caught.value)
    assert file in caught.value.remedy
    assert "secret" not in str(caught.value)


def test_a_client_certificate_that_cannot_be_read_is_an_explained_error(tmp_path: Path) -> None:
    user = {"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="}
    with golden_error(DriverError):
        Transport.from_kubeconfig(kubeconfig(tmp_path, "https://127.0.0.1", user))


# TLS


def test_the_certificate_may_name_another_host(tmp_path: Path) -> None:
    tls = pair(tmp_path, "api", "DNS:api.example.com")
    authority = {"certificate-authority-data": data(tls.certificate)}
    with serving(tls) as server:
        url = f"https://127.0.0.1:{server.port}"
        with pytest.raises(Unreachable, match=r"(?i)certificate"):
            version(Transport.from_kubeconfig(kubeconfig(tmp_path, url, None, authority)))
        name = {"tls-server-name": "api.example.com"}
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, url, None, authority | name)))
    assert [seen.server_name for seen in server.seen] == ["api.example.com"]


def test_a_server_is_not_checked_where_the_kubeconfig_says_so(tmp_path: Path) -> None:
    with serving(pair(tmp_path, "api", "DNS:elsewhere.example.com")) as server:
        skip = {"insecure-skip-tls-verify": True}
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}", None, skip)))
    assert len(server.seen) == 1


def test_a_client_certificate_in_the_kubeconfig_is_shown(tmp_path: Path) -> None:
    tls, admin = pair(tmp_path, "api", "IP:127.0.0.1"), pair(tmp_path, "admin")
    user = {"client-certificate-data": data(admin.certificate), "client-key-data": data(admin.key)}
    authority = {"certificate-authority-data": data(tls.certificate)}
    with serving(tls, trusted=(admin.certificate,)) as server:
        url = f"https://127.0.0.1:{server.port}"
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, url, user, authority)))
    assert [(seen.client, "Authorization" in seen.headers) for seen in server.seen] == [("admin", False)]


def test_a_client_certificate_that_was_replaced_is_shown_on_a_new_connection(tmp_path: Path) -> None:
    tls, first, second = pair(tmp_path, "api", "IP:127.0.0.1"), pair(tmp_path, "first"), pair(tmp_path, "second")
    used = Pair(tmp_path / "used.crt", tmp_path / "used.key")
    user = {"client-certificate": str(used.certificate), "client-key": str(used.key)}
    authority = {"certificate-authority": str(tls.certificate)}
    with serving(tls, trusted=(first.certificate, second.certificate)) as server:
        for name, shown in (("first", first), ("second", second)):
            used.certificate.write_bytes(shown.certificate.read_bytes())
            used.key.write_bytes(shown.key.read_bytes())
            server.lets_in = lambda seen, name=name: seen.client == name  # type: ignore[misc] # bound here, not later
            if name == "first":
                url = f"https://127.0.0.1:{server.port}"
                transport = Transport.from_kubeconfig(kubeconfig(tmp_path, url, user, authority))
            transport.request("GET", "/version")
        transport.close()
    assert [seen.client for seen in server.seen] == ["first", "first", "second"]


# Credentials that are renewed


def plugin(directory: Path, *statuses: dict[str, str]) -> dict[str, Any]:
    """A user whose exec plugin gives one of these after the other, and the last one from then on."""
    (directory / "statuses").write_text(json.dumps(statuses))
    program = directory / "plugin.py"
    program.write_text(
        "import json, pathlib\n"
        f"file = pathlib.Path({str(directory / 'statuses')!r})\n"
        "first, *rest = json.loads(file.read_text())\n"
        "file.write_text(json.dumps(rest or [first]))\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps({**kind, 'status': first}))\n"
    )
    api = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": api, "command": sys.executable, "args": [str(program)], "interactiveMode": "Never"}}


def test_the_exec_plugin_is_run_again_when_its_token_has_expired(tmp_path: Path) -> None:
    old, new = "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
    user = plugin(
        tmp_path, {"token": "first", "expirationTimestamp": old}, {"token": "second", "expirationTimestamp": new}
    )
    with serving() as server:
        transport = Transport.from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}", user))
        for _ in range(2):
            transport.request("GET", "/version")
        transport.close()
    # The first one was as good as expired when it was given.
    assert tokens(server) == ["second", "second"]


def test_the_exec_plugin_is_run_again_when_the_server_refuses_its_token(tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "first"}, {"token": "second"})
    with serving() as server:
        server.lets_in = lambda seen: seen.headers["Authorization"] == "Bearer second"
        transport = Transport.from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}", user))
        version(transport)
    assert tokens(server) == ["first", "second"]


def test_the_exec_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    tls, one, other = pair(tmp_path, "api", "IP:127.0.0.1"), pair(tmp_path, "one"), pair(tmp_path, "other")
    user = plugin(
        tmp_path,
        *(
            {"clientCertificateData": item.certificate.read_text(), "clientKeyData": item.key.read_text()}
            for item in (one, other)
        ),
    )
    authority = {"certificate-authority-data": data(tls.certificate)}
    with serving(tls, trusted=(one.certificate, other.certificate)) as server:
        server.lets_in = lambda seen: seen.client == "other"
        url = f"https://127.0.0.1:{server.port}"
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, url, user, authority)))
    assert [seen.client for seen in server.seen] == ["one", "other"]


def test_a_token_file_of_a_kubeconfig_is_read_again_after_a_401(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with serving() as server:
        url = f"http://127.0.0.1:{server.port}"
        transport = Transport.from_kubeconfig(kubeconfig(tmp_path, url, {"tokenFile": str(token)}))
        transport.request("GET", "/version")
        token.write_text("second")
        server.lets_in = lambda seen: seen.headers["Authorization"] == "Bearer second"
        version(transport)
    assert tokens(server) == ["first", "first", "second"]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An API server, and this process in a pod that knows it."""
    tls = pair(tmp_path, "ca", "IP:127.0.0.1")
    (tmp_path / "token").write_text("first\n")
    with serving(tls) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        yield server


def test_a_token_in_cluster_is_read_again_before_it_expires(
    pod: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = Transport.in_cluster(directory=tmp_path)
    transport.request("GET", "/version")
    (tmp_path / "token").write_text("second\n")
    transport.request("GET", "/version")
    monkeypatch.setattr(client, "TOKEN_SECONDS", 0.0)
    version(transport)
    assert tokens(pod) == ["first", "first", "second"]


def test_many_that_are_refused_at_once_read_the_credentials_once(pod: Server, tmp_path: Path) -> None:
    transport = Transport.in_cluster(directory=tmp_path)
    together = threading.Barrier(4)
    pod.lets_in = lambda seen: seen.headers["Authorization"] == "Bearer second" or (together.wait(30), False)[1]
    (tmp_path / "token").write_text("second\n")
    threads = [threading.Thread(target=transport.request, args=("GET", "/version")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transport.close()
    assert sorted(tokens(pod)) == ["first"] * 4 + ["second"] * 4


def test_a_server_that_lets_nobody_in_is_asked_twice(pod: Server, tmp_path: Path) -> None:
    pod.lets_in = lambda _: False
    with pytest.raises(ApiError) as caught:
        version(Transport.in_cluster(directory=tmp_path))
    assert caught.value.status == 401
    assert len(pod.seen) == 2


# Proxies


def test_the_proxy_of_a_kubeconfig_passes_tls_on(tmp_path: Path) -> None:
    tls = pair(tmp_path, "api", "IP:127.0.0.1")
    with serving(tls) as server, serving() as proxy:
        cluster = {
            "certificate-authority-data": data(tls.certificate),
            "proxy-url": f"http://me:p%40ss@127.0.0.1:{proxy.port}",
        }
        user = {"token": "t"}
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}", user, cluster)))
    (tunnel,) = proxy.tunnels
    assert tunnel.target == f"127.0.0.1:{server.port}"
    assert tunnel.headers["Proxy-Authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    assert "Authorization" not in tunnel.headers
    assert [seen.target for seen in server.seen] == ["/version"]
    assert "Proxy-Authorization" not in server.seen[0].headers


def test_a_proxy_is_asked_for_whole_urls_without_tls(tmp_path: Path) -> None:
    with serving() as proxy:
        through = {"proxy-url": f"http://127.0.0.1:{proxy.port}"}
        version(Transport.from_kubeconfig(kubeconfig(tmp_path, "http://api.example.com/prefix", None, through)))
    assert [seen.target for seen in proxy.seen] == ["http://api.example.com/prefix/version"]


@pytest.mark.parametrize(
    ("variable", "exempt", "through"),
    [
        ("HTTPS_PROXY", "", True),
        ("https_proxy", "10.0.0.0/8,.cluster.local", True),
        ("ALL_PROXY", "", True),
        ("HTTP_PROXY", "", False),
        ("HTTPS_PROXY", "127.0.0.0/8", False),
        ("HTTPS_PROXY", "localhost, 127.0.0.1", False),
        ("HTTPS_PROXY", "*", False),
    ],
)
def test_a_pod_uses_the_proxy_of_its_environment(
    variable: str, exempt: str, through: bool, pod: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as proxy:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", exempt)
        version(Transport.in_cluster(directory=tmp_path))
    assert len(pod.seen) == 1
    assert bool(proxy.tunnels) is through


@pytest.mark.parametrize(
    ("server", "exempt", "directly"),
    [
        ("https://api.example.com", "example.com", True),
        ("https://api.example.com", ".example.com", True),
        ("https://API.example.com", "Example.COM", True),
        ("https://example.com", "example.com", True),
        ("https://badexample.com", "example.com", False),
        ("https://api.example.com:6443", "example.com:6443", True),
        ("https://api.example.com:6443", "example.com:443", False),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://10.1.2.3", "fd00::/8", False),
        ("https://11.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", True),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00::1", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "[fd00::1]:443", False),
        ("https://api.example.com", " , ,", False),
        ("https://api.example.com", "10.0.0.0/99,a,*", True),
    ],
)
def test_what_no_proxy_exempts(server: str, exempt: str, directly: bool) -> None:
    assert client.bypasses_proxy(server, exempt) is directly


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://127.0.0.1:1", "http://me:secret@127.0.0.1:99999"),
        ("https://127.0.0.1:1", "http://me:se/cret@127.0.0.1:1"),
        ("https://127.0.0.1:1", "http://me:secret@[127.0.0.1"),
        ("https://me:secret@127.0.0.1:99999", None),
        ("https://me:secret@127.0.0.1:1", None),
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_its_password(server: str, proxy: str | None) -> None:
    """A pod's log is read by many, and its reports are sent on."""
    with pytest.raises(DriverError) as caught:
        client.Transport(client.RestConfig(server=server, proxy=proxy)).request("GET", "/version", timeout=2)
    shown = "".join(traceback.format_exception(caught.value))
    assert "secret" not in shown
    assert "cret@" not in shown
    assert "127.0.0.1" in str(caught.value)


def test_a_proxy_that_refuses_is_named_without_its_password(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        through = {"proxy-url": f"http://me:secret@127.0.0.1:{unused.getsockname()[1]}"}
        with pytest.raises(Unreachable) as caught:
            version(Transport.from_kubeconfig(kubeconfig(tmp_path, "https://api.example.com", None, through)))
        golden(str(caught.value))
    assert "secret" not in str(caught.value)
    assert "object at 0x" not in str(caught.value)
