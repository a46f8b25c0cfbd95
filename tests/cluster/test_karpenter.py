"""What real Karpenter does for pods with claims where no node is, and what it needs to be told for that.

Karpenter runs as a process of this machine with its own kwok provider, which makes Node objects without machines. For
each of them a light node starts, as a machine would: the real driver and the test kubelet.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab import components
from lab.build import Builder
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings

from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lightnodes import LightNodes
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import connected, pod, request, template
from tests.paths import ROOT

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37"),
    pytest.mark.timeout(400, func_only=True),
]

SMALL, LARGE = "trn1.2xlarge", "trn2.48xlarge"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
TYPE_LABEL = "node.kubernetes.io/instance-type"
PROVISIONING_SECONDS = 120.0
QUIET_SECONDS = 8.0
"""Several of Karpenter's rounds, which begin a second after a pod could not be scheduled."""
POOL = "neuron"


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """Karpenter as its authors build it, and with templates of slices."""
    return Builder(Settings.from_environment(os.environ), Progress()).build([components.karpenter()])


@pytest.fixture(scope="module")
def karpenter_objects(lab: Cluster, kube: Kube, programs: dict[str, Path]) -> Iterator[None]:
    """Karpenter's resources, the driver's DeviceClasses, and a class of nodes."""
    crds = json.loads(
        subprocess.run([programs["karpenter-kwok-with-devices"], "crds"], check=True, capture_output=True).stdout
    )
    kube.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(crds))
    names = [item["metadata"]["name"] for item in crds["items"]]
    kube.wait_established(*names)
    classes = str(ROOT / "deploy/deviceclasses.yaml")
    kube.kubectl("apply", "-f", classes)
    kube.apply({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}})
    yield
    kube.kubectl("delete", "--ignore-not-found", "--timeout=30s", "-f", classes)
    kube.kubectl("delete", "--ignore-not-found", "--timeout=50s", "crd", *names)


def node_pool(*types: str, **spec: object) -> Object:
    """A NodePool of these types; the kwok provider makes no static one that does not name them."""
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": TYPE_LABEL, "operator": "In", "values": list(types)},
    ]
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    node = {"requirements": requirements, "nodeClassRef": reference, "expireAfter": "Never"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": POOL},
        "spec": {"template": {"spec": node}, **spec},
    }


ON_DEMAND = {
    "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]}
}


