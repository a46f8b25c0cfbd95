"""Named formats: ``format.dns1123Label().validate("a")`` gives what is wrong with a text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date, datetime
from functools import partial

from dra_driver.simulator.cel.declarations import Functions, function, method
from dra_driver.simulator.cel.libraries.urls import is_url
from dra_driver.simulator.cel.types import FORMAT, STRING, list_of, optional_of
from dra_driver.simulator.cel.values import NONE, NamedFormat, Optional

LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(?:\.{LABEL})*"
NAME = r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
UUID = r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
DATETIME = (
    r"([0-9]{2}[0-9]{2}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)

Check = Callable[[str], list[str]]


def _pattern(text: str, *, pattern: str, most: int, what: str, prefix: bool = False) -> list[str]:
    # A prefix may end in a dash, as more follows it. Kubernetes then overlooks the character before it too.
    tried = f"{text[:-2]}a" if prefix and len(text) > 1 and text.endswith("-") else text  # more than the dash
    wrong = [] if re.fullmatch(pattern, tried, re.ASCII) else [f"{what} is expected"]
    return [*wrong, f"must be no more than {most} characters"] if len(text) > most else wrong


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:  # prefix/name
        return ["a qualified name is expected"]
    wrong = _pattern(parts[-1], pattern=NAME, most=63, what="name part")
    if len(parts) == 1:
        return wrong
    return [*_pattern(parts[0], pattern=SUBDOMAIN, most=253, what="prefix part"), *wrong]


def _label_value(text: str) -> list[str]:
    return _pattern(text, pattern=rf"(?:{NAME})?", most=63, what="a label value")


def _uri(text: str) -> list[str]:
    return [] if is_url(text) else ["invalid URI for request"]


def _uuid(text: str) -> list[str]:
    return [] if re.fullmatch(UUID, text, re.ASCII) else ["does not match the UUID format"]


def _byte(text: str) -> list[str]:
    if not text:
        return ["invalid base64"]
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _known_year(text: str) -> str:
    """The year 0, which Python does not have, as another leap year."""
    return f"2000{text[4:]}" if text.startswith("0000") else text


def _date(text: str) -> list[str]:
    try:
        date.fromisoformat(_known_year(text))
    except ValueError:
        return ["invalid date"]
    return [] if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII) else ["invalid date"]


def _datetime(text: str) -> list[str]:
    match = re.fullmatch(DATETIME, text, re.ASCII)
    try:
        if match is not None:
            datetime.fromisoformat(f"{_known_year(match[1])}T{match[2]}+00:00")
            return []
    except ValueError:
        pass
    return ["invalid datetime"]


_label = partial(_pattern, pattern=LABEL, most=63, what="an RFC 1123 label")
_subdomain = partial(_pattern, pattern=SUBDOMAIN, most=253, what="an RFC 1123 subdomain")
_label_1035 = partial(_pattern, pattern=r"[a-z](?:[-a-z0-9]*[a-z0-9])?", most=63, what="an RFC 1035 label")

FORMATS: dict[str, Check] = {
    "dns1123Label": _label,
    "dns1123Subdomain": _subdomain,
    "dns1035Label": _label_1035,
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": partial(_label, prefix=True),
    "dns1123SubdomainPrefix": partial(_subdomain, prefix=True),
    "dns1035LabelPrefix": partial(_label_1035, prefix=True),
    "labelValue": _label_value,
    "uri": _uri,
    "uuid": _uuid,
    "byte": _byte,
    "date": _date,
    "datetime": _datetime,
}
"""Name -> what is wrong with a text. How many complaints there are and their words are not Kubernetes'."""


def _validate(named: NamedFormat, text: str) -> Optional:
    wrong = FORMATS[named.name](text)
    return Optional(present=True, value=wrong) if wrong else NONE


def _named(name: str) -> Optional:
    return Optional(present=True, value=NamedFormat(name)) if name in FORMATS else NONE


FUNCTIONS: Functions = {
    "validate": (method("format-validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate),),
    "format.named": (function("format-named", (STRING,), optional_of(FORMAT), _named),),
    **{f"format.{name}": (function(f"format.{name}", (), FORMAT, partial(NamedFormat, name)),) for name in FORMATS},
}
