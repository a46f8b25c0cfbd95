"""Which configuration holds for a request.

Entries of the DeviceClass count first, then those of the claim; a later one beats an earlier one, field by field. An
entry for request ``r`` also reaches its subrequests ``r/s``; an entry for ``r/s`` only that; an entry without requests
reaches all (Kubernetes 1.37 stores an entry that names all requests of a claim that way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dra_driver.config.decode import decode
from dra_driver.config.models import NeuronConfig


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
