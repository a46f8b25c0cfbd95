"""The objects of a collection as they are now, kept up to date by a watch and by the own writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dra_driver.kube.collection import Collection
from dra_driver.kube.objects import ObjectMeta
from dra_driver.kube.resources import WatchEvent
from dra_driver.kube.watch import Reflector
from dra_driver.util.backoff import Backoff
from dra_driver.util.worker import Worker


class HasMetadata(Protocol):
    """Any Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its identity and version."""


T = TypeVar("T", bound=HasMetadata)


class Informer(Generic[T]):
    """Follows a collection. What was written is told by ``wrote``, so nothing is decided on a state before it.

    Args:
        name: for the log.
        collection: what to follow.
        changed: called, in the informer's thread, after each change.
    """

    def __init__(self, name: str, collection: Collection[T], changed: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], T] = {}
        self._written: dict[tuple[str, str], T] = {}
        """What was written and has not come by the watch yet."""
        self._changed = changed
        self._synced = False
        self._reflector: Reflector[T] = Reflector(
            name, collection.list_all, collection.watch, self._listed, self._happened, backoff=Backoff(cap=10.0)
        )

    def start(self) -> None:
        """Begin to follow."""
        self._reflector.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End."""
        self._reflector.stop(timeout)

    @property
    def worker(self) -> Worker:
        """Its loop, for health reports."""
        return self._reflector.worker

    @property
    def current(self) -> bool:
        """Whether the objects were listed and are followed without trouble."""
        return self._synced and not self._reflector.last_error

    @property
    def last_error(self) -> str:
        """Why they are not followed, or ""."""
        return self._reflector.last_error

    def objects(self) -> list[T]:
        """All objects, no order."""
        with self._lock:
            return list(self._objects.values())

    def wrote(self, item: T) -> None:
        """The server's answer to a write or read: newer than what the watch has told."""
        with self._lock:
            key = _key(item)
            known = self._objects.get(key)
            if known is not None and _version(known) < _version(item):
                self._objects[key] = self._written[key] = item

    def gone(self, namespace: str, name: str, uid: str) -> None:
        """The server said that there is no such object."""
        with self._lock:
            known = self._objects.get((namespace, name))
            if known is not None and known.metadata.uid == uid:
                del self._objects[namespace, name]
                self._written.pop((namespace, name), None)

    def _listed(self, items: list[T]) -> None:
        with self._lock:
            self._objects = {_key(item): item for item in items}
            for key, written in list(self._written.items()):
                known = self._objects.get(key)
                if known is not None and _version(known) < _version(written):
                    self._objects[key] = written
                else:
                    del self._written[key]
            self._synced = True
        self._changed()

    def _happened(self, event: WatchEvent[T]) -> None:
        item = event.object
        if item is None:
            return
        with self._lock:
            key = _key(item)
            known = self._objects.get(key)
            if known is not None and _version(known) > _version(item):
                return
            self._written.pop(key, None)
            if event.type == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = item
        self._changed()


def _key(item: HasMetadata) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def _version(item: HasMetadata) -> int:
    """Resource versions of one kind are numbers that grow (Kubernetes 1.35 API conventions, and etcd before that)."""
    text = item.metadata.resource_version
    return int(text) if text.isdecimal() else 0
