"""The macros: calls that the parser replaces by loops and bindings before type checking."""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.simulator.cel.errors import CelError
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

OLD_ACCUMULATOR = "__result__"
SORT_INPUT = "@__sortBy_input__"


def expand(call: Call) -> SyntaxNode:
    """The call, or its expansion if it is a macro; raises CelError if a macro is used incorrectly."""
    expander = MACROS.get((call.function, len(call.args), call.target is not None))
    if expander is None:
        return call
    expanded = expander(call)
    if expanded is None:
        return call
    # Nodes added by the expansion do not count towards the nesting depth of what was written.
    expanded.depth, expanded.chain = call.depth, call.chain
    return expanded


def _literal(call: Call, value: object) -> Literal:
    return Literal(position=call.position, value=value)


def _accumulated(call: Call) -> Ident:
    return Ident(position=call.position, name=ACCUMULATOR)


def _function(call: Call, function: str, *args: SyntaxNode) -> Call:
    return Call(position=call.position, function=function, target=None, args=args)


def _method(call: Call, function: str, target: SyntaxNode, *args: SyntaxNode) -> Call:
    return Call(position=call.position, function=function, target=target, args=args)


def _variable(node: SyntaxNode) -> str:
    if not isinstance(node, Ident) or node.absolute:
        raise CelError("compile", "argument must be a simple name", node.position)
    if node.name == OLD_ACCUMULATOR:
        raise CelError("compile", "iteration variable overwrites accumulator variable", node.position)
    return node.name


def _fold(
    call: Call,
    variables: tuple[SyntaxNode, ...],
    initial: SyntaxNode,
    condition: SyntaxNode,
    step: SyntaxNode,
    result: SyntaxNode,
) -> Fold:
    names = [_variable(node) for node in variables]
    if len(set(names)) != len(names):
        raise CelError("compile", f"duplicate variable name: {names[0]}", variables[1].position)
    assert call.target is not None  # noqa: S101 # every folding macro is a method: see the table
    return Fold(
        position=call.position,
        range=call.target,
        variable=names[0],
        variable2=names[1] if len(names) == 2 else None,  # index and value
        accumulator=ACCUMULATOR,
        initial=initial,
        condition=condition,
        step=step,
        result=result,
    )


def _all(call: Call) -> Fold:
    *variables, predicate = call.args
    return _fold(
        call,
        tuple(variables),
        _literal(call, value=True),
        _function(call, "@not_strictly_false", _accumulated(call)),
        _function(call, "_&&_", _accumulated(call), predicate),
        _accumulated(call),
    )


def _exists(call: Call) -> Fold:
    *variables, predicate = call.args
    return _fold(
        call,
        tuple(variables),
        _literal(call, value=False),
        _function(call, "@not_strictly_false", _function(call, "!_", _accumulated(call))),
        _function(call, "_||_", _accumulated(call), predicate),
        _accumulated(call),
    )


def _exists_one(call: Call) -> Fold:
    *variables, predicate = call.args
    counted = _function(call, "_+_", _accumulated(call), _literal(call, 1))
    return _fold(
        call,
        tuple(variables),
        _literal(call, 0),
        _literal(call, value=True),
        _function(call, "_?_:_", predicate, counted, _accumulated(call)),
        _function(call, "_==_", _accumulated(call), _literal(call, 1)),
    )


def _collect(
    call: Call, variables: tuple[SyntaxNode, ...], keep: list[SyntaxNode], empty: SyntaxNode, grown: SyntaxNode
) -> Fold:
    """What the step adds to an empty container; ``keep`` has the condition for that, if there is one."""
    step = _function(call, "_?_:_", keep[0], grown, _accumulated(call)) if keep else grown
    return _fold(call, variables, empty, _literal(call, value=True), step, _accumulated(call))


def _listed(call: Call, variables: tuple[SyntaxNode, ...], keep: list[SyntaxNode], item: SyntaxNode) -> Fold:
    empty = ListLiteral(position=call.position, elements=())
    grown = _function(call, "_+_", _accumulated(call), ListLiteral(position=call.position, elements=(item,)))
    return _collect(call, variables, keep, empty, grown)


