"""Builds the syntax tree of an expression, rule by rule, while the parser reads it."""

from __future__ import annotations

import re
from typing import Any

from lark import Token, Transformer, Tree

from dra_driver.simulator.cel.errors import CelError, Position
from dra_driver.simulator.cel.macros import expand
from dra_driver.simulator.cel.syntax import Call, Ident, ListLiteral, Literal, MapLiteral, Select, Struct, SyntaxNode
from dra_driver.simulator.cel.values import INT_MAX, UINT_MAX, Uint

MAX_DEPTH = 250
"""Maximum nesting depth, and maximum length of a chain of selections, that cel-go's parser accepts."""

RESERVED = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
))  # fmt: skip
"""Reserved words, which cannot name variables or functions."""
BINARY = {"&&": "_&&_", "||": "_||_", "in": "@in"}
UNARY = {"!": "!_", "-": "-_"}


def builder(*, before_1_37: bool) -> Transformer[Any, Any]:
    """The Lark transformer that turns grammar rules into nodes; its CelErrors propagate out of the parser."""
    return _Builder(before_1_37=before_1_37)


def _at(token: Token) -> Position:
    return Position(token.line or 1, token.column or 1)


def _inside(position: Position, *children: SyntaxNode) -> int:
    """The nesting depth of a bracket around these nodes; an empty bracket does not count."""
    depth = 1 + max((child.depth for child in children), default=-1)
    if depth >= MAX_DEPTH:
        raise CelError("compile", f"expression recursion limit exceeded: {MAX_DEPTH}", position)
    return depth


def _longer(position: Position, left: SyntaxNode) -> int:
    """The length of a chain that continues after this node."""
    if left.chain >= MAX_DEPTH:
        raise CelError("compile", "max recursion depth exceeded", position)
    return left.chain + 1


def number(node: SyntaxNode) -> SyntaxNode:
    """Refuse the one integer literal that is valid only with a minus sign in front of it."""
    if isinstance(node, Literal) and type(node.value) is int and node.value > INT_MAX:
        raise CelError("compile", "invalid int literal", node.position)
    return node


def _call(token: Token, function: str, *args: SyntaxNode, target: SyntaxNode | None = None) -> SyntaxNode:
    """A function or method call with its arguments in parentheses, expanded if it is a macro."""
    position = _at(token)
    for arg in args:
        number(arg)
    depth = _inside(position, *args)
    chain = 0
    if target is not None:
        depth = max(depth, number(target).depth)
        chain = _longer(position, target)
    return expand(Call(position=position, depth=depth, chain=chain, function=function, target=target, args=tuple(args)))


def _operator(token: Token, function: str, *operands: SyntaxNode) -> SyntaxNode:
    """An operator, which does not count as a bracket."""
    position = _at(token)
    depth = max(number(operand).depth for operand in operands)
    chain = _longer(position, operands[0]) if len(operands) > 1 else 0
    return Call(position=position, depth=depth, chain=chain, function=function, target=None, args=operands)


def _index(token: Token, function: str, container: SyntaxNode, key: SyntaxNode) -> SyntaxNode:
    node = _operator(token, function, container, key)
    node.depth = max(node.depth, _inside(node.position, key))
    return node


def _binary(children: list[Any]) -> Any:
    """A level of the grammar's operator rules: a lone operand, or (left, operator) and the right side."""
    if len(children) == 1:
        return children[0]
    (left, operator), right = children
    function = BINARY.get(str(operator), f"_{operator}_")
    if function not in {"_&&_", "_||_"}:
        return _operator(operator, function, left, right)
    if isinstance(left, Call) and left.function == function and not left.bracketed:
        # One node for a whole chain, as cel-go balances it: its length adds no depth.
        args = (*left.args, number(right))
        depth = max(left.depth, right.depth)
        return Call(position=left.position, depth=depth, function=function, target=None, args=args)
    node = _operator(operator, function, left, right)
    node.chain = 0
    return node


def _left(children: list[Any]) -> tuple[SyntaxNode, Token]:
    return children[0], children[1]


def _logical(children: list[Any]) -> Any:
    """``a && b``: the grammar keeps these operators in the rule itself."""
    return children[0] if len(children) == 1 else _binary([(children[0], children[1]), children[2]])


def _nodes(children: list[Any]) -> list[Any]:
    return [child for child in children if not isinstance(child, Token)]


def _arguments(children: list[Any]) -> list[Any]:
    return next((child for child in children if isinstance(child, list)), [])


