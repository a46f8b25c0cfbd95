"""The official client without what a driver does not use, and the credentials of a pod.

Used of it: ``Configuration`` (host, TLS, proxy, credentials) and ``RESTClientObject`` (requests over pooled
connections). ``ApiClient``, one floor above, makes URLs and headers, which are a few lines here, and brings pydantic,
dateutil and multiprocessing with it. ``import kubernetes`` moreover loads all subpackages: streams, informers, the
dynamic client, a kubeconfig reader with OAuth, YAML. These are loaded only when somebody touches them (Python's own
``LazyLoader``; nothing is replaced). Resident memory of the import, kubernetes 37.0.2 on CPython 3.11 (3.13): all of it
25 MB, with ``ApiClient`` 18 (18) MB, as it is here 7 (6) MB. Touching ``kubernetes.config`` loads nearly everything
again, hence the few lines for a pod's credentials here.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from dra_driver.util.errors import DriverError

_LAZY: Final = frozenset(
    {
        "kubernetes.config",
        "kubernetes.dynamic",
        "kubernetes.informer",
        "kubernetes.leaderelection",
        "kubernetes.stream",
        "kubernetes.watch",
        "yaml",
    }
)


class _LazyFinder(importlib.abc.MetaPathFinder):
    """Finds what only parts of the client need, to be executed at its first use."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system."""
        if fullname not in _LAZY:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _LazyFinder())
try:
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import OpenApiException
    from kubernetes.client.rest import RESTClientObject
finally:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LazyFinder)]

__all__ = [
    "SERVICE_ACCOUNT",
    "Configuration",
    "OpenApiException",
    "RESTClientObject",
    "get_refresh",
    "load_service_account",
    "set_refresh",
]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet puts a pod's token and the cluster's certificate authority."""
TOKEN_SECONDS: Final = 60.0
"""A token is read again after so long; kubelet renews it at 80 % of its life."""


def load_service_account(
    configuration: Configuration,
    directory: Path = SERVICE_ACCOUNT,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Set host, certificate authority and a token that stays fresh. DriverError outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise DriverError("no API server is named in the environment (KUBERNETES_SERVICE_HOST)")
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = str(directory / "ca.crt")
    read_at = 0.0

    def refresh(target: Configuration) -> None:
        nonlocal read_at
        if not read_at or time.monotonic() - read_at >= TOKEN_SECONDS:
            target.api_key["BearerToken"] = f"bearer {_read(directory / 'token')}"
            read_at = time.monotonic()

    _read(directory / "ca.crt")
    refresh(configuration)
    set_refresh(configuration, refresh)


def set_refresh(configuration: Configuration, refresh: Callable[[Configuration], None]) -> None:
    """Have the client call ``refresh`` before it uses a token."""
    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment] # the client's own type is wrong


def get_refresh(configuration: Configuration) -> Callable[[Configuration], None] | None:
    """What the client calls before it uses a token."""
    hook: Callable[[Configuration], None] | None = vars(configuration).get("refresh_api_key_hook")
    return hook


def _read(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise DriverError(f"cannot read {path}: {error}") from error
    if not text:
        raise DriverError(f"{path} is empty")
    return text
