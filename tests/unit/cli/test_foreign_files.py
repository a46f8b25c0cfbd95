"""Files as strangers have them, through the commands that they would be given to."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from dra_driver.cli.main import main
from tests.golden import golden
from tests.paths import DATA

FILES = DATA / "foreign"
CLAIM = str(FILES / "list-attribute-claim.yaml")

Shell = Callable[..., tuple[int, str, str]]

COMMANDS = {
    "a slice of another driver with a list attribute": [
        f"simulate {CLAIM} --instance-type trn1.2xlarge --objects FILES/list-attribute-slice.yaml",
        f"explain {CLAIM} --instance-type trn1.2xlarge --objects FILES/list-attribute-slice.yaml",
    ],
    "slices with fields of newer releases": [
        "select -f FILES/slice-fields-of-1.36-and-1.37.yaml true",
        f"simulate {CLAIM} --instance-type trn1.2xlarge --objects FILES/slice-fields-of-1.36-and-1.37.yaml",
    ],
    "HyperPod's prefix in node labels": [
        "migrate FILES/hyperpod-ml-label.yaml",
        "simulate - --instance-type ml.trn1.32xlarge=2",
    ],
    "a queue beside the job": ["simulate FILES/volcano-queue.yaml --instance-type trn1.32xlarge=3 -o json"],
    "kinds of an operator and of OpenShift": ["simulate FILES/operator-and-route.yaml --instance-type trn2.3xlarge"],
    "Kueue's own configuration": [f"simulate FILES/kueue-config.yaml {CLAIM} --instance-type trn1.2xlarge"],
    "labels of Karpenter": [
        "migrate FILES/karpenter-label.yaml",
        "explain - --instance-type trn2.48xlarge",
        "explain - --instance-type trn2.48xlarge -o json",
        "explain - --instance-type trn2.48xlarge --node-label karpenter.sh/nodepool=neuron-trn2",
    ],
    "a cluster without the pod's label, and a slice that is none": [
        "explain --objects FILES/cluster-with-a-label-missing.yaml -o json",
    ],
    "a pod with the claim that was made for it": [
        "explain pod/web --objects FILES/pod-with-its-claim.yaml --instance-type trn2.48xlarge",
        "simulate --objects FILES/pod-with-its-claim.yaml --instance-type trn2.48xlarge",
    ],
    "a workload that owns the claim of its pods": [
        "simulate --objects FILES/owner-of-a-claim.yaml --instance-type trn2.48xlarge",
    ],
    "a cluster without the driver": [
        "explain pod/train --objects FILES/cluster-without-the-driver.yaml",
        "simulate --objects FILES/cluster-without-the-driver.yaml",
    ],
    "a node that is cordoned": [
        "explain FILES/jobset-depends-on.yaml --instance-type trn2.48xlarge --objects FILES/cordoned-node.yaml"
    ],
    "a claim that joins chips and a network device by their root": [
        "explain FILES/nic-at-the-same-root.yaml --instance-type trn2.48xlarge",
    ],
    "old versions of kinds that ask for nothing of ours": [
        f"simulate FILES/old-versions-of-others.yaml {CLAIM} --instance-type trn1.2xlarge",
        f"explain FILES/old-versions-of-others.yaml {CLAIM} --instance-type trn1.2xlarge",
        "migrate FILES/old-versions-of-others.yaml",
    ],
    "JSON objects one after the other": [
        "migrate FILES/objects-one-after-the-other.json --instance-type trn2.48xlarge"
    ],
    "names that are escaped": ["migrate FILES/escaped-resource-names.yaml"],
    "the beta label of instance types": [
        "migrate FILES/beta-instance-type-label.yaml",
        "simulate - --instance-type inf2.48xlarge",
    ],
    "an exclusive topology of node groups": [
        "migrate FILES/lws-nodegroup-topology.yaml",
        "explain - --instance-type trn1.32xlarge=4",
        "explain - --instance-type trn1.32xlarge=4 --node-label eks.amazonaws.com/nodegroup=trn1",
    ],
    "EFA devices by a class of another name": [
        "simulate FILES/efa-class-of-another-name.yaml --instance-type trn1.32xlarge",
    ],
    "Neuron in Helm values and in a text": ["migrate FILES/neuron-in-helm-values.yaml"],
    "Neuron below limits.custom": ["migrate FILES/dynamo-custom-resources.yaml"],
    "chips of a type that offers whole nodes": [
        "explain FILES/trn3-half-node.yaml --instance-type trn3-dev1.48xlarge",
        "simulate FILES/trn3-half-node.yaml --instance-type trn3-dev1.48xlarge --partitions chip.node",
    ],
    "two instance types in an affinity": [
        "migrate FILES/two-types-in-affinity.yaml",
        "simulate - --instance-type inf2.24xlarge",
        "simulate - --instance-type trn1.32xlarge",
    ],
    "a range of cores of its own": ["migrate FILES/own-core-ranges.yaml", "simulate - --instance-type inf2.48xlarge"],
    "variables of containers that have claims": [
        "simulate FILES/own-variables-of-claims.yaml --instance-type trn2.48xlarge --partitions chip.core -o json",
        "explain FILES/own-variables-of-claims.yaml --instance-type trn2.48xlarge --partitions chip.core",
        "explain FILES/own-variables-of-claims.yaml --instance-type trn1.2xlarge --partitions chip.core",
        "explain FILES/own-core-ranges.yaml --instance-type inf2.48xlarge --partitions chip.core --extended-resources",
    ],
    "a logical core size of its own": [
        "migrate FILES/own-logical-core-size.yaml",
        "simulate - --instance-type trn2.48xlarge",
    ],
    "a job that is suspended, a deployment without replicas": [
        "simulate FILES/suspended-and-scaled-to-zero.yaml --instance-type trn2.48xlarge",
        "simulate FILES/suspended-and-scaled-to-zero.yaml --instance-type trn2.48xlarge --resume",
    ],
    "groups of no pods": [
        "simulate FILES/groups-of-no-pods.yaml --instance-type trn2.48xlarge",
        "simulate FILES/groups-of-no-pods.yaml --instance-type trn2.48xlarge --resume",
    ],
    "more workers than KubeRay makes": ["simulate FILES/ray-more-than-max.yaml --instance-type trn2.48xlarge"],
    "a job after another": ["simulate FILES/jobset-depends-on.yaml --instance-type trn2.48xlarge"],
    "a claim of a Job's pods": ["simulate FILES/job-group-claim.yaml --instance-type trn2.48xlarge=2"],
    "a claim of a JobSet's pods": ["simulate FILES/jobset-group-claim.yaml --instance-type trn2.48xlarge=2"],
    "a claim of a PodGroup": ["simulate FILES/jobset-podgroup-claim.yaml --instance-type trn2.48xlarge=2"],
    "a release before those that are simulated": [
        f"explain {CLAIM} --instance-type trn2.48xlarge --kubernetes 1.34",
        f"simulate {CLAIM} --instance-type trn2.48xlarge --kubernetes 1.33",
        "select true --kubernetes 1.35",
    ],
    "claims of other drivers beside one of ours": [
        f"simulate FILES/claims-of-other-drivers.yaml {CLAIM} --instance-type trn1.2xlarge",
        f"explain FILES/claims-of-other-drivers.yaml {CLAIM} --instance-type trn1.2xlarge",
        "simulate FILES/claims-of-other-drivers.yaml --instance-type trn1.2xlarge",
        "explain FILES/claims-of-other-drivers.yaml --instance-type trn1.2xlarge",
        "simulate FILES/class-that-is-misspelt.yaml --instance-type trn1.32xlarge",
        "simulate FILES/gpu-beside-chips.yaml --instance-type trn1.32xlarge",
    ],
    "a cluster's pods that lack something": [
        "explain --instance-type trn1.2xlarge --objects FILES/held-pods-that-lack-something.yaml",
        "simulate --instance-type trn1.2xlarge --objects FILES/held-pods-that-lack-something.yaml",
    ],
    "other kinds of Kubernetes": [f"simulate FILES/kinds-of-kubernetes.yaml {CLAIM} --instance-type trn1.2xlarge"],
    "a template that is filled in later": [
        f"simulate FILES/template-filled-in-later.yaml {CLAIM} --instance-type trn1.2xlarge",
    ],
    "limits that are in no pod template": [
        "migrate FILES/limits-outside-pod-templates.yaml --instance-type trn2.48xlarge",
        "migrate FILES/limits-outside-pod-templates.yaml --extended-resources",
        "simulate FILES/limits-outside-pod-templates.yaml --instance-type trn2.48xlarge --extended-resources",
    ],
    "Neuron in what limits and in what schedules": ["migrate FILES/neuron-limited-not-asked-for.yaml"],
    "Neuron devices that are used and not asked for": [
        "migrate FILES/uses-without-asking.yaml",
        "migrate FILES/uses-without-asking.yaml --extended-resources",
        "simulate FILES/uses-without-asking.yaml --instance-type trn2.48xlarge --extended-resources",
        "explain FILES/uses-without-asking.yaml --instance-type trn2.48xlarge --extended-resources",
    ],
    "one pod that waits for no devices": [
        "explain pod/pinned --objects FILES/uses-without-asking.yaml --instance-type trn2.48xlarge",
        "explain pod/agent --objects FILES/uses-without-asking.yaml --instance-type trn2.48xlarge",
    ],
    "objects that speak of the resource": ["migrate FILES/speaks-of-the-resource.yaml"],
    "objects that write limits into pods": ["migrate FILES/writes-limits.yaml"],
    "a template that an operator makes": [
        "simulate FILES/claim-template-of-an-operator.yaml --instance-type trn2.48xlarge"
    ],
    "operators that make several pods of a template": [
        "simulate FILES/operators-that-make-several-pods.yaml --instance-type trn1.32xlarge=4 --extended-resources",
    ],
    "a pod spec below template": [
        "migrate FILES/llm-inference-service.yaml --instance-type trn2.48xlarge",
        "simulate - --instance-type trn2.48xlarge",
    ],
    "live objects with what they have made": [
        "migrate FILES/live-objects-and-their-owners.yaml",
        "simulate FILES/live-objects-and-their-owners.yaml --instance-type trn1.32xlarge --extended-resources",
    ],
    "a slice in an older API": [f"simulate FILES/slice-of-an-older-api.yaml {CLAIM} --instance-type trn1.2xlarge"],
}
"""What the file has in it -> commands; - is what migrate, if it is the first, has printed."""


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs a command with standard input: status, output, errors."""

    def run(line: str, given: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        status = main(line.replace("FILES", str(FILES)).split())
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize("what", COMMANDS)
def test_a_strangers_file_is_read_as_it_is_meant(shell: Shell, what: str) -> None:
    lines, piped = [], ""
    for number, line in enumerate(COMMANDS[what]):
        status, out, errors = shell(line, piped)
        if number == 0:
            piped = out
        lines += [f"$ {line}", errors + (placed(out) if line.startswith("simulate") else out), f"exit status {status}"]
    golden("\n".join(lines).replace(str(FILES), "FILES"))


def placed(text: str) -> str:
    """Of a simulation, what becomes of each pod, and what was not considered."""
    devices, _, rest = text.partition("\nnot considered\n")
    return "\n".join([*(line for line in devices.splitlines() if line[:1] not in ("", " ")), rest])


def test_every_file_is_given_to_a_command() -> None:
    named = " ".join(line for lines in COMMANDS.values() for line in lines)
    assert all(path.name in named for path in FILES.iterdir())
