"""The functions of the environment in which Kubernetes compiles selectors."""

from __future__ import annotations

from dra_driver.simulator.cel.libraries import kubernetes, lists, optionals, regex, standard, strings
from dra_driver.simulator.cel.overloads import Run, merge

FUNCTIONS = merge(
    standard.FUNCTIONS,
    strings.FUNCTIONS,
    regex.FUNCTIONS,
    lists.FUNCTIONS,
    optionals.FUNCTIONS,
    kubernetes.FUNCTIONS,
)
"""Overloads by function name."""

BEFORE_1_37: dict[str, Run] = {**strings.BEFORE_1_37, **lists.BEFORE_1_37, **kubernetes.BEFORE_1_37}
"""How Kubernetes 1.36 runs some overloads, by overload."""

NOT_SIMULATED = frozenset((
    # Timestamps and durations
    "timestamp", "duration", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek",
    "getHours", "getMinutes", "getSeconds", "getMilliseconds",
    # The authorizer of admission policies
    "authorizer", "path", "group", "serviceAccount", "resource",
    # IP addresses and networks
    "ip", "isIP", "ip.isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast",
    "isLinkLocalUnicast", "isGlobalUnicast", "cidr", "isCIDR", "containsIP", "containsCIDR", "prefixLength", "masked",
    # URLs
    "url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery",
    # String formats
    "format", "validate", "format.named", "format.dns1123Label", "format.dns1123Subdomain", "format.dns1035Label",
    "format.qualifiedName", "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix", "format.dns1035LabelPrefix",
    "format.labelValue", "format.uri", "format.uuid", "format.byte", "format.date", "format.datetime",
))  # fmt: skip
"""Functions that Kubernetes has but that are not simulated: no device attribute has a type that they apply to."""

TYPES_NOT_SIMULATED = frozenset({"net.IP", "net.CIDR"})
"""Type names that are not simulated, for the same reason."""
