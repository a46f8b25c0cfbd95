"""Claims for logical cores of different sizes on one chip: what helps, as the refusal says it, and what does not."""

from __future__ import annotations

import pytest

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, config, neuron_config, pod, request, template

pytestmark = [pytest.mark.kubernetes("1.37"), pytest.mark.nightly]

NODE, OTHER = "node-1", "node-2"
CLASS = "core.neuron.aws.com"
PATIENCE = 90.0
"""kubelet's pauses between its tries grow to this."""


def with_cores(name: str, of: str, node: str = NODE) -> Object:
    return pod(name, templates={"neurons": of}, node=node)


def test_the_remedies_for_two_core_sizes_on_a_chip_are_true(
    installation: Installation, namespace: Namespace, kube: Kube, figures: list[str]
) -> None:
    """A new pod alone gets the same core again; each remedy that the refusal names lets it run."""
    installation.ensure("--emulate", EMULATED, "--partitions", "core")
    small = config(neuron_config(1))
    elsewhere = request(device_class=CLASS, selectors=[f"device.attributes['{DRIVER}'].deviceId != 0"])
    namespace.apply(
        template("two", request(device_class=CLASS)),
        template("one", request(device_class=CLASS), configs=[small]),
        template("another-chip", elsewhere, configs=[small]),
        with_cores("holder", "two"),
    )
    namespace.wait_ready("holder")
    clashes = set()
    for name in ("clashes", "again", "once-more"):
        namespace.apply(with_cores(name, "one"))
        text = namespace.wait_event(name, "all cores of a chip have the same size")
        (got,) = namespace.allocated(namespace.claim_of(name))
        clashes.add(got.device)
        namespace.delete_pod(name)
    figures.append(text)
    assert clashes == {"neuron-core-0-1"}, "the scheduler takes the first one that is free"
    assert "set logicalNeuronCore 2 in the claim's NeuronConfig" in text
    assert f"device.attributes['{DRIVER}'].deviceId != 0" in text
    assert "select nodes of their own" in text

    namespace.apply(
        with_cores("same-size", "two"), with_cores("chip", "another-chip"), with_cores("node", "one", node=OTHER)
    )
    namespace.wait_ready("same-size", "chip", "node")
    namespace.apply(with_cores("waits", "one"))
    namespace.wait_event("waits", "kubelet tries again")
    for name in ("holder", "same-size"):
        namespace.delete_pod(name)
    namespace.wait_ready("waits", within=PATIENCE)
