"""HTTP client for one API server: ``RestConfig`` has its address and credentials, ``Transport`` sends requests.

Requests are sent with urllib3 over persistent connections. Only retries that are certain to be harmless are made here:
a GET that was lost on an idle connection that the server had closed, and, once, any request after a 401, with freshly
read credentials.

A pod's service account consists of two files and two environment variables, which are read here. A kubeconfig is read,
its exec plugins are run and its tokens are renewed by the official client. Importing any part of that imports all of
it, which costs 20 MB and 0.15 s (kubernetes 37.0.2 on CPython 3.11), so it is imported only for a kubeconfig.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec
import urllib3

from dra_driver.kube.api.errors import MAX_REFUSAL_BYTES, ApiError, TooLarge, Unreachable, refusal
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to open a connection, if the timeout of the response is at least as long."""
READ_TIMEOUT: Final = 15.0
"""Seconds without a byte after which a request is given up."""
WHOLE_ANSWER: Final = 4
"""Times the seconds without a byte that a page of a list, of up to 8 MiB, may take as a whole."""
REQUEST_SECONDS: Final = 3.0
"""Timeout of a controller's requests, for connecting and for the response each: shorter than a term of election."""
MAX_OBJECT_BYTES: Final = 12 << 20
"""Of one object as JSON. etcd takes at most 1.5 MiB (``--max-request-bytes``) of its protobuf, of which Go's encoder
writes each ``<``, ``>``, ``&`` and control character as six bytes (``encoding/json``, HTML escaping). So whoever may
create claims or pods can make one of 9 MiB, and with a smaller limit that one would keep all others from being listed.
"""
POOL_SIZE: Final = 32
"""Maximum number of idle connections. More may be open at once; the excess is closed after use."""
JSON: Final = "application/json"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet mounts a pod's token and the cluster's CA certificate."""
TOKEN_SECONDS: Final = 60.0
"""Seconds after which a token is read again; kubelet renews it at 80 % of its lifetime."""

http.client._MAXHEADERS = 8192  # type: ignore[attr-defined] # noqa: SLF001 # there is no other way
"""Headers of a response. The API server sends a header ``Warning`` for each warning of a webhook, of which there may be
as many as characters, 4,096 in all (kubernetes ``apiserver/pkg/endpoints/filters/warning.go``); above the 100 that are
usual in Python, a response that came would count as none."""
_USER_INFO: Final = re.compile(r"(?<=://)\S*@")
_CHUNK: Final = 1 << 16
"""Bytes that are read, and unpacked, at once."""
_NO_RETRIES: Final = urllib3.Retry(total=False, redirect=False)
_KEEP_ALIVE: Final = (
    *urllib3.connection.HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""TCP keepalive, to end a watch whose server is gone after 30 s, as long as client-go's HTTP/2 pings take to ask."""

Query = Sequence[tuple[str, str]]

log = logging.getLogger(__name__)


def _no_credentials() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestConfig:
    """The address of an API server and how to authenticate (client-go's ``rest.Config``).

    Files are read whenever a connection is opened, so replaced files take effect.

    Attributes:
        server: URL; may have a path, below which the API is served.
        authorization: returns the ``Authorization`` header of the next request, "" for none. Called from any thread.
            Raises DriverError if the credentials cannot be obtained.
        ca_file: CA certificates with which the server's certificate is verified; None: those of the system.
        cert_file: client certificate.
        key_file: its key; None: in the same file.
        verify: whether the server's certificate is verified.
        tls_server_name: the name to verify in the certificate, if it is not the host of the URL.
        proxy: URL of a proxy, or None.
        no_proxy: comma-separated hosts, domains and networks, optionally with a port, that are reached directly.
        place: where this is, for errors that are read elsewhere.
        user: whom to act for, by the right to impersonate; "": nobody else.
        timeout: seconds without a byte after which a request is given up whose caller names none.
    """

    server: str
    authorization: Callable[[], str] = _no_credentials
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    no_proxy: str = ""
    place: str = "here"
    user: str = ""
    timeout: float = READ_TIMEOUT


