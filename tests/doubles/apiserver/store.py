"""Objects of the test API server: storage with resource versions and a change log."""

from __future__ import annotations

import pickle
import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Object = dict[str, Any]
_Plain = TypeVar("_Plain")
LISTS_AT_ONCE = 8
"""Lists in pages whose first state is kept."""


class Refused(Exception):  # noqa: N818 # a refusal is a regular response of the server
    """A refusal with HTTP status and Kubernetes reason."""

    def __init__(self, status: int, reason: str, message: str, name: str = "", more: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.name = status, reason, message, name
        self.more = more
        """Token with which an expired list may go on, with objects of now."""


@dataclass(frozen=True, slots=True)
class Event:
    version: int
    kind: str
    type: str
    object: Object
    before: Object | None = None
    """As it was until then."""


def copied(value: _Plain) -> _Plain:
    """A copy of plain values, in a quarter of the time of ``copy.deepcopy``."""
    result: _Plain = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return result


def key_of(item: Object) -> str:
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


class Store:
    """All objects by kind (``resourceslices``, ``nodes`` and so on) and key; ``changed`` guards them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 1000
        self.oldest = 0
        """Watches from older versions get 410."""
        self.events: list[Event] = []
        self._objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self._lists = 0
        self._states: dict[int, tuple[int, Sequence[Object]]] = {}
        """Version and objects that lists in pages began with, by the number that their tokens have; the latest ones."""
        self._random = random.Random(7)

    def get(self, kind: str, key: str) -> Object:
        with self.changed:
            try:
                return copied(self._objects[kind][key])
            except KeyError:
                if kind == "namespaces" and self._is_used(key):
                    return {"metadata": {"name": key}}
                raise Refused(404, "NotFound", f'{kind} "{key}" not found', key) from None

    def _is_used(self, namespace: str) -> bool:
        """Whether there are objects in it: tests make them without the namespace."""
        return any(key.startswith(f"{namespace}/") for objects in self._objects.values() for key in objects)

    def list(self, kind: str, wanted: Callable[[Object], bool] = lambda item: True) -> tuple[list[Object], int]:
        with self.changed:
            return [copied(item) for item in self._objects[kind].values() if wanted(item)], self.version

    def page(
        self, kind: str, wanted: Callable[[Object], bool], more: str, limit: int
    ) -> tuple[Sequence[Object], int, str]:
        """A page of a list as etcd serves it: from the state in which its first page was asked for.

        Returns the objects, that state's version, and the token for the next page: a place, and which state.
        """
        with self.changed:
            start, state = (int(part) for part in more.split("@")) if more else (0, 0)
            if state and state not in self._states:
                text = "The provided continue parameter is too old to display a consistent list result."
                raise Refused(410, "Expired", text, more=f"{start}@0")
            now = [item for item in self._objects[kind].values() if wanted(item)]
            version, items = self._states[state] if state else (self.version, now)
            end = start + (limit or len(items))
            if end < len(items) and not state:
                self._lists += 1
                state = self._lists
                self._states[state] = version, items
                if len(self._states) > LISTS_AT_ONCE:
                    del self._states[next(iter(self._states))]
            return copied(items[start:end]), version, f"{end}@{state}" if end < len(items) else ""

    def create(self, kind: str, item: Object) -> Object:
        with self.changed:
            item = copied(item)
            meta = item.setdefault("metadata", {})
            if not meta.get("name"):
                meta["name"] = meta["generateName"][:58] + "".join(
                    self._random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
                )
            if len(meta["name"]) > 253:
                raise Refused(422, "Invalid", "metadata.name: must be no more than 253 characters", meta["name"])
            if key_of(item) in self._objects[kind]:
                raise Refused(409, "AlreadyExists", f'{kind} "{meta["name"]}" already exists', meta["name"])
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            return self._put(kind, "ADDED", item)

    def update(self, kind: str, key: str, item: Object) -> Object:
        """Replace an object; an update without changes keeps the resource version, as in the real server."""
        with self.changed:
            stored = self.get(kind, key)
            item = copied(item)
            check_precondition(stored, item["metadata"])
            item["metadata"] = {
                "creationTimestamp": stored["metadata"]["creationTimestamp"],
                **item["metadata"],
                "uid": stored["metadata"]["uid"],
                "resourceVersion": stored["metadata"]["resourceVersion"],
            }
            return stored if item == stored else self._put(kind, "MODIFIED", item)

    def delete(self, kind: str, key: str, preconditions: Object | None = None) -> Object:
        with self.changed:
            check_precondition(self.get(kind, key), preconditions or {})
            item = copied(self._objects[kind].pop(key))
            return self._log(kind, "DELETED", item)

    def expire(self) -> None:
        """Discard the change log, and the states of lists that are under way, as compaction does."""
        with self.changed:
            self._states.clear()
            self.version += 1
            self.oldest = self.version
            self.changed.notify_all()

    def since(self, version: int) -> Iterator[Event]:
        """Events after a version; call with ``changed`` held."""
        return (event for event in self.events if event.version > version)

    def _put(self, kind: str, type_: str, item: Object) -> Object:
        before = self._objects[kind].get(key_of(item))
        self._objects[kind][key_of(item)] = item
        return self._log(kind, type_, item, before)

    def _log(self, kind: str, type_: str, item: Object, before: Object | None = None) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append(Event(self.version, kind, type_, copied(item), before))
        self.changed.notify_all()
        return copied(item)


def check_precondition(stored: Object, wanted: Object) -> None:
    meta = stored["metadata"]
    for field in ("uid", "resourceVersion"):
        if wanted.get(field) and wanted[field] != meta[field]:
            raise Refused(409, "Conflict", f"{field} is {meta[field]}, not {wanted[field]}", meta["name"])
