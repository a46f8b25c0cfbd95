"""The clusters under test, the driver on them, and a namespace for each test.

    pytest tests/cluster [--kubernetes 1.37.1 ...]     on clusters that this brings up and takes down (root)
    pytest tests/cluster -n 4 --no-loadscope-reorder     the same, four clusters side by side
    KUBECONFIG=... NEURON_DRA_TEST_IMAGE=... pytest tests/cluster --existing-cluster     on any other, one process

A test runs on the newest Kubernetes only, unless ``@pytest.mark.kubernetes("1.37", "1.34")`` says on which; of these,
on those that ``--kubernetes`` names. Each change has to pass those without the marker ``nightly``, which all but
``EACH_CHANGE`` have on versions before the newest. ``@pytest.mark.ultraservers`` gives a test a cluster of eight nodes
that stand for two UltraServers, ``@pytest.mark.control_plane`` one without nodes, ``@pytest.mark.upgrade`` another such
one, which it may leave in another version, ``@pytest.mark.pod_groups`` one of a single node that has claims of
PodGroups; else it gets one of two nodes. Tests of one cluster come together. Each process has one cluster at a time;
several processes have each a network namespace of its own.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from lab import components, machine
from lab.build import Builder, available_modules
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import ClusterSpec, nodes_of_ultraservers
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.cluster.lib import diagnosis
from tests.cluster.lib.commands import Commands
from tests.cluster.lib.installation import EMULATED, EMULATED_ULTRASERVER, ULTRASERVERS, Installation
from tests.cluster.lib.kube import ExternalCluster, Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import IMAGE, config, neuron_config, request, template
from tests.cluster.lib.release import Release, helm_program
from tests.paths import ROOT

NEWEST = "1.37"
EACH_CHANGE = ("test_claim_lifecycle.py", "test_kubelet_restart.py")
"""What each change is tested with on the versions before the newest: that claims are served there."""
TYPE_LABEL = "node.kubernetes.io/instance-type"
TEST_SECONDS = 240
DRIVER_IMAGE = "neuron-dra-driver:test"

OLDER = tuple(f"resource.k8s.io/{version}=true" for version in ("v1beta2", "v1beta1", "v1alpha3"))
"""Older versions of the group that 1.36 and 1.37 still serve if they are told to."""

POD_GROUPS = ("GenericWorkload=true", "DRAWorkloadResourceClaims=true")
"""Feature gates for claims of PodGroups: off by default in 1.37, and not both of them in older versions."""

OWN_DIRECTORIES = ("/var/lib/neuron-device-plugin",)
"""Host paths that pods write to, of which each node has its own beside those that every cluster of the lab has."""

_CLONE_NEWNET = 0x40000000
_FIGURE = "figure"

_MARKED = ("ultraservers", "control_plane", "upgrade", "pod_groups")
"""Kinds of clusters for which there is a marker."""


Where = tuple[str, str]
"""The version of Kubernetes and the kind of cluster that a test runs on."""


def _spec(version: str, kind: str) -> ClusterSpec:
    """The cluster for a version of Kubernetes; 1.33 is a kubelet of that version below a newer control plane."""
    name = "tests" + os.environ.get("PYTEST_XDIST_WORKER", "")
    if kind == "control_plane":
        return ClusterSpec(name=name, nodes=0, kubernetes=version, runtime_config=OLDER)
    if kind == "upgrade":
        return ClusterSpec(name=name, nodes=0, kubernetes=version)
    if kind == "ultraservers":
        labels = {"*": {TYPE_LABEL: EMULATED_ULTRASERVER}}
        nodes = nodes_of_ultraservers(ULTRASERVERS)
        return ClusterSpec(name=name, nodes=nodes, kubernetes=version, labels=labels, node_directories=OWN_DIRECTORIES)
    labels = {"*": {TYPE_LABEL: EMULATED}}
    if kind == "pod_groups":
        served = ("scheduling.k8s.io/v1beta1=true",)
        return ClusterSpec(
            name=name, kubernetes=version, runtime_config=served, feature_gates=POD_GROUPS, labels=labels
        )
    if not version.startswith("1.33."):
        return ClusterSpec(name=name, nodes=2, kubernetes=version, labels=labels, node_directories=OWN_DIRECTORIES)
    return ClusterSpec(
        name=name,
        nodes=2,
        kubernetes="1.34.4",
        kubelet=version,
        runtime_config=("resource.k8s.io/v1beta1=true",),
        kubelet_feature_gates=("DynamicResourceAllocation=true",),
        labels=labels,
        node_directories=OWN_DIRECTORIES,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption(
        "--kubernetes", action="append", metavar="VERSION", help="Kubernetes to test on; can be given again (1.37.1)"
    )
    group.addoption("--existing-cluster", action="store_true", help="use the cluster of $KUBECONFIG instead of an own")


def _versions(config: pytest.Config) -> list[str]:
    return config.getoption("kubernetes") or ["1.37.1"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"ultraservers: on eight nodes that stand for {ULTRASERVERS} UltraServer nodes")
    config.addinivalue_line("markers", "control_plane: on a control plane without nodes")
    config.addinivalue_line(
        "markers", "upgrade: on a control plane without nodes that the test changes to another version"
    )
    config.addinivalue_line("markers", "pod_groups: on a node of a cluster that has claims of PodGroups (1.37)")
    if hasattr(config, "workerinput"):
        _enter_own_network()


def _enter_own_network() -> None:
    """Give this process a network namespace with a loopback interface: clusters use the same addresses and ports."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        pytest.exit(f"no network namespace for a cluster of its own: {os.strerror(ctypes.get_errno())}; run as root")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build what the processes that have no way to a package registry will need: programs and the driver's image.

    ``scripts/test`` has built what only some tests use.
    """
    if not session.config.getoption("numprocesses", None) or hasattr(session.config, "workerinput"):
        return
    if session.config.getoption("existing_cluster"):
        raise pytest.UsageError("an existing cluster is tested by one process: leave -n away")
    machine.bootstrap("lab")
    builder = Builder(Settings.from_environment(os.environ), Progress())
    for version in _versions(session.config):
        spec = _spec(version, "nodes")
        builder.build(components.of_cluster(spec.kubernetes, spec.kubelet_version, available_modules()))
    helm_program()
    with tempfile.TemporaryDirectory() as directory:
        _build_image(Path(directory) / "driver.tar")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its clusters; pytest then runs those of one cluster after each other."""
    if "cluster" in metafunc.fixturenames:
        marked = (kind for kind in _MARKED if metafunc.definition.get_closest_marker(kind) is not None)
        kind = next(marked, "nodes")
        where = [(version, kind) for version in _versions(metafunc.config)]
        ids = [version if kind == "nodes" else f"{version} {kind}" for version, kind in where]
        metafunc.parametrize("cluster", where, indirect=True, ids=ids, scope="session")


