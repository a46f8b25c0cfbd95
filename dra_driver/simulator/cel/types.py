"""Static types and assignability, by the rules of CEL's checker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """``kind`` is the name without parameters, or ``param`` for a type variable, which ``name`` identifies."""

    kind: str
    params: tuple[Type, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        base = self.name or self.kind
        return f"{base}({', '.join(map(str, self.params))})" if self.params else base


BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL, DYN, ANY, ERROR = (
    Type("string"), Type("bytes"), Type("null_type"), Type("dyn"), Type("any"), Type("!error!"),
)  # fmt: skip
TIMESTAMP, DURATION = Type("google.protobuf.Timestamp"), Type("google.protobuf.Duration")
DEVICE, QUANTITY, SEMVER = (Type(f"kubernetes.{name}") for name in ("DRADevice", "Quantity", "Semver"))
_OBJECTS = (TIMESTAMP, DURATION, DEVICE, QUANTITY, SEMVER)
NULLABLE = frozenset({"any", "optional_type", *(given.kind for given in _OBJECTS)})
"""Kinds to which ``null`` is assignable."""


def param(name: str) -> Type:
    """A type variable."""
    return Type("param", name=name)


def list_of(element: Type) -> Type:
    """A list."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """A map."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """An optional."""
    return Type("optional_type", (value,))


def type_of(described: Type) -> Type:
    """The type of a type value."""
    return Type("type", (described,))


Bindings = dict[str, Type]
"""Current values of the type variables."""


def is_dyn(given: Type) -> bool:
    """Whether any value is allowed."""
    return given.kind in {"dyn", "any"}


def assignable(bindings: Bindings, left: list[Type], right: list[Type]) -> Bindings | None:
    """The bindings under which each left type is assignable to the right one; None if there are none."""
    if len(left) != len(right):
        return None
    copy = dict(bindings)
    return copy if all(_fits(copy, a, b) for a, b in zip(left, right, strict=True)) else None


def _fits(bound: Bindings, left: Type, right: Type) -> bool:
    if right.kind == "param":
        valid, is_bound = _substitutes(bound, left, right)
        if valid or is_bound:
            return valid
    if left.kind == "param":
        return _substitutes(bound, right, left)[0]
    if {left.kind, right.kind} & {"dyn", "any", "!error!"}:
        return True
    if "null_type" in {left.kind, right.kind}:
        other = right if left.kind == "null_type" else left
        return other.kind == "null_type" or other.kind in NULLABLE
    if left.kind == "type":
        return right.kind == "type"
    return left.kind == right.kind and all(_fits(bound, a, b) for a, b in zip(left.params, right.params, strict=True))


def _substitutes(bound: Bindings, given: Type, variable: Type) -> tuple[bool, bool]:
    """Whether the variable may be bound to the type, and whether it was bound already."""
    if given == variable:
        return True, True
    binding = bound.get(variable.name)
    if binding is not None:
        if given == binding:
            return True, True
        if _fits(bound, given, binding):
            general = most_general(given, binding)
            if _absent(bound, variable, general):
                bound[variable.name] = general
            return True, True
        return False, True
    if _absent(bound, variable, given):
        bound[variable.name] = given
        return True, False
    return False, False


def most_general(left: Type, right: Type) -> Type:
    """The less specific of two types."""
    return left if _says_less(left, right) else right


def _says_less(left: Type, right: Type) -> bool:
    if is_dyn(left) or left.kind == "param":
        return True
    if is_dyn(right) or right.kind == "param" or left.kind != right.kind:
        return False
    if left.kind == "type":
        return True
    return all(_says_less(a, b) for a, b in zip(left.params, right.params, strict=True))


def _absent(bound: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return False
    if within.kind == "param":
        binding = bound.get(within.name)
        return binding is None or _absent(bound, variable, binding)
    return all(_absent(bound, variable, part) for part in within.params)


def substitute(bound: Bindings, given: Type, *, free_is_dyn: bool = False) -> Type:
    """The type with its variables replaced by their bindings."""
    if given.kind == "param":
        binding = bound.get(given.name)
        if binding is not None:
            return substitute(bound, binding, free_is_dyn=free_is_dyn)
        return DYN if free_is_dyn else given
    if not given.params:
        return given
    return Type(
        given.kind, tuple(substitute(bound, part, free_is_dyn=free_is_dyn) for part in given.params), given.name
    )


def text_of(kind: Type) -> str:
    """A type as it appears in an error message."""
    return str(kind).replace("null_type", "null")
