"""What to know of a cluster when a test has failed on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lab.cluster import Cluster
from lab.errors import LabError
from lab.node import Node

from tests.cluster.lib.installation import LABELS, NAMESPACE
from tests.cluster.lib.kube import Kube
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.release import Release

_MAX_LENGTH = 20_000


def sections(fixtures: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Titles and texts for the report of a test with these fixtures; what cannot be had is said, not raised."""
    kube = fixtures.get("kube")
    if not isinstance(kube, Kube):
        installation = fixtures.get("installation") or fixtures.get("driver") or fixtures.get("namespace")
        kube = getattr(installation, "kube", None)
    if not isinstance(kube, Kube):
        return
    for title, probe in _probes(kube, fixtures):
        yield title, _text(probe)


def _probes(kube: Kube, fixtures: Mapping[str, object]) -> Iterator[tuple[str, Callable[[], str]]]:
    def kubectl(*arguments: str) -> Callable[[], str]:
        return lambda: kube.kubectl(*arguments, check=False, timeout=20)

    namespace = fixtures.get("namespace")
    if isinstance(namespace, Namespace):
        where = ("--namespace", namespace.name)
        # The short ones first: whoever shows a report often cuts it.
        yield "pods", kubectl(*where, "get", "pods", "-o", "wide")
        yield "events", kubectl(*where, "get", "events", "--sort-by=.lastTimestamp")
        yield "pods in full", kubectl(*where, "describe", "pods")
        yield "claims", kubectl(*where, "get", "resourceclaims", "-o", "yaml")
    release = fixtures.get("release") or fixtures.get("pair")
    if isinstance(release, Release):
        yield "release", release.diagnose
    driver = ("--namespace", NAMESPACE)
    yield "driver pods", kubectl(*driver, "get", "pods", "-o", "wide")
    yield "driver logs", kubectl(*driver, "logs", "-l", LABELS, "--prefix", "--tail=60")
    for node in _nodes(kube):
        yield f"kubelet of {node.name}", NodeFiles(node).log_tail


def _nodes(kube: Kube) -> Sequence[Node]:
    """Nodes of the lab; none when it has been taken down before the failure is told."""
    try:
        return kube.access.nodes if isinstance(kube.access, Cluster) else ()
    except LabError:
        return ()


def _text(probe: Callable[[], str]) -> str:
    try:
        return probe()[-_MAX_LENGTH:]
    except Exception as error:  # noqa: BLE001 # a broken cluster is what this looks at
        return f"cannot be had: {error}"