def in_cluster_config(directory: Path = SERVICE_ACCOUNT) -> RestConfig:
    """The configuration from the pod's service account; raises DriverError outside a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise DriverError("no API server is named in the environment (KUBERNETES_SERVICE_HOST)")
    _read_text(directory / "ca.crt")
    token = _TokenFile(directory / "token")
    token()
    return RestConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authorization=token,
        ca_file=str(directory / "ca.crt"),
        proxy=_variable("https_proxy") or _variable("all_proxy"),
        no_proxy=_variable("no_proxy") or "",
    )


class _TokenFile:
    """The header for a token file that is replaced from time to time. Thread-safe: at worst the file is read twice."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header = ""
        self._read_at = 0.0

    def __call__(self) -> str:
        if not self._header or time.monotonic() - self._read_at >= TOKEN_SECONDS:
            self._header = f"Bearer {_read_text(self._file)}"
            self._read_at = time.monotonic()
        return self._header


def config_from_kubeconfig(path: str | None, context: str | None = None) -> RestConfig:
    """The configuration from a kubeconfig; raises DriverError if it cannot be used.

    Args:
        path: file, or several separated by colons; None is ``$KUBECONFIG`` or ``~/.kube/config``.
        context: name; None is the current context.
    """
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    configuration, file = Configuration(host=""), _location(path)
    try:
        # The client ships no types for this function.
        load_kube_config(file, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise DriverError(str(error)) from error
    except (TypeError, AttributeError, LookupError) as error:  # the loader does not validate
        raise DriverError("it is not a kubeconfig") from error
    if not configuration.host:
        raise DriverError("its cluster has no server")
    lock = threading.Lock()

    def authorization() -> str:
        try:
            with lock:  # otherwise each thread would run the exec plugin
                return configuration.get_api_key_with_prefix("BearerToken") or ""
        except ConfigException as error:
            raise DriverError(str(error)) from error

    return RestConfig(
        server=configuration.host,
        authorization=authorization,
        ca_file=configuration.ssl_ca_cert,
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
        verify=configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        no_proxy=configuration.no_proxy or "",
    )


class MissingKubeconfigError(DriverError):
    """There is no kubeconfig; the text says where it was looked for."""


def _location(path: str | None) -> str:
    """Where the kubeconfig is; raises MissingKubeconfigError.

    The client reads the variable only when it is imported, and does not say where it has looked.
    """
    variable = os.environ.get("KUBECONFIG")
    paths = path or variable or str(Path("~/.kube/config").expanduser())
    if any(os.path.exists(name) for name in paths.split(os.pathsep)):  # noqa: PTH110 - of a colon, Path knows nothing
        return paths
    if path:
        why = f"{path} does not exist"
    elif variable:
        why = f"$KUBECONFIG names {variable}, which does not exist"
    else:
        why = "$KUBECONFIG is not set, and ~/.kube/config does not exist"
    raise MissingKubeconfigError(f"no kubeconfig: {why}", remedy="give --kubeconfig FILE")


def context_namespace(path: str | None, context: str | None = None) -> str:
    """The namespace of a kubeconfig's context, ``default`` if it names none; arguments and errors as above."""
    from kubernetes.config import ConfigException, list_kube_config_contexts

    file = _location(path)
    remedy = f"check {file}"
    try:
        # The client ships no types for this function.
        contexts, current = list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        named = {item["name"]: item["context"] for item in contexts}
        chosen = named[context] if context is not None else current["context"]
        return str(chosen.get("namespace") or "default")
    except Exception as error:  # the loader does not validate; malformed YAML raises exceptions of any type
        reason = (
            " ".join(str(error).split())
            if isinstance(error, ConfigException)
            else f"it has no context {quoted(context)}"
            if context
            else "it has no current context"
        )
        raise DriverError(f"no namespace can be read from the kubeconfig: {reason}", remedy=remedy) from error


def without_credentials(text: str) -> str:
    """A text without the user names and passwords of the URLs in it."""
    return _USER_INFO.sub("", text)


def bypasses_proxy(server: str, no_proxy: str) -> bool:
    """Whether a server is reached directly, without the proxy.

    Args:
        server: URL.
        no_proxy: comma-separated entries as in Go's ``httpproxy``: ``*``, networks such as ``10.0.0.0/8``, addresses,
            and domains including their subdomains, with or without a port.
    """
    parts = urlsplit(server)
    host = parts.hostname or ""
    address = _network(host)
    for entry in (entry.strip().lower() for entry in no_proxy.split(",")):
        network = _network(entry)
        if entry == "*" or (address and network and address.version == network.version and address[0] in network):
            return True
        name, _, port = entry.rpartition(":") if entry.rpartition(":")[2].isdecimal() else (entry, "", "")
        name = name.strip("[]").lstrip(".")
        if name and port in ("", str(parts.port)) and (host == name or host.endswith(f".{name}")):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Response:
    """A successful response: HTTP status (2xx) and body."""

    status: int
    body: bytes | bytearray


class Stream:
    """Lines of a response that the server keeps open. Iterate in one thread; ``abort`` may be called from any."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._aborted = False

    def abort(self) -> None:
        """End the iteration at once, even if it is blocked in a read. May be called more than once."""
        self._aborted = True
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            log.debug("the stream had ended already")  # no reader is left to wake

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over complete lines without line ends.

        Raises Unreachable if the connection is lost, TooLarge for a line of more than ``MAX_OBJECT_BYTES``.
        """
        pending = bytearray()
        try:
            for chunk in self._response.stream(_CHUNK, decode_content=True):
                pending += chunk
                if b"\n" not in chunk:
                    if len(pending) > MAX_OBJECT_BYTES:
                        raise _too_large("a watch event", MAX_OBJECT_BYTES)
                    continue
                *lines, rest = pending.split(b"\n")
                pending = rest
                for line in lines:
                    if line:
                        yield bytes(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._aborted:
                raise Unreachable(f"the watch was lost: {_cause(error)}") from error


class _Limits(threading.local):
    """What bounds the answer that a thread waits for: urllib3 hands no more than one time to a connection."""

    whole: float = math.inf
    """Seconds for all of it."""


_limits: Final = _Limits()


class _Reader(socket.SocketIO):
    """Reads a connection until the end of an answer's time, however slowly the answer comes."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected, "r")
        connected._io_refs += 1  # type: ignore[attr-defined] # noqa: SLF001 # as socket.makefile does it
        self._connected = connected
        self.end = time.monotonic() + _limits.whole

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """See ``io.RawIOBase``."""
        if self.end == math.inf:
            return super().readinto(buffer)
        left = self.end - time.monotonic()
        idle = self._connected.gettimeout()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(left if idle is None else min(idle, left))
        try:
            return super().readinto(buffer)
        finally:
            self._connected.settimeout(idle)


class _Answer(http.client.HTTPResponse):
    """An answer that has an end, its headers included: a socket bounds the time between two bytes only."""

    def __init__(self, sock: socket.socket, *rest: Any, **options: Any) -> None:
        super().__init__(sock, *rest, **options)
        self.fp.close()
        self.reader = _Reader(sock)
        self.fp = io.BufferedReader(self.reader)


class _HttpConnection(urllib3.connection.HTTPConnection):
    response_class = _Answer


class _HttpsConnection(urllib3.connection.HTTPSConnection):
    response_class = _Answer


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


_POOLS: Final = {"http": _HttpPool, "https": _HttpsPool}


class _Endpoint:
    """The connections opened with one configuration. Raises DriverError if the configuration cannot be used."""

    def __init__(self, config: RestConfig) -> None:
        self.config = config
        self._urlopen: Callable[..., urllib3.BaseHTTPResponse]
        self.proxy = config.proxy
        server = config.server.rstrip("/")
        try:
            _check_files(config)
            if not self.proxy or bypasses_proxy(server, config.no_proxy):
                self.proxy = None
                self._manager = urllib3.PoolManager(**_pool_options(config))
                self._manager.pool_classes_by_scheme = _POOLS
                self._urlopen = self._manager.connection_from_url(server).urlopen
                self._base = urllib3.util.parse_url(server).path or ""
            else:
                headers = _proxy_headers(self.proxy)
                self._manager = urllib3.ProxyManager(self.proxy, proxy_headers=headers, **_pool_options(config))
                self._manager.pool_classes_by_scheme = _POOLS
                self._manager.connection_from_url(server)  # checks the URL
                self._urlopen = self._manager.urlopen
                self._base = server
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            # A URL that cannot be parsed is repeated by whoever says so.
            text = without_credentials(f"{config.server} cannot be reached{self.via}: {error}")
            raise DriverError(text) from None

    def close(self) -> None:
        """Close idle connections; no more requests can be sent."""
        self._manager.clear()

    @property
    def via(self) -> str:
        """The proxy in use, for error messages; never includes its credentials."""
        try:
            return f" through proxy {urlsplit(self.proxy).hostname}" if self.proxy else ""
        except ValueError:  # the URL cannot be parsed
            return " through the proxy"

    def send(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None, timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; returns the response with its body unread."""
        return self._urlopen(
            method,
            self._base + target,
            body=body,
            headers=headers,
            retries=_NO_RETRIES,
            redirect=False,
            timeout=timeout,
            preload_content=False,
        )


class Transport:
    """Requests to one API server with its credentials. Thread-safe.

    Args:
        config: address and credentials.
        reload: returns a new configuration; called once when the server answers 401.
        user_agent: ``User-Agent`` of every request.

    Raises:
        DriverError: the URL of the server or of its proxy is invalid.
    """

    def __init__(
        self, config: RestConfig, reload: Callable[[], RestConfig] | None = None, user_agent: str = "dra-driver"
    ) -> None:
        self._reload = reload
        self._endpoint = _Endpoint(config)
        self._lock = threading.Lock()
        self._user_agent = user_agent
        self.server = without_credentials(config.server)
        self._heard: Callable[[Unreachable | None], None] = lambda _: None

    @classmethod
    def in_cluster(
        cls, user_agent: str = "dra-driver", directory: Path = SERVICE_ACCOUNT, place: str = "here"
    ) -> Transport:
        """Use the pod's service account; raises DriverError outside a pod."""
        remedy = "run inside a pod, or give a kubeconfig"
        return cls._load(lambda: replace(in_cluster_config(directory), place=place), user_agent, remedy)

    @classmethod
    def from_kubeconfig(
        cls,
        path: str | None,
        context: str | None = None,
        user_agent: str = "dra-driver",
        *,
        place: str = "here",
        user: str = "",
        timeout: float = READ_TIMEOUT,
    ) -> Transport:
        """Use a kubeconfig; None is ``$KUBECONFIG`` or ``~/.kube/config``. For the others see ``RestConfig``.

        Raises:
            DriverError: it is unusable. ModuleNotFoundError: the official client, which reads it, is not installed.
        """
        remedy = f"check {path or 'the kubeconfig file'} and its {context or 'current'} context"

        def load() -> RestConfig:
            return replace(config_from_kubeconfig(path, context), place=place, user=user, timeout=timeout)

        return cls._load(load, user_agent, remedy)

    @classmethod
    def _load(cls, load: Callable[[], RestConfig], user_agent: str, remedy: str) -> Transport:
        try:
            return cls(load(), load, user_agent)
        except (ModuleNotFoundError, MissingKubeconfigError):  # how the official client is to be had, the program knows
            raise
        except Exception as error:  # malformed YAML, TLS files or missing keys raise exceptions of any type
            reason = " ".join(str(error).split())
            raise DriverError(f"no access to the API server is configured: {reason}", remedy=remedy) from error

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            used, self._endpoint = self._endpoint, _Endpoint(self._endpoint.config)
        used.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content_type: str = JSON,
        timeout: float | None = None,
        whole: float | None = None,
        most: int = MAX_OBJECT_BYTES,
    ) -> Response:
        """Send a request and read the response.

        Args:
            method: HTTP method.
            path: absolute path.
            query: query parameters.
            body: plain JSON value (the result of ``msgspec.to_builtins``), or None for a request without a body.
            content_type: media type of the body: JSON, or a format that includes JSON (YAML, patches).
            timeout: seconds without a byte after which the request is given up, also while connecting; None: as
                configured.
            whole: seconds for the whole answer; None: ``timeout``, or ``WHOLE_ANSWER`` times what is configured.
            most: bytes of the body that are read, after it was unpacked.

        Raises:
            ApiError: any status other than 2xx.
            TooLarge: the body has more bytes.
            Unreachable: no response.
        """
        limit = self._endpoint.config.timeout if timeout is None else timeout
        _limits.whole = whole or timeout or WHOLE_ANSWER * limit
        endpoint, answer = self._open(method, path, query, body, content_type, limit)
        if not 200 <= answer.status < 300:
            raise _refusal(endpoint, method, path, answer)
        return Response(answer.status, _read(endpoint, method, path, answer, most))

    @contextmanager
    def stream(self, path: str, *, query: Query = (), timeout: float) -> Iterator[Stream]:
        """GET a response that stays open, line by line.

        Args:
            path: absolute path.
            query: query parameters.
            timeout: seconds without a byte, once the response has begun, after which the connection counts as lost.

        Raises:
            ApiError: any status other than 2xx.
            Unreachable: no response.
        """
        _limits.whole = WHOLE_ANSWER * self._endpoint.config.timeout
        endpoint, answer = self._open("GET", path, query, None, JSON, self._endpoint.config.timeout)
        try:
            if not 200 <= answer.status < 300:
                raise _refusal(endpoint, "GET", path, answer)
            connection = answer.connection
            if isinstance(connection, urllib3.connection.HTTPConnection) and connection.sock is not None:
                connection.sock.settimeout(timeout)
            begun = getattr(answer, "_original_response", None)
            if isinstance(begun, _Answer):
                begun.reader.end = math.inf
            yield Stream(answer)
        finally:
            answer.close()

    def follow(self, heard: Callable[[Unreachable | None], None]) -> None:
        """Have ``heard`` called with each answer (None), and with each error that there is none; by any thread."""
        self._heard = heard

    def _open(
        self, method: str, path: str, query: Query, body: object, content_type: str, timeout: float
    ) -> tuple[_Endpoint, urllib3.BaseHTTPResponse]:
        """The endpoint that answered and its response, with the body unread; tells who follows."""
        try:
            answered = self._tried(method, path, query, body, content_type, timeout)
        except Unreachable as error:
            self._heard(error)
            raise
        self._heard(None)
        return answered

    def _tried(
        self, method: str, path: str, query: Query, body: object, content_type: str, timeout: float
    ) -> tuple[_Endpoint, urllib3.BaseHTTPResponse]:
        """The same, after a retry where that is harmless."""
        words = "&".join(f"{quote(name)}={quote(value)}" for name, value in query)
        target = f"{path}?{words}" if words else path
        headers = {"Accept": JSON, "User-Agent": self._user_agent}
        if self._endpoint.config.user:
            headers["Impersonate-User"] = self._endpoint.config.user
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = msgspec.json.encode(body)
        limits = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, timeout), read=timeout)
        endpoint = self._endpoint
        try:
            answer = _send(endpoint, method, target, headers, data, limits)
        except Unreachable as error:
            if method != "GET" or not _swallowed_by_idle_connection(error.__cause__):
                raise
            answer = _send(endpoint, method, target, headers, data, limits)
        if answer.status == 401 and self._reload is not None:
            answer.close()  # its body is not needed
            endpoint = self._reloaded(endpoint, self._reload, method, path)
            answer = _send(endpoint, method, target, headers, data, limits)
        return endpoint, answer

    def _reloaded(self, refused: _Endpoint, reload: Callable[[], RestConfig], method: str, path: str) -> _Endpoint:
        """An endpoint with fresh credentials: new connections, since a client certificate is tied to its connection."""
        with self._lock:
            if self._endpoint is refused:  # no other thread has replaced it yet
                try:
                    self._endpoint = _Endpoint(reload())
                except Exception as error:  # see _load
                    raise _unreachable(refused, method, path, error) from error
            return self._endpoint


