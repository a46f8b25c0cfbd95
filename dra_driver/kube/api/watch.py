"""Continuous list and watch: ``Reflector`` follows a collection, ``Informer`` also keeps its objects.

Each collection has one thread, which never retries in a tight loop.

A watch lasts about ten minutes, with jitter so that nodes that were started together drift apart: an idle collection
costs about six requests an hour. A lost or ended watch resumes from the last resource version seen (bookmarks keep it
fresh); 404, 410 and undecodable events lead to a new list. Errors and watches that end at once are followed by growing
waits.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from dra_driver.kube.api.errors import ApiError, DecodeError
from dra_driver.kube.api.resources import Collection, Watch, WatchEvent
from dra_driver.kube.objects.meta import version_number
from dra_driver.util import runtime
from dra_driver.util.worker import MAX_ROUND_SECONDS, Backoff, Worker

T = TypeVar("T")

WATCH_SECONDS = 600.0
STABLE_SECONDS = 10.0
"""A watch that lasted this long counts as a success: the back-off is reset."""

_EARLY_SECONDS = 2.0
"""A watch that ended so long before its time was ended by a server that stops, or by something in between."""

log = logging.getLogger(__name__)


class Reflector(Generic[T]):
    """Follows one collection in a thread of its own.

    Args:
        name: of the collection, for the log and the thread's name.
        list_: returns all objects and the resource version to watch from.
        watch: opens a watch from a resource version for the given number of seconds.
        on_list: called with all objects after each list, before any event.
        on_event: called with each ADDED, MODIFIED and DELETED event.
        on_reconnect: called when a watch is open again after one that broke or ended early: it may be another server.
        watch_seconds: average duration of a watch; it varies by 10 %.
        backoff: waits after errors.

    The callbacks run in the reflector's thread. If one raises, the collection is listed again after a wait, so that a
    callback that processed only part of a change does not miss the rest.
    """

    def __init__(
        self,
        name: str,
        list_: Callable[[], tuple[list[T], str]],
        watch: Callable[[str, float], AbstractContextManager[Watch[T]]],
        on_list: Callable[[list[T]], None],
        on_event: Callable[[WatchEvent[T]], None],
        *,
        on_reconnect: Callable[[], None] = lambda: None,
        watch_seconds: float = WATCH_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        self._name = name
        self._list = list_
        self._watch = watch
        self._on_list = on_list
        self._on_event = on_event
        self._on_reconnect = on_reconnect
        self._watch_seconds = watch_seconds
        self._backoff = backoff or Backoff()
        self._lock = runtime.lock()
        self._open: Watch[T] | None = None
        self._opened_at: float | None = None
        self._expired = False
        self._broken = False
        self._resource_version = ""
        self._trouble = ""
        self.kind_missing = False
        """Whether the server does not serve the kind, as far as is known."""
        self.worker = Worker(f"watching {name}", self._round)

    @property
    def last_error(self) -> str:
        """Why the collection is currently not followed, or ""."""
        return self._trouble or self.worker.last_error

    def start(self) -> None:
        """Start; errors are retried until ``stop``. Does nothing after ``stop``."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, interrupting a blocked read; returns when the thread has ended or after ``timeout`` seconds."""
        self.worker.stop(0)
        with self._lock:
            if self._open is not None:
                self._open.abort()
        self.worker.stop(timeout)

    def _round(self) -> float:
        """List if necessary, and watch once; returns the seconds until the next round."""
        # Cleared first: after an unexpected error, the next round begins with a list.
        resource_version, self._resource_version = self._resource_version, ""
        self._opened_at = None
        trouble: ApiError | None = None
        try:
            if not resource_version:
                objects, resource_version = self._list()
                self._on_list(objects)
                self._trouble, self.kind_missing = "", False
            resource_version = self._follow(resource_version)
        except ApiError as error:
            trouble = error
            if error.status == 410:
                resource_version = ""
            self.kind_missing = error.kind_missing
        except _Moved as moved:
            trouble, resource_version = moved.error, moved.resource_version
            if moved.error.status == 410 and not self._expired:
                # After an outage, this is how a server signals that it is available again. Only the first one counts:
                # another fault may make every version too old.
                self._backoff.reset()
            self._expired = moved.error.status == 410
        self._resource_version = resource_version
        self._broken = self._broken or trouble is not None
        return self._pause(trouble)

    def _follow(self, resource_version: str) -> str:
        """Watch once; returns the resource version at the end. Raises _Moved, with that version, after an error."""
        seconds = self._watch_seconds * random.uniform(0.9, 1.1)  # noqa: S311 # jitter need not be secure
        try:
            with self._watch(resource_version, seconds) as watch:
                with self._lock:
                    if self.worker.stopping:
                        return resource_version
                    self._open = watch
                self._opened_at = runtime.monotonic()
                self._trouble = ""
                self.worker.well(seconds + MAX_ROUND_SECONDS)
                if self._broken:
                    self._broken = False
                    self._on_reconnect()
                for event in watch:
                    resource_version = event.resource_version or resource_version
                    if event.object is not None:
                        self.worker.beat()
                        self._on_event(event)
                    self.worker.beat(seconds + MAX_ROUND_SECONDS)
        except ApiError as error:
            # 404: the version of the API is no longer served, and a list finds the one that is. An event that cannot be
            # decoded would be sent again from the same version.
            lost_place = error.status in (404, 410) or isinstance(error, DecodeError)
            raise _Moved("" if lost_place else resource_version, error) from error
        finally:
            with self._lock:
                self._open = None
        self._broken = runtime.monotonic() - self._opened_at < seconds - _EARLY_SECONDS
        return resource_version

    def _pause(self, trouble: ApiError | None) -> float:
        # Counted from the opening of the watch: a server that takes long to refuse one may be overloaded.
        if self._opened_at is not None and runtime.monotonic() - self._opened_at >= STABLE_SECONDS:
            self._backoff.reset()
            if trouble is None:
                return 0.0
        wait = self._backoff.next(trouble.retry_after if trouble else None)
        if trouble is not None and not self.worker.stopping:
            # Said once: a server that is away for an hour would fill the log. It may forget old states.
            fresh = logging.INFO if trouble.status == 410 else logging.WARNING
            level = logging.DEBUG if self._trouble == str(trouble) else fresh
            log.log(level, "watching %s: %s (next try in %.1f s)", self._name, trouble, wait)
            self._trouble = str(trouble)
        return wait


