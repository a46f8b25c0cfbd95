"""The DRA gRPC service, every version over one core: what a driver implements, and how its answers reach kubelet.

Claims of one call are independent: each gets a reply entry of its own, with an error or a result, whatever happens to
the others. Only a request that is not a message of its type fails as a whole. Calls for one claim UID come one after
the other, and those for one namespace are so few at a time that they leave room for others, whatever they wait for.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import grpc

from dra_driver.kube.kubelet.api import dra_v1_pb2, dra_v1beta1_pb2
from dra_driver.kube.kubelet.grpcserver import Method
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import is_uid
from dra_driver.util.logs import operation_id
from dra_driver.util.text import one_line, quoted_ascii

_LABEL = r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?"
_NAMESPACE = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_MAX_SUBDOMAIN = 253


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim as kubelet names it.

    Attributes:
        namespace: namespace of the claim, a DNS label.
        name: name of the claim, a DNS subdomain.
        uid: UID of the claim; 1 to 64 characters that are safe in a file name, never starting with a dot.
    """

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"

    def problem(self) -> str | None:
        """What is wrong with the reference, naming the field and the value (cut to 80 characters), or None.

        The library asks this before a driver sees a claim: UIDs become file names, and a request may come from
        anything that can open the socket.
        """
        if not is_uid(self.uid):
            uid = quoted_ascii(self.uid)
            return f"uid {uid} is not a UID: 1 to 64 of 0-9 A-Z a-z . _ - and the first a letter or digit"
        if not _NAMESPACE.fullmatch(self.namespace):
            return f"namespace {quoted_ascii(self.namespace)} is not a DNS label"
        if len(self.name) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(self.name):
            return f"name {quoted_ascii(self.name)} is not a DNS subdomain of at most {_MAX_SUBDOMAIN} characters"
        return None


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device that is ready for containers.

    Attributes:
        requests: the claim's requests that the device was allocated for, as in the allocation (``request`` or
            ``request/subrequest``); the library sends kubelet the part before the slash. Empty: all requests.
        pool: pool of the device.
        device: name of the device in its pool.
        cdi_device_ids: qualified CDI names (``vendor/class=name``) that make the device visible in a container.
        share_id: id of the share if the device is shared between allocations; sent with DRA v1 only.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


_awaited: ContextVar[Callable[[], bool]] = ContextVar("awaited", default=lambda: True)


def is_awaited() -> bool:
    """Whether kubelet still waits for the call that this thread answers; True outside of calls.

    It does not once it has restarted, or has closed its connection to an instance whose registration has gone, as in an
    update. What it asks of another instance then does not wait for the call, and may contradict it.
    """
    return _awaited.get()()


class DRAPlugin(Protocol):
    """A DRA driver.

    Both methods are called from several threads at once, but never twice at the same time for one claim UID. kubelet
    repeats both: after an error, after its time limit of 45 s, and after a restart of itself or of the node. So both
    must be idempotent, and :meth:`prepare` of a claim that is already prepared must make sure that everything a
    container needs (CDI files are lost in a reboot) is still there.

    ``deadline`` is the reading of ``time.monotonic()`` by which a method is to return or raise: shortly before kubelet
    gives up on the call, and for one of several claims after its part of the time. What is not known by then is to be
    refused with a text that says so, because kubelet's next call for the claim waits until this one has ended. Where
    two instances run during an update, it does not: a method that took long asks :func:`is_awaited` before it changes
    what both of them keep.

    Any exception becomes the error of that one claim; its text reaches the pod's events. A
    :class:`dra_driver.util.errors.DriverError` counts as an explained refusal; any other exception is logged with its
    traceback. ``SystemExit`` also reaches ``on_error`` of the server.
    """

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        """Make the claim's devices ready, and return those allocated from this driver."""
        ...

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """Undo :meth:`prepare`. A claim that was never prepared is no error; the claim object may be gone."""
        ...


def is_driver_name(name: str) -> bool:
    """Whether ``name`` can be a driver's: a DNS subdomain of at most 63 characters."""
    return len(name) <= 63 and _SUBDOMAIN.fullmatch(name) is not None


class KeyedLock:
    """Locks by key. Keys in use cost one lock each, others nothing."""

    def __init__(self) -> None:
        self._guard = runtime.lock()
        self._locks: dict[str, tuple[runtime.Lock, int]] = {}

    @contextmanager
    def hold(self, key: str, timeout: float) -> Iterator[bool]:
        """Hold the lock of ``key`` during the body.

        Args:
            key: what to lock.
            timeout: seconds to wait at most; negative counts as 0.

        Yields:
            Whether the lock was got; if not, the body runs without it.
        """
        with self._guard:
            lock, users = self._locks.get(key, (runtime.lock(), 0))
            self._locks[key] = (lock, users + 1)
        got = False
        try:
            got = lock.acquire(timeout=max(timeout, 0.0))
            yield got
        finally:
            if got:
                lock.release()
            with self._guard:
                _, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._locks)


@dataclass(slots=True)
class _Turns:
    running: int = 0
    patience: float = math.inf
    """Seconds that calls could still wait in all, at ``since``."""
    since: float = 0.0


