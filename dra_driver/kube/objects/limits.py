"""What the API server takes at most of the objects of DRA.

Source: ``k8s.io/api`` ``resource/v1`` and ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from typing import Final

# Of a ResourceSlice

MAX_DEVICES: Final = 128
MAX_SPECIAL_DEVICES: Final = 64
"""Devices if one of them has a taint or consumes counters."""
MAX_COUNTER_SETS: Final = 8
MAX_COUNTERS: Final = 32
"""Of one counter set."""

# Of a device in it

MAX_COUNTER_SETS_OF_DEVICE: Final = 2
MAX_ATTRIBUTES: Final = 32
"""Attributes and capacities together."""
MAX_ATTRIBUTE_BYTES: Final = 64
"""Of an attribute's text."""
MAX_DOMAIN_CHARACTERS: Final = 63
"""Of an attribute's name, before the slash."""
MAX_ID_CHARACTERS: Final = 32
"""Of an attribute's name, after the slash."""
MAX_TAINTS: Final = 16
MAX_BINDING_CONDITIONS: Final = 4
MAX_VALID_VALUES: Final = 10
"""Of the policy of a capacity."""

# Of a claim

MAX_ITEMS: Final = 32
"""Requests, constraints, selectors and configurations, each."""
MAX_SUBREQUESTS: Final = 8
"""Alternatives of one request."""
MAX_PARAMETERS_BYTES: Final = 10 << 10
"""Of one opaque configuration."""
MAX_RESULTS: Final = 32
"""Devices that are allocated to it."""
