"""Kubernetes objects from a file that a user gives: YAML or JSON, bounded, with errors that name file and line."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from dra_driver.cli.errors import UsageError

MOST_BYTES = 4 << 20
"""An API object has at most 1.5 MiB in etcd."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # which base depends on libyaml
    """Safe loader that reads scalars as Kubernetes does: a time stamp is a string."""

    yaml_implicit_resolvers = {  # noqa: RUF012 # PyYAML's own attribute
        first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_objects(filename: str) -> list[dict[str, Any]]:
    """The objects in a file (``-`` is standard input), a List's items one by one; UsageError says what is wrong."""
    content = _content(filename, MOST_BYTES)
    try:
        documents = _documents(content)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        # The last two are PyYAML's for a tag and a value that do not fit, such as `!!bool maybe`.
        raise UsageError(f"{filename}: not YAML or JSON: {' '.join(str(error).split())[:300]}") from error
    objects: list[dict[str, Any]] = []
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise UsageError(f"{filename}: a Kubernetes object expected, found {type(document).__name__}")
        items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        objects += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else [document]
    return objects


def _documents(content: bytes) -> list[Any]:
    if content.lstrip()[:1] == b"{":
        # YAML does not know JSON's surrogate pairs. What is no JSON after all may still be YAML in flow style.
        with contextlib.suppress(ValueError):
            return [json.loads(content)]
    _refuse_aliases(content)
    return list(yaml.load_all(content, Loader=_Loader))


def _refuse_aliases(content: bytes) -> None:
    """A few lines of aliases can stand for gigabytes, and kubectl never writes any."""
    for event in yaml.parse(content, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"aliases (*name) are not supported here,{event.start_mark}")


def read_text(filename: str, most: int = MOST_BYTES) -> str:
    """The UTF-8 text of a file (``-`` is standard input) of at most so many bytes; UsageError says what is wrong."""
    try:
        return _content(filename, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{filename}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def _content(filename: str, most: int) -> bytes:
    try:
        if filename == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(filename).open("rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{filename}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise UsageError(f"{filename}: larger than {most} bytes; leave out what is not needed")
    return data
