"""Settings of a program, typed from the option to the use: a table says of each all that there is to say.

A table is a frozen dataclass whose fields carry an ``Option``::

    contiguity: Annotated[
        Literal["refuse", "warn", "allow"],
        Option("--contiguity", "what to do about gaps", "warn", variable="CONTIGUITY_POLICY", chart="contiguity"),
    ]

The type of the field says which texts are legal: the words of a Literal, ``on`` and ``off`` for a bool, numbers within
bounds, paths; ``X | None`` is None for "". From tables follow the options of the command line (``cli.daemon``), the
page of settings, and which values of the chart become which variables (``scripts/generate settings chart``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from dra_driver.util.errors import DriverError, UsageError

SWITCH: Final = ("on", "off")
"""The words for a bool."""


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is given."""

    flag: str
    help: str
    default: str = ""
    """"": nothing is set."""
    variable: str = ""
    """The environment variable that sets it as well; if not given, that of the flag's name: ``KEY_FILE``."""
    bounds: tuple[float, float] | None = None
    """The least and the greatest value of a number."""
    parse: Callable[[str], Any] | None = None
    """Makes the value of a text, where the type does not say how. DriverError: the text is illegal."""
    chart: str = ""
    """The value of the chart that is handed on as it is, one of those of the program's workload: ``contiguity``."""
    made_of: str = ""
    """The value that a template of the chart makes it of, such as ``emulate``; with a dot before it, one of the
    workload's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variable", self.variable or self.name.upper())

    @property
    def name(self) -> str:
        """Its key on the command line, such as ``node_name``."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a table."""

    field: str
    option: Option
    kind: Any
    """Its type, without None."""
    optional: bool
    """Whether it is None for ""."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Its legal words; (): any text."""
        if self.kind is bool:
            return SWITCH
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def value(self, text: str) -> Any:
        """The value of a text; raises UsageError for an illegal one."""
        option = self.option
        subject = f"{option.flag} (${option.variable}) is {text!r}"
        if self.choices and text not in self.choices:
            raise UsageError(subject, remedy=f"use one of: {', '.join(self.choices)}")
        if self.kind is bool:
            return text == "on"
        if self.optional and not text:
            return None
        if option.parse is not None:
            try:
                return option.parse(text)
            except UsageError:
                raise
            except DriverError as error:
                raise UsageError(f"{option.flag} (${option.variable}): {error.what}", remedy=error.remedy) from error
        if option.bounds is not None:
            return self._number(text, subject, *option.bounds)
        return Path(text) if self.kind is Path else text

    def _number(self, text: str, subject: str, least: float, most: float) -> float:
        try:
            number: float = self.kind(text)
        except ValueError:
            number = most + 1
        if not least <= number <= most:
            raise UsageError(subject, remedy=f"give a number from {least:.10g} to {most:.10g}")
        return number


class Table(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Table)


@cache
def settings_of(*tables: type[Table]) -> tuple[Setting, ...]:
    """The settings of tables, in the order of their fields; a field without an option is none."""
    return tuple(
        setting
        for table in tables
        for hints in [get_type_hints(table, include_extras=True)]
        for field in fields(table)
        if (setting := _setting(field.name, hints[field.name])) is not None
    )


def _setting(field: str, hint: Any) -> Setting | None:
    if get_origin(hint) is not Annotated:
        return None
    annotated, option = get_args(hint)
    kinds = get_args(annotated) if get_origin(annotated) is not Literal else ()
    optional = NoneType in kinds
    return Setting(field, option, kinds[0] if optional else annotated, optional)


def read_table(table: type[T], given: Mapping[str, Any], environment: Mapping[str, str]) -> T:
    """A table's values: the command line wins over the environment, which wins over the default.

    Args:
        table: which.
        given: texts from the command line, by the option's name; None for options that were not given.
        environment: environment variables.

    Raises:
        UsageError: an invalid value.
    """
    values: dict[str, Any] = {}
    for setting in settings_of(table):
        text = given.get(setting.option.name)
        if text is None:
            text = environment.get(setting.option.variable) or setting.option.default
        values[setting.field] = setting.value(text)
    return table(**values)


def port(flag: str, default: str, text: str, made_of: str) -> Option:
    """A port that a negative number turns off."""
    text = f"{text}; a negative port disables them"
    return Option(flag, text, default, bounds=(-65535, 65535), made_of=made_of)


HEALTH_PORT: Final = "gRPC health services `liveness` and `readiness`"
HEALTH_ADDRESS: Final = "address of the health service"
NODE_ADDRESS: Final = Option(
    "--node-address",
    "address of this node: connections from there, and from the pod's gateway, have places of their own, since "
    "kubelet's probes come from one of both",
)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Where the health services are that kubelet asks: it probes the pod's address."""

    health_port: Annotated[int, port("--healthcheck-port", "51515", HEALTH_PORT, ".healthPort")]
    health_address: Annotated[
        str,
        Option("--healthcheck-address", HEALTH_ADDRESS, "0.0.0.0"),  # noqa: S104
    ]
    node_address: Annotated[str, NODE_ADDRESS]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where the metrics are."""

    metrics_port: Annotated[int, port("--metrics-port", "-1", "port of the Prometheus metrics (HTTP)", ".metricsPort")]
    metrics_address: Annotated[
        str, Option("--metrics-address", "address of the metrics server", "127.0.0.1", made_of=".metricsAddress")
    ]


@dataclass(frozen=True, kw_only=True)
class Ports(Metrics, Probes):
    """Where a program answers probes and shows metrics."""


@dataclass(frozen=True, kw_only=True)
class PortsIfAsked(Ports):
    """The same for a program that may run outside a cluster: off by default."""

    health_port: Annotated[int, port("--healthcheck-port", "-1", HEALTH_PORT, ".healthPort")]
    health_address: Annotated[str, Option("--healthcheck-address", HEALTH_ADDRESS, "127.0.0.1")]
