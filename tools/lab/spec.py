"""The specification of a cluster: validated values and their JSON form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from lab.errors import LabError
from lab.layout import MAX_NAME_LENGTH, MAX_NODES

DEFAULT_KUBERNETES = "1.37.1"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DIRECTORY = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+")
_ULTRASERVERS = re.compile(r"([1-9][0-9]?)x([24])", re.ASCII)
_SETTING = re.compile(r"[A-Za-z0-9./-]+=(true|false)")

# Labels below kubernetes.io and k8s.io that kubelet may set on its own node (Kubernetes, well-known labels and the
# NodeRestriction admission plugin); any key outside these two domains is allowed.
_KUBELET_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_KUBELET_KEYS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
    }
)


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster.

    Attributes:
        name: Identifies the cluster; only one can run at a time in a network namespace.
        nodes: Number of nodes, named node-1 and so on; 0 is only a control plane.
        kubernetes: Version of the control plane, and of kubelet unless `kubelet` is set.
        kubelet: Version of kubelet; empty for the control plane's.
        runtime_config: API versions to serve in addition to the default ones, as `group/version=true`.
        feature_gates: `Name=true` or `Name=false`, for all components.
        kubelet_feature_gates: The same for kubelet only; replaces `feature_gates` there unless empty.
        labels: Labels of nodes: by node name, with `*` for all.
        node_directories: Absolute paths at which every node has a directory of its own instead of the machine's.
    """

    name: str = "default"
    nodes: int = 1
    kubernetes: str = DEFAULT_KUBERNETES
    kubelet: str = ""
    runtime_config: tuple[str, ...] = ()
    feature_gates: tuple[str, ...] = ()
    kubelet_feature_gates: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_directories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            LabError: A value is invalid.
        """
        problems = list(_problems(self))
        if problems:
            raise LabError("Cannot make this cluster: " + "; ".join(problems) + ". Nothing was done.")

    @property
    def kubelet_version(self) -> str:
        """The version of kubelet."""
        return self.kubelet or self.kubernetes

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(f"node-{index}" for index in range(1, self.nodes + 1))

    def labels_of(self, node: str) -> dict[str, str]:
        """Return the labels of `node`: those for all nodes, overridden by its own."""
        return {**self.labels.get("*", {}), **self.labels.get(node, {})}


def _problems(spec: ClusterSpec) -> Iterable[str]:
    if not _NAME.fullmatch(spec.name) or len(spec.name) > MAX_NAME_LENGTH:
        yield f"the name {spec.name!r} is not {MAX_NAME_LENGTH} or fewer of a-z, 0-9 and '-'"
    if not 0 <= spec.nodes <= MAX_NODES:
        yield f"{spec.nodes} nodes were asked for, 0 to {MAX_NODES} are possible"
    patterns = (
        (_VERSION, (spec.kubernetes, spec.kubelet_version), f"a version such as {DEFAULT_KUBERNETES}"),
        (_SETTING, (*spec.runtime_config, *spec.feature_gates, *spec.kubelet_feature_gates), "NAME=true or NAME=false"),
        (_DIRECTORY, spec.node_directories, "a plain absolute path of a node's directory"),
    )
    for pattern, values, meaning in patterns:
        yield from (f"{value!r} is not {meaning}" for value in values if not pattern.fullmatch(value))
    yield from _label_problems(spec)


def _label_problems(spec: ClusterSpec) -> Iterable[str]:
    for node, labels in spec.labels.items():
        if node != "*" and node not in spec.node_names:
            yield f"labels are given for {node!r}, which is not one of the nodes ({', '.join(spec.node_names)})"
        for key, value in labels.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                yield f"{key}={value} is not a valid label"


def parse_labels(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Parse `KEY=VALUE` (all nodes) and `NODE:KEY=VALUE` to labels by node name, with `*` for all.

    Raises:
        LabError: A text has neither form.
    """
    labels: dict[str, dict[str, str]] = {}
    for text in texts:
        assignment, equals, value = text.partition("=")
        node, colon, key = assignment.rpartition(":")
        if not equals or not key or (colon and not node):
            raise LabError(f"{text!r} is not a label KEY=VALUE or NODE:KEY=VALUE. Nothing was done.")
        labels.setdefault(node or "*", {})[key] = value
    return labels


def nodes_of_ultraservers(text: str) -> int:
    """Return the number of nodes in `SERVERSxNODES`: UltraServers of 2 or 4 nodes, for the driver's emulation.

    Raises:
        LabError: The text has another form.
    """
    found = _ULTRASERVERS.fullmatch(text)
    if found is None:
        raise LabError(f"{text!r} is not such as 2x4: two UltraServers of four nodes (or two). Nothing was done.")
    return int(found[1]) * int(found[2])


def parse_labels_file(text: str) -> list[str]:
    """Return the labels in a file: one per line, ignoring blank lines and those that start with #."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def kubelet_may_set(key: str) -> bool:
    """Return whether kubelet accepts this label in --node-labels; an administrator must set the others."""
    domain, slash, _ = key.rpartition("/")
    in_kubernetes = domain in {"kubernetes.io", "k8s.io"} or domain.endswith((".kubernetes.io", ".k8s.io"))
    if not slash or not in_kubernetes or key in _KUBELET_KEYS:
        return True
    return any(domain == prefix or domain.endswith("." + prefix) for prefix in _KUBELET_PREFIXES)


def encode(spec: ClusterSpec) -> str:
    """Return the JSON form."""
    return json.dumps(asdict(spec), sort_keys=True)


def decode(text: str) -> ClusterSpec:
    """Decode the JSON form.

    Raises:
        ValueError: The text was not written by `encode`.
    """
    values = json.loads(text)
    try:
        return ClusterSpec(
            name=values["name"],
            nodes=values["nodes"],
            kubernetes=values["kubernetes"],
            kubelet=values["kubelet"],
            runtime_config=tuple(values["runtime_config"]),
            feature_gates=tuple(values["feature_gates"]),
            kubelet_feature_gates=tuple(values["kubelet_feature_gates"]),
            labels=values["labels"],
            node_directories=tuple(values["node_directories"]),
        )
    except (KeyError, TypeError, AttributeError, LabError) as error:
        raise ValueError(f"not a cluster's description: {error}") from error
