"""Opaque parameters (any JSON that a user wrote, seen by nobody before us) to a model, or an error with the path."""

from __future__ import annotations

from typing import get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dra_driver.config.models import API_VERSIONS, KINDS, NeuronConfig, Parameters, UltraServerConfig
from dra_driver.util.errors import DriverError
from dra_driver.util.text import printable, shorten

_ECHO = 40
"""Characters of a user's value that an error repeats."""
_MOST_ERRORS = 5


class ConfigError(DriverError):
    """Parameters that cannot be used; the text names the field and the legal values."""


def decode(parameters: object, path: str = "parameters") -> NeuronConfig | UltraServerConfig:
    """The model of one ``opaque.parameters`` value.

    Args:
        parameters: decoded JSON of any shape.
        path: where it stood, for error texts.

    Raises:
        ConfigError: not one of our kinds, or a field that is unknown, missing or of another value than legal.
    """
    if not isinstance(parameters, dict):
        raise _error(f"{path}: expected an object with apiVersion and kind, got {shown(parameters)}")
    fields = dict(parameters)
    _require(fields.pop("apiVersion", None), API_VERSIONS, f"{path}.apiVersion")
    model = KINDS[_require(fields.pop("kind", None), tuple(KINDS), f"{path}.kind")]
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        texts = [_text(detail, model, fields, path) for detail in details[:_MOST_ERRORS]]
        if len(details) > _MOST_ERRORS:
            texts.append(f"and {len(details) - _MOST_ERRORS} more")
        raise _error(", ".join(texts)) from None


def shown(value: object) -> str:
    """A user's value as JSON for an error text: short, on one line, whatever it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**_ECHO:
        return "a huge number"  # Python refuses to print integers of thousands of digits
    text = repr(value) if isinstance(value, (int, float)) else _quoted(str(value))
    return shorten(text, _ECHO + 2, keep=_ECHO)


def _quoted(text: str) -> str:
    return f'"{printable(text[: _ECHO + 1])}"'


def _require(value: object, legal: tuple[str, ...], path: str) -> str:
    if isinstance(value, str) and value in legal:
        return value
    got = "it is missing" if value is None else f"got {shown(value)}"
    raise _error(f"{path}: expected {_either(legal)}, {got}")


def _text(detail: ErrorDetails, model: type[Parameters], fields: dict[str, object], path: str) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    legal = {field.alias or name: field for name, field in model.model_fields.items()}
    if name not in legal:
        unknown = f"strict decoding error: unknown field {shown(name)}"
        return f"{unknown} in {path}, {model.__name__} has {_either(tuple(legal))}"
    values = _either(tuple(str(value) for value in _literals(legal[name].annotation)))
    got = f"got {shown(fields[name])}" if name in fields else "it is missing"
    return f"{path}.{name}: expected {values}, {got}"


def _literals(annotation: object) -> tuple[int, ...]:
    """The integers in ``Literal[...]`` or ``Literal[...] | None``."""
    found: list[int] = []
    for argument in get_args(annotation):
        found += [argument] if isinstance(argument, int) else _literals(argument)
    return tuple(found)


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _error(what: str) -> ConfigError:
    return ConfigError(
        what,
        consequence="the claim is not prepared and the pod stays in ContainerCreating",
        remedy="correct the opaque parameters in the ResourceClaim, its template or the DeviceClass",
    )
