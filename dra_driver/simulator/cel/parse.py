"""Parses an expression with celpy's grammar, except for rules in which Kubernetes accepts more or less than celpy.

Lark imports celpy's grammar file and overrides some of its rules by name. Only that file is used: importing the package
would cost 60 ms and change the recursion limit. Where only a node's programs run, neither package is installed, so
both are loaded when the first expression is parsed.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.simulator.cel.errors import CelError, Position
from dra_driver.simulator.cel.syntax import SyntaxNode
from dra_driver.util.errors import DriverError

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

_IMPORTED: Final = (
    "expr", "conditionalor", "conditionaland", "relation", "relation_lt", "relation_le", "relation_gt", "relation_ge",
    "relation_eq", "relation_ne", "relation_in", "addition", "addition_add", "addition_sub", "multiplication",
    "multiplication_mul", "multiplication_div", "multiplication_mod", "unary", "unary_not", "unary_neg", "member",
    "member_dot", "member_dot_arg", "member_index", "member_object", "primary", "dot_ident_arg", "dot_ident",
    "ident_arg", "ident", "paren_expr", "list_lit", "map_lit", "exprlist", "fieldinits", "mapinits", "literal",
    "INT_LIT", "UINT_LIT", "FLOAT_LIT", "DIGIT", "HEXDIGIT", "EXPONENT", "STRING_LIT", "MLSTRING_LIT", "BYTES_LIT",
    "BOOL_LIT", "NULL_LIT", "IDENT", "WHITESPACE", "COMMENT",
)  # fmt: skip
"""Rules and terminals of celpy; without an entry here a name would get a prefix that the builder does not know."""

_OVERRIDES: Final = r"""
// A terminal that is made of others holds those of celpy, even overridden ones: it has to be overridden as well.
%ignore WHITESPACE
%ignore COMMENT

// A literal has its sign only where cel-go gives it one, in the rule, so that `1-1` is a subtraction.
%override INT_LIT: "0x" HEXDIGIT+ | DIGIT+
%override UINT_LIT: INT_LIT /[uU]/
%override FLOAT_LIT: DIGIT* "." DIGIT+ EXPONENT? | DIGIT+ EXPONENT