def _series(children: list[Any]) -> list[Any]:
    """Append one item to a left-recursive series."""
    return [children[0]] if len(children) == 1 else [*children[0], children[2]]


def _ident(token: Token) -> str:
    if token in RESERVED:
        raise CelError("compile", f"reserved identifier: {token}", _at(token))
    return str(token)


class _Builder(Transformer[Any, Any]):
    """One method per grammar rule; each receives the rule's children, already transformed."""

    def __init__(self, *, before_1_37: bool) -> None:
        super().__init__()
        self.before_1_37 = before_1_37

    relation = addition = multiplication = staticmethod(_binary)
    conditionalor = conditionaland = staticmethod(_logical)
    relation_lt = relation_le = relation_gt = relation_ge = relation_eq = relation_ne = relation_in = staticmethod(
        _left
    )
    addition_add = addition_sub = multiplication_mul = multiplication_div = multiplication_mod = staticmethod(_left)
    exprlist = fieldinits = staticmethod(_nodes)
    elements = mapinits = staticmethod(_series)

    def __default__(self, data: str, children: list[Any], meta: Any) -> Any:  # Lark's signature
        """Handles rules that only choose or bracket, and the helper rules that Lark generates for repetitions."""
        return Tree(data, children) if data.startswith("_") else _nodes(children)[0]

    def expr(self, children: list[Any]) -> Any:
        if len(children) == 1:
            return children[0]
        condition, mark, yes, _, no = children
        node = _operator(mark, "_?_:_", condition, yes, no)
        node.chain, node.depth = 0, max(node.depth, _inside(node.position, no))
        return node

    def unary_not(self, children: list[Any]) -> Token:
        return children[0]  # type: ignore[no-any-return] # the operator's token

    unary_neg = unary_not

    def unary(self, children: list[Any]) -> Any:
        if len(children) == 1:
            return children[0]
        operator, operand = children
        # Only a literal directly after the sign, without parentheses, forms a negative literal with it.
        if (
            operator == "-"
            and isinstance(operand, Literal)
            and not operand.bracketed
            and operand.signs < len("--")
            and type(operand.value) in {int, float}
        ):
            return Literal(position=_at(operator), value=-operand.value, signs=operand.signs + 1)
        function = UNARY[str(operator)]
        if isinstance(operand, Call) and operand.function == function and not operand.bracketed:
            # Two consecutive signs cancel out unless there are parentheses between them.
            return operand.args[0]
        return _operator(operator, function, operand)

    def literal(self, children: list[Any]) -> SyntaxNode:
        token = children[0]
        return Literal(position=_at(token), value=_literal(token))

    def ident(self, children: list[Any]) -> SyntaxNode:
        return Ident(position=_at(children[0]), name=_ident(children[0]))

    def dot_ident(self, children: list[Any]) -> SyntaxNode:
        # Kubernetes 1.36 nevertheless resolved it to a macro's variable.
        return Ident(position=_at(children[1]), name=_ident(children[1]), absolute=not self.before_1_37)

    def ident_arg(self, children: list[Any]) -> SyntaxNode:
        return _call(children[1], _ident(children[0]), *_arguments(children))

    def dot_ident_arg(self, children: list[Any]) -> SyntaxNode:
        return _call(children[2], _ident(children[1]), *_arguments(children))

    def paren_expr(self, children: list[Any]) -> SyntaxNode:
        node = number(children[1])
        node.depth, node.chain, node.bracketed = _inside(_at(children[0]), node), 0, True
        return node

    def member_dot(self, children: list[Any]) -> SyntaxNode:
        operand, dot, name = children
        position = _at(dot)
        return Select(
            position=position,
            depth=operand.depth,
            chain=_longer(position, operand),
            operand=number(operand),
            field=self._field(name),
        )

    def _field(self, name: Token) -> str:
        if name.type == "QUOTED_IDENT" and self.before_1_37:
            raise CelError("compile", "unsupported syntax: '`'", _at(name))
        return str(name).strip("`")

    def member_dot_arg(self, children: list[Any]) -> SyntaxNode:
        return _call(children[3], str(children[2]), *_arguments(children), target=children[0])

    def member_index(self, children: list[Any]) -> SyntaxNode:
        return _index(children[1], "_[_]", children[0], children[2])

    def member_opt(self, children: list[Any]) -> SyntaxNode:
        operand, dot, _, name = children
        field = Literal(position=_at(name), value=self._field(name))
        return _operator(dot, "_?._", operand, field)

    def member_opt_index(self, children: list[Any]) -> SyntaxNode:
        return _index(children[1], "_[?_]", children[0], children[3])

    def optional(self, children: list[Any]) -> tuple[SyntaxNode]:
        return (children[1],)

    def list_lit(self, children: list[Any]) -> SyntaxNode:
        position = _at(children[0])
        given = _arguments(children)
        optional = frozenset(place for place, item in enumerate(given) if isinstance(item, tuple))
        items = tuple(number(item[0] if isinstance(item, tuple) else item) for item in given)
        return ListLiteral(position=position, depth=_inside(position, *items), elements=items, optional=optional)

    def entry(self, children: list[Any]) -> tuple[SyntaxNode, SyntaxNode, bool]:
        return number(children[0]), number(children[2]), False

    def optional_entry(self, children: list[Any]) -> tuple[SyntaxNode, SyntaxNode, bool]:
        return number(children[1]), number(children[3]), True

    def map_lit(self, children: list[Any]) -> SyntaxNode:
        position = _at(children[0])
        entries = tuple(_arguments(children))
        inside = (node for key, value, _ in entries for node in (key, value))
        return MapLiteral(position=position, depth=_inside(position, *inside), entries=entries)

    def member_object(self, children: list[Any]) -> SyntaxNode:
        position = _at(children[1])
        name, node = [], children[0]
        while isinstance(node, Select):
            name.append(node.field)
            node = node.operand
        if not isinstance(node, Ident):
            raise CelError("compile", "a type name is expected before '{'", position)
        values = tuple(_arguments(children))
        full_name = ".".join([node.name, *reversed(name)])
        return Struct(position=position, depth=_inside(position, *values), name=full_name, values=values)


