"""JSON that Kubernetes serves and that msgspec does not read, most of it not even in fields that it passes over.

What tenants write where the API server keeps JSON as it came (``opaque.parameters`` of claims) may have half of a
surrogate pair (an escape such as ``ud800`` alone), bytes that are no UTF-8, and thousands of levels: Go's decoder takes
all of them. One such object must not make a list of all objects unreadable.

Nor must null, which Go sends for an empty list or map that is not ``omitempty``, such as ``status.images[].names`` of a
Node with an image that has neither tag nor digest (containerd issue 4771).
"""

from __future__ import annotations

import codecs
import re
from typing import Final

MAX_LEVELS: Final = 256
"""What lies deeper is left out. No object of Kubernetes has so many; msgspec reads as many as Python may call (1,000 in
3.11), less what has been called already."""

_CHUNK_BYTES: Final = 64 << 10
_OTHER: Final = rb"\\(?:[^u]|u(?![dD][89a-fA-F]))"
_ESCAPES: Final = re.compile(
    rb"%b(?:[^\\]*+%b)*+"  # as many as there are, so that few matches are looked at
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})" % (_OTHER, _OTHER),
    re.DOTALL,
)
_NULLS: Final = re.compile(rb'(?P<name>"(?:[^"\\]++|\\.)*+")(?P<null>[ \t\r\n]*+:[ \t\r\n]*+null)?', re.DOTALL)
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(?P<begin>[\[{])|(?P<end>[\]}])', re.DOTALL)


def readable(body: bytes | bytearray | memoryview) -> bytearray:
    """The same document, not longer: U+FFFD or ``?`` stands for what is no text, and null for what lies too deep."""
    text = _utf8(body)
    for escape in _ESCAPES.finditer(text):
        if escape["half"]:
            text[escape.start() : escape.end()] = b"\\ufffd"
    return _shallow(text)


def without_nulls(text: bytearray) -> bytearray:
    """The same document, changed in its place: a field that is null is called "", which none of Kubernetes' is."""
    for field in _NULLS.finditer(text):
        if field["null"]:
            text[field.start("name") : field.end("name")] = b'""'.ljust(len(field["name"]))
    return text


def _utf8(body: bytes | bytearray | memoryview) -> bytearray:
    """In chunks: a whole page as Python's text may take four times its size."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text = bytearray()
    for start in range(0, len(body), _CHUNK_BYTES):
        text += decoder.decode(bytes(body[start : start + _CHUNK_BYTES])).encode(errors="replace")
    text += decoder.decode(b"", final=True).encode(errors="replace")
    return text


def _shallow(text: bytearray) -> bytearray:
    pieces: list[bytearray] = []
    level = kept = 0
    for bracket in _BRACKETS.finditer(text):
        if bracket["begin"]:
            level += 1
            if level == MAX_LEVELS + 1:
                pieces += text[kept : bracket.start()], bytearray(b"null")
        elif bracket["end"]:
            if level == MAX_LEVELS + 1:
                kept = bracket.end()
            level -= 1
    return bytearray().join([*pieces, text[kept:]]) if pieces else text
