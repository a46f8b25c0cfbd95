"""From the text of a file to plain values, and from a path in such a value back to its line.

YAML is read as Kubernetes reads it (``scalars``), and a duplicate key is an error. Aliases are subject to the same
limit as in kubectl's YAML library, because a few lines of them can expand to gigabytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from dra_driver.kube import scalars
from dra_driver.util.errors import UsageError
from dra_driver.util.text import escaped

Path = Sequence[str | int]
"""Keys and list indexes, from the top of an object."""
ALIASES_FREE, NODES_FREE = 100, 1000
"""Numbers of aliases and nodes below which the share of aliases is not checked."""
MAX_ALIASES = ((400_000, 0.99), (4_000_000, 0.10))
"""Document size in nodes -> maximum share of them that aliases may account for, linear in between."""
MAX_DEPTH = 1_000
"""Levels of nesting that are read; PyYAML calls itself for each, and some ten thousand of them end the process."""
MAX_SEARCHED_LENGTH = 8 << 20
"""Maximum length of a file in which lines are located; in longer, generated files, errors name object and path only."""


_SPACE = re.compile(r"\s*")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # which base depends on libyaml
    """Safe loader that resolves scalars as Kubernetes does."""

    yaml_implicit_resolvers = scalars.RESOLVERS

    def construct_yaml_int(self, node: Any) -> Any:
        """Only with an explicit tag; base-60 integers are strings."""
        return node.value if ":" in node.value else super().construct_yaml_int(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Keys are texts."""
        return {scalars.key(name): value for name, value in super().construct_mapping(node, deep).items()}


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor(scalars.NUMBER, lambda _, node: scalars.number(node.value))
_Loader.add_constructor(scalars.MERGE, lambda _, node: node.value)  # where it is no key
_Loader.add_constructor(scalars.BOOL, lambda _, node: scalars.truth(node.value))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object was defined: a part of a file. ``path`` leads to it from the top of the document."""

    file: str
    text: str = field(repr=False)
    document: int = 0
    path: tuple[str | int, ...] = ()
    subject: str = ""
    """The object's name in error messages, such as ``Pod default/pod0``."""

    def at(self, path: tuple[str | int, ...], subject: str = "") -> Origin:
        """Another position in the same document."""
        return Origin(self.file, self.text, self.document, path, subject)

    def error(self, path: Path, what: str, *, remedy: str = "") -> ManifestError:
        """The error for the position at ``path`` within the object."""
        return ManifestError(self.located(path, what), remedy=remedy)

    def located(self, path: Path, what: str) -> str:
        """A message about the position at ``path`` within the object, with file and line."""
        line = self._line((*self.path, *path))
        where = f"{self.file}:{line}" if line else self.file
        parts = [part for part in (self.subject, written((*self.path, *path))) if part]
        return f"{where}: {': '.join([*map(escaped, parts), what])}"

    def _line(self, path: Path) -> int:
        """Line number from 1 of the deepest existing part of the path; 0 if it cannot be determined."""
        if len(self.text) > MAX_SEARCHED_LENGTH:
            return 0
        marks = _marks(self.text)
        node = marks.document(self.document)
        line = 0 if node is None else node.start_mark.line + 1
        for step in path:
            key, node = marks.child(node, step)
            if node is None:
                break
            line = (key or node).start_mark.line + 1
        return line


class _Marks:
    """Where the values of a file begin: its documents as far as they are YAML, with lines.

    A file may have as many messages as lines, so it is parsed once for all of them, and the keys of a mapping are
    looked up.
    """

    def __init__(self, text: str) -> None:
        self._documents: list[Any] = []
        self._keys: dict[int, dict[str, tuple[Any, Any]]] = {}
        # JSON values one after the other are no YAML, for example: documents before an error are kept.
        with suppress(yaml.YAMLError, RecursionError):
            self._documents.extend(yaml.compose_all(text, Loader=_Loader))

    def document(self, place: int) -> Any:
        """The node of a document; None for none."""
        return self._documents[place] if place < len(self._documents) else None

    def child(self, node: Any, step: str | int) -> tuple[Any, Any]:
        """Key and value nodes; the key is None in a list."""
        if isinstance(node, yaml.MappingNode):
            keys = self._keys.get(id(node))
            if keys is None:
                # The first of equal ones, such as 1 and "1".
                pairs = reversed([pair for pair in node.value if isinstance(pair[0].value, str)])
                keys = self._keys[id(node)] = {key.value: (key, value) for key, value in pairs}
            return keys.get(str(step), (None, None))
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            return None, node.value[step]
        return None, None


@lru_cache(maxsize=1)
def _marks(text: str) -> _Marks:
    """Those of one file: messages come file by file."""
    return _Marks(text)


