"""Plain scalars of YAML as Kubernetes reads them: ``n`` is false, ``1e3`` and ``08`` are numbers.

PyYAML keeps to YAML 1.1, and kubectl's library (goyaml with sigs.k8s.io/yaml) does not: it has the short words for true
and false, its numbers are those of Go, and timestamps and ``1:30`` are texts. What PyYAML alone takes for a text it
would also write without quotes, and kubectl would read something else.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

BOOL, NUMBER, MERGE = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:merge"
"""Tags; a number has this one, whether it is whole or not."""
_TRUE: Final = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE: Final = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
_INTEGER: Final = re.compile(r"[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
_OLD_OCTAL: Final = re.compile(r"[-+]?0[0-7]+")
_LONGEST: Final = 67
"""Characters of a number of 64 bits: a sign, 0b, and each bit."""
_WHOLE: Final = 1e21
"""From here on, Go writes whole numbers with an exponent."""
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_PARTED: Final = "[0-9]+(?:_[0-9]+)*"
_NUMBER: Final = re.compile(
    r"^(?:(?:[-+]_*)?0_*[bBoOxX][0-9a-fA-F_]+|"
    r"(?:[-+]_*(?:\._*)?)?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE]_*+(?:[-+]_*+)?[0-9][0-9_]*)?|"
    rf"\.{_PARTED}(?:[eE][-+]?{_PARTED})?|"
    r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""The form of a number; ``number`` has the last word. Underscores count for nothing, unless a dot comes first."""
_FORMS: Final = (
    (BOOL, re.compile(rf"^(?:{'|'.join(sorted(_TRUE | _FALSE))})$"), "yYnNtTfFoO"),
    (NUMBER, _NUMBER, "-+.0123456789"),
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ("~", "n", "N", "")),
    (MERGE, re.compile(r"^(?:<<)$"), "<"),
)
RESOLVERS: Final = {
    first: [(tag, form) for tag, form, starts in _FORMS if first in tuple(starts)]
    for first in sorted({first for _, _, starts in _FORMS for first in starts})
}
"""PyYAML's ``yaml_implicit_resolvers``, for loaders and dumpers."""


def number(text: str) -> float | str:
    """The number that Go makes of a plain scalar, whole if it can be; of what is none after all, the text."""
    if text.lstrip("+-").lower() in (".inf", ".nan"):
        return float(text.replace(".", ""))
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(plain) and len(plain) <= _LONGEST:
        value = int(plain, 8 if _OLD_OCTAL.fullmatch(plain) else 0)
        if -(1 << 63) <= value < 1 << 64:
            return value
    real = float(plain) if _FLOAT.fullmatch(plain) else math.inf
    return text if math.isinf(real) else int(real) if real.is_integer() and abs(real) < _WHOLE else real


def truth(text: str) -> bool:
    """True or false. ValueError for a text that is tagged as one of them and is none."""
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{text[:60]!r} is neither true nor false")
    return text in _TRUE


def key(value: Any) -> Any:
    """A key of an object, which is a text in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class Dumper(yaml.SafeDumper):
    """Writes in quotes whatever Kubernetes, or a reader of YAML 1.1, would take for something else than a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 # PyYAML's own attribute
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *RESOLVERS.get(first, ())]
        for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **RESOLVERS}
    }
