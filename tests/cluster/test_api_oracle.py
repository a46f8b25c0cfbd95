"""A real API server says which objects that concern devices are valid, and so does reading them.

``SEED`` and ``ORACLE_OBJECTS`` choose other random objects and more. One about which the two disagree is made small and
added to ``tests/data/api-verdicts.jsonl``: from then on the unit tests fail, until reading it is right.
``ORACLE_RECORD=FILE`` writes the verdict on every random object; with ``ORACLE_RENEW=1``, the verdicts of the recorded
set are written anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.generators.device_objects import random_object
from tests.generators.effort import SEED
from tests.generators.shrinking import shrunk
from tests.oracles.api_verdicts import RECORDED, TAKEN, Object, lines, path_of, recorded, refusal

pytestmark = [pytest.mark.nightly, pytest.mark.control_plane, pytest.mark.timeout(600, func_only=True)]

OBJECTS = int(os.environ.get("ORACLE_OBJECTS", "3000"))
RECORD = os.environ.get("ORACLE_RECORD", "")
RENEW = bool(os.environ.get("ORACLE_RENEW", ""))
SHRINK_SECONDS = 20.0
WHY = 200
"""Characters of a refusal that are recorded."""


class Oracle:
    """An API server that is asked about many objects at once, and creates none."""

    def __init__(self, transport: Transport, kubernetes: str) -> None:
        self._transport = transport
        self.kubernetes = kubernetes
        self.release = ".".join(kubernetes.split(".")[:2])
        self._workers = ThreadPoolExecutor(4)

    def verdicts(self, items: Sequence[Object]) -> list[Object]:
        """A row of the recorded set for each object."""
        return list(self._workers.map(self._verdict, items))

    def differ(self, items: Sequence[Object]) -> list[bool]:
        """For each object whether reading it says something else."""
        rows = self.verdicts(items)
        return [(row["verdict"] == TAKEN) == bool(refusal(row["object"], self.release)) for row in rows]

    def _verdict(self, item: Object) -> Object:
        row: Object = {"kubernetes": self.kubernetes}
        try:
            query = [("dryRun", "All"), ("fieldValidation", "Strict")]
            self._transport.request("POST", path_of(item), body=item, query=query, timeout=60)
        except ApiError as error:
            if error.status not in (400, 403, 404, 422):
                raise
            return row | {"verdict": f"{error.status} {error.reason}", "why": error.message[:WHY], "object": item}
        return row | {"verdict": TAKEN, "object": item}


@pytest.fixture(scope="module")
def oracle(lab: Cluster) -> Iterator[Oracle]:
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="oracle-test")
    # Else, requests with admin access would be refused for their namespace.
    lab.kubectl("label", "namespace", "default", "--overwrite", "resource.kubernetes.io/admin-access=true")
    yield Oracle(transport, lab.spec.kubernetes)
    transport.close()


def test_the_recorded_verdicts_are_those_of_the_api_server(oracle: Oracle) -> None:
    rows = recorded()
    now = oracle.verdicts([row["object"] for row in rows])
    if RENEW:
        RECORDED.write_text("".join(lines(now)))
        return
    pairs = [(row, new) for row, new in zip(rows, now, strict=True) if row["kubernetes"] == new["kubernetes"]]
    assert not [new for row, new in pairs if row["verdict"] != new["verdict"]]


def test_random_objects_are_taken_and_refused_on_reading_as_by_the_api_server(
    oracle: Oracle, figures: list[str]
) -> None:
    random = Random(f"objects {SEED}")
    items = [random_object(random) for _ in range(OBJECTS)]
    rows = oracle.verdicts(items)
    if RECORD:
        Path(RECORD).write_text("".join(lines(rows)))
    different = [
        row["object"] for row in rows if (row["verdict"] == TAKEN) == bool(refusal(row["object"], oracle.release))
    ]
    taken = sum(row["verdict"] == TAKEN for row in rows)
    figures.append(
        f"API server {oracle.kubernetes}: {len(rows)} random objects, {taken} taken, {len(different)} read otherwise"
    )
    small = [shrunk(item, oracle.differ, seconds=SHRINK_SECONDS, width=16) for item in different[:3]]
    found = oracle.verdicts([*small, *different[3:20]])
    if found:
        with RECORDED.open("a") as file:
            file.writelines(lines(found))
    texts = [f"{row['verdict']}, {refusal(row['object']) or TAKEN} here: {json.dumps(row['object'])}" for row in found]
    assert not texts, f"added to {RECORDED.name}:\n" + "\n".join(texts)
