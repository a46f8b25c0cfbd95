"""The functions of the environment in which Kubernetes compiles selectors, as tables."""

from __future__ import annotations

from dra_driver.simulator.cel.declarations import Run, merge
from dra_driver.simulator.cel.libraries import (
    formats,
    kubernetes,
    lists,
    network,
    optionals,
    regex,
    standard,
    strings,
    urls,
)

FUNCTIONS = merge(
    standard.FUNCTIONS,
    strings.FUNCTIONS,
    regex.FUNCTIONS,
    lists.FUNCTIONS,
    optionals.FUNCTIONS,
    kubernetes.FUNCTIONS,
    network.FUNCTIONS,
    urls.FUNCTIONS,
    formats.FUNCTIONS,
)
"""Name -> overloads."""

BEFORE_1_37: dict[str, Run] = {**strings.BEFORE_1_37, **lists.BEFORE_1_37, **kubernetes.BEFORE_1_37}
"""Overload -> how Kubernetes 1.36 runs it."""

NOT_SIMULATED = frozenset(
    [
        "timestamp",
        "duration",
        "getFullYear",
        "getMonth",
        "getDayOfYear",
        "getDayOfMonth",
        "getDate",
        "getDayOfWeek",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "authorizer",
        "path",
        "group",
        "serviceAccount",
        "resource",
    ]
)
"""Functions that Kubernetes has and this environment has not; no attribute has a type they are for."""
