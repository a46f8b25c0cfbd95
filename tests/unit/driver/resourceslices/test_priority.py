from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.instance import MAX_YIELD_SECONDS, DriverInstance, InstancePriority

OLD = DriverInstance("boot-1", 1000, "a")
NEW = DriverInstance("boot-1", 2000, "b")


def test_the_later_start_is_newer() -> None:
    assert OLD.is_older_than(NEW.stamp)
    assert not NEW.is_older_than(OLD.stamp)
    assert not OLD.is_older_than(OLD.stamp)


def test_instances_that_start_in_the_same_millisecond_have_an_order_too() -> None:
    twins = DriverInstance("b", 5, "x"), DriverInstance("b", 5, "y")
    assert [one.is_older_than(other.stamp) for one in twins for other in twins] == [False, True, False, False]


def test_an_instance_of_an_earlier_boot_cannot_be_running() -> None:
    assert not DriverInstance("boot-2", 10, "c").is_older_than(NEW.stamp)


@pytest.mark.parametrize("stamp", ["", "boot-1", "boot-1/", "boot-1//x", "boot-1/-5/x", "boot-1/9e9/x", "boot-1/²/x"])
def test_odd_stamps_are_nobodys(stamp: str) -> None:
    assert not OLD.is_older_than(stamp)


@given(st.text(max_size=60))
def test_no_stamp_makes_an_error(text: str) -> None:
    assert DriverInstance("x", 10**19, "").is_older_than(text) is False


def test_this_process_is_newer_than_what_started_before() -> None:
    first = DriverInstance.here("boot-1")
    second = DriverInstance.here("boot-1")
    assert second.started >= first.started > 0
    assert first.boot == second.boot != ""
    assert DriverInstance.here("").boot == "unknown"


def test_an_old_instance_yields_then_asserts_itself_once_and_waits_longer_when_answered() -> None:
    precedence = InstancePriority(OLD, yield_seconds=100.0)
    newer = [NEW.stamp]
    assert precedence.defers(newer, 0.0, as_before=False)
    assert precedence.defers(newer, 99.0, as_before=True)
    assert not precedence.defers(newer, 100.0, as_before=True)
    # It wrote; the newer one lives and wrote again.
    assert precedence.defers(newer, 101.0, as_before=False)
    assert precedence.until == 301.0


def test_a_third_instance_gets_its_own_time() -> None:
    precedence = InstancePriority(OLD, yield_seconds=100.0)
    assert precedence.defers([NEW.stamp], 0.0, as_before=False)
    third = DriverInstance("boot-1", 3000, "c").stamp
    assert precedence.defers([NEW.stamp, third], 50.0, as_before=False) is True
    assert precedence.defers([third], 150.0, as_before=True)
    assert precedence.until == 250.0


def test_waits_end_at_an_hour() -> None:
    precedence, now = InstancePriority(OLD), 0.0
    for _ in range(20):
        precedence.defers([NEW.stamp], now, as_before=False)
        assert precedence.until - now <= MAX_YIELD_SECONDS
        now = precedence.until


def test_the_newest_instance_never_yields() -> None:
    assert not InstancePriority(NEW).defers([OLD.stamp, "", "vendor"], 0.0, as_before=False)
