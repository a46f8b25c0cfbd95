"""Times as text, of which strangers write some."""

from __future__ import annotations

import pytest

from dra_driver.kube.objects.meta import seconds, timestamp


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:01.5+01:00", 1.5),
        ("0001-01-01T00:00:00Z", -62_135_596_800.0),
        ("9999-12-31T23:59:59Z", 253_402_300_799.0),
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:00", None),
        ("9999-12-31T23:59:59.999999Z", None),  # as a number, it is the year 10000
        ("1970-01-01T00:00:01", None),
        ("x", None),
        (None, None),
    ],
)
def test_what_is_read_can_be_written(text: str | None, moment: float | None) -> None:
    assert seconds(text) == moment
    if moment is not None:
        assert seconds(timestamp(moment, micro=True)) == pytest.approx(moment, abs=1e-3)
