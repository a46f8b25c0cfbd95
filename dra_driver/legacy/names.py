"""Names that the pair shares with users, with the vendor's pair, and with each other.

Sources: aws-neuron-sdk ``deploy/infrastructure/scheduler.rst`` and its flow diagrams (annotations, texts); the extended
resources of the vendor's device plugin.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Resource(Enum):
    """An extended resource; ``noun`` is what the vendor's refusals call one of it."""

    DEVICE = "aws.amazon.com/neuron"
    CORE = "aws.amazon.com/neuroncore"

    @property
    def noun(self) -> str:
        """``device`` or ``core``."""
        return "device" if self is Resource.DEVICE else "core"


RETIRED_DEVICE: Final = "aws.amazon.com/neurondevice"
"""What ``Resource.DEVICE`` was called before; pods that the vendor's extender has placed may still say so."""

INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
"""Node label; SageMaker HyperPod puts ``ml.`` before the EC2 type."""

IDS: Final = "AWS_NEURON_IDS"
ALLOCATED: Final = "NEURON_ALLOCATED"
"""``false`` when the extender has chosen, ``true`` when the device plugin has handed out."""
ALLOC_TIME: Final = "NEURON_ALLOC_TIME"
"""When the extender has chosen: nanoseconds since the epoch."""
RESOURCE_TYPE: Final = "NEURON_RESOURCE_TYPE"
"""Of what resource the ids are."""
CORES: Final = "NEURON_CORES"
DEVICES: Final = "NEURON_DEVS"
"""Older names of the ids, one for each resource."""
ALLOCATION: Final = "neuron.aws.com/allocation"
"""Our own: which container has what, see ``dra_driver.legacy.annotations``."""

DEVICE_USAGE: Final = "NEURON_DEV_USAGE_MAP"
CORE_USAGE: Final = "NEURON_CORE_USAGE_MAP"
"""Node annotations, ``true`` or ``false`` for each id: kept for those who read them, never read by us."""
UNUSABLE: Final = "neuron.aws.com/unusable-devices"
"""Node annotation: ids of devices such as ``3,7`` that nobody is to get, written by the device plugin or by hand."""
