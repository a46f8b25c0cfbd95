"""Opaque parameters of claims: ``NeuronConfig`` and ``UltraServerConfig``, strictly decoded, and their precedence.

Parameters are arbitrary JSON from users that the API server does not validate; errors name the path. To add a kind, add
a class to ``KINDS``. Importing this module imports pydantic, which is slow, so it is imported only when there are
parameters.

Entries of the DeviceClass apply first, then those of the claim; a later entry overrides an earlier one, field by field.
An entry for request ``r`` also applies to its subrequests ``r/s``; an entry for ``r/s`` only to that; an entry without
requests applies to all (Kubernetes 1.37 stores an entry that names all requests of a claim that way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, NamedTuple, Protocol, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dra_driver.kube.objects.resource import json_value
from dra_driver.neuron.names import API_VERSIONS, is_uid
from dra_driver.util.errors import DriverError
from dra_driver.util.text import printable, shorten


def _exact_integer(value: object) -> object:
    # pydantic's strict Literal compares by equality, so 1.0 and true would be accepted as 1.
    if type(value) is not int:
        raise ValueError("not an integer")  # pydantic wraps a ValueError, but not a TypeError
    return value


def _uid(value: object) -> object:
    if not isinstance(value, str) or not is_uid(value):
        raise ValueError("not a UID")
    return value


class Parameters(BaseModel):
    """Base class: no coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    workload: Annotated[str | None, BeforeValidator(_uid)] = None
    """UID of the NeuronUltraServerWorkload that the claim is of, so that it is prepared on that one's nodes only; None:
    not set by the entry."""


class NeuronConfig(Parameters):
    """How the Neuron runtime is to use the chips of a request."""

    logical_neuron_core: Annotated[Literal[1, 2] | None, BeforeValidator(_exact_integer)] = Field(
        default=None, alias="logicalNeuronCore"
    )
    """Physical NeuronCores per logical core; None: not set by the entry."""


class UltraServerConfig(Parameters):
    """How many nodes of an UltraServer work together."""

    ultraserver_mode: Annotated[Literal[1, 2, 4], BeforeValidator(_exact_integer)] = Field(alias="ultraserverMode")
    """Number of nodes."""


KINDS: dict[str, type[NeuronConfig | UltraServerConfig]] = {
    "NeuronConfig": NeuronConfig,
    "UltraServerConfig": UltraServerConfig,
}


class Rule(NamedTuple):
    """What the admission policy of the chart knows of a field."""

    legal: tuple[int, ...]
    """() for a UID."""
    required: bool


def rules() -> dict[str, dict[str, Rule]]:
    """The fields of each kind."""
    return {
        kind: {name: Rule(_literals(field.annotation), field.is_required()) for name, field in _fields(model).items()}
        for kind, model in KINDS.items()
    }


def _fields(model: type[Parameters]) -> dict[str, FieldInfo]:
    """By the names that users write, a kind's own before those of all."""
    named = {field.alias or name: field for name, field in model.model_fields.items()}
    return dict(sorted(named.items(), key=lambda item: item[0] in Parameters.model_fields))


UID_WORDS: Final = "the UID of a NeuronUltraServerWorkload"
"""What is expected of a field that has one."""
_ECHO = 40
"""Maximum length of a user's value in an error message."""
_MAX_ERRORS = 5


class ConfigError(DriverError):
    """Invalid parameters; the message names the field and the valid values."""

    reason = "InvalidParameters"


def decode(parameters: object, path: str = "parameters") -> NeuronConfig | UltraServerConfig:
    """Decode one ``opaque.parameters`` value.

    Args:
        parameters: decoded JSON of any shape.
        path: its path, for error messages.

    Raises:
        ConfigError: an unknown kind, or a field that is unknown, missing or has an invalid value.
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
        texts = [_text(detail, model, fields, path) for detail in details[:_MAX_ERRORS]]
        if len(details) > _MAX_ERRORS:
            texts.append(f"and {len(details) - _MAX_ERRORS} more")
        raise _error(", ".join(texts)) from None


def shown(value: object) -> str:
    """A user's value as JSON for an error message: shortened, and on one line."""
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
    legal = _fields(model)
    if name not in legal:
        unknown = f"strict decoding error: unknown field {shown(name)}"
        return f"{unknown} in {path}, {model.__name__} has {_either(tuple(legal))}"
    numbers = _literals(legal[name].annotation)
    values = _either(tuple(map(str, numbers))) if numbers else UID_WORDS
    got = f"got {shown(fields[name])}" if name in fields else "it is missing"
    return f"{path}.{name}: expected {values}, {got}"


def _literals(annotation: object) -> tuple[int, ...]:
    """The integers in ``Literal[...]`` or ``Literal[...] | None``."""
    numbers: list[int] = []
    for argument in get_args(annotation):
        numbers += [argument] if isinstance(argument, int) else _literals(argument)
    return tuple(numbers)


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _error(what: str) -> ConfigError:
    return ConfigError(
        what,
        consequence="the claim is not prepared and the pod stays in ContainerCreating",
        remedy="correct the opaque parameters in the ResourceClaim, its template or the DeviceClass",
    )


class OpaqueEntry(Protocol):
    """``opaque`` of an entry."""

    @property
    def driver(self) -> str:
        """The driver that the parameters are for."""
        ...

    @property
    def parameters(self) -> object:
        """A JSON value, or its text (``json_value``)."""
        ...


class ConfigEntry(Protocol):
    """An entry of ``status.allocation.devices.config``."""

    @property
    def source(self) -> str:
        """``FromClass`` or ``FromClaim``."""
        ...

    @property
    def requests(self) -> Sequence[str]:
        """The requests that it applies to; empty: all."""
        ...

    @property
    def opaque(self) -> OpaqueEntry | None:
        """The parameters, if it has any."""
        ...


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective parameters of one request; None: not set by any entry."""

    logical_neuron_core: Literal[1, 2] | None = None
    ultraserver_mode: Literal[1, 2, 4] | None = None
    workload: str | None = None


def effective(config: Sequence[ConfigEntry], requests: Sequence[str], driver: str) -> dict[str, Effective]:
    """The effective parameters of each of ``requests`` (``name`` or ``name/subrequest``).

    Args:
        config: entries in the order of the allocation; those of other drivers are ignored.
        requests: the requests of this driver's results.
        driver: this driver's name.

    Raises:
        ConfigError: an entry of this driver is invalid, whether or not it applies to one of the requests.
    """
    values = {request: Effective() for request in requests}
    # The allocator writes class entries first; sorting ensures that order for any object.
    numbered = sorted(enumerate(config), key=lambda item: item[1].source != "FromClass")
    for index, entry in numbered:
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        decoded = decode(json_value(entry.opaque.parameters), f"config[{index}].opaque.parameters")
        for request, value in values.items():
            if _reaches(entry.requests, request):
                values[request] = replace(value, **decoded.model_dump(exclude_none=True))
    return values


def _reaches(names: Sequence[str], request: str) -> bool:
    return not names or request in names or request.partition("/")[0] in names
