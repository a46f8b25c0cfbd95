"""What a real API server takes and refuses of what concerns devices is taken and refused on reading.

``tests/cluster/test_api_oracle.py`` records its verdicts, and adds those on random objects that are read otherwise.
"""

from __future__ import annotations

import json
import re

import pytest

from dra_driver.simulator.manifests import read_manifests
from dra_driver.util.text import shorten
from tests.golden import golden
from tests.oracles.api_verdicts import TAKEN, Object, recorded, refusal

ROWS = recorded()


@pytest.mark.parametrize("row", ROWS, ids=range(1, len(ROWS) + 1))
def test_an_object_is_taken_or_refused_as_by_the_api_server(row: Object) -> None:
    release = ".".join(row["kubernetes"].split(".")[:2])
    told = refusal(row["object"], release)
    assert bool(told) == (row["verdict"] != TAKEN), f"{row['verdict']} {row.get('why', '')}; here {told or TAKEN}"


def test_what_is_said_of_objects_that_are_refused() -> None:
    texts = (refusal(row["object"]) for row in ROWS if row["verdict"] != TAKEN)
    # The first line with a quoted value of each kind is enough for a reader.
    kinds = {re.sub(r"'[^']*'|[0-9]+", "_", text.rpartition(": ")[2]): text for text in sorted(texts, reverse=True)}
    golden("\n".join(shorten(text, 240) for _, text in sorted(kinds.items())))


def test_a_field_behind_a_feature_gate_is_named_with_the_gate() -> None:
    exactly = {"deviceClassName": "any", "derivedAttributes": [{"name": "a.b/c", "expression": "1"}]}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    for given in (claim, {**claim, "metadata": {"name": "c", "uid": "stored"}}):
        (note,) = read_manifests([("file", json.dumps(given))]).not_considered
        assert "derivedAttributes" in note
        assert "DRADerivedAttributes" in note
        golden(note)
