"""Objects that are kept as they are wanted: whose turn it is, and what becomes of the last word."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.kube.api.desired import DesiredWriter, Outcome, Target, Waits
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff
from tests.generators.effort import examples

EXACT = partial(Backoff, random=lambda: 1.0)
WAITS = Waits(
    own=partial(EXACT, first=60.0, cap=60.0),
    server=partial(EXACT, first=8.0, cap=8.0),
    contest=partial(EXACT, first=1.0, cap=4.0, free=1),
    pace=partial(EXACT, first=2.0, cap=16.0, free=1),
    namespace=partial(EXACT, first=30.0, cap=30.0),
)
DENIED = ApiError("no", status=503, message='admission webhook "a.b" denied the request: no')
FULL = ApiError("no", status=500)
AWAY = Unreachable("no answer")


class Texts(Target[str, str, str]):
    """A server that has a text for each name, and a namespace for each first letter; and a writer of them."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.now = 0.0
        self.turns: list[tuple[float, str]] = []
        self.writes: list[tuple[float, str, str]] = []
        self.errors: dict[str, DriverError] = {}
        """By name, or by namespace with a slash."""
        self.lost: dict[str, DriverError] = {}
        """What is answered to a write that takes effect, by name."""
        self.troubles: dict[str, dict[str, Any]] = {"error": self.errors, "lost": self.lost}
        self.slow: dict[str, float] = {}
        """Seconds that a write takes, by namespace."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens once while a text is written."""
        self.writer: DesiredWriter[str, str, str] = DesiredWriter("writing", self, WAITS, clock=lambda: self.now)

    def want(self, name: str, text: str) -> None:
        self.writer.want(name, text, namespace=name[0])

    def reconcile(self, key: str, value: str, stored: str | None) -> Outcome[str]:
        self.turns.append((self.now, key))
        stored = self.texts.get(key, "") if stored is None else stored
        if stored == value:
            return Outcome(stored)
        self.now += self.slow.get(key[0], 0.0)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        if error := self.errors.get(key) or self.errors.get(f"{key[0]}/"):
            raise error
        self.texts[key] = value
        self.writes.append((self.now, key, value))
        if error := self.lost.get(key):
            raise error
        return Outcome(value, wrote=True)

    def report_failure(self, key: str, error: DriverError, wait: float) -> None:
        assert self.errors or self.lost
        assert wait >= 0

    def recover(self) -> None:
        self.errors.clear()
        self.lost.clear()
        self.slow.clear()

    def follow(self, name: str) -> None:
        """As a watch does: a text that is not as wanted any more has its turn."""
        for key, value, _ in self.writer.objects():
            if key == name and self.texts.get(key) != value:
                self.writer.doubt(name, math.inf)
                self.want(name, value)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += min(self.writer.round(), end - self.now)
        self.writer.round()


def test_trouble_with_one_object_keeps_no_other_waiting() -> None:
    for error in (FULL, DENIED):
        server = Texts()
        server.errors["a1"] = error
        for name in ("a1", "a2", "b1"):
            server.want(name, "x")
        server.pass_time(0.0)
        assert server.texts == {"a2": "x", "b1": "x"}
        server.errors.clear()
        server.pass_time(59.0)
        assert "a1" not in server.texts
        server.pass_time(1.0)
        assert server.texts["a1"] == "x"


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_was_read_before_a_write_that_goes_on_is_read_again(forgotten: bool) -> None:
    server = Texts()
    server.texts["a1"] = "x"

    def want_the_former_text() -> None:
        if forgotten:
            server.writer.forget("a1")
        server.writer.want("a1", "x", stored="x", namespace="a")

    server.meanwhile = want_the_former_text
    server.want("a1", "y")
    server.pass_time(100.0)
    assert server.texts["a1"] == "x"
    assert len(server.writes) == 2


def test_a_server_in_trouble_is_asked_once_a_pause_whatever_is_wanted() -> None:
    server = Texts()
    server.errors = {"a/": AWAY, "b/": AWAY}
    for name in ("a1", "a2", "b1", "b2"):
        server.want(name, "x")
    server.pass_time(7.0)
    assert [at for at, _ in server.turns] == [0.0, 0.0], "it may be the trouble of one namespace"
    server.pass_time(10.0)
    assert len(server.turns) <= 4
    server.errors.clear()
    server.pass_time(9.0)
    assert server.texts == {"a1": "x", "a2": "x", "b1": "x", "b2": "x"}


def test_trouble_of_one_namespace_alone_keeps_no_other_waiting() -> None:
    server = Texts()
    server.errors = {"a/": AWAY}
    for number in range(20):
        server.want(f"a{number}", "x")
        server.pass_time(1.0)
    server.want("b1", "x")
    server.pass_time(0.0)
    assert server.texts == {"b1": "x"}


def test_trouble_of_two_namespaces_keeps_others_waiting_for_one_pause() -> None:
    server = Texts()
    server.errors = {"a/": AWAY, "b/": AWAY}
    for number in range(10):
        server.want(f"a{number}", "x")
        server.want(f"b{number}", "x")
        server.pass_time(10.0)
    server.want("c1", "x")
    server.pass_time(8.0)
    assert server.texts == {"c1": "x"}


def test_who_insists_is_tried_while_others_wait_for_the_server() -> None:
    server = Texts()
    server.errors = {"a/": AWAY, "b/": AWAY}
    for name in ("a1", "b1", "c1", "d1"):
        server.want(name, "x")
    server.pass_time(1.0)
    server.errors.clear()
    server.writer.look("d1", server.now, insist=True)
    server.pass_time(1.0)
    assert server.texts == {"d1": "x"}


