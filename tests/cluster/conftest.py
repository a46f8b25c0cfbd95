"""The cluster under test, the driver on it, and a namespace for each test.

    pytest tests/cluster [--kubernetes 1.37.1]     on a cluster of two nodes that this brings up and takes down (root)
    KUBECONFIG=... NEURON_DRA_TEST_IMAGE=... pytest tests/cluster --existing-cluster     on any other

A test runs on the newest Kubernetes only, unless ``@pytest.mark.kubernetes("1.37", "1.34")`` says on which. Tests for
other versions are deselected. ``@pytest.mark.ultraservers`` gives it a cluster of eight nodes that stand for two
UltraServers, ``@pytest.mark.control_plane`` one without nodes; those tests come together, and only one cluster is up at
a time. One process: never ``-n``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from lab.cluster import Cluster
from lab.spec import ClusterSpec, nodes_of_ultraservers

from tests.cluster import diagnosis
from tests.cluster.installation import EMULATED, EMULATED_ULTRASERVER, ROOT, ULTRASERVERS, Installation
from tests.cluster.kube import ExternalCluster, Kube
from tests.cluster.namespace import Namespace
from tests.cluster.nodefiles import NodeFiles
from tests.cluster.objects import IMAGE
from tests.cluster.release import Release, helm_program

NEWEST = "1.37"
TYPE_LABEL = "node.kubernetes.io/instance-type"
TEST_SECONDS = 240
DRIVER_IMAGE = "neuron-dra-driver:test"

_MARKED = ("ultraservers", "control_plane")
"""Kinds of clusters for which there is a marker."""


def _spec(version: str, kind: str) -> ClusterSpec:
    """The cluster for a version of Kubernetes; 1.33 is a kubelet of that version below a newer control plane."""
    if kind == "control_plane":
        return ClusterSpec(name="tests", nodes=0, kubernetes=version)
    if kind == "ultraservers":
        labels = {"*": {TYPE_LABEL: EMULATED_ULTRASERVER}}
        return ClusterSpec(name="tests", nodes=nodes_of_ultraservers(ULTRASERVERS), kubernetes=version, labels=labels)
    labels = {"*": {TYPE_LABEL: EMULATED}}
    if not version.startswith("1.33."):
        return ClusterSpec(name="tests", nodes=2, kubernetes=version, labels=labels)
    return ClusterSpec(
        name="tests",
        nodes=2,
        kubernetes="1.34.4",
        kubelet=version,
        runtime_config=("resource.k8s.io/v1beta1=true",),
        kubelet_feature_gates=("DynamicResourceAllocation=true",),
        labels=labels,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption("--kubernetes", default="1.37.1", metavar="VERSION", help="Kubernetes to test on (default 1.37.1)")
    group.addoption("--existing-cluster", action="store_true", help="use the cluster of $KUBECONFIG instead of an own")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"ultraservers: on eight nodes that stand for {ULTRASERVERS} UltraServer nodes")
    config.addinivalue_line("markers", "control_plane: on a control plane without nodes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its cluster; pytest then runs those of one cluster after each other."""
    if "cluster" in metafunc.fixturenames:
        marked = (kind for kind in _MARKED if metafunc.definition.get_closest_marker(kind) is not None)
        wanted = next(marked, "nodes")
        metafunc.parametrize("cluster", [wanted], indirect=True, ids=[pytest.HIDDEN_PARAM], scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    minor = ".".join(config.getoption("kubernetes").split(".")[:2])
    kept: list[pytest.Item] = []
    other: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("kubernetes")
        (kept if minor in (mark.args if mark else (NEWEST,)) else other).append(item)
        if item.get_closest_marker("timeout") is None:
            # Bringing the cluster up may mean building Kubernetes, so only the test itself is timed.
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
    if other:
        config.hook.pytest_deselected(items=other)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the cluster looks like to the report of a failed test, while everything is still there."""
    report = yield
    if call.excinfo is not None and not report.skipped and isinstance(item, pytest.Function):
        report.sections.extend(diagnosis.sections(item.funcargs))
    return report


_FIGURES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines about what was measured, shown at the end of the run."""
    return pytestconfig.stash.setdefault(_FIGURES, [])


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | ExternalCluster]:
    """The cluster under test: of two nodes, of UltraServers, or of none."""
    kind = str(request.param)
    if request.config.getoption("existing_cluster"):
        if kind in _MARKED:
            pytest.skip("needs a cluster of eight nodes, or of none, that the tests bring up themselves")
        kubeconfig = os.environ.get("KUBECONFIG", "")
        if not kubeconfig or not shutil.which("kubectl"):
            pytest.fail("--existing-cluster needs KUBECONFIG and kubectl")
        yield ExternalCluster(Path(kubeconfig))
        return
    own = Cluster(_spec(request.config.getoption("kubernetes"), kind))
    own.down()  # what a killed run left
    try:
        own.up()
        own.load_test_image(IMAGE)
        yield own
    finally:
        own.down()


