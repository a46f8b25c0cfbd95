"""Opaque parameters of claims: ``NeuronConfig`` and ``UltraServerConfig``, decoded strictly, and which of them holds.

They are any JSON that a user wrote, which nobody checked before; an error names the path. Adding a kind is adding a
class to ``KINDS``. Importing this module costs the import of pydantic, so it is imported where parameters are given.

Entries of the DeviceClass count first, then those of the claim; a later one beats an earlier one, field by field. An
entry for request ``r`` also reaches its subrequests ``r/s``; an entry for ``r/s`` only that; an entry without requests
reaches all (Kubernetes 1.37 stores an entry that names all requests of a claim that way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dra_driver.util.errors import DriverError
from dra_driver.util.text import printable, shorten

API_VERSIONS = ("neuron.aws.com/v1", "neuron.aws.com/v1alphav1", "resource.neuron.aws.com/v1alphav1")
"""Spellings in use: the first is current, the others are those of AWS's beta documents (aws-neuron-sdk, deploy/eks)."""


def _exact_integer(value: object) -> object:
    # pydantic's strict Literal compares by equality, so 1.0 and true would pass as 1.
    if type(value) is not int:
        raise ValueError("not an integer")  # pydantic turns ValueError, not TypeError, into its own
    return value


class Parameters(BaseModel):
    """Base: no coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NeuronConfig(Parameters):
    """How the Neuron runtime shall use the chips of a request."""

    logical_neuron_core: Annotated[Literal[1, 2] | None, BeforeValidator(_exact_integer)] = Field(
        default=None, alias="logicalNeuronCore"
    )
    """Physical NeuronCores in a logical one; None: the entry does not say."""


class UltraServerConfig(Parameters):
    """How many nodes of an UltraServer work together."""

    ultraserver_mode: Annotated[Literal[1, 2, 4], BeforeValidator(_exact_integer)] = Field(alias="ultraserverMode")
    """Number of nodes."""


KINDS: dict[str, type[NeuronConfig | UltraServerConfig]] = {
    "NeuronConfig": NeuronConfig,
    "UltraServerConfig": UltraServerConfig,
}


_ECHO = 40
"""Characters of a user's value that an error repeats."""
_MAX_ERRORS = 5


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
        texts = [_text(detail, model, fields, path) for detail in details[:_MAX_ERRORS]]
        if len(details) > _MAX_ERRORS:
            texts.append(f"and {len(details) - _MAX_ERRORS} more")
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


class OpaqueEntry(Protocol):
    """``opaque`` of an entry."""

    @property
    def driver(self) -> str:
        """Whom the parameters are for."""
        ...

    @property
    def parameters(self) -> object:
        """As decoded from JSON."""
        ...


class ConfigEntry(Protocol):
    """An entry of ``status.allocation.devices.config``."""

    @property
    def source(self) -> str:
        """``FromClass`` or ``FromClaim``."""
        ...

    @property
    def requests(self) -> Sequence[str]:
        """Whom it concerns; none named: all."""
        ...

    @property
    def opaque(self) -> OpaqueEntry | None:
        """The parameters, if it has such."""
        ...


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for one request; None: no entry says."""

    logical_neuron_core: Literal[1, 2] | None = None
    ultraserver_mode: Literal[1, 2, 4] | None = None


def effective(config: Sequence[ConfigEntry], requests: Sequence[str], driver: str) -> dict[str, Effective]:
    """What holds for each of ``requests`` (``name`` or ``name/subrequest``).

    Args:
        config: entries in the order of the allocation; those of other drivers are ignored.
        requests: the requests of this driver's results.
        driver: this driver's name.

    Raises:
        ConfigError: an entry of this driver is not legal, whether or not it reaches one of the requests.
    """
    values = {request: Effective() for request in requests}
    # The allocator writes class entries first; sorting keeps that promise for any object.
    numbered = sorted(enumerate(config), key=lambda item: item[1].source != "FromClass")
    for index, entry in numbered:
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        decoded = decode(entry.opaque.parameters, f"config[{index}].opaque.parameters")
        for request, value in values.items():
            if not _reaches(entry.requests, request):
                continue
            if isinstance(decoded, NeuronConfig):
                lnc = decoded.logical_neuron_core
                values[request] = Effective(value.logical_neuron_core if lnc is None else lnc, value.ultraserver_mode)
            else:
                values[request] = Effective(value.logical_neuron_core, decoded.ultraserver_mode)
    return values


def _reaches(names: Sequence[str], request: str) -> bool:
    return not names or request in names or request.partition("/")[0] in names
