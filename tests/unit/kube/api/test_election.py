"""Who may take a lease, and when."""

from __future__ import annotations

import pytest

from dra_driver.kube.api.client import CONNECT_TIMEOUT, REQUEST_SECONDS
from dra_driver.kube.api.election import MAX_DURATION_SECONDS, Step, Times, next_step
from dra_driver.kube.objects.core import Lease, LeaseSpec
from dra_driver.kube.objects.meta import ObjectMeta


def lease(holder: str | None, duration: int | None = 30) -> Lease:
    return Lease(ObjectMeta(name="l"), LeaseSpec(holder_identity=holder, lease_duration_seconds=duration))


@pytest.mark.parametrize(
    ("found", "unchanged", "step"),
    [
        (None, 0.0, Step.CREATE),
        (lease("me"), 0.0, Step.RENEW),
        (lease("me"), 1000.0, Step.RENEW),
        (lease("other"), 29.9, Step.WAIT),
        (lease("other"), 30.0, Step.TAKE),
        (lease("other", 60), 59.0, Step.WAIT),
        (lease("other", None), 29.9, Step.WAIT),
        (lease("other", None), 30.0, Step.TAKE),
        (lease("other", -5), 0.5, Step.WAIT),
        (lease("other", 10**9), float(MAX_DURATION_SECONDS), Step.TAKE),
        (lease(""), 0.0, Step.TAKE),
        (lease(None), 0.0, Step.TAKE),
    ],
)
def test_a_lease_is_taken_when_nobody_holds_it_or_it_was_not_renewed(
    found: Lease | None, unchanged: float, step: Step
) -> None:
    assert next_step(found, "me", unchanged, 30) is step


def test_what_a_leader_sent_last_is_over_before_its_lease_is() -> None:
    times = Times()
    connecting = min(CONNECT_TIMEOUT, REQUEST_SECONDS)
    longest = 2 * (connecting + REQUEST_SECONDS)  # the second time with a token that was read again
    assert times.act + longest < times.lease
    assert times.renew * 3 < times.act


def test_a_killed_leader_is_replaced_within_22_seconds() -> None:
    times = Times()
    assert times.lease + times.renew <= 22.0
