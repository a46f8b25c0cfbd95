"""The simulator's results for expressions and quantities, in the format of Kubernetes' recorded results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dra_driver.kube.objects.resource import Device
from dra_driver.kube.quantity import Quantity, QuantityError, parse, stored
from dra_driver.simulator.cel import CelDevice, CelError, Kubernetes, UnsupportedError, compile  # noqa: A004 # the usual word for it

Outcome = dict[str, Any]
"""``refused`` and optionally ``position``, or ``cost`` and ``results``: for each device a bool or the error's text.

The simulator's own result may also be ``unsupported``, with the reason.
"""


def devices_of(given: Mapping[str, Mapping[str, Any]]) -> tuple[CelDevice, ...]:
    """The devices of the recorded table."""
    return tuple(CelDevice.of(item["driver"], msgspec.convert(item["device"], Device)) for item in given.values())


def outcome(expression: str, kubernetes: Kubernetes, devices: Sequence[CelDevice]) -> Outcome:
    """The simulator's result."""
    try:
        program = compile(expression, kubernetes)
    except UnsupportedError as error:
        return {"unsupported": error.message}
    except CelError as error:
        position = {"position": list(error.position)} if error.position else {}
        return {"refused": error.message, **position}
    results: list[bool | str] = []
    for device in devices:
        try:
            results.append(program.matches(device))
        except UnsupportedError as error:
            return {"unsupported": error.message}
        except CelError as error:
            results.append(error.message)
    return {"cost": program.cost, "results": results}


def panicked(given: Outcome) -> bool:
    """Whether Kubernetes' own cost tracking crashed on ``sort()`` of a list that is an error.

    That is a bug of some of its releases and not reproduced: the simulator reports an ordinary error there.
    """
    return any("missing method Add" in str(item) for item in given.get("results", ()))


def shape(given: Outcome) -> Outcome:
    """An outcome without the wording and positions of its errors."""
    if "results" not in given:
        return {key: True for key in given if key != "position"}
    return {**given, "results": [item if isinstance(item, bool) else "error" for item in given["results"]]}


def quantity_outcome(text: str) -> Outcome:
    """How a selector parses the text, and how it is read once it is stored; None if it is refused."""
    sent = _read(parse, text.strip(" "))
    return {
        "read": _amount(_read(parse, text)),
        "stored": _amount(_read(stored, text)),
        **({"text": sent.text} if sent is not None else {}),
    }


def _read(reader: Callable[[str], Quantity], text: str) -> Quantity | None:
    try:
        return reader(text)
    except QuantityError:
        return None


def _amount(found: Quantity | None) -> Outcome | None:
    if found is None:
        return None
    return {"nanos": str(found.nanos), "integer": found.integer(), "format": found.format}