class _Moved(Exception):  # noqa: N818 # carries an error, is none
    """The watch ended with an error after it had advanced to ``resource_version`` ("": list again)."""

    def __init__(self, resource_version: str, error: ApiError) -> None:
        super().__init__()
        self.resource_version = resource_version
        self.error = error


class Identity(Protocol):
    """What tells an object, and a state of it, from all others."""

    @property
    def namespace(self) -> str:
        """Empty if the kind has none."""

    @property
    def name(self) -> str:
        """Unique in its namespace."""

    @property
    def uid(self) -> str:
        """Unique for ever."""

    @property
    def resource_version(self) -> str:
        """Of this state."""


class HasMetadata(Protocol):
    """Any Kubernetes object."""

    @property
    def metadata(self) -> Identity:
        """The object's identity and version."""


HeldT = TypeVar("HeldT", bound=HasMetadata)


class Informer(Generic[HeldT]):
    """Follows a collection. Callers report their writes with ``wrote``, so that no decision is based on an older state.

    Args:
        name: for the log.
        collection: the collection to follow.
        changed: called, in the informer's thread, after each change.
        wanted: which objects to keep; of pods, most clusters have many that nobody here asks about, and what tenants
            make must not fill the memory.
        optional: whether the kind may be one that the server does not serve: then it has no objects, and that is no
            error. What it is served with later is seen within the longest wait.
    """

    def __init__(
        self,
        name: str,
        collection: Collection[HeldT],
        changed: Callable[[], None],
        wanted: Callable[[HeldT], bool] = lambda _: True,
        *,
        optional: bool = False,
    ) -> None:
        self._lock = runtime.lock()
        self._objects: dict[tuple[str, str], HeldT] = {}
        self._written: dict[tuple[str, str], HeldT] = {}
        """Objects that were written and that the watch has not delivered yet."""
        self._changed = changed
        self._wanted = wanted
        self._optional = optional
        self._synced = False
        self._reflector: Reflector[HeldT] = Reflector(
            name,
            lambda: collection.select(self._kept),
            collection.watch,
            self._listed,
            self._happened,
            backoff=Backoff(cap=10.0),
        )

    def start(self) -> None:
        """Start to follow the collection."""
        self._reflector.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop."""
        self._reflector.stop(timeout)

    @property
    def worker(self) -> Worker:
        """Its loop, for health reports."""
        return self._reflector.worker

    @property
    def current(self) -> bool:
        """Whether the objects have been listed and are followed without errors."""
        return self.absent or (self._synced and not self._reflector.last_error)

    @property
    def absent(self) -> bool:
        """Whether the server does not serve the kind, which is optional."""
        return self._optional and self._reflector.kind_missing

    @property
    def last_error(self) -> str:
        """Why they are not watched, or ""."""
        return "" if self.absent else self._reflector.last_error

    def objects(self) -> list[HeldT]:
        """All objects, in no particular order."""
        with self._lock:
            return [] if self.absent else list(self._objects.values())

    def get(self, namespace: str, name: str) -> HeldT | None:
        """One of the objects; None: it is not there."""
        with self._lock:
            return None if self.absent else self._objects.get((namespace, name))

    def wrote(self, item: HeldT) -> None:
        """Record the server's response to a write or read, which is newer than the state from the watch."""
        with self._lock:
            key = _key(item)
            stored = self._objects.get(key)
            if stored is not None and _version(stored) < _version(item):
                self._objects[key] = self._written[key] = item

    def gone(self, namespace: str, name: str, uid: str) -> None:
        """Record that, according to the server, the object does not exist."""
        with self._lock:
            stored = self._objects.get((namespace, name))
            if stored is not None and stored.metadata.uid == uid:
                del self._objects[namespace, name]
                self._written.pop((namespace, name), None)

    def _kept(self, item: HeldT) -> HeldT | None:
        self.worker.beat()  # a list of many pages may take longer than a round
        return item if self._wanted(item) else None

    def _listed(self, items: list[HeldT]) -> None:
        with self._lock:
            self._objects = {_key(item): item for item in items}
            for key, written in list(self._written.items()):
                stored = self._objects.get(key)
                if stored is not None and _version(stored) < _version(written):
                    self._objects[key] = written
                else:
                    del self._written[key]
            self._synced = True
        self._changed()

    def _happened(self, event: WatchEvent[HeldT]) -> None:
        item = event.object
        if item is None:
            return
        with self._lock:
            key = _key(item)
            stored = self._objects.get(key)
            if stored is not None and _version(stored) > _version(item):
                return
            self._written.pop(key, None)
            if event.type != "DELETED" and self._wanted(item):
                self._objects[key] = item
            elif self._objects.pop(key, None) is None and event.type != "DELETED":
                return
        self._changed()


def _key(item: HasMetadata) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def _version(item: HasMetadata) -> int:
    return version_number(item.metadata.resource_version)
