"""Selectors of lists and watches in the test API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.doubles.apiserver.store import Event, Object


def selected(item: Object, query: Mapping[str, str]) -> bool:
    """Field selectors; each term is ``path=value`` or ``path!=value``."""
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = item
        for part in path.removesuffix("!").split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (found == value) == path.endswith("!"):
            return False
    return labels_match(item, query.get("labelSelector", ""))


def event_type(event: Event, query: Mapping[str, str]) -> str:
    """Of an event as a watch with selectors tells it; "" for none. What is not selected any more is DELETED."""
    if selected(event.object, query):
        return event.type
    return "DELETED" if "!=" in query.get("fieldSelector", "") else ""


def labels_match(item: Object, selector: str) -> bool:
    """Terms ``label`` and ``!label``."""
    labels = item["metadata"].get("labels") or {}
    return all((term.lstrip("!") in labels) != term.startswith("!") for term in filter(None, selector.split(",")))