@pytest.fixture(scope="session")
def kube(cluster: Cluster | ExternalCluster) -> Iterator[Kube]:
    """API and kubectl of the cluster."""
    client = Kube(cluster)
    yield client
    client.close()


@pytest.fixture(scope="session")
def lab(cluster: Cluster | ExternalCluster) -> Cluster:
    """The cluster as one whose nodes can be reached and broken; skips the test on other clusters."""
    if not isinstance(cluster, Cluster):
        pytest.skip("needs the nodes of a cluster that the tests bring up themselves")
    return cluster


@pytest.fixture(scope="session")
def driver_image(cluster: Cluster | ExternalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the driver's image, which all nodes have or can pull."""
    if not isinstance(cluster, Cluster):
        image = os.environ.get("NEURON_DRA_TEST_IMAGE", "")
        if not image:
            pytest.fail("--existing-cluster needs NEURON_DRA_TEST_IMAGE, the driver's image that its nodes can pull")
        return image
    archive = tmp_path_factory.mktemp("image") / "driver.tar"
    subprocess.run([ROOT / "scripts/build-image", "--tag", DRIVER_IMAGE, archive], check=True)
    cluster.load(archive)
    archive.unlink()
    return DRIVER_IMAGE


@pytest.fixture(scope="session")
def installation(kube: Kube, cluster: Cluster | ExternalCluster, driver_image: str) -> Iterator[Installation]:
    """The installer and what it installs, whatever that is now; for tests that change it."""
    made = Installation(kube, cluster.kubectl_command(), driver_image)
    yield made
    if not isinstance(cluster, Cluster):
        made.uninstall()


@pytest.fixture
def driver(installation: Installation) -> Installation:
    """The driver, installed and ready on every node, on emulated hardware."""
    installation.ensure("--emulate", EMULATED)
    return installation


@pytest.fixture
def ultraserver_driver(installation: Installation) -> Installation:
    """The driver, installed and ready on every node of two emulated UltraServers."""
    installation.ensure("--emulate", EMULATED_ULTRASERVER, "--emulated-ultraservers", ULTRASERVERS)
    return installation


@pytest.fixture(scope="module")
def release(
    lab: Cluster, kube: Kube, installation: Installation, driver_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The release, in whatever state it is now; neither the DRA driver nor the pair is left on the nodes after it."""
    directory = tmp_path_factory.mktemp("helm")
    installation.ensure_absent()
    made = Release(lab, kube, helm_program(), driver_image, directory)
    made.load_scheduler(directory)
    try:
        yield made
    finally:
        made.close()


_NUMBERS = itertools.count(1)


@pytest.fixture
def namespace(kube: Kube) -> Iterator[Namespace]:
    """A namespace for one test; its pods are ended and its claims unprepared when the test ends."""
    made = Namespace(kube, f"test-{os.getpid()}-{next(_NUMBERS)}")
    made.create()
    yield made
    made.remove()


@pytest.fixture
def node_files(lab: Cluster) -> dict[str, NodeFiles]:
    """The driver's files by node."""
    return {node.name: NodeFiles(node) for node in lab.nodes}


@pytest.fixture
def nodes(kube: Kube) -> Sequence[str]:
    """Names of the nodes."""
    return kube.nodes()
