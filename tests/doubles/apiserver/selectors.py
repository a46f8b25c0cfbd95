"""Selectors of lists and watches in the test API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.doubles.apiserver.store import Event, Object


def selected(item: Object, query: Mapping[str, str]) -> bool:
    """Evaluate field and label selectors; each field term is ``path=value`` or ``path!=value``."""
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = item
        for part in path.removesuffix("!").split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (found == value) == path.endswith("!"):
            return False
    return labels_match(item, query.get("labelSelector", ""))


def event_type(event: Event, query: Mapping[str, str]) -> str:
    """The event's type in a watch with selectors; "" if it is not sent.

    Objects that begin to match are ADDED, those that stop to match are DELETED.
    """
    matches = selected(event.object, query)
    if event.before is None:
        return event.type if matches else ""
    if selected(event.before, query):
        return event.type if matches else "DELETED"
    return "ADDED" if matches else ""


def labels_match(item: Object, selector: str) -> bool:
    """Evaluate terms ``label``, ``!label`` and ``label=value``."""
    labels = item["metadata"].get("labels") or {}

    def matches(term: str) -> bool:
        key, sign, value = term.partition("=")
        return labels.get(key) == value if sign else (term.lstrip("!") in labels) != term.startswith("!")

    return all(map(matches, filter(None, selector.split(","))))
