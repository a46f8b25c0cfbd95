"""What the API server refuses is refused on reading, and nothing else. A cluster test asks a real one the same."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from dra_driver.simulator.manifests import ManifestError, read_manifests
from tests.builders.refused_objects import Object, refused, taken
from tests.golden import golden

REFUSED, TAKEN = list(refused()), list(taken())


def names(rows: Sequence[tuple[str, Object]]) -> list[str]:
    return [name for name, _ in rows]


@pytest.mark.parametrize(("name", "item"), REFUSED, ids=names(REFUSED))
def test_what_the_api_server_refuses_is_refused_with_its_place(name: str, item: Object) -> None:
    with pytest.raises(ManifestError) as found:
        read_manifests([("file", json.dumps(item))])
    golden(str(found.value))
    assert name.split()[1].partition(".")[0] in str(found.value)


@pytest.mark.parametrize(("name", "item"), TAKEN, ids=names(TAKEN))
def test_what_the_api_server_takes_is_taken(name: str, item: Object) -> None:
    read_manifests([(name, json.dumps(item))])
