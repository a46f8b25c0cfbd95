"""A node that exists only as the objects that ``dra-driver template --for kwok`` prints takes pods with claims."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import connected, pod, request, template
from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.control_plane, pytest.mark.kubernetes("1.37")]

NODE = "kwok-trn2-48xlarge"
CLASSES = str(ROOT / "deploy/deviceclasses.yaml")
READY = '{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":""}]}}'
"""What kwok tells of its nodes."""


def test_pods_are_placed_on_a_node_for_kwok_by_its_slices(kube: Kube, namespace: Namespace) -> None:
    command = [sys.executable, "-m", "dra_driver", "template", "--instance-type", "trn2.48xlarge", "--for", "kwok"]
    printed = subprocess.run(
        [*command, "--partitions", "chip.core"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    kube.kubectl("apply", "-f", CLASSES)
    kube.kubectl("apply", "-f", "-", stdin=printed.stdout)
    try:
        kube.kubectl("patch", "node", NODE, "--subresource=status", "--type=strategic", "-p", READY)
        eight = template("eight", request(count=8))
        eight["spec"]["spec"]["devices"]["constraints"] = [connected(8)]
        cores = template("cores", request(device_class="core.neuron.aws.com", count=4))
        namespace.apply(eight, cores, pod("eight", templates={"neurons": "eight"}))
        eventually("the pod to be placed", lambda: namespace.node_of("eight") == NODE, 60)
        namespace.apply(pod("cores", templates={"neurons": "cores"}))
        eventually("the other pod to be placed", lambda: namespace.node_of("cores") == NODE, 60)

        chips = {item.chip for item in namespace.allocated(namespace.claim_of("eight"))}
        assert chips in ({*range(8)}, {*range(8, 16)})
        given = {item.device.split("-")[2] for item in namespace.allocated(namespace.claim_of("cores"))}
        assert not chips & {int(number) for number in given}
    finally:
        # Nobody ends the pods of such a node.
        namespace.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        kube.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=printed.stdout)
        kube.kubectl("delete", "--ignore-not-found", "-f", CLASSES)