class Karpenter:
    """A running Karpenter with a file of instance types."""

    def __init__(self, kube: Kube, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.kube = kube
        self.directory = directory
        self._process = process

    @property
    def log(self) -> str:
        return (self.directory / "karpenter.log").read_text()

    def node_claims(self) -> list[Object]:
        """Its NodeClaims; AssertionError when it has ended."""
        assert self._process.poll() is None, self.log[-3000:]
        items: list[Object] = json.loads(self.kube.raw(NODE_CLAIMS))["items"]
        return items

    def new_node(self, known: Sequence[str] = ()) -> tuple[str, str]:
        """Name and instance type of the node that it makes."""

        def probe() -> tuple[str, str] | None:
            names = [claim["status"].get("nodeName") for claim in self.node_claims() if claim.get("status")]
            made = [node for node in self.kube.find("nodes") if node["metadata"]["name"] in set(names) - set(known)]
            return next(((n["metadata"]["name"], n["metadata"]["labels"][TYPE_LABEL]) for n in made), None)

        return eventually("a node", probe, PROVISIONING_SECONDS)

    def initialized(self, node: str) -> bool:
        """Whether it takes the node for complete."""
        for claim in self.node_claims():
            if claim["status"].get("nodeName") == node:
                conditions = {item["type"]: item["status"] for item in claim["status"].get("conditions", [])}
                return conditions.get("Initialized") == "True"
        return False


@contextmanager
def running(
    kube: Kube, program: Path, types: Sequence[str], pool: Object, *options: str, devices: str = ""
) -> Iterator[Karpenter]:
    """Karpenter, and its pool of nodes, which goes with all its nodes at the end."""
    with tempfile.TemporaryDirectory(prefix="kp-", dir="/tmp") as name:
        directory = Path(name)
        (directory / "types.json").write_text(instance_types(types, devices))
        command = [
            *(
                os.fspath(program),
                f"--instance-types-file-path={directory / 'types.json'}",
                "--disable-leader-election=true",
            ),
            *("--metrics-port=18080", "--health-probe-port=18081", "--batch-idle-duration=300ms", *options),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "KUBECONFIG": os.fspath(kube.access.kubeconfig),
            "SYSTEM_NAMESPACE": "default",
        }
        with (directory / "karpenter.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**environment, "SYSTEM_NAMESPACE": "default"}
            )
        karpenter = Karpenter(kube, directory, process)
        try:
            kube.apply(pool)
            yield karpenter
            deadline = f"--timeout={PROVISIONING_SECONDS:.0f}s"
            kube.kubectl("delete", "nodepool", POOL, deadline, timeout=PROVISIONING_SECONDS + 10)
            eventually("its nodes to be gone", lambda: not karpenter.node_claims(), PROVISIONING_SECONDS)
        except BaseException as error:
            told = [line for line in karpenter.log.splitlines() if '"message":"Starting ' not in line]
            error.add_note("\n".join(told)[-6000:])
            raise
        finally:
            kube.kubectl("delete", "nodepool", POOL, "--ignore-not-found", "--timeout=30s", check=False)
            process.terminate()
            process.wait(30)


def instance_types(types: Sequence[str], devices: str) -> str:
    """What a user gives Karpenter: the output of the command."""
    words = [word for name in types for word in ("--instance-type", name)]
    words += ["--for", "karpenter", *(("--partitions", devices) if devices else ())]
    command = [sys.executable, "-m", "dra_driver", "template", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@contextmanager
def machine(kube: Kube, node: str, kind: str, *options: str) -> Iterator[None]:
    """The machine of a Node object that Karpenter has made: the driver and kubelet start on it."""
    with (
        tempfile.TemporaryDirectory(prefix="ndl-", dir="/tmp") as directory,
        LightNodes(kube, [node], Path(directory), kind, options),
    ):
        yield


def waits_for(namespace: Namespace, karpenter: Karpenter, name: str, text: str) -> None:
    """Check that Karpenter says why a pod gets no node, and makes none."""
    namespace.wait_event(name, text)
    steadily("no node to be made", lambda: not karpenter.node_claims(), QUIET_SECONDS)
    assert namespace.phase(name) == "Pending"


def test_the_node_pool_of_the_page_is_valid(karpenter_objects: None, kube: Kube) -> None:
    text = (ROOT / "docs/operate/autoscaling-and-quota.md").read_text()
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: NodePool" in block]
    assert kube.kubectl("apply", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-", stdin=block)


def test_by_default_karpenter_makes_no_node_for_a_pod_with_a_claim(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    with running(kube, programs["karpenter-kwok"], [LARGE], node_pool(LARGE, **ON_DEMAND)) as karpenter:
        namespace.apply(template("one", request()), pod("claims", templates={"neurons": "one"}))
        waits_for(namespace, karpenter, "claims", "Dynamic Resource Allocation requirements that are not yet supported")


def test_a_provider_without_templates_makes_no_node_either(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    """Karpenter's core reads claims when asked to, but its kwok provider does not say what nodes will offer."""
    options = ("--ignore-dra-requests=false",)
    with running(kube, programs["karpenter-kwok"], [LARGE], node_pool(LARGE, **ON_DEMAND), *options) as karpenter:
        namespace.apply(template("one", request()), pod("claims", templates={"neurons": "one"}))
        waits_for(namespace, karpenter, "claims", "Failed to schedule pod")


def test_with_templates_a_pod_with_nothing_but_a_claim_gets_a_node_of_the_type_that_fits(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    """From no node to one, to a second one when that is full, and back."""
    program, options = programs["karpenter-kwok-with-devices"], ("--ignore-dra-requests=false",)
    with running(kube, program, [SMALL, LARGE], node_pool(SMALL, LARGE, **ON_DEMAND), *options) as karpenter:
        four = template("four", request(count=4))
        four["spec"]["spec"]["devices"]["constraints"] = [connected(4)]
        namespace.apply(four, *(pod(f"four-{number}", templates={"neurons": "four"}) for number in range(4)))
        node, kind = karpenter.new_node()
        assert kind == LARGE
        assert not karpenter.initialized(node)
        with machine(kube, node, kind):
            names = [f"four-{number}" for number in range(4)]
            namespace.wait_ready(*names, within=PROVISIONING_SECONDS)
            assert {namespace.node_of(name) for name in names} == {node}
            chips = [sorted(item.chip for item in namespace.allocated(namespace.claim_of(name))) for name in names]
            assert sorted(chips) == [list(range(first, first + 4)) for first in range(0, 16, 4)]
            eventually("Karpenter to see its slices", lambda: karpenter.initialized(node), PROVISIONING_SECONDS)
            assert len(karpenter.node_claims()) == 1
            (claim,) = karpenter.node_claims()
            assert claim["metadata"]["annotations"]["karpenter.sh/requested-dra-drivers"] == "neuron.aws.com"

            # What the node has left is counted, so that a fifth pod gets a second node.
            namespace.apply(pod("fifth", templates={"neurons": "four"}))
            karpenter.new_node([node])
            for name in ("fifth", *names):
                namespace.delete_pod(name)
            eventually("the empty node to go", lambda: node not in kube.nodes(), PROVISIONING_SECONDS)


def test_templates_with_cores_count_what_pods_share(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    """Seventeen pods with one chip, or sixteen and two with cores, do not fit on one node with sixteen chips."""
    program, options = programs["karpenter-kwok-with-devices"], ("--ignore-dra-requests=false",)
    cores = template("cores", request(device_class="core.neuron.aws.com", count=2))
    with running(kube, program, [LARGE], node_pool(LARGE, **ON_DEMAND), *options, devices="chip.core") as karpenter:
        chips = [pod(f"chip-{number:02}", templates={"neurons": "chip"}) for number in range(15)]
        pair = [pod(f"cores-{number}", templates={"neurons": "cores"}) for number in range(2)]
        namespace.apply(template("chip", request()), cores, *chips, *pair)
        node, kind = karpenter.new_node()
        with machine(kube, node, kind, "--partitions", "chip.core"):
            names = [item["metadata"]["name"] for item in (*chips, *pair)]
            namespace.wait_ready(*names, within=PROVISIONING_SECONDS)
            assert {namespace.node_of(name) for name in names} == {node}
            assert len(karpenter.node_claims()) == 1
            for name in names:
                namespace.delete_pod(name)


def test_devices_can_be_asked_to_share_what_only_the_node_will_tell(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    """On which network node it will be is not known before; that all its chips will be on the same one is."""
    program, options = programs["karpenter-kwok-with-devices"], ("--ignore-dra-requests=false",)
    with running(kube, program, [SMALL, LARGE], node_pool(SMALL, LARGE, **ON_DEMAND), *options) as karpenter:
        two = template("two", request(count=2))
        two["spec"]["spec"]["devices"]["constraints"] = [{"matchAttribute": "neuron.aws.com/networkNodeLayer3"}]
        never = template("never", request(count=2))
        never["spec"]["spec"]["devices"]["constraints"] = [{"matchAttribute": "neuron.aws.com/deviceId"}]
        namespace.apply(never, pod("never", templates={"neurons": "never"}))
        waits_for(namespace, karpenter, "never", "Failed to schedule pod")
        namespace.apply(two, pod("two", templates={"neurons": "two"}))
        _, kind = karpenter.new_node()
        assert kind == LARGE
        for name in ("two", "never"):
            namespace.delete_pod(name)


def test_static_capacity_gives_nodes_for_claims_without_templates(
    karpenter_objects: None, kube: Kube, programs: dict[str, Path], namespace: Namespace
) -> None:
    """The pool says how many; Karpenter asks no pod."""
    options = ("--feature-gates=StaticCapacity=true",)
    with running(kube, programs["karpenter-kwok"], [LARGE], node_pool(LARGE, replicas=1), *options) as karpenter:
        node, kind = karpenter.new_node()
        with machine(kube, node, kind):
            namespace.apply(template("one", request()), pod("claims", templates={"neurons": "one"}))
            namespace.wait_ready("claims", within=PROVISIONING_SECONDS)
            assert namespace.node_of("claims") == node
            assert len(karpenter.node_claims()) == 1
            namespace.delete_pod("claims")