def _send(
    endpoint: _Endpoint,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes | None,
    timeout: urllib3.Timeout,
) -> urllib3.BaseHTTPResponse:
    path = target.partition("?")[0]
    try:
        authorization = endpoint.config.authorization()
        if authorization:
            headers = headers | {"Authorization": authorization}
        answer = endpoint.send(method, target, headers, body, timeout)
    except (urllib3.exceptions.HTTPError, DriverError, OSError) as error:
        raise _unreachable(endpoint, method, path, error) from error
    except ValueError as error:
        # http.client repeats the header, which may contain the token, in its message.
        del error
        raise Unreachable(
            f"{method} {path} was not sent: the credentials cannot be put into an HTTP header",
            remedy="check the token file or kubeconfig for line breaks and control characters",
        ) from None
    log.debug("%s %s: %d", method, path, answer.status)
    return answer


def _read(
    endpoint: _Endpoint, method: str, path: str, answer: urllib3.BaseHTTPResponse, most: int
) -> bytes | bytearray:
    """The body, unpacked; TooLarge if it has more than ``most`` bytes, of which no more are held in memory."""
    body = bytearray()
    try:
        while chunk := answer.read(_CHUNK):
            body += chunk
            if len(body) > most:
                answer.close()  # what is left of it is not waited for
                raise _too_large(f"the answer to {method} {path}", most)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _unreachable(endpoint, method, path, error) from error
    return body


