"""Compiles checked syntax to closures. A closure takes a frame: a list of the device and the local variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.simulator.cel import operators
from dra_driver.simulator.cel.checker import Checked
from dra_driver.simulator.cel.closures import (
    Code,
    Frame,
    accumulator,
    applied,
    growing,
    in_constants,
    list_code,
    logical,
    looped,
    map_code,
)
from dra_driver.simulator.cel.device import FIELDS
from dra_driver.simulator.cel.errors import CelError, EvaluationError, UnsupportedError
from dra_driver.simulator.cel.libraries.regex import PATTERN_ARGUMENT, compiled
from dra_driver.simulator.cel.libraries.standard import CONVERSIONS
from dra_driver.simulator.cel.overloads import Overload, Run, accepts, is_certain, no_overload
from dra_driver.simulator.cel.syntax import (
    ACCUMULATOR,
    Bind,
    Call,
    Fold,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
)
from dra_driver.simulator.cel.types import DEVICE, Type
from dra_driver.simulator.cel.values import Optional, TypeValue, Uint

UNSET: Any = object()
"""Marks a bound variable in a frame whose value has not been computed yet."""


class Compiler:
    """Compiles one expression; ``width`` is the size of its frames, ``overrides`` replaces how some overloads run."""

    def __init__(self, checked: Checked, overrides: Mapping[str, Run]) -> None:
        self.checked = checked
        self.overrides = overrides
        self.width = 1
        self._readers: list[dict[str, Code]] = [{}]
        self._codes: dict[SyntaxNode, Code] = {}
        self.constants: dict[SyntaxNode, Any] = {}

    def code(self, node: SyntaxNode) -> Code:
        """The closure of a node."""
        code = self._codes.get(node)
        if code is None:
            code = self._codes[node] = _BY_KIND[type(node)](self, node)
        return code

    def slot(self) -> int:
        """Reserve a slot in the frame for one variable."""
        self.width += 1
        return self.width - 1

    def scoped(self, variables: dict[str, Code], node: SyntaxNode) -> Code:
        """The closure of a node, with these variables in scope."""
        self._readers.append(variables)
        code = self.code(node)
        self._readers.pop()
        return code

    def constant(self, node: SyntaxNode, value: Any) -> Code:
        """A closure that always returns this value."""
        self.constants[node] = value
        return lambda _: value

    def _literal(self, node: Literal) -> Code:
        return self.constant(node, node.value)

    def _ident(self, node: Ident) -> Code:
        if node in self.checked.named_types:
            return self.constant(node, TypeValue(self.checked.named_types[node]))
        for variables in [] if node.absolute else reversed(self._readers):
            if node.name in variables:
                return variables[node.name]
        return lambda frame: frame[0]

    def _select(self, node: Select) -> Code:
        if node in self.checked.named_types:
            return self.constant(node, TypeValue(self.checked.named_types[node]))
        operand, name = self.code(node.operand), node.field
        if node.test:
            return lambda frame: operators.present(operand(frame), name)
        if self.checked.types[node.operand] == DEVICE:
            read = FIELDS[name]
            return lambda frame: read(operand(frame))
        quick = self._part_of_device(node.operand)
        if quick is not None:
            field, domain = quick
            if field == "attributes":
                return lambda frame: frame[0].attributes[domain][name]
            return lambda frame: frame[0].capacity[domain][name]
        index = operators.index
        return lambda frame: index(operand(frame), name)

    def _part_of_device(self, node: SyntaxNode) -> tuple[str, str] | None:
        """``("attributes", domain)`` for ``device.attributes["domain"]``, by far the most common operand."""
        if not isinstance(node, Call) or node.function != "_[_]":
            return None
        container, key = node.args
        if (
            not isinstance(container, Select)
            or not isinstance(container.operand, Ident)
            or not isinstance(key, Literal)
        ):
            return None
        is_device = container.operand.absolute or not any("device" in variables for variables in self._readers)
        if not is_device or container.operand.name != "device" or container.field not in {"attributes", "capacity"}:
            return None
        return (container.field, key.value) if isinstance(key.value, str) else None

    def _call(self, node: Call) -> Code:
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node)
        parts = node.args if node.target is None else (node.target, *node.args)
        codes = [self.code(part) for part in parts]
        self._check_pattern(node, parts)
        run = self._dispatch(node.function, self.checked.overloads[node], [self.checked.types[part] for part in parts])
        folded = self._folded(node, parts, run)
        return folded if folded is not None else applied(run, codes)

    def _check_pattern(self, node: Call, parts: tuple[SyntaxNode, ...]) -> None:
        place = PATTERN_ARGUMENT.get(node.function)
        if place is not None and isinstance(self.constants.get(parts[place]), str):
            try:
                compiled(self.constants[parts[place]])
            except ValueError as error:
                raise CelError("compile", str(error), node.position) from None

    def _folded(self, node: Call, parts: tuple[SyntaxNode, ...], run: Run) -> Code | None:
        """Conversions of constants are evaluated at compile time: if they fail, Kubernetes refuses the expression."""
        if not parts or not all(part in self.constants for part in parts):
            return None
        if node.function not in CONVERSIONS and node.function not in {"quantity", "semver", "dyn"}:
            return None
        try:
            return self.constant(node, run(*(self.constants[part] for part in parts)))
        except (EvaluationError, ValueError) as error:
            if node.function in CONVERSIONS:
                raise CelError("compile", str(error), node.position) from None
            return None
        except UnsupportedError:
            # The error is raised at evaluation, if the expression ever gets there.
            return None

    def _dispatch(self, name: str, overloads: tuple[Overload, ...], kinds: list[Type]) -> Run:
        candidates = [(row.args, self.overrides.get(row.id, row.run)) for row in overloads]
        if len({run for _, run in candidates}) == 1 and (name in _SELF_CHECKING or all(map(is_certain, kinds))):
            return candidates[0][1]

        def run(*values: Any) -> Any:
            for declared, body in candidates:
                if all(map(accepts, declared, values)):
                    return body(*values)
            raise no_overload(name, *values)

        return run

    def _equality(self, node: Call) -> Code:
        left, right = map(self.code, node.args)
        wanted = self.constants.get(node.args[1], UNSET)
        negated = node.function == "_!=_"
        if type(wanted) is str and self.checked.types[node.args[0]].kind == "string":
            return (lambda frame: left(frame) != wanted) if negated else (lambda frame: left(frame) == wanted)
        test = operators.differs if negated else operators.equals
        kind = type(wanted)
        if kind in {str, int, bool}:

            def quick(frame: Frame) -> bool:
                value = left(frame)
                if value.__class__ is kind:
                    return (value == wanted) is not negated
                return test(value, wanted)

            return quick
        return lambda frame: test(left(frame), right(frame))

    def _membership(self, node: Call) -> Code:
        item, container = map(self.code, node.args)
        listed = node.args[1]
        if isinstance(listed, ListLiteral) and not listed.elements:
            # Kubernetes does not even evaluate the item.
            return lambda _: False
        constants = self.constants.get(listed) if isinstance(listed, ListLiteral) and not listed.optional else None
        if constants is not None and all(type(constant) in _HASHED for constant in constants):
            return in_constants(item, constants)
        contains = operators.contains
        return lambda frame: contains(item(frame), container(frame))

    def _logical(self, node: Call) -> Code:
        return logical([self.code(arg) for arg in node.args], absorbing=node.function == "_||_")

    def _conditional(self, node: Call) -> Code:
        condition, yes, no = map(self.code, node.args)

        def run(frame: Frame) -> Any:
            chosen = condition(frame)
            if chosen is True:
                return yes(frame)
            if chosen is False:
                return no(frame)
            raise no_overload("_?_:_", chosen)

        return run

    def _or_value(self, node: Call) -> Code:
        """``or`` and ``orValue``: the alternative is evaluated only if it is needed."""
        assert node.target is not None  # noqa: S101 # both are methods only
        target, other = self.code(node.target), self.code(node.args[0])
        unwrap, name = node.function == "orValue", node.function

        def run(frame: Frame) -> Any:
            value = target(frame)
            if type(value) is not Optional:
                raise no_overload(name, value)
            if not value.present:
                return other(frame)
            return value.value if unwrap else value

        return run

    def _not_strictly_false(self, node: Call) -> Code:
        condition = self.code(node.args[0])

        def run(frame: Frame) -> bool:
            try:
                return condition(frame) is not False
            except EvaluationError:
                return True

        return run

    def _list(self, node: ListLiteral) -> Code:
        codes = [self.code(element) for element in node.elements]
        if not node.optional:
            if node.elements and all(element in self.constants for element in node.elements):
                return self.constant(node, [self.constants[element] for element in node.elements])
            return lambda frame: [code(frame) for code in codes]
        return list_code([(code, place in node.optional) for place, code in enumerate(codes)])

    def _map(self, node: MapLiteral) -> Code:
        return map_code([(self.code(key), self.code(value), optional) for key, value, optional in node.entries])

    def _bind(self, node: Bind) -> Code:
        value, slot = self.code(node.value), self.slot()

        def read(frame: Frame) -> Any:
            content = frame[slot]
            if content is UNSET:
                content = frame[slot] = value(frame)
            return content

        body = self.scoped({node.name: read}, node.body)

        def run(frame: Frame) -> Any:
            frame[slot] = UNSET
            return body(frame)

        return run

    def _fold(self, node: Fold) -> Code:
        source, initial = self.code(node.range), self.code(node.initial)
        place, first, second = self.slot(), self.slot(), self.slot()
        accumulated = accumulator(place)
        outer: dict[str, Code] = {node.accumulator: accumulated}
        inner: dict[str, Code] = {**outer, node.variable: lambda frame: frame[first]}
        if node.variable2 is not None:
            inner[node.variable2] = lambda frame: frame[second]
        condition = self.scoped(inner, node.condition)
        step = self._growing(node, inner, accumulated) or self.scoped(inner, node.step)
        result = self.scoped(outer, node.result)
        paired = node.variable2 is not None
        return looped((place, first, second), source, initial, condition, step, result, paired=paired)

    def _growing(self, node: Fold, scope: dict[str, Code], accumulated: Code) -> Code | None:
        """The step of a macro that builds a list or a map; None for other macros."""
        if not isinstance(node.initial, ListLiteral | MapLiteral):
            return None
        step, keep = node.step, None
        if isinstance(step, Call) and step.function == "_?_:_":
            keep, step = self.scoped(scope, step.args[0]), step.args[1]
        if not isinstance(step, Call) or not isinstance(step.args[0], Ident) or step.args[0].name != ACCUMULATOR:
            return None
        added = [part.elements[0] if isinstance(part, ListLiteral) else part for part in step.args[1:]]
        codes = [self.scoped(scope, part) for part in added]
        return growing(accumulated, keep, codes, is_list=isinstance(node.initial, ListLiteral))


_HASHED = frozenset({str, int, Uint, bool, float})
_SELF_CHECKING = frozenset(
    {"_==_", "_!=_", *operators.ORDER, *operators.ARITHMETIC, "!_", "-_", "_[_]", "_[?_]", "_?._", "@in", "type", "dyn"}
)
"""Functions that check the types of their arguments themselves."""

_SPECIAL: dict[str, Callable[[Compiler, Call], Code]] = {
    "_==_": Compiler._equality, "_!=_": Compiler._equality, "@in": Compiler._membership, "_&&_": Compiler._logical,  # noqa: SLF001 # one table of this module's own methods
    "_||_": Compiler._logical, "_?_:_": Compiler._conditional, "or": Compiler._or_value, "orValue": Compiler._or_value,  # noqa: SLF001
    "@not_strictly_false": Compiler._not_strictly_false,  # noqa: SLF001
}  # fmt: skip
_BY_KIND: dict[type, Callable[[Compiler, Any], Code]] = {
    Literal: Compiler._literal, Ident: Compiler._ident, Select: Compiler._select, Call: Compiler._call,  # noqa: SLF001
    ListLiteral: Compiler._list, MapLiteral: Compiler._map, Bind: Compiler._bind, Fold: Compiler._fold,  # noqa: SLF001
}  # fmt: skip
