"""The two kinds of opaque parameters, as pydantic models. Adding a kind is adding a class to ``KINDS``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