def test_a_namespace_where_writes_hang_comes_last_and_waits_alone() -> None:
    server = Texts()
    server.slow["a"] = 10.0
    server.errors["a/"] = AWAY
    for name in ("a1", "a2", "a3", "b1", "c1"):
        server.want(name, "x")
    server.pass_time(20.0)
    assert server.texts == {"b1": "x", "c1": "x"}
    assert server.writes[-1][0] == 10.0
    assert [name for _, name in server.turns].count("a1") == 1
    server.errors.clear()
    server.slow.clear()
    server.pass_time(40.0)
    assert len(server.texts) == 5


def test_a_namespace_where_writes_take_long_comes_after_all_others() -> None:
    server = Texts()
    server.slow["a"] = 2.0
    for name in ("a1", "a2", "a3", "b1"):
        server.want(name, "x")
    server.pass_time(10.0)
    assert [name for _, name, _ in server.writes] == ["a1", "b1", "a2", "a3"]


def test_what_is_said_while_an_object_is_written_is_written_after_it() -> None:
    server = Texts()
    server.meanwhile = lambda: server.writer.want("a1", "y", namespace="a", stored="y", at=server.now)
    server.want("a1", "x")
    server.pass_time(10.0)
    assert server.texts["a1"] == "y"


def test_a_reading_from_before_the_last_write_is_not_believed() -> None:
    server = Texts()
    server.want("a1", "x")
    server.pass_time(0.0)
    server.writer.want("a1", "", stored="", at=0.0)  # as it was before
    server.pass_time(0.0)
    assert server.texts["a1"] == ""


def test_two_who_want_different_things_give_each_other_time() -> None:
    server = Texts()
    server.want("a1", "x")
    server.pass_time(0.0)
    for _ in range(200):
        server.texts["a1"] = "theirs"
        server.follow("a1")
        server.pass_time(0.1)
    assert len(server.writes) <= 8


def test_what_changes_all_the_time_is_written_ever_more_seldom_and_in_the_end_as_it_is() -> None:
    server = Texts()
    for number in range(300):
        server.want("a1", str(number))
        server.pass_time(0.1)
    assert len(server.writes) <= 6
    server.pass_time(20.0)
    assert server.texts["a1"] == "299"


def test_an_object_whose_turn_ends_with_a_defect_has_another_one() -> None:
    server = Texts()
    defects = [RuntimeError("on purpose")]

    def fail() -> None:
        raise defects.pop()

    server.meanwhile = fail
    server.want("a1", "x")
    with pytest.raises(RuntimeError):
        server.writer.round()
    server.now += 60.0
    server.writer.round()
    assert server.texts == {"a1": "x"}


def test_a_defect_in_the_turn_of_one_object_keeps_no_other_from_its_turn() -> None:
    class Defective(Texts):
        def reconcile(self, key: str, value: str, stored: str | None) -> Outcome[str]:
            if key == "a1":
                raise RuntimeError("on purpose")
            return super().reconcile(key, value, stored)

    server = Defective()
    for name in ("a1", "a2", "b1"):
        server.want(name, "x")
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            server.writer.round()
    assert server.texts == {"a2": "x", "b1": "x"}


NAMES = st.sampled_from(["a1", "a2", "b1"])
EVENTS = st.one_of(
    st.tuples(st.just("want"), NAMES, st.sampled_from("xyz")),
    st.tuples(st.just("theirs"), NAMES, st.sampled_from("xyz")),
    st.tuples(st.just("error"), NAMES, st.sampled_from([FULL, DENIED, AWAY])),
    st.tuples(st.just("lost"), NAMES, st.sampled_from([FULL, AWAY, DriverError("not understood")])),
    st.tuples(st.just("slow"), NAMES, st.sampled_from([0.5, 5.0])),
    st.tuples(st.just("well"), NAMES, st.none()),
    st.tuples(st.just("said meanwhile"), NAMES, st.sampled_from("xyz")),
    st.tuples(st.just("forget"), NAMES, st.none()),
    st.tuples(st.just("time"), NAMES, st.sampled_from([0.1, 3.0, 50.0])),
)


@given(st.lists(EVENTS, max_size=25))
@settings(max_examples=examples(400))
def test_in_the_end_everything_is_as_it_was_wanted_last_and_nothing_is_written_again(
    events: list[tuple[str, str, object]],
) -> None:
    server, wanted = Texts(), dict[str, str]()

    def want(name: str, text: str) -> None:
        wanted[name] = text
        server.want(name, text)

    for what, name, value in events:
        if what == "want":
            want(name, str(value))
        elif what == "theirs":
            server.texts[name] = str(value)
            server.follow(name)
        elif what in server.troubles:
            server.troubles[what][name] = value
        elif what == "slow":
            assert isinstance(value, float)
            server.slow[name[0]] = value
        elif what == "well":
            server.recover()
        elif what == "said meanwhile":
            server.meanwhile = partial(want, name, str(value))
        elif what == "forget":
            wanted.pop(name, None)
            server.writer.forget(name)
        else:
            assert isinstance(value, float)
            server.pass_time(value)
    server.recover()
    server.pass_time(200.0)
    assert {name: server.texts[name] for name in wanted} == wanted
    before = len(server.turns)
    server.pass_time(1000.0)
    assert len(server.turns) == before
