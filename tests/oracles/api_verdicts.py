"""What an API server said of objects that concern devices, and what is said of them on reading.

``tests/data/api-verdicts.jsonl`` has an object a line, with the verdict of a real API server: ``taken``, or the status
and the reason of its refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dra_driver.simulator.manifests import ManifestError, read_manifests
from tests.paths import DATA

Object = dict[str, Any]

RECORDED = DATA / "api-verdicts.jsonl"
TAKEN = "taken"
_PLURALS = {
    "pod": "pods",
    "deployment": "deployments",
    "resourceclaim": "resourceclaims",
    "resourceclaimtemplate": "resourceclaimtemplates",
    "resourceslice": "resourceslices",
    "deviceclass": "deviceclasses",
    "devicetaintrule": "devicetaintrules",
}
_TOLD = ("field ", "ResourceSlice of another driver that cannot be read")
_OLD = ", without Neuron"
_OF_CLUSTERS = frozenset({"resourceslice", "deviceclass", "devicetaintrule"})


def path_of(item: Object) -> str:
    """Where the object would be created."""
    version, kind = str(item["apiVersion"]), str(item["kind"]).lower()
    space = "" if kind in _OF_CLUSTERS else "namespaces/default/"
    return f"/{'apis' if '/' in version else 'api'}/{version}/{space}{_PLURALS[kind]}"


def refusal(item: Object, kubernetes: str = "1.37") -> str:
    """Why the object is refused on reading; "" if it is not.

    Of what nobody applies (slices), and in versions no longer served, what is wrong is told and not considered.
    """
    try:
        found = read_manifests([("object", json.dumps(item))], kubernetes)
    except ManifestError as error:
        return str(error)
    return next((text for text in found.not_considered if text.startswith(_TOLD) or _OLD in text), "")


def recorded() -> list[Object]:
    """The rows of the recorded set: ``kubernetes``, ``verdict``, ``why`` of a refusal, and ``object``."""
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of rows, each object once."""
    seen: set[str] = set()
    for row in rows:
        text = json.dumps(row["object"], sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield json.dumps(row, ensure_ascii=False) + "\n"
