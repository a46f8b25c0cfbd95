"""Formats of names, labels and attributes: each check returns the problem as half a sentence, or "" if there is none.

Source: ``k8s.io/apimachinery/pkg/util/validation`` and ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_VERSION: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_MAX_OF_SUBDOMAIN: Final = 253
_MAX_OF_DRIVER: Final = 63
_SHOWN: Final = 80


@lru_cache(maxsize=4096)
def label(name: str) -> str:
    """Name of a request, container, device, counter or namespace."""
    if _LABEL.fullmatch(name):
        return ""
    return f"{shown(name)} is not a valid name: at most 63 lowercase letters, digits and -, no - first or last"


def subdomain(name: str) -> str:
    """Name of an object."""
    if len(name) <= _MAX_OF_SUBDOMAIN and _SUBDOMAIN.fullmatch(name):
        return ""
    return (
        f"{shown(name)} is not a valid name: at most {_MAX_OF_SUBDOMAIN} lowercase letters, digits, - and ., with "
        "a letter or digit first, last and beside each dot"
    )


def driver(name: str) -> str:
    """Name of a driver, also as the domain of an attribute."""
    if len(name) <= _MAX_OF_DRIVER and _SUBDOMAIN.fullmatch(name.lower()):
        return ""
    return f"{shown(name)} is not a valid driver name, such as neuron.aws.com, of at most {_MAX_OF_DRIVER} characters"


def pool(name: str) -> str:
    """Name of a pool: object names, separated by slashes."""
    if len(name) <= _MAX_OF_SUBDOMAIN and not any(subdomain(part) for part in name.split("/")):
        return ""
    return f"{shown(name)} is not a valid pool name"


@lru_cache(maxsize=4096)
def attribute(name: str) -> str:
    """Name of an attribute or a capacity, with or without a domain."""
    parts = name.split("/")
    # Kubernetes accepts names with more than one slash without further checks.
    if len(parts) > 2 or (_IDENTIFIER.fullmatch(parts[-1]) and (len(parts) == 1 or not driver(parts[0]))):
        return ""
    return f"{shown(name)} is not a valid attribute name, such as deviceId or neuron.aws.com/deviceId"


def full_attribute(name: str) -> str:
    """Name of an attribute with its domain."""
    # Domains of attributes in slices may contain capitals, here they may not.
    if "/" in name and not attribute(name) and not subdomain(name.partition("/")[0]):
        return ""
    return f"{shown(name)} is not a fully qualified attribute name, such as resource.aws.com/devicegroup4_id"


def label_key(key: str) -> str:
    """Key of a label, annotation or taint."""
    prefix, slash, name = key.rpartition("/")
    if _LABEL_NAME.fullmatch(name) and (not slash or not subdomain(prefix)):
        return ""
    return f"{shown(key)} is not a valid label key, such as example.com/name"


def label_value(value: str) -> str:
    """Value of a label or taint; it may be empty."""
    if not value or _LABEL_NAME.fullmatch(value):
        return ""
    return f"{shown(value)} is not a valid label value: at most 63 letters, digits, -, _ and ."


@lru_cache(maxsize=4096)
def version(text: str) -> str:
    """A semantic version."""
    return "" if _VERSION.fullmatch(text) else f"{shown(text)} is not a semantic version, such as 1.2.3"


_TIME: Final = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.,][0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-4]):[0-5][0-9])",
    re.ASCII,
)


def time(text: str) -> str:
    """A time of RFC 3339."""
    return "" if _TIME.fullmatch(text) else f"{shown(text)} is not a time, such as 2026-01-31T12:00:00Z"


def shown(text: str) -> str:
    """Untrusted text, quoted and shortened."""
    return repr(text[:_SHOWN])