def written(path: Path) -> str:
    """A path in Kubernetes' notation: ``spec.devices.requests[0].name``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def documents(file: str, text: str) -> Iterator[tuple[Origin, Any]]:
    """The documents of a file, except empty ones. Raises ManifestError if it is neither YAML nor JSON."""
    try:
        values = _values(text)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML raises the last four for a value that does not match its tag, such as `!!bool maybe`.
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ManifestError(f"{file}{line}: not YAML or JSON: {' '.join(str(problem).split())[:300]}") from error
    for place, value in enumerate(values):
        if value is not None:
            yield Origin(file, text, place), value


def items_of(document: Any, origin: Origin) -> Iterator[tuple[dict[str, Any], Origin]]:
    """The objects of a document; a List is expanded, and items of typed lists get their kind from the list."""
    if not isinstance(document, dict):
        raise origin.error((), f"expected a Kubernetes object, got {type(document).__name__}")
    kind, items = str(document.get("kind", "")), document.get("items")
    if not kind.endswith("List") or "items" not in document:
        yield document, origin
        return
    if not isinstance(items, list):
        if items is not None:
            raise origin.error(("items",), f"expected a list, got {type(items).__name__}")
        return
    for place, item in enumerate(items):
        at = origin.at((*origin.path, "items", place))
        if not isinstance(item, dict):
            raise at.error((), f"expected a Kubernetes object, got {type(item).__name__}")
        own = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")} if kind != "List" else {}
        yield {**own, **item}, at


def children(value: Any) -> Iterable[tuple[str | int, Any]]:
    """What stands in an object or a list, each with its key or index; a scalar has nothing in it."""
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


def metadata_of(value: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object that was not validated yet; {} for none."""
    metadata = value.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def named(value: dict[str, Any], kind: str, origin: Origin) -> Origin:
    """The origin of an object with kind and name, as far as it has one, as its subject."""
    name = metadata_of(value).get("name") or metadata_of(value).get("generateName")
    return origin.at(origin.path, f"{kind[:60]} {name[:253]}" if isinstance(name, str) else kind[:60])


def type_of(value: dict[str, Any], origin: Origin) -> tuple[str, str]:
    """API version and kind of an object. Raises ManifestError if one is missing, or is no text."""
    version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        missing = "kind" if isinstance(version, str) else "apiVersion"
        what = f"{missing} is missing, so this is not a Kubernetes object"
        raise origin.error((), what, remedy="for a Helm chart, give the output of helm template")
    return version, kind


def _values(text: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        # YAML does not know JSON's surrogate pairs. Text that turns out not to be JSON may still be YAML in flow style.
        try:
            return list(_json_values(text))
        except json.JSONDecodeError:
            pass
    _check_depth(text)
    loader = _Loader(text)
    values = []
    try:
        while loader.check_node():
            node = loader.get_node()
            _check(node)
            values.append(loader.construct_document(node))
    finally:
        loader.dispose()
    return values


def _json_values(text: str) -> Iterator[Any]:
    """JSON values one after the other, as jq prints them and kubectl takes them."""
    decoder, place = json.JSONDecoder(object_pairs_hook=_unique), 0
    while (place := _space_end(text, place)) < len(text):
        value, place = decoder.raw_decode(text, place)
        yield value


def _space_end(text: str, place: int) -> int:
    """Where the whitespace at this place ends, without a copy of what follows it."""
    space = _SPACE.match(text, place)
    return space.end() if space else place


def _check_depth(text: str) -> None:
    """Refuse nesting that the process would not survive."""
    # Each level takes one of these characters, so most files need no second look.
    if sum(map(text.count, "{[-?:")) <= MAX_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels of nesting", problem_mark=mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check(document: Any) -> None:
    """Refuse duplicate keys, and aliases that expand to too much, including aliases within the value they refer to.

    Nodes are counted as kubectl's library (goyaml) counts them while it decodes: the document, each alias, and its
    value each time it is referenced. PyYAML represents an alias by its anchor's own node, so the first occurrence is
    the anchor.
    """
    homes: dict[int, tuple[int, int]] = {}
    waiting = [(document, (0, 0), False)]
    nodes, aliased = 1, 0
    while waiting:
        node, place, within = waiting.pop()
        is_new = id(node) not in homes
        if homes.setdefault(id(node), place) != place:
            nodes, aliased, within = nodes + 1, aliased + within, True
        nodes, aliased = nodes + 1, aliased + within
        if aliased > ALIASES_FREE and nodes > NODES_FREE and aliased > nodes * _share(nodes):
            raise yaml.MarkedYAMLError(problem="aliases (*name) expand to too much", problem_mark=node.start_mark)
        if is_new and isinstance(node, yaml.MappingNode):
            _check_keys(node)
        waiting += [(part, (id(node), index), within) for index, part in reversed(list(enumerate(_parts(node))))]


def _parts(node: Any) -> list[Any]:
    """The direct children of a node, in the order of the text; the key of a merge is not decoded."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair if part.tag != "tag:yaml.org,2002:merge"]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _share(nodes: int) -> float:
    """The share of this many nodes that aliases may account for."""
    (few, most), (many, least) = MAX_ALIASES
    return most - (most - least) * min(max(nodes - few, 0) / (many - few), 1.0)


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark)
            seen.add(key.value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        times = Counter([key for key, _ in pairs])
        twice = next(key for key, count in times.items() if count > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return mapping


class ManifestError(UsageError):
    """Invalid input; the message begins with file, line and object, as far as they are known."""
