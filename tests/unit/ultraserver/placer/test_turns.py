"""Whose turn it is to have something written, whatever tenants make of the time that it takes."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.errors import ApiError
from dra_driver.ultraserver.placer.trouble import (
    MAX_SECONDS,
    OURS,
    SHARE_SECONDS,
    TROUBLE_SECONDS,
    Trouble,
    Turns,
)

Write = tuple[str, int]
"""Its namespace, and which one of these it is."""
LONGEST = 5.0


class Table:
    """Looks at what is to be written, by a clock that only writes move."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.trouble = Trouble()
        self.lives: list[float] = []

    def turns(self) -> Turns:
        return Turns(self.trouble, lambda: True, lambda _: self.lives.append(self.now), lambda: self.now)

    def look(self, writes: list[Write], seconds: dict[str, float]) -> list[Write]:
        """The writes of one look, each of which takes what its namespace makes it take."""
        written = []
        for one in self.turns().of(writes, lambda one: one, itemgetter(0)):
            self.now += seconds.get(one[0], 0.01)
            written.append(one)
        return written


SECONDS = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.0, LONGEST), max_size=8)


@given(SECONDS, st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", OURS]), max_size=200))
def test_no_namespace_takes_more_than_its_share_and_ours_waits_for_none(
    seconds: dict[str, float], crowd: list[str]
) -> None:
    table = Table()
    writes = [(namespace, number) for number, namespace in enumerate(crowd)]
    written = table.look(writes, seconds)
    took: defaultdict[str, float] = defaultdict(float)
    for namespace, _ in written:
        took[namespace] += seconds.get(namespace, 0.01)
    assert all(took[name] <= SHARE_SECONDS + LONGEST for name in took if name != OURS)
    assert sum(took.values()) - took[OURS] <= MAX_SECONDS + LONGEST
    assert [one for one in written if one[0] == OURS] == [one for one in writes if one[0] == OURS]
    assert len(table.lives) == len(written), "each write is a sign of life"


def test_ours_has_its_turn_where_tenants_have_taken_all_the_time() -> None:
    writes = [*((namespace, 0) for namespace in "abcdefgh"), (OURS, 0)]
    written = Table().look(writes, dict.fromkeys("abcdefgh", LONGEST))
    assert written == [*writes[:3], (OURS, 0)]


@given(SECONDS, st.integers(1, 50))
def test_who_comes_later_is_served_at_once_whoever_was_slow_before(seconds: dict[str, float], crowd: int) -> None:
    table = Table()
    slow = [(namespace, number) for namespace in sorted(seconds) for number in range(crowd)]
    for _ in range(len(seconds)):
        table.look(slow, seconds)
    before = table.now
    written = table.look([*slow, ("late", 0)], seconds)
    first = sum(seconds[namespace] for namespace, _ in written[: written.index(("late", 0))])
    assert table.now >= before and first <= SHARE_SECONDS + LONGEST


def test_as_long_as_nobody_takes_long_the_order_is_that_of_the_decision() -> None:
    table, writes = Table(), [("b", 0), ("a", 1), ("b", 2), (OURS, 3), ("a", 4)]
    assert table.look(writes, {}) == writes
    assert table.look(writes, {}) == writes


def test_that_a_namespace_was_slow_is_forgotten() -> None:
    table, writes = Table(), [("a", 0), ("b", 0)]
    table.look(writes, {"a": LONGEST})
    assert table.look(writes, {}) == [("b", 0), ("a", 0)]
    table.now += TROUBLE_SECONDS
    assert table.look(writes, {}) == writes
    table.now += TROUBLE_SECONDS
    table.trouble.forget(table.now)
    assert table.trouble.place("a", table.now) == (False, 0)


def test_where_nobody_knows_what_became_of_a_write_nothing_else_is_written() -> None:
    table, error = Table(), ApiError("it", status=500)
    turns = table.turns()
    written = []
    for one in turns.of([("a", 0), ("a", 1), ("b", 0)], lambda one: one, itemgetter(0)):
        written.append(one)
        turns.note_unclear(one[0], error)
        assert (turns.failure is None) == (len(written) == 1), "one alone may be a tenant's doing"
    assert written == [("a", 0), ("b", 0)]
    turns.answered = True
    assert turns.failure is None


def test_no_answer_for_an_object_of_ours_is_a_failure() -> None:
    turns, error = Table().turns(), ApiError("it", status=500)
    turns.note_unclear(OURS, error)
    assert turns.failure is error


def test_what_is_left_is_said() -> None:
    table = Table()
    turns = table.turns()
    for _ in turns.of([("a", 0), ("a", 1)], lambda one: one, itemgetter(0)):
        assert not turns.cut
        table.now += SHARE_SECONDS + 1
    assert turns.cut
