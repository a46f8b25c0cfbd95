"""Every example does what its comment says, applied as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import yaml

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.paths import ROOT

SPECS = ROOT / "examples/specs"
MAIN_VERSIONS = ("1.37", "1.36", "1.34")
NULL_DEVICE = (1, 3)
"""Major and minor number of /dev/null, which emulated chips have."""


@dataclass(frozen=True)
class Expected:
    """What an example gives: how many pods, chips for each, the logical core size, and which kernel driver it needs."""

    pods: int
    chips: int
    lnc: str = "2"
    driver_version: str = ""


EXAMPLES = {
    "1x4-connected-devices": Expected(1, 4),
    "1x4-connected-devices-lnc-1": Expected(1, 4, lnc="1"),
    "2.26-driver-trn2": Expected(1, 8, driver_version="2.24.7.0"),
    "all-devices": Expected(1, 16),
    "class-with-lnc-1": Expected(1, 1, lnc="1"),
    "l-trn2": Expected(1, 8),
    "lnc-setting-trn2": Expected(1, 16, lnc="1"),
    "specific-driver-version": Expected(2, 16, driver_version="2.25.4.0"),
    "xl-trn2": Expected(1, 16),
}

CASES = [
    pytest.param(f"{folder}{name}", expected, marks=pytest.mark.kubernetes(*versions), id=f"{folder}{name}")
    for folder, versions in (("", MAIN_VERSIONS), ("v1beta1/", ("1.33",)))
    for name, expected in EXAMPLES.items()
]


def with_kernel_driver(installation: Installation, version: str) -> None:
    """Have the nodes emulate this version of the kernel driver."""

    def change(daemonset: Object) -> None:
        daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] = "100%"  # on both nodes at once
        (main,) = daemonset["spec"]["template"]["spec"]["containers"]
        main["env"].append({"name": "EMULATED_DRIVER_VERSION", "value": version})

    installation.vary(f"kernel driver {version}", change)


def blocks(size: int) -> list[list[int]]:
    """The connected sets of that many chips of the emulated type."""
    return [list(range(first, first + size)) for first in range(0, 16, size)]


def check_pod(namespace: Namespace, name: str, expected: Expected) -> list[int]:
    """Check what a pod of an example got, from its claim to its containers; return its chips."""
    node = namespace.node_of(name)
    results = namespace.allocated(namespace.claim_of(name))
    assert {(item.request, item.pool) for item in results} == {("neurons", node)}
    chips = sorted(item.chip for item in results)
    assert chips in blocks(expected.chips)
    files = namespace.device_files(name)
    assert [item.path for item in files] == [f"/dev/neuron{number}" for number in range(expected.chips)]
    assert {(item.kind, item.major, item.minor) for item in files} == {("character special file", *NULL_DEVICE)}
    environment = {"NEURON_LOGICAL_NC_CONFIG": expected.lnc, "NEURON_RT_VIRTUAL_CORE_SIZE": expected.lnc}
    assert namespace.environment(name) == environment
    printed = sorted(item.path for item in files) + [f"{key}={value}" for key, value in sorted(environment.items())]
    assert namespace.printed(len(printed), name) == printed
    return chips


@pytest.mark.parametrize(("name", "expected"), CASES)
def test_an_example_gives_its_pods_the_devices_and_environment_that_it_promises(
    installation: Installation, namespace: Namespace, name: str, expected: Expected
) -> None:
    if expected.driver_version:
        with_kernel_driver(installation, expected.driver_version)
    else:
        installation.ensure("--emulate", EMULATED)
    namespace.apply((SPECS / f"{name}.yaml").read_text())
    pods = eventually("the example's pods to exist", lambda: _names(namespace, expected.pods))
    namespace.wait_ready(*pods)
    for pod in pods:
        check_pod(namespace, pod, expected)
    assert len({namespace.node_of(pod) for pod in pods}) == expected.pods


@pytest.mark.kubernetes(*MAIN_VERSIONS, "1.33")
def test_four_pods_of_four_fill_a_node_and_the_fifth_goes_to_the_other(
    driver: Installation, namespace: Namespace, nodes: Sequence[str]
) -> None:
    """Also: what does not fit waits, and starts when devices become free."""
    full, other = nodes[:2]
    template, pod = yaml.safe_load_all((SPECS / "1x4-connected-devices.yaml").read_text())
    here = {"kubernetes.io/hostname": full}
    names = ["a", "b", "c", "d"]
    namespace.apply(template, *(_copy(pod, name, nodeSelector=here) for name in names))
    namespace.wait_ready(*names)
    taken = [check_pod(namespace, name, Expected(1, 4)) for name in names]
    assert sorted(taken) == blocks(4)

    namespace.apply(_copy(pod, "e"), _copy(pod, "waits", nodeSelector=here))
    namespace.wait_ready("e")
    assert namespace.node_of("e") == other
    check_pod(namespace, "e", Expected(1, 4))
    namespace.wait_event("waits", "cannot allocate all claims")
    assert (namespace.phase("waits"), namespace.node_of("waits")) == ("Pending", "")

    namespace.delete_pod("b")
    namespace.wait_ready("waits")
    assert check_pod(namespace, "waits", Expected(1, 4)) == taken[names.index("b")]


def test_containers_see_the_chips_of_their_claim_in_the_order_of_the_host(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """The container's numbers stand for exactly the chips of the allocation; the devices of one claim only."""
    template, pod = yaml.safe_load_all((SPECS / "1x4-connected-devices.yaml").read_text())
    here = {"kubernetes.io/hostname": "node-1"}
    namespace.apply(template, _copy(pod, "first", nodeSelector=here), _copy(pod, "second", nodeSelector=here))
    namespace.wait_ready("first", "second")
    files, chips = node_files["node-1"], {}
    for name in ("first", "second"):
        claim = namespace.claim_of(name)
        chips[name] = sorted(item.chip for item in namespace.allocated(claim))
        assert files.shown(claim["metadata"]["uid"]) == dict(enumerate(chips[name]))
    assert not set(chips["first"]) & set(chips["second"])
    uids = {namespace.claim_of(name)["metadata"]["uid"] for name in ("first", "second")}
    assert set(files.specs()) == set(files.checkpoint()) == uids
    for name in ("first", "second"):
        namespace.delete_pod(name)
    eventually("nothing to be left on the node", files.is_empty, 10)