def _where(item: pytest.Item) -> Where | None:
    """The cluster that a test runs on; None for a test that needs none."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    return cast("Where | None", item.callspec.params.get("cluster"))


class ByCluster(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """One process runs all tests of a cluster, or of a module where the cluster has too many.

    xdist's own groups (``--dist loadgroup``) get lost in this version of pytest: it adds them to a name that is no
    longer read.
    """

    def _split_scope(self, nodeid: str) -> str:
        cluster = re.search(r"\[([0-9.]+(?: \w+)?)[-\]]", nodeid)
        if cluster is None:
            return nodeid
        return f"{nodeid.partition('::')[0]} {cluster[1]}" if _is_large(cluster[1]) else cluster[1]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByCluster:
    return ByCluster(config, log)


def _is_large(cluster: str) -> bool:
    return _is_newest(cluster) and " " not in cluster


def _is_newest(version: str) -> bool:
    return version.startswith(f"{NEWEST}.")


@pytest.hookimpl(tryfirst=True)  # pytest's own hook reads the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    other: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("kubernetes")
        minors = mark.args if mark else (NEWEST,)
        where = _where(item)
        versions = _versions(config) if where is None else [where[0]]
        fits = any(version.rpartition(".")[0] in minors for version in versions)
        (kept if fits else other).append(item)
        if where is not None and not _is_newest(where[0]) and item.path.name not in EACH_CHANGE:
            item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("timeout") is None:
            # Bringing the cluster up may mean building Kubernetes, so only the test itself is timed.
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
    if other:
        config.hook.pytest_deselected(items=other)
    items[:] = sorted(kept, key=_turn)


def _turn(item: pytest.Item) -> tuple[int, str]:
    """Large indivisible clusters first, so that the many small groups of the newest one fill the processes' ends."""
    where = _where(item)
    if where is None:
        return (3, "")
    version, kind = where
    newest = _is_newest(version)
    return (2 if newest and kind == "nodes" else 0 if newest else 1, f"{kind} {version}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the cluster looks like to the report of a failed test, while everything is still there."""
    report = yield
    if call.excinfo is not None and not report.skipped and isinstance(item, pytest.Function):
        report.sections.extend(diagnosis.sections(item.funcargs))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    # Properties that a fixture's end adds are in the report of the test's teardown alone.
    lines = [
        value for report in terminalreporter.getreports("") for name, value in report.user_properties if name == _FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Lines about what the test measured, shown at the end of the run."""
    lines: list[str] = []
    yield lines
    request.node.user_properties.extend((_FIGURE, line) for line in lines)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | ExternalCluster]:
    """The cluster under test: of two nodes, of UltraServers, or of none."""
    version, kind = request.param
    if request.config.getoption("existing_cluster"):
        if kind in _MARKED:
            pytest.skip(f"needs a cluster of the kind {kind}, which the tests bring up themselves")
        kubeconfig = os.environ.get("KUBECONFIG", "")
        if not kubeconfig or not shutil.which("kubectl"):
            pytest.fail("--existing-cluster needs KUBECONFIG and kubectl")
        yield ExternalCluster(Path(kubeconfig))
        return
    own = Cluster(_spec(version, kind))
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


@pytest.fixture
def commands(lab: Cluster) -> Commands:
    """The commands for people, as the administrator."""
    return Commands(lab.kubeconfig)


@pytest.fixture(scope="session")
def driver_image(cluster: Cluster | ExternalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the driver's image, which all nodes have or can pull."""
    if not isinstance(cluster, Cluster):
        image = os.environ.get("NEURON_DRA_TEST_IMAGE", "")
        if not image:
            pytest.fail("--existing-cluster needs NEURON_DRA_TEST_IMAGE, the driver's image that its nodes can pull")
        return image
    archive = tmp_path_factory.mktemp("image") / "driver.tar"
    _build_image(archive)
    cluster.load(archive)
    archive.unlink()
    return DRIVER_IMAGE


def _build_image(archive: Path) -> None:
    subprocess.run([ROOT / "scripts/build-image", "--tag", DRIVER_IMAGE, archive], check=True)


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
def lenient_driver(installation: Installation, kube: Kube) -> Installation:
    """The same where wrong parameters can be applied, and are refused by the driver alone."""
    installation.ensure("--emulate", EMULATED, "--parameters-policy", "off")
    wrong = json.dumps(template("wrong", request(), configs=[config(neuron_config(3))]))
    command = ("create", "--dry-run=server", "--output=name", "-f", "-")
    eventually("wrong parameters to be taken", lambda: kube.kubectl(*command, stdin=wrong, check=False))
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


@pytest.fixture(scope="module")
def no_device_plugin_remembered(cluster: Cluster | ExternalCluster, kube: Kube) -> None:
    """Kubelets that remember no device plugin of tests before; else pods whose limits a claim serves might not start.

    ``docs/use/limits.md`` has the reason.
    """
    if isinstance(cluster, Cluster):
        for node in cluster.nodes:
            NodeFiles(node).forget_device_plugins(kube)


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
