"""Requests to the API server through the official client's lowest layer (see ``dra_driver.kube.client``).

The client brings credentials (in-cluster and kubeconfig), TLS, proxies and pooled connections. Its models are not used:
loading them costs 25 MB and half a second. Nothing is retried here but what is certain to be harmless: a request that a
server-closed idle connection swallowed (reads only), and one 401 after the token was read again.
"""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import urllib3

from dra_driver.kube.client import (
    SERVICE_ACCOUNT,
    Configuration,
    OpenApiException,
    RESTClientObject,
    get_refresh,
    load_service_account,
    set_refresh,
)
from dra_driver.kube.errors import ApiError, Unreachable, refusal
from dra_driver.util.errors import DriverError

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to open a connection, where the answer may take as long or longer."""
READ_TIMEOUT: Final = 15.0
"""Seconds without a byte before a request is given up."""
POOL_SIZE: Final = 32
"""Idle connections kept. More may be open at once; those are closed after use."""
JSON: Final = "application/json"

Query = Sequence[tuple[str, str]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    """A success: HTTP status (2xx) and body."""

    status: int
    body: bytes


class Stream:
    """Lines of an answer that the server keeps open. Iterate in one thread; ``abort`` from any."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._aborted = False

    def abort(self) -> None:
        """End the iteration at once, even one that waits for bytes. May be called more than once."""
        self._aborted = True
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            log.debug("the stream had ended already")  # nothing is left to wake

    def __iter__(self) -> Iterator[bytes]:
        """Complete lines without their end; raises Unreachable when the connection is lost."""
        pending = bytearray()
        try:
            for chunk in self._response.stream(65536, decode_content=True):
                pending += chunk
                *lines, rest = pending.split(b"\n")
                pending = rest
                for line in lines:
                    if line:
                        yield bytes(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._aborted:
                raise Unreachable(f"the watch was lost: {_cause(error)}") from error


class Transport:
    """One API server and the credentials for it. Thread-safe.

    Args:
        configuration: the client's configuration: host, TLS, credentials.
        reload: reads the credentials into the configuration again; called once when the server answers 401.
        user_agent: ``User-Agent`` of every request.
    """

    def __init__(
        self,
        configuration: Configuration,
        reload: Callable[[Configuration], None] | None = None,
        user_agent: str = "dra-driver",
    ) -> None:
        configuration.retries = False
        configuration.keep_alive = True
        configuration.connection_pool_maxsize = POOL_SIZE
        self._reload = reload
        self._configuration = configuration
        self._client = RESTClientObject(configuration)
        self._user_agent = user_agent
        self.server = str(configuration.host)

    @classmethod
    def in_cluster(cls, user_agent: str = "dra-driver", directory: Path = SERVICE_ACCOUNT) -> Transport:
        """With the service account of the pod; DriverError outside a pod."""

        def load(configuration: Configuration) -> None:
            load_service_account(configuration, directory)

        return cls._load(load, user_agent, "run inside a pod, or give a kubeconfig")

    @classmethod
    def from_kubeconfig(cls, path: str | None, context: str | None = None, user_agent: str = "dra-driver") -> Transport:
        """With a kubeconfig file; None is ``$KUBECONFIG`` or ``~/.kube/config``. DriverError when it cannot be used."""

        def load(configuration: Configuration) -> None:
            from kubernetes.config import ConfigException, load_kube_config  # 7 MB that a pod does not need

            try:
                # The client ships no types for this function.
                load_kube_config(path, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
            except ConfigException as error:
                raise DriverError(str(error)) from error
            except (TypeError, AttributeError, LookupError) as error:  # it takes for granted what is where
                raise DriverError("it is not a kubeconfig") from error
            renew = get_refresh(configuration)
            if renew is None:
                return

            def renewed(target: Configuration) -> None:
                try:
                    renew(target)
                except ConfigException as error:
                    raise DriverError(str(error)) from error

            set_refresh(configuration, renewed)

        file = path or "the kubeconfig file"
        return cls._load(load, user_agent, f"check {file} and its current context")

    @classmethod
    def _load(cls, load: Callable[[Configuration], None], user_agent: str, remedy: str) -> Transport:
        configuration = Configuration()
        try:
            load(configuration)
        except Exception as error:  # the loaders let through whatever YAML, TLS or a missing key raise
            reason = " ".join(str(error).split())
            raise DriverError(f"no access to the API server is configured: {reason}", remedy=remedy) from error
        return cls(configuration, load, user_agent)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> Response:
        """Send a request and read its answer.

        Args:
            method: HTTP method.
            path: absolute path.
            query: query parameters.
            body: plain JSON value (what ``msgspec.to_builtins`` gives), bytes for other content types, or None.
            content_type: of the body.
            timeout: seconds without a byte before it is given up, also while the connection is opened.

        Raises:
            ApiError: any status but 2xx.
            Unreachable: no answer.
        """
        answer = self._open(method, path, query, body, content_type, timeout)
        data = self._read(method, path, answer.response)
        if not 200 <= answer.status < 300:
            raise refusal(method, path, answer.status, data, answer.headers.get("Retry-After"))
        return Response(answer.status, data)

    @contextmanager
    def stream(self, path: str, *, query: Query = (), timeout: float) -> Iterator[Stream]:
        """GET an answer that stays open, line by line.

        Args:
            path: absolute path.
            query: query parameters.
            timeout: seconds without a byte, once the answer has begun, before it counts as lost.

        Raises:
            ApiError: any status but 2xx.
            Unreachable: no answer.
        """
        answer = self._open("GET", path, query, None, JSON, READ_TIMEOUT)
        response = answer.response
        try:
            if not 200 <= answer.status < 300:
                data = self._read("GET", path, response, 4096)
                raise refusal("GET", path, answer.status, data, answer.headers.get("Retry-After"))
            connection = response.connection
            if connection is not None and connection.sock is not None:
                connection.sock.settimeout(timeout)
            yield Stream(response)
        finally:
            response.close()

    def _open(self, method: str, path: str, query: Query, body: object, content_type: str, timeout: float) -> Any:
        """The answer with its body unread, after a second try where that is harmless."""
        try:
            answer = self._send(method, path, query, body, content_type, timeout)
        except Unreachable as error:
            if method != "GET" or not _swallowed_by_idle_connection(error.__cause__):
                raise
            answer = self._send(method, path, query, body, content_type, timeout)
        if answer.status != 401 or self._reload is None:
            return answer
        answer.response.drain_conn()  # as far as it comes: nobody wants this body, only the connection
        try:
            self._reload(self._configuration)
        except Exception as error:  # see _load
            raise self._unreachable(method, path, error) from error
        return self._send(method, path, query, body, content_type, timeout)

    def _send(self, method: str, path: str, query: Query, body: object, content_type: str, timeout: float) -> Any:
        headers = {"Accept": JSON, "User-Agent": self._user_agent}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            headers |= self._authorization()
            # The client ships no types for this method.
            answer = self._client.request(  # type: ignore[no-untyped-call]
                method, self._url(path, query), headers, body, _request_timeout=(min(CONNECT_TIMEOUT, timeout), timeout)
            )
        except (urllib3.exceptions.HTTPError, OpenApiException, DriverError, OSError) as error:
            raise self._unreachable(method, path, error) from error
        except ValueError as error:
            # http.client repeats the header in its text, and the header may be the token.
            del error
            raise Unreachable(
                f"{method} {path} was not sent: the credentials cannot be put into an HTTP header",
                remedy="check the token file or kubeconfig for line breaks and control characters",
            ) from None
        log.debug("%s %s: %d", method, path, answer.status)
        return answer

    def _read(self, method: str, path: str, response: urllib3.BaseHTTPResponse, most: int | None = None) -> bytes:
        """The body, or ``most`` bytes of it."""
        try:
            return response.read(most)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(method, path, error) from error

    def _authorization(self) -> dict[str, str]:
        """The header with the token, renewed if it is due; none for a client with a certificate."""
        setting = self._configuration.auth_settings().get("BearerToken")
        value = setting["value"] if setting else None
        return {"Authorization": value} if value else {}

    def _url(self, path: str, query: Query) -> str:
        words = "&".join(f"{quote(name)}={quote(value)}" for name, value in query)
        return f"{self.server}{path}?{words}" if words else f"{self.server}{path}"

    def _unreachable(self, method: str, path: str, error: BaseException) -> Unreachable:
        proxy = self._configuration.proxy
        via = f" through proxy {urlsplit(proxy).hostname}" if proxy else ""
        return Unreachable(
            f"the API server {self.server} gave no answer to {method} {path}{via}: {_cause(error)}",
            remedy="check that the API server is up and reachable from here",
        )


def _swallowed_by_idle_connection(error: BaseException | None) -> bool:
    """Whether the connection was closed before any byte of an answer (an idle one that the server had closed)."""
    while error is not None:
        if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _cause(error: BaseException) -> str:
    """A short text for an error; the client's own texts repeat the host."""
    text = str(error)
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return text.rpartition(": ")[2]
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return "no connection in time"
    if isinstance(error, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.ProtocolError) and len(error.args) > 1:
        return str(error.args[1])
    if isinstance(error, OpenApiException):  # TLS trouble: the reason is in the last of several lines
        text = text.strip().rpartition("\n")[2]
    return text or type(error).__name__


__all__ = ["JSON", "ApiError", "Query", "Response", "Stream", "Transport", "Unreachable"]
