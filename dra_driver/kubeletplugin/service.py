"""The DRA gRPC service, every version over one core.

Claims of one call are independent: each gets a reply entry of its own, with an error or a result, whatever happens
to the others. Only a request that is no message at all fails as a whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import grpc

from dra_driver.kubeletplugin.api import dra_v1_pb2, dra_v1beta1_pb2
from dra_driver.kubeletplugin.keyedlock import KeyedLock
from dra_driver.kubeletplugin.logcontext import operation_id
from dra_driver.kubeletplugin.plugin import ClaimRef, DRAPlugin, PreparedDevice
from dra_driver.kubeletplugin.rpc import Method
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line, quoted_ascii

log = logging.getLogger(__name__)

CALL_SECONDS = 45.0
"""kubelet gives up on a call after this time, and asks again later."""

ANSWER_SECONDS = 2.0
"""How long before kubelet gives up everything is to be answered, so that the explanations still arrive."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the DRA interface.

    Attributes:
        name: what kubelet knows it by in ``supported_versions``.
        messages: module of its messages.
        share_ids: whether a device can carry a share id.
    """

    name: str
    messages: ModuleType
    share_ids: bool


VERSIONS: Mapping[str, Version] = {
    version.name: version
    for version in (
        Version("v1.DRAPlugin", dra_v1_pb2, share_ids=True),
        Version("v1beta1.DRAPlugin", dra_v1beta1_pb2, share_ids=False),
    )
}
"""All versions, the preferred first: kubelet takes the first of the list that it has too."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a claim failed: one line, at most 1 KiB."""

    text: str


Act: TypeAlias = Callable[[ClaimRef, float], list[PreparedDevice] | None]
Outcome: TypeAlias = list[PreparedDevice] | Failure | None


class DRAService:
    """Serves the DRA versions for one plugin.

    Args:
        plugin: the driver.
        on_exit: called with the exception if a method of the plugin raised SystemExit.
    """

    def __init__(self, plugin: DRAPlugin, on_exit: Callable[[BaseException], None]) -> None:
        self._plugin = plugin
        self._on_exit = on_exit
        self._locks = KeyedLock()

    def methods(self, versions: Iterable[str]) -> list[Method]:
        """The methods of the named versions (keys of VERSIONS)."""
        return [method for name in versions for method in self._methods(VERSIONS[name])]

    def _methods(self, version: Version) -> list[Method]:
        messages = version.messages
        service = messages.DESCRIPTOR.services_by_name["DRAPlugin"].full_name

        def prepare(request: Any, context: grpc.ServicerContext) -> Any:
            reply = messages.NodePrepareResourcesResponse()
            for uid, outcome in self._run("prepare", request.claims, self._plugin.prepare, context).items():
                _fill_prepared(version, reply.claims[uid], uid, outcome)
            return reply

        def unprepare(request: Any, context: grpc.ServicerContext) -> Any:
            reply = messages.NodeUnprepareResourcesResponse()
            for uid, outcome in self._run("unprepare", request.claims, self._plugin.unprepare, context).items():
                reply.claims[uid].error = outcome.text if isinstance(outcome, Failure) else ""
            return reply

        return [
            Method(f"/{service}/NodePrepareResources", messages.NodePrepareResourcesRequest, prepare),
            Method(f"/{service}/NodeUnprepareResources", messages.NodeUnprepareResourcesRequest, unprepare),
        ]

    def _run(self, verb: str, claims: Iterable[Any], act: Act, context: grpc.ServicerContext) -> dict[str, Outcome]:
        """The outcome by UID. One after the other: kubelet sends the claims of one pod, mostly one.

        Each may take an equal part of the time that is left, so that one that hangs leaves the others theirs.
        """
        given_up = time.monotonic() + min(context.time_remaining(), CALL_SECONDS)
        asked = distinct(ClaimRef(c.namespace, c.name, c.uid) for c in claims)
        outcomes: dict[str, Outcome] = {}
        for uid, claim in asked.items():
            now = time.monotonic()
            if isinstance(claim, Failure):
                log.warning("%s of claim UID %s refused: %s", verb, quoted_ascii(uid), claim.text)
                outcomes[uid] = claim
            elif not context.is_active() or now > given_up:
                outcomes[uid] = Failure(f"{verb} of claim {claim} was not begun: kubelet had given up on the call")
            else:
                part = (given_up - ANSWER_SECONDS - now) / (len(asked) - len(outcomes))
                outcomes[uid] = self._one(verb, claim, act, now + part)
        return outcomes

    def _one(self, verb: str, claim: ClaimRef, act: Act, deadline: float) -> Outcome:
        started = time.monotonic()
        with self._locks.held(claim.uid, deadline - started) as alone:
            if not alone:
                text = (
                    f"{verb} of claim {claim}: an earlier call for this claim still runs after "
                    f"{time.monotonic() - started:.0f} s; kubelet will ask again"
                )
                log.warning("%s", text)
                return Failure(text)
            return self._guarded(verb, claim, act, deadline)

    def _guarded(self, verb: str, claim: ClaimRef, act: Act, deadline: float) -> Outcome:
        try:
            return act(claim, deadline)
        except DriverError as error:
            text = one_line(str(error))
            log.warning("%s of claim %s refused: %s", verb, claim, text)
        except BaseException as error:
            log.exception("%s of claim %s failed", verb, claim)
            text = _internal_error(error)
            if isinstance(error, SystemExit):
                self._on_exit(error)
        return Failure(text or "refused without a reason")


def _internal_error(error: BaseException) -> str:
    what = one_line(f"{type(error).__name__}: {error}", 800)
    return f"internal error of the driver: {what}; its log has more under operation {operation_id()}"


def distinct(claims: Iterable[ClaimRef]) -> dict[str, ClaimRef | Failure]:
    """The claims by UID in the order asked, malformed ones and contradicting repetitions as failures."""
    found: dict[str, ClaimRef | Failure] = {}
    for claim in claims:
        problem = claim.problem()
        if problem:
            found[claim.uid] = Failure(f"malformed claim: {problem}")
        elif found.setdefault(claim.uid, claim) != claim:
            found[claim.uid] = Failure(f"the request names several claims with the UID {claim.uid}; none was touched")
    return found


def base_requests(requests: Iterable[str]) -> list[str]:
    """Names of requests without the subrequest, each once: what containers refer to."""
    return list(dict.fromkeys(request.partition("/")[0] for request in requests))


def _fill_prepared(version: Version, entry: Any, uid: str, outcome: Outcome) -> None:
    if isinstance(outcome, Failure):
        entry.error = outcome.text
        return
    try:
        for device in outcome or ():
            message = entry.devices.add(
                request_names=base_requests(device.requests),
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=device.cdi_device_ids,
            )
            if version.share_ids and device.share_id is not None:
                message.share_id = device.share_id
    except Exception as error:
        log.exception("prepare of claim UID %s gave devices that cannot be sent", uid)
        del entry.devices[:]
        entry.error = _internal_error(error)
