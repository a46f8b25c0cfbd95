"""What AWS's pages show, applied word for word: the pods get the chips and settings that those pages promise.

The pages are of ``resource.k8s.io/v1beta1``, which Kubernetes 1.33 has. Later releases serve it only where it is turned
on, so there the same objects go in as ``v1``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.lifecycle import is_ready
from tests.cluster.lib.namespace import Namespace
from tests.manifests.support import as_v1, documents, of_kind
from tests.paths import ROOT

DOCUMENTS = ROOT / "tests/data/founding-documents"


def text_of(name: str) -> str:
    return (DOCUMENTS / name).read_text()


def in_the_words_of(kube: Kube, text: str) -> list[Object | str]:
    """The text itself if the API server knows its version, else its objects as ``v1``."""
    served = kube.kubectl("api-versions").split()
    return [text] if "resource.k8s.io/v1beta1" in served else [as_v1(item) for item in documents(text)]


def check(namespace: Namespace, pod: str, chips: int, lnc: str) -> None:
    """Check what a pod of the pages has: a connected block of chips, and the logical core size."""
    namespace.wait_ready(pod)
    got = sorted(item.chip for item in namespace.allocated(namespace.claim_of(pod)))
    assert (len(got), got[0] % chips, got[-1] - got[0]) == (chips, 0, chips - 1)
    assert namespace.numbers(pod) == list(range(chips))
    assert namespace.environment(pod) == {"NEURON_LOGICAL_NC_CONFIG": lnc, "NEURON_RT_VIRTUAL_CORE_SIZE": lnc}
    assert f'NEURON_LOGICAL_NC_CONFIG="{lnc}"' in namespace.kubectl("logs", pod)


def second_pod(template: str) -> Object:
    """The pages' own pod under another name, for a template that comes without one."""
    pod = of_kind(documents(text_of("1x4-connected-neurons.yaml")), "Pod")
    pod["metadata"]["name"] = "pod1"
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
    return pod


@pytest.mark.kubernetes("1.37", "1.33")
def test_the_pages_connected_devices_and_their_names_for_sizes(driver: Installation, namespace: Namespace) -> None:
    namespace.apply(*in_the_words_of(namespace.kube, text_of("1x4-connected-neurons.yaml")))
    check(namespace, "pod0", 4, "2")
    namespace.apply(*in_the_words_of(namespace.kube, text_of("l-trn2.yaml")), second_pod("l-trn2"))
    check(namespace, "pod1", 8, "2")
    for pod in ("pod0", "pod1"):
        namespace.delete_pod(pod)
    namespace.apply(*in_the_words_of(namespace.kube, text_of("xl-trn2.yaml")), second_pod("xl-trn2"))
    check(namespace, "pod1", 16, "2")


@pytest.mark.kubernetes("1.37", "1.33")
def test_the_pages_logical_core_size_in_the_first_spelling(driver: Installation, namespace: Namespace) -> None:
    namespace.apply(*in_the_words_of(namespace.kube, text_of("lnc-setting-trn2.yaml")))
    namespace.apply(text_of("lnc-setting-trn2-pod.yaml"))
    check(namespace, "pod0", 16, "1")


@pytest.mark.kubernetes("1.37", "1.33")
def test_the_pages_logical_core_size_in_the_second_spelling(driver: Installation, kube: Kube) -> None:
    """The page's object names its namespace."""
    its_own = Namespace(kube, "neuron-test7")
    its_own.create()
    try:
        its_own.apply(*in_the_words_of(kube, text_of("lnc-neurons.yaml")), second_pod("lnc-neurons"))
        check(its_own, "pod1", 16, "1")
    finally:
        its_own.remove()


@pytest.mark.kubernetes("1.37", "1.33")
def test_the_pages_version_of_the_kernel_driver_is_waited_for(driver: Installation, namespace: Namespace) -> None:
    """No node of this cluster has it: the pod has to wait, as the selector says."""
    namespace.apply(*in_the_words_of(namespace.kube, text_of("2.26-driver-trn2.yaml")), second_pod("2.26-driver-trn2"))
    namespace.wait_event("pod1", "cannot allocate all claims")


@pytest.fixture
def groups(kube: Kube, namespace: Namespace) -> Iterator[LeaderWorkerSets]:
    with LeaderWorkerSets(kube) as made:
        yield made


@pytest.mark.ultraservers
@pytest.mark.kubernetes("1.37")
def test_the_pages_four_node_inference_takes_an_ultraserver_for_each_group(
    ultraserver_driver: Installation, groups: LeaderWorkerSets, namespace: Namespace
) -> None:
    groups.apply(*in_the_words_of(namespace.kube, text_of("us-4-node-config.yaml")), namespace=namespace.name)

    def eight() -> list[Object] | None:
        pods = groups.pods("vllm", namespace.name)
        return pods if len(pods) == 8 and all(is_ready(pod) for pod in pods) else None

    pods = eventually("the eight pods to be Ready", eight, 120)
    servers = [{f"node-{number}" for number in range(first, first + 4)} for first in (1, 5)]
    taken = [{str(pod["spec"]["nodeName"]) for pod in pods[first : first + 4]} for first in (0, 4)]
    assert taken in (servers, servers[::-1])
    for pod in pods:
        name = pod["metadata"]["name"]
        assert namespace.environment(name)["NEURON_RT_ULTRASERVER_MODE"] == "1"  # the runtime's word for four nodes
        assert namespace.numbers(name) == list(range(16))
    groups.delete("vllm", namespace.name)  # the namespace's end ends its pods, which would not end when asked
