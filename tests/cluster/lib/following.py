"""Objects of a collection as a watch shows them, and waiting for what becomes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from dra_driver.kube.api.client import Stream, Transport
from tests.cluster.lib.deadline import Deadline
from tests.cluster.lib.kube import Object


class Followed:
    """All objects of some collections, by path and name, while the ``with`` block lasts.

    Args:
        transport: to the API server.
        paths: of the collections, each in one namespace.
        seen: is called in the watch's thread for each change, before anybody who waits looks: with the object, and
            whether it is there.
    """

    def __init__(
        self, transport: Transport, paths: Sequence[str], seen: Callable[[Object, bool], None] = lambda *_: None
    ) -> None:
        self._transport = transport
        self._seen = seen
        self._changed = threading.Condition()
        self._objects: dict[str, dict[str, Object]] = {path: {} for path in paths}
        self._end = ExitStack()
        self._fault: Exception | None = None

    def __enter__(self) -> Self:
        for path, objects in self._objects.items():
            listed = json.loads(self._transport.request("GET", path).body)
            objects |= {item["metadata"]["name"]: item for item in listed["items"]}
            query = [("watch", "1"), ("resourceVersion", listed["metadata"]["resourceVersion"])]
            stream = self._end.enter_context(self._transport.stream(path, query=query, timeout=3600))
            thread = threading.Thread(target=self._follow, args=(stream, objects), name=f"follow {path}", daemon=True)
            thread.start()
            self._end.callback(thread.join, 10)
            self._end.callback(stream.abort)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.close()

    def get(self, path: str, name: str) -> Object | None:
        """The object as it was seen last; None when there is none."""
        return self._objects[path].get(name)

    def wait(self, what: str, probe: Callable[[], bool], seconds: float) -> None:
        """Wait for a change that makes ``probe`` true. AssertionError when it is not so in time."""
        deadline = Deadline(seconds)
        with self._changed:
            while not probe():
                assert self._fault is None, f"what was seen is wrong: {self._fault}"
                left = deadline.left()
                assert left > 0, f"{what}: not so within {deadline}"
                self._changed.wait(left)

    def _follow(self, stream: Stream, objects: dict[str, Object]) -> None:
        for line in stream:
            event = json.loads(line)
            found = event["object"]
            there = event["type"] != "DELETED"
            with self._changed:
                try:
                    self._seen(found, there)
                except Exception as error:  # noqa: BLE001 - told to those who wait
                    self._fault = self._fault or error
                name = found["metadata"].get("name", "")
                if there:
                    objects[name] = found
                else:
                    objects.pop(name, None)
                self._changed.notify_all()
