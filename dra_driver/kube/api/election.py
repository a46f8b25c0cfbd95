"""Leader election: the holder of a Lease (``coordination.k8s.io/v1``) is the one of several processes that acts.

The rules are those of Kubernetes' own controllers. The holder renews; a candidate that has seen the same record
unchanged for the lease's duration, by its own clock, takes it over. The clocks of the machines need not agree.

The holder stops acting well before the lease can be taken over: from ``ACT_SECONDS`` after it sent its last successful
renewal it sends no more requests, and those sent before have been answered or given up (connecting and the response
take at most 3 s each, and both may happen twice if the token has to be read again) before ``LEASE_SECONDS`` are over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.core import Lease, LeaseSpec
from dra_driver.kube.objects.meta import ObjectMeta, timestamp
from dra_driver.util import runtime
from dra_driver.util.worker import Backoff, Worker

LEASE_SECONDS: Final = 20
ACT_SECONDS: Final = 7.5
RENEW_SECONDS: Final = 2.0
MAX_DURATION_SECONDS: Final = 3600

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Times:
    """Durations in seconds; ``lease`` allows for requests that are still in flight after ``act``."""

    lease: int = LEASE_SECONDS
    act: float = ACT_SECONDS
    renew: float = RENEW_SECONDS


class Step(Enum):
    """What a candidate does next."""

    CREATE = "there is no lease"
    RENEW = "the lease is ours"
    TAKE = "nobody holds the lease"
    WAIT = "another one holds the lease"


def next_step(lease: Lease | None, identity: str, unchanged_for: float, default_seconds: int) -> Step:
    """Decide from the lease as stored now.

    Args:
        lease: None if there is none.
        identity: of this candidate.
        unchanged_for: seconds since this candidate first saw this version of the lease.
        default_seconds: duration of a lease that does not specify one.
    """
    if lease is None:
        return Step.CREATE
    holder = lease.spec.holder_identity or ""
    if holder == identity:
        return Step.RENEW
    duration = min(max(lease.spec.lease_duration_seconds or default_seconds, 1), MAX_DURATION_SECONDS)
    return Step.TAKE if not holder or unchanged_for >= duration else Step.WAIT


class Election:
    """One candidate, with a thread that renews. ``may_act`` may be called from any thread.

    Args:
        leases: leases of the API server.
        namespace: of the lease.
        name: of the lease.
        identity: of this candidate, unique among all processes.
        times: durations.
        on_change: called when this candidate starts or stops leading.
    """

    def __init__(
        self,
        leases: Collection[Lease],
        namespace: str,
        name: str,
        identity: str,
        times: Times | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._leases = leases
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times or Times()
        self._on_change = on_change
        self.worker = Worker("the election", self._round, backoff=Backoff(first=1.0, cap=self._times.renew))
        self._until = 0.0
        self._seen = ("", 0.0)
        """Version of the lease, and when it was first seen."""
        self._standing = ""
        """The last state that was logged."""
        self.holder = ""
        """Identity of the holder when the lease was last read, or ""."""
        self.last_error = ""
        """Why the lease could not be read or renewed, or ""."""

    def start(self) -> None:
        """Become a candidate."""
        self.worker.start()

    def may_act(self) -> bool:
        """Whether this candidate leads, and a request sent now would end before another candidate can lead."""
        return runtime.monotonic() < self._until

    def stop(self, timeout: float = 5.0, *, hand_over: bool = True) -> None:
        """Stop being a candidate. With ``hand_over``, release the lease if no request is in flight.

        Otherwise it expires. Returns after ``timeout`` seconds at the latest.
        """
        deadline = runtime.monotonic() + timeout
        ended = self.worker.stop(timeout)
        was_leader = self.may_act()
        self._until = 0.0
        if was_leader and hand_over and ended:
            # Its requests may take longer than the remaining time.
            try:
                resigning = runtime.spawn(self._resign, name="hand the lease over")
            except RuntimeError as error:
                log.warning("the lease %s/%s is not handed over: %s", self._namespace, self._name, error)
            else:
                resigning.join(max(0.0, deadline - runtime.monotonic()))

    def _round(self) -> float:
        """Read the lease once; take it over or renew it if that is due."""
        led = self.may_act()
        started = runtime.monotonic()
        try:
            if self._hold(started):
                self._until = started + self._times.act
                self.holder = self._identity
            else:
                self._until = 0.0
            self.last_error = ""
        except ApiError as error:
            # A lease that was renewed before remains ours until that time is over.
            self.last_error = str(error)
            log.warning("the lease %s/%s could not be renewed: %s", self._namespace, self._name, error)
        self._tell()
        if self.may_act() != led:
            self._on_change()
        return self._times.renew

    def _tell(self) -> None:
        """Log the leader, if it has changed."""
        standing = "the leader is not known"
        if self.may_act():
            standing = "this instance leads now"
        elif self.holder not in ("", self._identity):
            lease = f"{self._namespace}/{self._name}"
            standing = f"{self.holder} holds the lease {lease}; this instance waits until it expires"
        if standing != self._standing:
            self._standing = standing
            log.info("%s: %s", self._identity, standing)

    def _hold(self, now: float) -> bool:
        """Read the lease, and report whether this candidate holds it. After a conflict, another one was faster."""
        lease = self._get()
        version = lease.metadata.resource_version if lease else ""
        if version != self._seen[0]:
            self._seen = (version, now)
        step = next_step(lease, self._identity, now - self._seen[1], self._times.lease)
        self.holder = (lease.spec.holder_identity if lease else None) or ""
        if step is Step.WAIT:
            return False
        moment = timestamp(runtime.now(), micro=True)
        old = lease.spec if lease else LeaseSpec()
        is_new = step is not Step.RENEW
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._times.lease,
            acquire_time=moment if is_new or not old.acquire_time else old.acquire_time,
            renew_time=moment,
            lease_transitions=(old.lease_transitions or 0) + (1 if step is Step.TAKE else 0),
        )
        try:
            self._write(spec, version)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    def _get(self) -> Lease | None:
        try:
            return self._leases.get(self._namespace, self._name)
        except ApiError as error:
            if error.object_missing:
                return None
            raise

    def _write(self, spec: LeaseSpec, version: str) -> None:
        meta = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=version)
        if version:
            self._leases.replace(self._namespace, self._name, Lease(meta, spec))
        else:
            self._leases.create(self._namespace, Lease(meta, spec))

    def _resign(self) -> None:
        try:
            lease = self._get()
            if lease is not None and lease.spec.holder_identity == self._identity:
                spec = LeaseSpec(
                    holder_identity="",
                    lease_duration_seconds=1,
                    renew_time=timestamp(runtime.now(), micro=True),
                    lease_transitions=lease.spec.lease_transitions,
                )
                self._write(spec, lease.metadata.resource_version)
        except ApiError as error:
            log.warning("the lease could not be handed over, so the next instance waits until it expires: %s", error)
