"""Whatever a tenant writes where the API server keeps JSON as it came, other objects are read."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.codec import ListPage, decode
from dra_driver.kube.api.errors import DecodeError
from dra_driver.kube.api.tolerance import MAX_LEVELS, readable, without_nulls
from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.resource import PartialResourceClaim

PIECES = (
    "\\ud800",
    "\\uDfff",
    "\\ud83d\\ude00",
    "\\\\",
    "\\\\ud800",
    "\\u0041",
    '\\"',
    "\\n",
    "ud800",
    "é",
    "😀",
    "[",
    "{",
)
"""Of texts, as they stand in JSON."""


def whole(text: str) -> str:
    """What Go makes of a text with halves of surrogate pairs."""
    return re.sub("[\ud800-\udfff]", "�", text)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.lists(st.sampled_from(PIECES)).map("".join))
def test_texts_are_read_as_go_reads_them(one: str, other: str) -> None:
    document = f'{{"{one}a": ["{other}", {{"b": "{one}"}}]}}'.encode()
    texts = [whole(json.loads(f'"{text}"')) for text in (one, other)]
    expected = {f"{texts[0]}a": [texts[1], {"b": texts[0]}]}
    assert msgspec.json.decode(readable(document)) == expected
    assert decode(document, Any, "it") == expected


@given(st.binary(max_size=40).map(lambda data: re.sub(rb'[\x00-\x1f"\\]', b"", data)))
def test_bytes_that_are_no_text_are_replaced(data: bytes) -> None:
    text = data.decode(errors="surrogateescape").encode(errors="replace").decode()
    assert msgspec.json.decode(readable(b'["' + data + b'"]')) == [text]


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_what_lies_too_deep_is_left_out(opened: str) -> None:
    closed = "]" if opened == "[" else "}"
    deep = opened * 100_000 + "1" + closed * 100_000
    found = msgspec.json.decode(readable(f'{{"deep": {deep}, "more": ["}}", {deep}, 2]}}'.encode()))
    assert found["more"][0] == "}"
    assert found["more"][2] == 2
    levels, value = 0, found["deep"]
    while value is not None:
        levels, value = levels + 1, value[0] if opened == "[" else value["a"]
    assert levels == MAX_LEVELS - 1


@pytest.mark.parametrize(
    "parameters",
    [
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"\\udc00":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
    ids=["half", "bytes", "levels", "both"],
)
def test_one_claim_does_not_make_a_list_unreadable(parameters: bytes) -> None:
    def claim(name: bytes, of: bytes) -> bytes:
        spec = b'{"devices":{"config":[{"opaque":{"parameters":%b}}]}}' % of
        return b'{"metadata":{"name":"%b","namespace":"a","uid":"u"},"spec":%b}' % (name, spec)

    page = b'{"metadata":{},"items":[%b,%b]}' % (claim(b"one", parameters), claim(b"other", b"{}"))
    items = decode(page, ListPage, "a list").items
    assert [decode(item, PartialResourceClaim, "it").metadata.name for item in items] == ["one", "other"]


def test_a_node_is_read_though_an_image_on_it_has_no_name() -> None:
    images = b'{"images":[{"names":null,"sizeBytes":1},{"names" : null},{"names":["a\\"b\\":null"]}],"conditions":null}'
    node = decode(b'{"metadata":{"name":"n","labels":null},"status":%b}' % images, Node, "it")
    assert [image.names for image in node.status.images] == [(), (), ('a"b":null',)]
    assert node.metadata.name == "n"


def test_nulls_are_left_alone_where_the_kind_knows_them() -> None:
    assert decode(b'{"a":null,"b":"\\ud800"}', Any, "it") == {"a": None, "b": "\ufffd"}


@pytest.mark.parametrize("piece", [b'"a":null,', b'"",', b'"a":', b"null", b'"\\\\"'])
def test_nulls_are_found_in_time_and_in_their_place(piece: bytes) -> None:
    page = bytearray(b"{" + piece * ((8 << 20) // len(piece)))
    size, began = len(page), time.process_time()
    assert len(without_nulls(page)) == size
    assert time.process_time() - began < 10.0


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(DecodeError):
        decode(b'{"a": "\\ud800"', Any, "it")


@pytest.mark.parametrize("piece", [b"\\ud800", b"\\n", b"\\na", b"\\\\", b"[", b'","', b"\\u0041", b"\xff"])
def test_a_page_that_is_full_of_it_is_read_in_time(piece: bytes) -> None:
    page = b'["' + piece * ((8 << 20) // len(piece)) + b'"]'
    began = time.process_time()
    readable(page)
    assert time.process_time() - began < 10.0
