"""The registration service, and what kubelet said about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.kubelet.api import pluginregistration_v1_pb2 as api
from dra_driver.kube.kubelet.grpcserver import Method
from dra_driver.util import runtime
from dra_driver.util.text import one_line

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"

_SERVICE = api.DESCRIPTOR.services_by_name["Registration"].full_name

OnRegistered = Callable[[bool, str], None]
"""Called with (True, "") for every successful registration and (False, kubelet's error) for every refusal."""


class RegistrationState(Enum):
    """What kubelet said last."""

    WAITING = "waiting"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Registration:
    """How registration stands.

    Attributes:
        state: what kubelet said last; there is no message for "kubelet is gone".
        error: kubelet's text of a refusal, one line; otherwise "".
        since: when kubelet said so (Unix seconds), or when the plugin was made.
        registrations: how often kubelet has registered the plugin; above 1 kubelet or the socket came back.
        refusals: how often it refused.
    """

    state: RegistrationState
    error: str
    since: float
    registrations: int = 0
    refusals: int = 0

    def problem(self) -> str | None:
        """Why the plugin is not registered, for a health report, or None."""
        return {
            RegistrationState.REGISTERED: None,
            RegistrationState.WAITING: "kubelet has not registered the driver yet",
            RegistrationState.REFUSED: f"kubelet refused to register the driver: {self.error}",
        }[self.state]


REASONS: Sequence[tuple[str, str]] = (
    ("not supported", "kubelet knows none of the offered versions: v1.DRAPlugin needs 1.34, v1beta1.DRAPlugin 1.32"),
    ("version", "kubelet knows none of the offered versions: v1.DRAPlugin needs 1.34, v1beta1.DRAPlugin 1.32"),
    ("endpoint", "another instance of the driver has the same service socket: give each its pod UID"),
    ("already registered", "another instance of the driver has the same service socket: give each its pod UID"),
    ("handler", "DRA is off in this kubelet: it is on from 1.34, before that by the gate DynamicResourceAllocation"),
    ("deadline", "kubelet could not reach the driver in time: the node is overloaded or the socket is not mounted"),
    ("dial", "kubelet could not open the socket: it must have the same path in the pod and on the host"),
)
"""Likely reasons by a word of kubelet's text, the first that matches."""


def explanation(error: str) -> str:
    """The likely reason for kubelet's text, or a hint where to look."""
    lower = error.lower()
    return next((reason for word, reason in REASONS if word in lower), "kubelet's own log has more")


class Registrar:
    """The registration service of one driver.

    Args:
        driver_name: name of the driver.
        endpoint: path of the socket with the DRA service.
        versions: offered versions, the preferred first.
        on_registered: see OnRegistered; runs in a thread of its own, so that it holds up no other call.
    """

    def __init__(self, driver_name: str, endpoint: Path, versions: Sequence[str], on_registered: OnRegistered) -> None:
        self._info = api.PluginInfo(
            type=PLUGIN_TYPE, name=driver_name, endpoint=str(endpoint), supported_versions=versions
        )
        self._on_registered = on_registered
        self._lock = runtime.lock()
        self._registration = Registration(RegistrationState.WAITING, "", runtime.now())

    @property
    def registration(self) -> Registration:
        """How registration stands."""
        return self._registration

    def methods(self) -> list[Method]:
        """The methods of the service."""
        return [
            Method(f"/{_SERVICE}/GetInfo", api.InfoRequest, self._get_info),
            Method(f"/{_SERVICE}/NotifyRegistrationStatus", api.RegistrationStatus, self._notify),
        ]

    def _get_info(self, request: Any, context: grpc.ServicerContext) -> Any:
        del request, context
        log.info("kubelet asks who %s is", self._info.name)
        return self._info

    def _notify(self, request: Any, context: grpc.ServicerContext) -> Any:
        del context
        ok = bool(request.plugin_registered)
        error = "" if ok else one_line(request.error) or "no reason given"
        with self._lock:
            before = self._registration
            self._registration = Registration(
                state=RegistrationState.REGISTERED if ok else RegistrationState.REFUSED,
                error=error,
                since=runtime.now(),
                registrations=before.registrations + ok,
                refusals=before.refusals + (not ok),
            )
        if ok:
            log.info("kubelet has registered %s", self._info.name)
        else:
            log.error(
                "kubelet refused to register %s: %s; no claim can be prepared on this node; likely reason: %s; "
                "kubelet retries automatically",
                self._info.name,
                error,
                explanation(error),
            )
        runtime.spawn(lambda: self._tell(ok, error), name="on-registered")
        return api.RegistrationStatusResponse()

    def _tell(self, registered: bool, error: str) -> None:
        try:
            self._on_registered(registered, error)
        except Exception:
            log.exception("the driver's reaction to its registration failed")
