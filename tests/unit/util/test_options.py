"""Tables of settings: what a text becomes, which text counts, and what is legal."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cli.main import DAEMONS
from dra_driver.driver.settings import DriverSettings
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.util.errors import UsageError
from dra_driver.util.options import Metrics, Option, Probes, read_table, settings_of

TABLES = [table for name in DAEMONS for table in getattr(import_module(f"dra_driver.cli.{name}"), "TABLES", ())]


@dataclass(frozen=True, kw_only=True)
class Garage(Metrics):
    """One setting of each type."""

    open: Annotated[bool, Option("--open", "", "on")]
    color: Annotated[Literal["red", "green"], Option("--color", "", "red")]
    cars: Annotated[int, Option("--cars", "", "2", bounds=(0, 9))]
    height: Annotated[float | None, Option("--height", "", bounds=(0.5, 3.0))]
    key: Annotated[Path | None, Option("--key-file", "", variable="KEY")]
    parts: Annotated[Partitions | None, Option("--parts", "", parse=Partitions.parse)]
    note: Annotated[str, Option("--note", "")]
    computed: str = "by nobody"


def read(environment: dict[str, str], **given_values: str) -> Garage:
    return read_table(Garage, given_values, environment)


def test_defaults_are_of_the_type_of_their_field() -> None:
    garage = read({})
    assert (garage.open, garage.color, garage.cars, garage.note) == (True, "red", 2, "")
    assert (garage.height, garage.key, garage.parts) == (None, None, None)
    assert (garage.metrics_port, garage.metrics_address, garage.computed) == (-1, "127.0.0.1", "by nobody")


def test_texts_become_what_the_field_says() -> None:
    garage = read({"OPEN": "off", "HEIGHT": "2", "PARTS": "chip.core"}, key_file="a/b", cars="3")
    assert (garage.open, garage.height, garage.key, garage.cars) == (False, 2.0, Path("a/b"), 3)
    assert garage.parts == Partitions.parse("chip.core")


@given(st.none() | st.sampled_from(["", "a"]), st.none() | st.sampled_from(["", "b"]))
def test_the_command_line_wins_over_the_environment_and_that_over_the_default(line: Any, variable: Any) -> None:
    environment = {} if variable is None else {"NOTE": variable}
    assert read_table(Garage, {"note": line}, environment).note == (line if line is not None else variable or "")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("open", "yes", "on, off"),
        ("color", "blue", "red, green"),
        ("cars", "1.5", "from 0 to 9"),
        ("cars", "10", "from 0 to 9"),
        ("height", "nan", "from 0.5 to 3"),
        ("parts", "wheel", "--parts ($PARTS): "),
    ],
)
def test_an_illegal_text_is_refused_with_the_option_the_variable_and_what_is_legal(
    name: str, text: str, part: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        read_table(Garage, {name: text}, {})
    assert f"--{name} (${name.upper()})" in str(refusal.value)
    assert part in str(refusal.value)


def test_of_a_field_that_is_given_anew_the_last_row_counts() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Shed(Probes):
        health_port: Annotated[int, Option("--healthcheck-port", "", "7", bounds=(0, 9))]

    assert read_table(Shed, {}, {}).health_port == 7
    assert len(settings_of(Shed)) == len(settings_of(Probes))


def test_each_field_of_the_drivers_settings_is_a_setting() -> None:
    assert [setting.field for setting in settings_of(DriverSettings)] == [
        field.name for field in fields(DriverSettings)
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.__module__}.{table.__name__}")
def test_the_defaults_of_a_program_are_legal(table: type[Any]) -> None:
    read_table(table, {}, {})
