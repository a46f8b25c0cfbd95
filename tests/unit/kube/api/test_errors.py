from __future__ import annotations

import json

import msgspec
import pytest

from dra_driver.kube.api.errors import refusal
from tests.golden import golden


def test_a_refusal_tells_what_the_server_said_and_what_to_do() -> None:
    body = b'{"kind":"Status","code":403,"reason":"Forbidden","message":"no","details":{"name":"s"}}'
    error = refusal("POST", "/apis/x", 403, body)
    assert (error.status, error.reason, error.message) == (403, "Forbidden", "no")
    golden(str(error))
    assert "no" in str(error)
    assert "permission" in error.remedy


def test_what_an_admission_policy_refuses_is_no_matter_of_rbac() -> None:
    message = "events is forbidden: ValidatingAdmissionPolicy 'own-events' with binding 'own-events' denied request: no"
    body = msgspec.json.encode({"kind": "Status", "reason": "Forbidden", "message": message})
    golden(str(refusal("PATCH", "/api/v1/namespaces/default/events/x", 403, body)))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 500])
def test_what_is_said_of_each_status(status: int) -> None:
    golden(str(refusal("PUT", "/apis/x", status, b'{"kind":"Status","message":"no"}')))


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("7", b"", 7.0),
        (" 7 ", b"", 7.0),
        ("99999", b"", 300.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", b"", None),
        ("-1", b"", None),
        (None, b'{"kind":"Status","details":{"retryAfterSeconds":3}}', 3.0),
        (None, b'{"kind":"Status","details":{"retryAfterSeconds":-3}}', None),
        ("2", b'{"kind":"Status","details":{"retryAfterSeconds":3}}', 2.0),
    ],
)
def test_how_long_to_wait_comes_from_header_or_body(header: str | None, body: bytes, expected: float | None) -> None:
    assert refusal("GET", "/", 429, body, header).retry_after == expected


def test_no_webhook_says_how_long_to_wait() -> None:
    body = msgspec.json.encode({"kind": "Status", "message": 'admission webhook "of.a.tenant" denied the request: no'})
    assert refusal("POST", "/", 429, body, "300").retry_after is None


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (b"404 page not found\n", False),
        (b'{"kind":"Status","reason":"NotFound","details":{}}', False),
        (b'{"kind":"Status","reason":"NotFound","details":{"name":"c"}}', True),
        (b'{"kind":"Other","details":{"name":"c"}}', False),
        (b'{"kind":"Status","details":{"name":7}}', False),
    ],
)
def test_a_missing_object_and_a_missing_api_are_told_apart(body: bytes, missing: bool) -> None:
    assert refusal("GET", "/", 404, body).object_missing is missing


@pytest.mark.parametrize(
    ("status", "message", "undecided"),
    [
        (503, 'admission webhook "of.a.tenant" denied the request: come back later', False),
        (429, 'admission webhook "of.a.tenant" denied the request without explanation', False),
        (500, 'Internal error occurred: failed calling webhook "of.a.tenant": no such host', False),
        (500, "etcdserver: request is too large", False),
        (408, "timeout", True),
        (429, "Too many requests, please try again later.", True),
        (503, "apiserver is shutting down", True),
        (500, "etcdserver: request timed out", True),
        (504, 'Timeout: request did not complete: admission webhook "of.a.tenant" denied the request', True),
        (422, "no", False),
    ],
)
def test_whether_a_change_may_have_been_made(status: int, message: str, undecided: bool) -> None:
    body = msgspec.json.encode({"kind": "Status", "message": message})
    assert refusal("PATCH", "/", status, body).undecided is undecided


def test_bodies_that_are_no_status_are_quoted_in_part() -> None:
    error = refusal("GET", "/", 502, b"<html>" + b"x" * 5000 + b"\xff")
    assert len(str(error)) < 500
    assert error.status == 502


@pytest.mark.parametrize("character", ["x", "\U0001f980", "\x07", '"', "\\", "\ud83e"])
@pytest.mark.parametrize("spare", range(13))
def test_of_a_webhooks_text_the_beginning_is_kept_and_is_still_a_webhooks(character: str, spare: int) -> None:
    """Of its response only the beginning is read, up to whatever byte."""
    message = 'admission webhook "a.example.com" denied the request: ' + character * 100_000
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=spare % 2 == 0).encode(errors="replace")
    error = refusal("PATCH", "/x", 503, body[: 3000 - spare])
    assert error.of_a_webhook
    assert error.message.startswith('admission webhook "a.example.com" denied the request: ')
    whole = refusal("PATCH", "/x", 503, body)
    assert whole.of_a_webhook
    assert max(len(str(error)), len(str(whole))) < 5000


@pytest.mark.parametrize(
    "body",
    [b'{"kind": "Status", "message": "\xff\xfe"}', b'{"kind": "Status", "x": ' + b"[" * 5000, b"[" * 5000, b"\xff"],
    ids=["no text", "many levels", "nothing but levels", "no JSON"],
)
def test_an_answer_of_something_in_between_is_a_refusal_all_the_same(body: bytes) -> None:
    """Such as a load balancer: what its answer is like is no defect of the program."""
    assert refusal("GET", "/x", 502, body).status == 502


def test_what_is_no_status_is_told_by_its_beginning() -> None:
    assert "<html>" in str(refusal("GET", "/x", 502, b"<html>" + b"x" * 9000))
    assert len(str(refusal("GET", "/x", 502, b"<html>" + b"x" * 9000))) < 500