def _literal(token: Token) -> Any:
    kind, text = token.type, str(token)
    if kind in {"BOOL_LIT", "NULL_LIT"}:
        return {"true": True, "false": False, "null": None}[text]
    try:
        if kind in {"STRING_LIT", "MLSTRING_LIT"}:
            return text_of(text)
        return bytes_of(text) if kind == "BYTES_LIT" else number_of(kind, text)
    except ValueError as error:
        raise CelError("compile", str(error), _at(token)) from None


SIMPLE_ESCAPES = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "`": 96, "?": 63,
}  # fmt: skip
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)


def number_of(kind: str, text: str) -> Any:
    """Parse an int, Uint or float literal; raises ValueError if it does not fit in 64 bits."""
    if kind == "FLOAT_LIT":
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("invalid double literal")
        return value
    digits = text.rstrip("uU")
    whole = int(digits, 16 if digits.startswith("0x") else 10)
    if kind == "UINT_LIT":
        if whole > UINT_MAX:
            raise ValueError("invalid uint literal")
        return Uint(whole)
    # One more than the maximum is allowed here: it is valid after a minus sign, which the caller checks.
    if whole > INT_MAX + 1:
        raise ValueError("invalid int literal")
    return whole


def text_of(literal: str) -> str:
    """The value of a string literal; raises ValueError for an escape that CEL does not define."""
    body, raw = _body(literal)
    return body if raw else ESCAPE.sub(lambda match: chr(_code_point(match.group(1))), body)


def bytes_of(literal: str) -> bytes:
    """The value of a bytes literal: escapes below 256 are single bytes, other characters are encoded as UTF-8."""
    body, raw = _body(literal[1:])
    if raw:
        return body.encode()
    value, place = bytearray(), 0
    for match in ESCAPE.finditer(body):
        value += body[place : match.start()].encode()
        if match.group(1)[0] in "uU":
            raise ValueError("unable to unescape string")
        value.append(_code_point(match.group(1)))
        place = match.end()
    return bytes(value + body[place:].encode())


def _body(literal: str) -> tuple[str, bool]:
    raw = literal[0] in "rR"
    quoted = literal[1:] if raw else literal
    width = 3 if quoted[:3] in ('"""', "'''") and len(quoted) >= 6 else 1
    return quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _code_point(escape: str) -> int:
    if escape in SIMPLE_ESCAPES:
        return SIMPLE_ESCAPES[escape]
    if len(escape) == 1:
        raise ValueError("unable to unescape string")
    code = int(escape[1:], 16) if escape[0] in "xXuU" else int(escape, 8)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError("invalid unicode code point")
    return code
