"""docs/reference/metrics.md has the metrics that a driver shows."""

from __future__ import annotations

from tests.builders.metrics_page import families, page
from tests.paths import DOCS


def test_the_reference_of_the_metrics_is_up_to_date() -> None:
    assert (DOCS / "reference/metrics.md").read_text() == page(families()), (
        "docs/reference/metrics.md differs from what a driver shows: scripts/generate metrics"
    )
