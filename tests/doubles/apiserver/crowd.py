"""Objects that the test API server makes while it sends a page of them: more than memory could hold.

    server.crowds.append(Crowd("resourceclaims", 20_000, {"metadata": {"namespace": "a", "name": f"claim-{NUMBER}"}}))

Nobody can change one or read it alone, and watches say nothing of them. A list has the stored objects before them, and
each page as these are now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.doubles.apiserver.store import Object

NUMBER = "{number}"
"""In texts of a pattern: the object's own number, six digits from 000000."""


@dataclass(frozen=True)
class Crowd:
    """``count`` objects of a kind, alike but for NUMBER; ``pattern`` is what selectors look at."""

    kind: str
    count: int
    pattern: Object

    def objects(self, pattern: Object, first: int, last: int) -> Iterator[bytes]:
        """JSON of the objects from ``first`` to ``last`` (exclusive); ``pattern`` as the version in question has it."""
        parts = json.dumps(pattern, ensure_ascii=False).encode().split(NUMBER.encode())
        return ((b"%06d" % number).join(parts) for number in range(first, last))
