"""Where Neuron resources are named outside pod templates, so that nobody believes them to be converted."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from dra_driver.legacy.migration.limits import RESOURCES, Path

_NAMED: Final = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, RESOURCES))})(?![\w.-])", re.ASCII)
_OF_TAINT: Final = re.compile(r"\b(?:key|taintKey)[\"']?\s*:\s*[\"']?$")
"""Before a resource that is the key of a taint."""
_SCHEDULER: Final = ("KubeSchedulerConfiguration", '"managedResources"')
"""The configuration of a scheduler that asks the extender, in its newer and its older form, asks for no resources."""
_NOT_SPECIFIED: Final = frozenset({"metadata", "status"})


def mentions(item: dict[str, Any], templates: Collection[Path]) -> Iterator[Path]:
    """Paths of the keys and texts that name a Neuron resource, in the order of the text; not those of taints.

    Args:
        item: the object.
        templates: paths of pod specs, which are not searched.
    """
    known = frozenset(templates)
    waiting: list[tuple[Path, Any]] = [((), item)]
    while waiting:
        path, value = waiting.pop()
        if path in known or (path[:1] and path[0] in _NOT_SPECIFIED):
            continue
        if (path and path[-1] in RESOURCES) or (isinstance(value, str) and path[-1] != "key" and _asks(value)):
            yield path
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += reversed([((*path, step), below) for step, below in pairs])


def _asks(text: str) -> bool:
    text = text.replace("~1", "/")  # as in JSON patches
    if "\\." in text:  # as in parameters of helm, where other dots stand between keys
        text = " ".join(part.replace("\0", ".") for part in text.replace("\\.", "\0").split("."))
    if any(word in text for word in _SCHEDULER):
        return False
    return any(_OF_TAINT.search(text, 0, found.start()) is None for found in _NAMED.finditer(text))
