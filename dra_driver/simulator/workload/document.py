"""YAML whose values know where they stand, so that every complaint can name file, line and path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from dra_driver.errors import DriverError

MOST_BYTES = 1 << 20
"""Of a workload file; far more than any needs."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class WorkloadError(DriverError):
    """The workload file cannot be used; the text has file, line and path."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A value of the file: a scalar, a list of spots, or text -> spot."""

    file: str
    line: int
    path: str
    value: Any

    def refuse(self, what: str, remedy: str = "") -> NoReturn:
        """Raise the WorkloadError about this value."""
        raise WorkloadError(f"{self.file}, line {self.line}: {self.path or 'the document'}: {what}", remedy=remedy)

    def fields(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Spot]:
        """A mapping with these keys and no others."""
        found = self.mapping()
        known = (*required, *optional)
        for name, spot in found.items():
            if name not in known:
                spot.refuse("unknown field", f"known here are {', '.join(known)}")
        for name in required:
            if name not in found:
                self.refuse(f"{name} is missing")
        return found

    def mapping(self) -> dict[str, Spot]:
        """A mapping with any keys."""
        if not isinstance(self.value, dict):
            self.refuse(f"a mapping expected, found {self.kind()}")
        return self.value

    def items(self) -> list[Spot]:
        """A list with something in it."""
        if not isinstance(self.value, list):
            self.refuse(f"a list expected, found {self.kind()}")
        if not self.value:
            self.refuse("the list is empty")
        return self.value

    def text(self) -> str:
        """A text of reasonable length."""
        if not isinstance(self.value, str):
            self.refuse(f"a text expected, found {self.kind()}")
        if not 0 < len(self.value) <= 253 or not self.value.isprintable():
            self.refuse("a printable text of 1 to 253 characters expected")
        return self.value

    def number(self, least: float, most: float) -> float:
        """A number in these bounds."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.refuse(f"a number expected, found {self.kind()}")
        # Written so that "not a number" is refused, too.
        if not least <= self.value <= most:
            self.refuse(f"{str(self.value)[:24]} is not in the range from {least:g} to {most:g}")
        return float(self.value)

    def whole(self, least: int, most: int) -> int:
        """A whole number in these bounds."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.refuse(f"a whole number expected, found {self.kind()}")
        return int(self.number(least, most))

    def kind(self) -> str:
        """What the value is, in words."""
        words = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
        return words.get(type(self.value), f"{str(self.value)[:24]!r}")

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {name: spot.plain() for name, spot in self.value.items()}
        return [spot.plain() for spot in self.value] if isinstance(self.value, list) else self.value


def load(file: str, text: str) -> Spot:
    """The only document of a YAML text.

    Raises:
        WorkloadError: no YAML, several documents, an alias, a key that comes twice, or too large.
    """
    if len(text) > MOST_BYTES:
        raise WorkloadError(f"{file}: larger than {MOST_BYTES} bytes, so it is no workload")
    try:
        loader = _LOADER(text)
        try:
            found = _read(loader, file)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise WorkloadError(f"{file}{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        # The last three are PyYAML's for a tag and a value that do not fit, such as `!!int maybe`.
        raise WorkloadError(f"{file}: not YAML: {' '.join(str(error).split())[:300]}") from error
    return found


def _read(loader: Any, file: str) -> Spot:
    root = loader.get_single_node()
    if root is None:
        raise WorkloadError(f"{file}: the file is empty", remedy="docs/placement.md has an example")
    return _spot(loader, file, root, "", set())


def _spot(loader: Any, file: str, node: yaml.Node, path: str, seen: set[int]) -> Spot:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise WorkloadError(f"{file}, line {line}: {path}: aliases (*name) are not supported here")
    seen.add(id(node))
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = _mapping(loader, file, node, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        value = [_spot(loader, file, item, f"{path}[{place}]", seen) for place, item in enumerate(node.value)]
    else:
        value = loader.construct_object(node)
    return Spot(file, line, path, value)


def _mapping(loader: Any, file: str, node: yaml.MappingNode, path: str, seen: set[int]) -> Mapping[str, Spot]:
    found: dict[str, Spot] = {}
    for key_node, item in node.value:
        name = key_node.value
        where = f"{file}, line {key_node.start_mark.line + 1}: {path or 'the document'}"
        if not isinstance(name, str) or key_node.tag != "tag:yaml.org,2002:str":
            raise WorkloadError(f"{where}: the name of a field must be a text")
        if name in found:
            raise WorkloadError(f"{where}: {name!r} comes twice")
        # A field is where its name is, also if its value begins on the next line.
        inner = _spot(loader, file, item, f"{path}.{name}" if path else name, seen)
        found[name] = Spot(file, key_node.start_mark.line + 1, inner.path, inner.value)
    return found
