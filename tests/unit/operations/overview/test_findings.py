"""The table of findings: what it tells people to do is tried on a real cluster, row by row."""

from __future__ import annotations

import ast

from dra_driver.operations.overview.findings import REMEDIES, row_of
from tests.paths import ROOT

TESTS = (
    "test_remedies.py",
    "test_remedies_of_claims.py",
    "test_remedies_of_drivers.py",
    "test_pod_groups.py",
    "test_ultraserver_fence.py",
)
"""Tests on clusters that make a symptom, do what the remedy says, and see the pod run."""


def test_each_remedy_is_tried_on_a_real_cluster() -> None:
    trees = (ast.parse((ROOT / "tests/cluster" / name).read_text()) for name in TESTS)
    words = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert REMEDIES.keys() - {row_of(word) for word in words if isinstance(word, str)} == set()
