"""URLs, read as Go reads them, and what they consist of."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import quote, unquote_to_bytes

from dra_driver.simulator.cel.declarations import Functions, function, method
from dra_driver.simulator.cel.types import BOOL, STRING, URL, list_of, map_of
from dra_driver.simulator.cel.values import Url

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9._:~!$&'()*+,;=%@-]*", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_BAD_IN_HOST = re.compile(r"%(?!25|[89a-fA-F][0-9a-fA-F])|[^A-Za-z0-9!\"$&'()*+,.:;<=>\[\]_~%\u0080-\U0010ffff-]")
_OPTIONAL_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)
_PATH_SAFE = "$&+,/:;=@-_.~"
_ENCODED_PATH = re.compile(r"[A-Za-z0-9!$&'()*+,;=:@\[\]%/_.~-]*", re.ASCII)


def _parse(text: str, *, is_request: bool) -> Url:
    """A URL; ValueError says what is wrong. A request's has no fragment, and starts with a scheme or a slash."""
    if _CONTROL.search(text):
        raise ValueError("net/url: invalid control character in URL")
    if not text and is_request:
        raise ValueError("empty url")
    if text == "*":
        return Url("", "", "", "", "*", "", "")
    if text.startswith(":"):
        raise ValueError("missing protocol scheme")
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    rest, _, query = text[found.end() if found else 0 :].partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, rest, "", "", "", query, "")
        if is_request:
            raise ValueError("invalid URI for request")
    user, host = "", ""
    if rest.startswith("//") and (scheme or (not is_request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, host = _authority(scheme, authority)
    _check_escapes(rest)
    return Url(scheme, "", user, host, rest, query, "")


def _check_escapes(text: str) -> None:
    wrong = _BAD_ESCAPE.search(text)
    if wrong:
        raise ValueError(f'invalid URL escape "{text[wrong.start() : wrong.start() + 3]}"')


def _authority(scheme: str, authority: str) -> tuple[str, str]:
    user, _, host = authority.rpartition("@")
    if not _USER.fullmatch(user):
        raise ValueError("net/url: invalid userinfo")
    _check_escapes(user)
    return user, _bracketed(host) if "[" in host else _named(scheme, host)


def _bracketed(host: str) -> str:
    inside, bracket, port = host[1:].rpartition("]")
    if not host.startswith("[") or "[" in inside:
        raise ValueError("invalid IP-literal")
    if not bracket:
        raise ValueError("missing ']' in host")
    if not _OPTIONAL_PORT.fullmatch(port):
        raise ValueError(f'invalid port "{port}" after host')
    _check_host(inside)
    try:
        ipaddress.IPv6Address(_unescaped(inside))
    except ValueError:
        raise ValueError(f'invalid host: ParseAddr("{inside}"): unable to parse IP') from None
    return f"[{_unescaped(inside)}]{port}"


def _named(scheme: str, host: str) -> str:
    colon = host.find(":") if scheme in {"http", "https"} else host.rfind(":")
    if colon >= 0 and not _OPTIONAL_PORT.fullmatch(host[colon:]):
        raise ValueError(f'invalid port "{host[colon:]}" after host')
    _check_host(host)
    return _unescaped(host)


def _check_host(host: str) -> None:
    wrong = _BAD_IN_HOST.search(host)
    if wrong and wrong[0] == "%":
        raise ValueError(f'invalid URL escape "{host[wrong.start() : wrong.start() + 3]}"')
    if wrong:
        raise ValueError(f'invalid character "{wrong[0]}" in host name')


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text).decode(errors="replace")


def url(text: str) -> Url:
    """``url(text)``; ValueError says what is wrong."""
    try:
        _parse(text, is_request=True)
        # Read once more, since a request's has no fragment.
        bare, _, fragment = text.partition("#")
        found = _parse(bare, is_request=False)
        _check_escapes(fragment)
    except ValueError as error:
        raise ValueError(f'URL parse error during conversion from string: parse "{text}": {error}') from None
    return Url(found.scheme, found.opaque, found.user, found.host, found.path, found.query, fragment)


def is_url(text: str) -> bool:
    """``isURL(text)``."""
    try:
        _parse(text, is_request=True)
    except ValueError:
        return False
    return True


def _port(given: Url) -> str:
    _, colon, port = given.host.rpartition(":")
    return port if colon and _OPTIONAL_PORT.fullmatch(f":{port}") else ""


def _hostname(given: Url) -> str:
    bare, colon, port = given.host.rpartition(":")
    host = bare if colon and _OPTIONAL_PORT.fullmatch(f":{port}") else given.host
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _escaped_path(given: Url) -> str:
    if _ENCODED_PATH.fullmatch(given.path):
        return given.path
    return quote(unquote_to_bytes(given.path), safe=_PATH_SAFE)


def _query(given: Url) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in given.query.split("&"):
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        key, _, value = (_unescaped(text.replace("+", " ")) for text in part.partition("="))
        found.setdefault(key, []).append(value)
    return found


def _attribute(name: str, get: Callable[[Url], str]) -> Functions:
    return {name: (method(f"url_{name}", (URL,), STRING, get),)}


FUNCTIONS: Functions = {
    "url": (function("string_to_url", (STRING,), URL, url),),
    "isURL": (function("is_url_string", (STRING,), BOOL, is_url),),
    **_attribute("getScheme", lambda given: given.scheme),
    **_attribute("getHost", lambda given: given.host),
    **_attribute("getHostname", _hostname),
    **_attribute("getPort", _port),
    **_attribute("getEscapedPath", _escaped_path),
    "getQuery": (method("url_get_query", (URL,), map_of(STRING, list_of(STRING)), _query),),
}