def _refusal(endpoint: _Endpoint, method: str, path: str, answer: urllib3.BaseHTTPResponse) -> ApiError:
    """Of a response that is no success."""
    body = bytearray()
    try:
        while len(body) < MAX_REFUSAL_BYTES and (chunk := answer.read(MAX_REFUSAL_BYTES - len(body))):
            body += chunk
        if len(body) == MAX_REFUSAL_BYTES:
            answer.close()  # what is left of it is not waited for
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _unreachable(endpoint, method, path, error) from error
    return refusal(method, path, answer.status, body, answer.headers.get("Retry-After"))


def _too_large(what: str, most: int) -> TooLarge:
    return TooLarge(
        f"{what} has more than {most >> 20} MiB, and was not read",
        remedy="check whether a proxy or something else than the API server answers at this address",
    )


def _unreachable(endpoint: _Endpoint, method: str, path: str, error: BaseException) -> Unreachable:
    remedy = f"check that the API server is up and reachable from {endpoint.config.place}"
    if isinstance(error, urllib3.exceptions.SSLError):
        remedy = "check the certificate authority in the kubeconfig or pod, and whether a proxy answers at this address"
    text = f"the API server {endpoint.config.server} did not answer {method} {path}{endpoint.via}: {_cause(error)}"
    return Unreachable(without_credentials(text), remedy=remedy)


