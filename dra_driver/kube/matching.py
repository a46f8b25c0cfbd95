"""Which taints a toleration tolerates, and which labels a requirement of a selector matches: once for all objects.

The rules are those of Kubernetes (``k8s.io/component-helpers/scheduling/corev1`` for nodes,
``k8s.io/dynamic-resource-allocation`` for devices, ``k8s.io/apimachinery/pkg/labels``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep the scheduler from a node or a device; it ignores all others."""


class AnyTaint(Protocol):
    """Of a node, or of a device."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> str: ...  # noqa: D102
    @property
    def effect(self) -> str: ...  # noqa: D102


class AnyToleration(AnyTaint, Protocol):
    """Of a pod, or of a device request; an empty key or effect matches all."""

    @property
    def operator(self) -> str:
        """``Exists``, or ``Equal``, which is the default."""
        ...


def tolerates(toleration: AnyToleration, taint: AnyTaint) -> bool:
    """Whether the toleration matches the taint."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def _in(value: str | None, values: Collection[str]) -> bool:
    return value is not None and value in values


def _greater(value: str | None, values: Collection[str], sign: int) -> bool:
    try:
        return value is not None and sign * int(value) > sign * int(next(iter(values)))
    except ValueError:
        return False


OPERATORS: Final[Mapping[str, Callable[[str | None, Collection[str]], bool]]] = {
    "In": _in,
    "NotIn": lambda value, values: not _in(value, values),
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _greater(value, values, 1),
    "Lt": lambda value, values: _greater(value, values, -1),
}
"""Whether a label's value (None: there is no such label) meets a requirement. Label selectors have the first four."""


def takes(operator: str, count: int) -> bool:
    """Whether the operator of a node selector is one, and takes this number of values."""
    if operator in ("In", "NotIn"):
        return count > 0
    return operator in OPERATORS and count == (1 if operator in ("Gt", "Lt") else 0)
