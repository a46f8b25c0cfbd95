"""Times of others are read as far as they can be written again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects.meta import seconds, timestamp


@pytest.mark.parametrize(
    "text", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00", "tomorrow", "", None]
)
def test_what_is_no_time_that_can_be_written_is_none(text: str | None) -> None:
    assert seconds(text) is None


@given(st.datetimes(timezones=st.timezones()) | st.datetimes())
def test_what_is_read_can_be_written(moment: object) -> None:
    found = seconds(str(moment))
    if found is not None:
        assert seconds(timestamp(found, micro=True)) == pytest.approx(found, abs=1e-3)
