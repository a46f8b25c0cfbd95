"""The functions of the environment in which Kubernetes compiles selectors, as tables."""

from __future__ import annotations

from dra_driver.cel.libraries import kubernetes, lists, optionals, regex, standard, strings
from dra_driver.cel.overloads import Run, merge

FUNCTIONS = merge(
    standard.FUNCTIONS,
    strings.FUNCTIONS,
    regex.FUNCTIONS,
    lists.FUNCTIONS,
    optionals.FUNCTIONS,
    kubernetes.FUNCTIONS,
)
"""Name -> overloads."""

BEFORE_1_37: dict[str, Run] = {**strings.BEFORE_1_37, **lists.BEFORE_1_37, **kubernetes.BEFORE_1_37}
"""Overload -> how Kubernetes 1.36 runs it."""

NOT_SIMULATED = frozenset((
    # Times
    "timestamp", "duration", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek",
    "getHours", "getMinutes", "getSeconds", "getMilliseconds",
    # The authorizer of admission policies
    "authorizer", "path", "group", "serviceAccount", "resource",
    # Addresses and networks
    "ip", "isIP", "ip.isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast",
    "isLinkLocalUnicast", "isGlobalUnicast", "cidr", "isCIDR", "containsIP", "containsCIDR", "prefixLength", "masked",
    # URLs
    "url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery",
    # Formats of texts
    "format", "validate", "format.named", "format.dns1123Label", "format.dns1123Subdomain", "format.dns1035Label",
    "format.qualifiedName", "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix", "format.dns1035LabelPrefix",
    "format.labelValue", "format.uri", "format.uuid", "format.byte", "format.date", "format.datetime",
))  # fmt: skip
"""Functions that Kubernetes has and this environment has not: no attribute of a device has a type they are for."""

TYPES_NOT_SIMULATED = frozenset({"net.IP", "net.CIDR"})
"""Names of types, of which the same is true."""