def _map(call: Call) -> Fold:
    variable, *keep, item = call.args
    return _listed(call, (variable,), keep, item)


def _filter(call: Call) -> Fold:
    variable, keep = call.args
    return _listed(call, (variable,), [keep], Ident(position=variable.position, name=_variable(variable)))


def _transform_list(call: Call) -> Fold:
    first, second, *keep, item = call.args
    return _listed(call, (first, second), keep, item)


def _transform_map(call: Call) -> Fold:
    """``transformMap`` gives each key another value, ``transformMapEntry`` adds maps."""
    first, second, *keep, added = call.args
    key = [Ident(position=first.position, name=_variable(first))] if call.function == "transformMap" else []
    grown = _function(call, "cel.@mapInsert", _accumulated(call), *key, added)
    return _collect(call, (first, second), keep, MapLiteral(position=call.position, entries=()), grown)


def _has(call: Call) -> Select:
    (tested,) = call.args
    if not isinstance(tested, Select) or tested.test:
        raise CelError("compile", "invalid argument to has() macro: a field selection is expected", tested.position)
    return Select(position=call.position, operand=tested.operand, field=tested.field, test=True)


def _bind(call: Call) -> Bind | None:
    if not isinstance(call.target, Ident) or call.target.name != "cel":
        return None
    name, value, body = call.args
    if not isinstance(name, Ident):
        raise CelError("compile", "cel.bind() variable names must be simple identifiers", name.position)
    return Bind(position=call.position, name=name.name, value=value, body=body)


def _opt_map(call: Call) -> Call:
    """The body of ``optMap`` gives a value, that of ``optFlatMap`` an optional."""
    name, body = call.args
    if not isinstance(name, Ident):
        raise CelError("compile", f"{call.function}() variable name must be a simple identifier", name.position)
    assert call.target is not None  # noqa: S101 # a method: see the table
    value = _method(call, "value", call.target)
    bind = Bind(position=call.position, name=name.name, value=value, body=body)
    optional = _function(call, "optional.of", bind) if call.function == "optMap" else bind
    has_value = _method(call, "hasValue", call.target)
    return _function(call, "_?_:_", has_value, optional, _function(call, "optional.none"))


def _sort_by(call: Call) -> Bind:
    variable, key = call.args
    if not isinstance(call.target, ListLiteral | Select | Ident | Fold | Bind | Call):
        raise CelError("compile", "sortBy can only be applied to a list", call.position)
    source = Ident(position=call.position, name=SORT_INPUT)
    keys = _map(Call(position=call.position, function="map", target=source, args=(variable, key)))
    body = _method(call, "@sortByAssociatedKeys", source, keys)
    return Bind(position=call.position, name=SORT_INPUT, value=call.target, body=body)


MACROS: dict[tuple[str, int, bool], Callable[[Call], SyntaxNode | None]] = {
    ("has", 1, False): _has,
    ("all", 2, True): _all,
    ("all", 3, True): _all,
    ("exists", 2, True): _exists,
    ("exists", 3, True): _exists,
    ("exists_one", 2, True): _exists_one,
    ("exists_one", 3, True): _exists_one,
    ("existsOne", 3, True): _exists_one,
    ("map", 2, True): _map,
    ("map", 3, True): _map,
    ("filter", 2, True): _filter,
    ("transformList", 3, True): _transform_list,
    ("transformList", 4, True): _transform_list,
    ("transformMap", 3, True): _transform_map,
    ("transformMap", 4, True): _transform_map,
    ("transformMapEntry", 3, True): _transform_map,
    ("transformMapEntry", 4, True): _transform_map,
    ("bind", 3, True): _bind,
    ("optMap", 2, True): _opt_map,
    ("optFlatMap", 2, True): _opt_map,
    ("sortBy", 2, True): _sort_by,
}
"""Expanders by (name, number of arguments, is a method)."""
