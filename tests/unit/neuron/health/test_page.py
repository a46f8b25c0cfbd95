"""docs/operate/health.md: its tables are those of the code, and its examples work."""

from __future__ import annotations

import re

import pytest
from generating.faults import TABLES

from dra_driver.neuron.health.policy import HealthPolicy
from tests.paths import DOCS

PAGE = DOCS / "operate/health.md"
REFERENCE = DOCS / "reference/faults.md"


@pytest.mark.parametrize("table", TABLES)
def test_the_reference_has_each_table(table: str) -> None:
    assert f"<!-- table: {table} -->" in REFERENCE.read_text()


def test_the_policy_on_the_page_is_one() -> None:
    (example,) = re.findall(r"```yaml\n(keyDomain.*?)```", PAGE.read_text(), re.DOTALL)
    policy = HealthPolicy.parse(example)
    assert policy.effect("hbm-uncorrectable", "trn2.48xlarge") == ("NoExecute", 120)
    assert policy.effect("hbm-corrected-rising", "trn2.48xlarge") == ("NoSchedule", 0)
