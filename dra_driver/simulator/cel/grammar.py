"""The parser: celpy's grammar, amended where Kubernetes reads more or less than celpy does.

Only the grammar file is taken: importing the package would cost 60 ms and change the recursion limit.
"""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark, Transformer

from dra_driver.simulator import not_installed
from dra_driver.util.errors import DriverError

_ESCAPED = r"\\[^\n\r]"
_STRINGS = {
    "STRING_LIT": (
        rf"""/(?:[rR]"[^"\n\r]*"|[rR]'[^'\n\r]*'|"""
        rf""""(?:{_ESCAPED}|[^"\\\n\r])*"|'(?:{_ESCAPED}|[^'\\\n\r])*')/"""
    ),
    "MLSTRING_LIT": (r'''/(?s:[rR]""".*?"""|[rR]\'\'\'.*?\'\'\'|"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\')/'''),
}

AMENDMENTS = (
    # A literal has its sign only where cel-go gives it one, in the rule, so that `1-1` is a subtraction.
    (r"^INT_LIT .*$", 'INT_LIT: "0x" HEXDIGIT+ | DIGIT+'),
    (r"^FLOAT_LIT .*$", 'FLOAT_LIT: DIGIT* "." DIGIT+ EXPONENT? | DIGIT+ EXPONENT'),
    # celpy's expressions for strings read `"a\\"` as closed, and take exponential time on one that is not.
    (r"^STRING_LIT (?:.*\n)*?\n", f"STRING_LIT: {_STRINGS['STRING_LIT']}\n\n"),
    (r"^MLSTRING_LIT (?:.*\n)*?\n", f"MLSTRING_LIT: {_STRINGS['MLSTRING_LIT']}\n\n"),
    # Four words are no names, not even of fields.
    (r"^IDENT .*$", r"IDENT: /(?!(?:in|true|false|null)(?![_a-zA-Z0-9]))[_a-zA-Z][_a-zA-Z0-9]*/"),
    # A keyword ends where the word ends: `a instance` is no `a in stance`.
    (r"^relation_in .*$", "relation_in: relation IN\nIN.2: /in(?![_a-zA-Z0-9])/"),
    (r"^BOOL_LIT .*$", "BOOL_LIT.2: /(?:true|false)(?![_a-zA-Z0-9])/"),
    (r"^NULL_LIT .*$", "NULL_LIT.2: /null(?![_a-zA-Z0-9])/"),
    # A field in back quotes: a.`b.c/d`.
    (
        r"^member_dot     : .*$",
        'member_dot: member "." (IDENT | QUOTED_IDENT)\nQUOTED_IDENT: /`[-a-zA-Z0-9_.\\/ ]+`/',
    ),
    # Optional syntax: a.?b, a[?b], [?a], {?k: v}; and a comma at the end of a list or map.
    (
        r"^member         : .*$",
        "member: member_dot | member_dot_arg | member_index | member_object | primary | member_opt | member_opt_index",
    ),
    (
        r"^member_index .*$",
        (
            'member_index: member "[" expr "]"\nmember_opt: member "." "?" (IDENT | QUOTED_IDENT)\n'
            'member_opt_index: member "[" "?" expr "]"'
        ),
    ),
    (
        r"^list_lit .*$",
        (
            'list_lit: "[" [","] "]" | "[" elements [","] "]"\nelements: element | elements "," element\n'
            'element: expr | optional\noptional: "?" expr'
        ),
    ),
    (r"^map_lit .*$", 'map_lit: "{" [","] "}" | "{" mapinits [","] "}"'),
    (
        r"^mapinits .*$",
        (
            'mapinits: mapinit | mapinits "," mapinit\n'
            'mapinit: expr ":" expr -> entry | "?" expr ":" expr -> optional_entry'
        ),
    ),
)
"""Rule or terminal of celpy's grammar -> what stands for it here."""


@lru_cache(maxsize=1)
def grammar() -> str:
    """Celpy's grammar with the amendments; DriverError when celpy is not installed or has changed."""
    found = importlib.util.find_spec("celpy")
    if found is None or not found.submodule_search_locations:
        raise not_installed("cel-python")
    text = (Path(found.submodule_search_locations[0]) / "cel.lark").read_text()
    for pattern, replacement in AMENDMENTS:
        text, count = re.subn(pattern, lambda _, to=replacement: str(to), text, count=1, flags=re.MULTILINE)  # type: ignore[misc] # mypy cannot type a lambda's default
        if count != 1:
            raise DriverError(
                f"the grammar of the installed cel-python does not have the rule {pattern!r}",
                remedy="install the version that requirements name",
            )
    return text


def parser(transformer: Transformer[Any, Any]) -> Lark:
    """A parser whose ``parse`` gives what the transformer makes; it does not recurse, however deep the text nests."""
    return Lark(
        grammar(),
        parser="lalr",
        start="expr",
        keep_all_tokens=True,  # their places are the places that errors name
        maybe_placeholders=False,
        transformer=transformer,
    )
