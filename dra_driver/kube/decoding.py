"""From plain values to structs, as strictly as ``kubectl apply``: an unknown field is an error that names its line.

null is equivalent to an absent field.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from dra_driver.kube.documents import Origin, written

T = TypeVar("T")

_PLACE: Final = re.compile(r"(.*) - at `(?:key in `)?\$([^`]*)`+", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


@dataclass(slots=True)
class _Shape:
    """The expected fields of a value."""

    fields: dict[str, _Shape] | None = None
    unread: frozenset[str] = frozenset()
    item: _Shape | None = None
    """The shape of a list's items or an object's values."""
    lenient: bool = False
    names: list[str] = field(default_factory=list)
    integer: bool = False
    """Whether the value is an integer, which must fit in 64 bits."""


class Decoder:
    """Converts plain values to structs of msgspec.

    Args:
        unread: struct -> the valid fields that it does not declare.
        lenient: structs in which unknown fields are ignored.
    """

    def __init__(self, unread: Mapping[type, frozenset[str]] | None = None, lenient: Collection[type] = ()) -> None:
        self._unread = unread or {}
        self._lenient = frozenset(lenient)
        self._shapes: dict[Any, _Shape] = {}

    def convert(self, value: Any, kind: type[T], origin: Origin, unknown: dict[str, None] | None = None) -> T:
        """The object at ``origin`` as a struct; raises ManifestError for an unknown field or one of the wrong type.

        With ``unknown``, unknown fields are ignored and recorded there.
        """
        tidier = _Tidier(origin, unknown)
        try:
            return msgspec.convert(tidier.tidied(value, self._shape(kind), ()), kind)
        except msgspec.ValidationError as error:
            match = _PLACE.fullmatch(str(error))
            if match is None:
                raise origin.error((), str(error)) from error
            path = tuple(int(place) if place else name for name, place in _STEP.findall(match[2]))
            raise origin.error(path, match[1]) from error
        except RecursionError:
            raise origin.error((), "nested too deeply") from None

    def _shape(self, kind: Any) -> _Shape:
        if kind not in self._shapes:
            self._shapes[kind] = self._shape_of(msgspec.inspect.type_info(kind))
        return self._shapes[kind]

    def _shape_of(self, info: Any) -> _Shape:
        match info:
            case msgspec.inspect.StructType():
                fields = {entry.encode_name: self._shape_of(entry.type) for entry in info.fields}
                unread = self._unread.get(info.cls, frozenset())
                return _Shape(fields, unread, None, info.cls in self._lenient, sorted({*fields, *unread}))
            case msgspec.inspect.VarTupleType():
                return _Shape(item=self._shape_of(info.item_type))
            case msgspec.inspect.DictType():
                return _Shape(item=self._shape_of(info.value_type))
            case msgspec.inspect.UnionType():
                shapes = [self._shape_of(one) for one in info.types if not isinstance(one, msgspec.inspect.NoneType)]
                if len(shapes) == 1:
                    return shapes[0]
                return next((one for one in shapes if one.fields is not None or one.item is not None), _Shape())
            case msgspec.inspect.IntType():
                return _Shape(integer=True)
            case _:
                return _Shape()


@dataclass(frozen=True, slots=True)
class _Tidier:
    origin: Origin
    unknown: dict[str, None] | None

    def tidied(self, value: Any, shape: _Shape, path: tuple[str | int, ...]) -> Any:
        """The value without nulls and without fields that are never read."""
        if shape.fields is not None and isinstance(value, dict):
            result = {}
            for key, item in value.items():
                inner = shape.fields.get(key)
                if inner is None:
                    if key not in shape.unread and not shape.lenient:
                        self._note_unknown(key, shape, path)
                elif item is not None:
                    result[key] = self.tidied(item, inner, (*path, key))
            return result
        if shape.item is not None and isinstance(value, dict):
            inner = shape.item
            given = {key: _or_empty(item, inner) for key, item in value.items()}
            return {key: self.tidied(item, inner, (*path, key)) for key, item in given.items() if item is not None}
        if shape.integer and isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise self.origin.error(path, f"{str(value)[:40]} does not fit into 64 bits")
        if shape.item is not None and isinstance(value, list):
            inner = shape.item
            return [self.tidied(_or_empty(item, inner), inner, (*path, place)) for place, item in enumerate(value)]
        return value

    def _note_unknown(self, key: object, shape: _Shape, path: tuple[str | int, ...]) -> None:
        from difflib import get_close_matches

        name = str(key)[:60]
        if self.unknown is not None:
            places = [step for step in (self.origin.subject.partition(" ")[0], *path, name) if isinstance(step, str)]
            self.unknown[written(places)] = None
            return
        near = get_close_matches(name, shape.names, n=1)
        remedy = f"did you mean {near[0]}?" if near else "correct or remove it"
        raise self.origin.error((*path, name), "unknown field", remedy=remedy)


def _or_empty(value: Any, shape: _Shape) -> Any:
    """In a list or a map of objects, null is an object without fields, as it is for Go."""
    return {} if value is None and shape.fields is not None else value