class NamespaceTurns:
    """So many turns at a time for each namespace.

    Args:
        most: turns.
        seconds: that calls wait for one while all are taken: all of them together, and not each of hundreds, whose
            places others could have. It is so much again when one has been free for as long.
        rate: calls a second. Where so many end, as in a burst of claims that take little, calls wait on.
    """

    def __init__(self, most: int, seconds: float, rate: float) -> None:
        self.most = most
        self._seconds = seconds
        self._rate = rate
        self._changed = runtime.condition()
        self._namespaces: dict[str, _Turns] = {}
        """Those that have some, or had all of them a moment ago."""

    @contextmanager
    def turn(self, namespace: str, deadline: float) -> Iterator[bool]:
        """Have a turn during the body, or none if there is none in time: gives whether there is one."""
        with self._changed:
            while not (has_turn := self._of(namespace).running < self.most):
                now = runtime.monotonic()
                left = min(deadline - now, self._patience(self._of(namespace), now))
                if left <= 0:
                    break
                self._changed.wait(left)
            if has_turn:
                self._change(namespace, 1, 0.0)
        try:
            yield has_turn
        finally:
            if has_turn:
                with self._changed:
                    self._change(namespace, -1, 1 / self._rate)
                    self._changed.notify_all()

    def _of(self, namespace: str) -> _Turns:
        return self._namespaces.get(namespace) or _Turns()

    def _patience(self, turns: _Turns, now: float) -> float:
        change = now - turns.since
        return max(0.0, turns.patience - change) if turns.running == self.most else turns.patience + change

    def _change(self, namespace: str, running: int, patience: float) -> None:
        now, turns = runtime.monotonic(), self._of(namespace)
        left = min(self._seconds, self._patience(turns, now) + patience)
        self._namespaces[namespace] = _Turns(turns.running + running, left, now)
        self._namespaces = {
            name: of for name, of in self._namespaces.items() if of.running or self._patience(of, now) < self._seconds
        }


log = logging.getLogger(__name__)

PREPARE_TURNS, UNPREPARE_TURNS = 8, 4
"""Claims of one namespace at a time: three quarters of the calls that are answered at once. Pods have to end also where
preparations of others of their namespace take long."""
TURN_SECONDS = 2.0
TURN_RATE = 20.0
"""For a turn: see ``NamespaceTurns``. So n calls of one namespace, whatever they wait for, delay those of others by at
most 2 + n / 20 seconds, and all are served if each takes less than 0.4 s to prepare, or 0.2 s to unprepare."""
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
        self._turns = {
            "prepare": NamespaceTurns(PREPARE_TURNS, TURN_SECONDS, TURN_RATE),
            "unprepare": NamespaceTurns(UNPREPARE_TURNS, TURN_SECONDS, TURN_RATE),
        }

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
        given_up = runtime.monotonic() + min(context.time_remaining(), CALL_SECONDS)
        asked = distinct(ClaimRef(c.namespace, c.name, c.uid) for c in claims)
        outcomes: dict[str, Outcome] = {}
        token = _awaited.set(context.is_active)
        try:
            for uid, claim in asked.items():
                now = runtime.monotonic()
                if isinstance(claim, Failure):
                    log.warning("%s of claim UID %s refused: %s", verb, quoted_ascii(uid), claim.text)
                    outcomes[uid] = claim
                elif not is_awaited() or now > given_up:
                    outcomes[uid] = Failure(f"{verb} of claim {claim} was not begun: kubelet had given up on the call")
                else:
                    part = (given_up - ANSWER_SECONDS - now) / (len(asked) - len(outcomes))
                    outcomes[uid] = self._one(verb, claim, act, now + part)
        finally:
            _awaited.reset(token)
        return outcomes

    def _one(self, verb: str, claim: ClaimRef, act: Act, deadline: float) -> Outcome:
        started = runtime.monotonic()
        turns = self._turns[verb]
        # In this order: calls for one claim that wait for each other have turns, too.
        with turns.turn(claim.namespace, deadline) as has_turn:
            if not has_turn:
                return self._too_early(verb, claim, f"{turns.most} others of its namespace take long")
            with self._locks.hold(claim.uid, deadline - runtime.monotonic()) as alone:
                if not alone:
                    waited = f"{runtime.monotonic() - started:.0f} s"
                    return self._too_early(verb, claim, f"an earlier call for this claim still runs after {waited}")
                outcome = self._guarded(verb, claim, act, deadline)
        if not isinstance(outcome, Failure):
            log.info("%s of claim %s done in %.1f ms", verb, claim, (runtime.monotonic() - started) * 1000)
        return outcome

    def _too_early(self, verb: str, claim: ClaimRef, why: str) -> Failure:
        text = f"{verb} of claim {claim}: {why}; kubelet will retry"
        log.warning("%s", text)
        return Failure(text)

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
    by_uid: dict[str, ClaimRef | Failure] = {}
    for claim in claims:
        problem = claim.problem()
        if problem:
            by_uid[claim.uid] = Failure(f"malformed claim: {problem}")
        elif by_uid.setdefault(claim.uid, claim) != claim:
            by_uid[claim.uid] = Failure(f"the request names several claims with the UID {claim.uid}; none was touched")
    return by_uid


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
