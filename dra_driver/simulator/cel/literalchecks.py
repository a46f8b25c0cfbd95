"""What Kubernetes checks of literals beyond their types."""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.simulator.cel.errors import CelError
from dra_driver.simulator.cel.libraries.formatting import check_literal
from dra_driver.simulator.cel.libraries.regex import compiled
from dra_driver.simulator.cel.syntax import Call, ListLiteral, Literal, MapLiteral, Node
from dra_driver.simulator.cel.types import Type, text_of


def same_types(node: ListLiteral | MapLiteral, types: dict[Node, Type]) -> Iterator[CelError]:
    """Kubernetes wants all elements of a literal to have one type, even where CEL would not."""
    if isinstance(node, ListLiteral):
        columns = [[(element, place in node.optional) for place, element in enumerate(node.elements)]]
    else:
        columns = [[(key, False) for key, _, _ in node.entries], [(value, opt) for _, value, opt in node.entries]]
    for column in columns:
        first: Type | None = None
        for element, optional in column:
            kind = types[element]
            kind = kind.params[0] if optional and kind.params else kind
            first = first or kind
            if kind != first:
                message = f"expected type '{text_of(first)}' but found '{text_of(kind)}'"
                yield CelError("compile", message, element.position)


def _inside(node: Node) -> Iterator[Node]:
    """A node, and what is in it if it is a literal of a list or map."""
    yield node
    if isinstance(node, ListLiteral):
        for element in node.elements:
            yield from _inside(element)
    if isinstance(node, MapLiteral):
        for key, value, _ in node.entries:
            yield from _inside(key)
            yield from _inside(value)


def literal_arguments(call: Call, types: dict[Node, Type]) -> Iterator[CelError]:
    """A pattern or a format that is a literal must be right."""
    if call.function == "matches":
        pattern = call.args[-1]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                compiled(pattern.value)
            except ValueError as error:
                yield CelError("compile", f"invalid matches argument: {error}", pattern.position)
        return
    given = call.args[0]
    if isinstance(call.target, Literal) and isinstance(given, ListLiteral):
        nodes = [list(_inside(element)) for element in given.elements]
        wrong = check_literal(str(call.target.value), [[types[node] for node in inside] for inside in nodes])
        if wrong is not None:
            message, place = wrong
            yield CelError("compile", message, call.position if place is None else nodes[place[0]][place[1]].position)
