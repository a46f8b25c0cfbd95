"""From the text of a file to plain values, and from a path in such a value back to its line.

YAML is read as Kubernetes reads it: a time stamp and ``1:30`` are texts, a key that comes twice is an error. Aliases
are taken with the bound that kubectl's YAML library has for them, since a few lines of them can stand for gigabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from dra_driver.util.errors import DriverError

Path = Sequence[str | int]
"""Keys and list positions from an object's top."""
ALIASES_FREE, NODES_FREE = 100, 1000
"""So much of a document may be aliases without a look at their share."""
MAX_ALIASES = ((400_000, 0.99), (4_000_000, 0.10))
"""Size of a document in nodes to the share of them that aliases may stand for; in between it falls evenly."""
MAX_SEARCHED_LENGTH = 8 << 20
"""Characters of a file in which a line is looked for; in longer ones, written by programs, name and path have to do."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # which base depends on libyaml
    """Safe loader with the scalars of Kubernetes."""

    yaml_implicit_resolvers = {  # noqa: RUF012 # PyYAML's own attribute
        first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_yaml_int(self, node: Any) -> Any:
        """Base 60 is a text."""
        return node.value if ":" in node.value else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: Any) -> Any:
        """Base 60 is a text."""
        return node.value if ":" in node.value else super().construct_yaml_float(node)


for _tag, _method in (("int", _Loader.construct_yaml_int), ("float", _Loader.construct_yaml_float)):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _method)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object was written: a part of a file. ``path`` leads to it from the top of the document."""

    file: str
    text: str = field(repr=False)
    document: int = 0
    path: tuple[str | int, ...] = ()
    subject: str = ""
    """What errors call it, such as ``Pod default/pod0``."""

    def at(self, path: tuple[str | int, ...], subject: str = "") -> Origin:
        """Another place in the same document."""
        return Origin(self.file, self.text, self.document, path, subject)

    def error(self, path: Path, what: str, *, remedy: str = "") -> ManifestError:
        """The error for the place at ``path`` below the object."""
        return ManifestError(self.told(path, what), remedy=remedy)

    def told(self, path: Path, what: str) -> str:
        """A sentence about the place at ``path`` below the object, with file and line."""
        line = self._line((*self.path, *path))
        where = f"{self.file}:{line}" if line else self.file
        parts = [part for part in (self.subject, written((*self.path, *path))) if part]
        return f"{where}: {': '.join([*parts, what])}"

    def _line(self, path: Path) -> int:
        """1 for the first line; of the deepest part of the path that exists; 0 when the text cannot tell."""
        if len(self.text) > MAX_SEARCHED_LENGTH:
            return 0
        try:
            nodes = yaml.compose_all(self.text, Loader=_Loader)
            node = next((node for place, node in enumerate(nodes) if place == self.document), None)
        except (yaml.YAMLError, RecursionError):
            return 0
        line = 0 if node is None else node.start_mark.line + 1
        for step in path:
            key, node = _child(node, step)
            if node is None:
                break
            line = (key or node).start_mark.line + 1
        return line


def _child(node: Any, step: str | int) -> tuple[Any, Any]:
    """Key and value; no key in a list."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(step)), (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None, None


def written(path: Path) -> str:
    """A path as Kubernetes writes it: ``spec.devices.requests[0].name``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def documents(file: str, text: str) -> Iterator[tuple[Origin, Any]]:
    """The documents of a file, empty ones left out. ManifestError when it is neither YAML nor JSON."""
    try:
        values = _values(text)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four are PyYAML's for a tag and a value that do not fit, such as `!!bool maybe`.
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ManifestError(f"{file}{line}: not YAML or JSON: {' '.join(str(problem).split())[:300]}") from error
    for place, value in enumerate(values):
        if value is not None:
            yield Origin(file, text, place), value


def items_of(document: Any, origin: Origin) -> Iterator[tuple[dict[str, Any], Origin]]:
    """The objects of a document, those of a List one by one; items of typed lists get the kind from the list."""
    if not isinstance(document, dict):
        raise origin.error((), f"a Kubernetes object expected, found {type(document).__name__}")
    kind, items = str(document.get("kind", "")), document.get("items")
    if not kind.endswith("List") or "items" not in document:
        yield document, origin
        return
    if not isinstance(items, list):
        if items is not None:
            raise origin.error(("items",), f"a list expected, found {type(items).__name__}")
        return
    for place, item in enumerate(items):
        at = origin.at((*origin.path, "items", place))
        if not isinstance(item, dict):
            raise at.error((), f"a Kubernetes object expected, found {type(item).__name__}")
        own = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")} if kind != "List" else {}
        yield {**own, **item}, at


def _values(text: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        # YAML does not know JSON's surrogate pairs. What is no JSON after all may still be YAML in flow style.
        try:
            return [json.loads(text, object_pairs_hook=_unique)]
        except json.JSONDecodeError:
            pass
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


def _check(document: Any) -> None:
    """Refuse keys that come twice, and aliases that stand for too much: also one within what it stands for.

    Nodes are counted as kubectl's library (goyaml) counts them while it decodes: the document, an alias, and each time
    what it stands for. The parser gives an alias the very node of its anchor, whose home is where it came first.
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
            raise yaml.MarkedYAMLError(problem="aliases (*name) stand for too much", problem_mark=node.start_mark)
        if is_new and isinstance(node, yaml.MappingNode):
            _check_keys(node)
        waiting += [(part, (id(node), index), within) for index, part in reversed(list(enumerate(_parts(node))))]


def _parts(node: Any) -> list[Any]:
    """The nodes right below one, in the order of the text; the key of a merge is not decoded."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair if part.tag != "tag:yaml.org,2002:merge"]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _share(nodes: int) -> float:
    """The share of so many nodes that aliases may stand for."""
    (few, most), (many, least) = MAX_ALIASES
    return most - (most - least) * min(max(nodes - few, 0) / (many - few), 1.0)


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} comes twice", problem_mark=key.start_mark)
            seen.add(key.value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} comes twice")
    return made


class ManifestError(DriverError):
    """What the user gave cannot be used; the text begins with file, line and object, as far as they are known."""