def _swallowed_by_idle_connection(error: BaseException | None) -> bool:
    """Whether the connection was closed before any byte of an answer (an idle one that the server had closed)."""
    while error is not None:
        if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _cause(error: BaseException) -> str:
    """A short description of an error; urllib3's own messages repeat the host."""
    text = str(error)
    if isinstance(error, urllib3.exceptions.ProxyError):
        return f"{error.args[0]}: {_cause(error.original_error)}"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return text.rpartition(": ")[2]
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return "no connection in time"
    if isinstance(error, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.ProtocolError) and len(error.args) > 1:
        return str(error.args[1])
    return text or type(error).__name__


def _check_files(config: RestConfig) -> None:
    """Raise DriverError that names an unusable file, instead of an OpenSSL error code at the first request."""
    if not config.server.startswith("https:"):
        return
    context = urllib3.util.ssl_.create_urllib3_context()
    try:
        what = "the certificate of its authority"
        if config.ca_file:
            context.load_verify_locations(config.ca_file)
        what = "the certificate of the client, or its key,"
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
    except (OSError, ValueError) as error:  # OpenSSL's errors are OSErrors
        raise DriverError(f"{what} cannot be used: {error}") from error


def _pool_options(config: RestConfig) -> dict[str, Any]:
    if not config.verify:
        # The kubeconfig requests this explicitly; a warning per request would add nothing.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return {
        "maxsize": POOL_SIZE,
        "socket_options": _KEEP_ALIVE,
        "cert_reqs": "CERT_REQUIRED" if config.verify else "CERT_NONE",
        "ca_certs": config.ca_file,
        "cert_file": config.cert_file,
        "key_file": config.key_file,
        **({"server_hostname": config.tls_server_name} if config.tls_server_name else {}),
    }


def _proxy_headers(proxy: str) -> dict[str, str]:
    """User name and password from a proxy's URL, as a header."""
    user, at, _ = urlsplit(proxy).netloc.rpartition("@")
    return urllib3.make_headers(proxy_basic_auth=unquote(user)) if at else {}


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _variable(name: str) -> str | None:
    """An environment variable in lower case or, the more common form, in upper case."""
    return os.environ.get(name) or os.environ.get(name.upper()) or None


def _read_text(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise DriverError(f"cannot read {path}: {error}") from error
    if not text:
        raise DriverError(f"{path} is empty")
    return text
