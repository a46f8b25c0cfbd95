from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.util.worker import Backoff


@given(st.floats(0, 1), st.integers(1, 100))
def test_waits_grow_to_the_cap_and_never_past_it(dice: float, tries: int) -> None:
    backoff = Backoff(first=0.2, cap=30.0, random=lambda: dice)
    waits = [backoff.next() for _ in range(tries)]
    assert waits == sorted(waits)
    assert 0.1 <= waits[0] <= 0.2
    assert waits[-1] <= 30.0


def test_free_tries_come_first_and_come_back_after_a_reset() -> None:
    backoff = Backoff(first=1.0, free=2, random=lambda: 1.0)
    assert [backoff.next() for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    backoff.reset()
    assert backoff.next() == 0.0


def test_a_servers_wish_is_honoured_even_above_the_cap() -> None:
    backoff = Backoff(cap=1.0, free=1)
    assert backoff.next(5.0) == 5.0
    assert backoff.next(0.0) <= 1.0


def test_it_never_overflows() -> None:
    backoff = Backoff(tries=100_000)
    assert backoff.next() <= 30.0