// celpy's expressions for strings read `"a\\"` as closed, and take exponential time on one that is not.
%override STRING_LIT: /(?:[rR]"[^"\n\r]*"|[rR]'[^'\n\r]*'|"(?:\\[^\n\r]|[^"\\\n\r])*"|'(?:\\[^\n\r]|[^'\\\n\r])*')/
%override MLSTRING_LIT.1: /(?s:[rR]\"\"\".*?\"\"\"|[rR]'''.*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?''')/
%override BYTES_LIT.1: /[bB]/ MLSTRING_LIT | /[bB]/ STRING_LIT

// Four words are no names, not even of fields.
%override IDENT: /(?!(?:in|true|false|null)(?![_a-zA-Z0-9]))[_a-zA-Z][_a-zA-Z0-9]*/
// A keyword ends where the word ends: `a instance` is no `a in stance`.
%override relation_in: relation IN
IN.2: /in(?![_a-zA-Z0-9])/
%override BOOL_LIT.2: /(?:true|false)(?![_a-zA-Z0-9])/
%override NULL_LIT.2: /null(?![_a-zA-Z0-9])/

// A field in back quotes: a.`b.c/d`.
%override member_dot: member "." (IDENT | QUOTED_IDENT)
QUOTED_IDENT: /`[-a-zA-Z0-9_.\/ ]+`/

// Optional syntax: a.?b, a[?b], [?a], {?k: v}; and a comma at the end of a list or map.
%extend member: member_opt | member_opt_index
member_opt: member "." "?" (IDENT | QUOTED_IDENT)
member_opt_index: member "[" "?" expr "]"
%override list_lit: "[" [","] "]" | "[" elements [","] "]"
elements: element | elements "," element
element: expr | optional
optional: "?" expr
%override map_lit: "{" [","] "}" | "{" mapinits [","] "}"
%override mapinits: mapinit | mapinits "," mapinit
mapinit: expr ":" expr -> entry | "?" expr ":" expr -> optional_entry
"""


def parse(expression: str, *, before_1_37: bool = False) -> SyntaxNode:
    """The syntax tree of an expression, with macros expanded; raises CelError with the position of a syntax error."""
    if not expression.strip():
        raise CelError("compile", "the expression is empty", Position(1, 1))
    parser = _parser(before_1_37=before_1_37)
    from lark.exceptions import UnexpectedInput, VisitError

    from dra_driver.simulator.cel.ast_builder import number

    try:
        # Lark's signature says that this returns a tree; the transformer returns nodes.
        node: Any = parser.parse(expression)
    except VisitError as error:
        if isinstance(error.orig_exc, CelError):
            raise error.orig_exc from None
        raise
    except UnexpectedInput as error:
        raise _syntax_error(expression, error) from None
    return number(node)


def tokens(expression: str) -> Iterator[Token]:
    """The tokens of a valid expression, with their positions."""
    return _lexer().lex(expression)


@lru_cache(maxsize=2)
def _parser(*, before_1_37: bool) -> Lark:
    """A parser that produces nodes; it is not recursive, however deeply the text nests."""
    require_installed()
    from dra_driver.simulator.cel.ast_builder import builder

    return _lark(
        parser="lalr",
        cache=_tables_file(),
        keep_all_tokens=True,  # error positions come from tokens
        maybe_placeholders=False,
        transformer=builder(before_1_37=before_1_37),
    )


def _tables_file() -> str | bool:
    """The file in the user's cache directory in which Lark keeps the parser's tables; False if there is none.

    Computing the tables takes longer than everything else in a small simulation. Lark recomputes them when the grammar,
    its own version or Python's version changes, and when the file cannot be read. Where Python itself is to write no
    caches (-B), nor does this.
    """
    if sys.dont_write_bytecode:
        return False
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return False
    # Its content is unpickled, which can run code, so nobody else may be able to write it.
    own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return str(folder / "cel-parser") if own and os.access(folder, os.W_OK) else False


@lru_cache(maxsize=1)
def _lexer() -> Lark:
    return _lark(parser=None, lexer="basic")


def require_installed() -> None:
    """Raise DriverError in an installation without the packages that CEL needs, such as a node's."""
    try:
        import lark  # noqa: F401 # only to see whether it is installed
    except ModuleNotFoundError as error:
        raise _not_installed(error.name) from error
    _celpy_folders()


def _not_installed(package: str | None) -> DriverError:
    return DriverError(
        f"the simulator needs the Python package {package}, which is not installed",
        remedy="pip install 'neuron-dra-driver[cli]'",
    )


def _celpy_folders() -> list[str]:
    """The directories that hold celpy's grammar."""
    spec = importlib.util.find_spec("celpy")
    if spec is None or not spec.submodule_search_locations:
        raise _not_installed("cel-python")
    return list(spec.submodule_search_locations)


def _lark(**options: Any) -> Lark:
    from lark import Lark
    from lark.exceptions import GrammarError

    grammar = f"%import cel ({', '.join(_IMPORTED)})\n{_OVERRIDES}"
    try:
        return Lark(grammar, start="expr", import_paths=_celpy_folders(), **options)
    except GrammarError as error:
        raise DriverError(
            f"the grammar of the installed cel-python is not the one that is meant: {error}",
            remedy="install the version that requirements name",
        ) from None


def _syntax_error(expression: str, error: UnexpectedInput) -> CelError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

    lines = expression.split("\n")
    position = Position(error.line, error.column)
    if isinstance(error, UnexpectedCharacters):
        return CelError("compile", f"syntax error: unexpected {lines[error.line - 1][error.column - 1]!r}", position)
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        return CelError(
            "compile", "syntax error: the expression ends too early", Position(len(lines), len(lines[-1]) + 1)
        )
    return CelError("compile", f"syntax error: unexpected {str(getattr(error, 'token', ''))!r}", position)