@pytest.mark.kubernetes(*MAIN_VERSIONS, "1.33")
def test_kubelet_calls_the_driver_in_the_newest_version_that_both_speak(
    driver: Installation, namespace: Namespace
) -> None:
    template, pod = yaml.safe_load_all((SPECS / "1x4-connected-devices.yaml").read_text())
    namespace.apply(template, pod)
    namespace.wait_ready("pod0")
    node = namespace.node_of("pod0")
    found = driver.kube.get("nodes", node)
    assert found is not None
    expected = "v1beta1" if found["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.33.") else "v1"
    metrics = driver.kube.raw(f"/api/v1/nodes/{node}/proxy/metrics").decode()
    calls = [line for line in metrics.splitlines() if line.startswith("dra_grpc_operations_duration_seconds_count")]
    prepare = [line for line in calls if "NodePrepareResources" in line and 'driver_name="neuron.aws.com"' in line]
    assert prepare
    assert all(f".{expected}.DRAPlugin/" in line for line in prepare)


def _names(namespace: Namespace, count: int) -> list[str] | None:
    names = [str(pod["metadata"]["name"]) for pod in namespace.pods()]
    return names if len(names) == count else None


def _copy(pod: Object, name: str, **spec: object) -> Object:
    """The pod under another name."""
    return pod | {"metadata": {"name": name}, "spec": pod["spec"] | spec}
