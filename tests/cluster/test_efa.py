"""Chips and EFA devices in one claim: they belong together, or the pod waits. The EFA driver is the emulated one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster
from lab.node import Node

from dra_driver.neuron.emulation.efa import EFA_CLASS, EFA_DRIVER_NAME, efa_devices
from dra_driver.neuron.topology.fabric import GROUP_SIZES
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.partitions import parts_of
from tests.cluster.lib.controllers import jobset_controller
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import IMAGE, SLEEP, connected, pod, request, template
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

SPECS = ROOT / "examples/specs"
INFERENCE, BATCH = ROOT / "examples/inference", ROOT / "examples/batch"
TRN1 = "trn1.32xlarge"


@contextmanager
def node_drivers(nodes: Sequence[Node], directory: Path, module: Callable[[Node], Sequence[str]]) -> Iterator[None]:
    """A DRA driver on each of the nodes, in its mount namespace: a module of Python, and its arguments."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "GRPC_VERBOSITY": "ERROR",
    }
    processes, logs = [], []
    for node in nodes:
        command = node.enter_command([sys.executable, "-m", *module(node)])
        logs.append(directory / f"{node.name}.log")
        with logs[-1].open("wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stderr=log))
    try:
        eventually("kubelets to know the driver", lambda: all("registered" in log.read_text() for log in logs), 60)
        yield
    finally:
        for process in processes:
            process.terminate()
        statuses = [process.wait(15) for process in processes]
    assert statuses == [0] * len(processes), [log.read_text()[-2000:] for log in logs]


@contextmanager
def efa_drivers(lab: Cluster, kube: Kube, kind: str, directory: Path) -> Iterator[None]:
    """The emulated EFA driver on each node."""

    def module(node: Node) -> list[str]:
        options = ["--node-name", node.name, "--instance-type", kind, "--kubeconfig", os.fspath(lab.kubeconfig)]
        return ["efadriver.main", *options, "--cdi-root", "/run/cdi"]

    try:
        with node_drivers(lab.nodes, directory, module):
            eventually("its slices", lambda: len(efa_slices(kube)) == len(lab.nodes), 30)
            yield
    finally:
        kube.kubectl("delete", "--ignore-not-found", "deviceclass", EFA_CLASS)
        kube.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={EFA_DRIVER_NAME}")


def efa_slices(kube: Kube) -> list[Object]:
    return kube.find("resourceslices", fields=f"spec.driver={EFA_DRIVER_NAME}")


@pytest.fixture
def trn2(driver: Installation, lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[InstanceType]:
    """Both drivers, on nodes that stand for trn2.48xlarge."""
    with efa_drivers(lab, kube, EMULATED, tmp_path):
        yield INSTANCE_TYPES[EMULATED]


@pytest.fixture
def groups(installation: Installation, lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[InstanceType]:
    """Both drivers, on nodes that stand for trn2.48xlarge and offer chips and groups of four."""
    installation.ensure("--emulate", EMULATED, "--partitions", "chip.group4")
    with efa_drivers(lab, kube, EMULATED, tmp_path):
        yield INSTANCE_TYPES[EMULATED]


@pytest.fixture
def trn1(installation: Installation, lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[InstanceType]:
    """Both drivers, on nodes that stand for trn1.32xlarge."""
    installation.ensure("--emulate", TRN1)
    with efa_drivers(lab, kube, TRN1, tmp_path):
        yield INSTANCE_TYPES[TRN1]


def attributes(kube: Kube) -> dict[tuple[str, str], Object]:
    """Attributes of all devices by pool and name, as the API server has them."""
    return {
        (item["spec"]["pool"]["name"], device["name"]): device["attributes"]
        for item in [*kube.slices(), *efa_slices(kube)]
        for device in item["spec"].get("devices", ())
    }


def check_pair(namespace: Namespace, name: str, kind: InstanceType, size: int) -> list[int]:
    """Check that a pod has chips and exactly the EFA devices next to them, and sees both; return the chips."""
    results = namespace.allocated(namespace.claim_of(name))
    chips = sorted(chip for item in results if item.request == "neurons" for chip in chips_of(item.device))
    given = {item.device for item in results if item.request == "efa"}
    assert len(chips) == size
    assert {item.pool for item in results} == {namespace.node_of(name)}
    expected = [device for device in efa_devices(kind) if set(device.chips) & set(chips)]
    assert given == {device.name for device in expected}

    group = next(known for known in GROUP_SIZES if known >= size)
    published = attributes(namespace.kube)
    ids = {published[item.pool, item.device][f"resource.aws.com/devicegroup{group}_id"]["string"] for item in results}
    assert ids == {device_group_ids(kind, chips[0])[group]}

    assert namespace.numbers(name) == list(range(size))
    files = namespace.exec(name, "ls /dev/infiniband").split()
    assert sorted(files) == sorted(f"uverbs{device.number}" for device in expected)
    return chips


def chips_of(device: str) -> list[int]:
    """The chips that a device is made of."""
    parts = parts_of(device, range(16), lambda _: 1)
    assert parts is not None
    return [part.chip for part in parts]


def example(name: str) -> tuple[Object, Object]:
    """The template and the pod of an example."""
    made, user = yaml.safe_load_all((SPECS / f"{name}.yaml").read_text())
    return made, user


def promised(name: str) -> list[str]:
    """The lines of the pod's log that the example's comment shows."""
    lines = [line.removeprefix("#").strip() for line in (SPECS / f"{name}.yaml").read_text().splitlines()]
    return [line for line in lines if line.startswith(("/dev/", "NEURON_"))]


@pytest.mark.parametrize(("name", "size"), [("efa-neurons-4-devices", 4), ("efa-neuron-1-device", 1)])
def test_an_example_gives_its_pod_the_chips_and_the_efa_devices_next_to_them(
    trn2: InstanceType, namespace: Namespace, name: str, size: int
) -> None:
    made, user = example(name)
    namespace.apply(made, user)
    named = user["metadata"]["name"]
    namespace.wait_ready(named)
    assert check_pair(namespace, named, trn2, size) == list(range(size))
    expected = promised(name)
    assert namespace.printed(len(expected), named) == expected


def test_a_group_as_one_device_comes_with_its_efa_devices_unless_others_broke_it(
    groups: InstanceType, namespace: Namespace
) -> None:
    """Broken by a claim for a chip of it, and by one for an EFA device next to it."""
    (nic,) = [device for device in efa_devices(groups) if device.chips == (9,)]
    address = f"device.attributes['{EFA_DRIVER_NAME}'].pciAddress == '{nic.address}'"
    namespace.apply(
        template("chip", request("neurons", selectors=[chip(5)])),
        template("nic", request("efa", device_class=EFA_CLASS, selectors=[address])),
        pod("chip", templates={"neurons": "chip"}, node="node-1"),
        pod("nic", templates={"efa": "nic"}, node="node-1"),
    )
    namespace.wait_ready("chip", "nic")
    made, user = example("efa-neurons-group-4")
    user["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    name = user["metadata"]["name"]
    namespace.apply(made, user)
    namespace.wait_ready(name)
    assert check_pair(namespace, name, groups, 4) == [0, 1, 2, 3]
    assert "neuron-group4-0" in {item.device for item in namespace.allocated(namespace.claim_of(name))}
    expected = promised("efa-neurons-group-4")
    assert namespace.printed(len(expected), name) == expected

    more = ["second", "third"]
    namespace.apply(*(user | {"metadata": {"name": other}} for other in more))
    (ready,) = eventually("one more to run", lambda: placed(namespace, more, 1), 130)
    namespace.wait_ready(ready)
    assert check_pair(namespace, ready, groups, 4) == [12, 13, 14, 15]
    (waiting,) = set(more) - {ready}
    namespace.wait_event(waiting, "cannot allocate all claims")

    namespace.delete_pod("nic")
    namespace.wait_ready(waiting)
    assert check_pair(namespace, waiting, groups, 4) == [8, 9, 10, 11]


def test_a_whole_trn1_comes_with_its_eight_efa_devices(trn1: InstanceType, namespace: Namespace) -> None:
    """And a chip whose EFA device went with the other chip that shares it gets none."""
    made, user = example("efa-neurons-16-devices-trn1")
    named, here = user["metadata"]["name"], {"kubernetes.io/hostname": "node-1"}
    user["spec"]["nodeSelector"] = here
    namespace.apply(made, user)
    namespace.wait_ready(named)
    assert check_pair(namespace, named, trn1, 16) == list(range(16))
    namespace.delete_pod(named)

    one = template("one", request("neurons", selectors=[chip(0, 1)]), request("efa", device_class=EFA_CLASS))
    one["spec"]["spec"]["devices"]["constraints"] = [connected(1)]
    namespace.apply(one, pod("first", templates={"neurons": "one"}, node="node-1"))
    namespace.wait_ready("first")
    assert check_pair(namespace, "first", trn1, 1) == [0]
    namespace.apply(pod("second", templates={"neurons": "one"}, node="node-1"))
    namespace.wait_event("second", "cannot allocate all claims")
    assert namespace.node_of("second") == ""


def chip(*numbers: int) -> str:
    """A selector of chips."""
    return f"device.attributes['neuron.aws.com'].deviceId in [{', '.join(map(str, numbers))}]"


@pytest.mark.parametrize("seed", [1, 2])
def test_where_other_claims_broke_the_groups_pods_get_whole_pairs_or_wait(
    trn2: InstanceType, namespace: Namespace, nodes: Sequence[str], seed: int
) -> None:
    chosen = random.Random(seed)
    taken = {node: sorted(chosen.sample(range(16), 3)) for node in nodes}
    alone = {node: chosen.choice(efa_devices(trn2)) for node in nodes}
    others = []
    for node, numbers in taken.items():
        for number in numbers:
            name = f"chip-{node}-{number}"
            others += [template(name, request("neurons", selectors=[chip(number)]))]
            others += [pod(name, templates={"neurons": name}, node=node)]
        address = f"device.attributes['{EFA_DRIVER_NAME}'].pciAddress == '{alone[node].address}'"
        others += [template(f"nic-{node}", request("efa", device_class=EFA_CLASS, selectors=[address]))]
        others += [pod(f"nic-{node}", templates={"efa": f"nic-{node}"}, node=node)]
    namespace.apply(*others)
    names = [item["metadata"]["name"] for item in others if item["kind"] == "Pod"]
    namespace.wait_ready(*names)

    broken = {node: {*numbers, *alone[node].chips} for node, numbers in taken.items()}
    whole = [
        (node, list(range(first, first + 4)))
        for node in nodes
        for first in range(0, 16, 4)
        if not broken[node] & set(range(first, first + 4))
    ]
    made, user = example("efa-neurons-4-devices")
    fours = [f"four-{number}" for number in range(len(whole) + 2)]
    namespace.apply(made, *(user | {"metadata": {"name": name}} for name in fours))
    ready = eventually("the pods that fit to run", lambda: placed(namespace, fours, len(whole)), 130)
    namespace.wait_ready(*ready)
    waiting = [name for name in fours if name not in ready]
    for name in waiting:
        namespace.wait_event(name, "cannot allocate all claims")
    assert sorted((namespace.node_of(name), check_pair(namespace, name, trn2, 4)) for name in ready) == whole

    # What is left are broken groups, whose whole pairs of one chip and one EFA device can still be had.
    pairs = [
        (node, number)
        for node in nodes
        for number in range(16)
        if number not in broken[node] and (node, list(range(number // 4 * 4, number // 4 * 4 + 4))) not in whole
    ]
    made, user = example("efa-neuron-1-device")
    ones = [f"one-{number:02}" for number in range(len(pairs) + 1)]
    namespace.apply(made, *(user | {"metadata": {"name": name}} for name in ones))
    ready = eventually("the pods with one pair to run", lambda: placed(namespace, ones, len(pairs)), 130)
    namespace.wait_ready(*ready)
    assert sorted((namespace.node_of(name), *check_pair(namespace, name, trn2, 1)) for name in ready) == pairs
    (late,) = set(ones) - set(ready)
    namespace.wait_event(late, "cannot allocate all claims")
    assert {namespace.node_of(name) for name in (*waiting, late)} == {""}


def stand_in(value: object) -> object:
    """An example with the tests' image in place of a server's or a trainer's, which waits and is always ready."""
    if isinstance(value, list):
        return [stand_in(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "image" in value:
        kept = {key: item for key, item in value.items() if key not in {"args", "readinessProbe"}}
        return {**kept, "image": IMAGE, "command": SLEEP, "imagePullPolicy": "IfNotPresent"}
    return {key: stand_in(item) for key, item in value.items()}


def inference(name: str) -> list[Object]:
    """The objects of an example with an inference server, with a stand-in for it."""
    return [
        item for item in map(stand_in, yaml.safe_load_all((INFERENCE / name).read_text())) if isinstance(item, dict)
    ]


def test_prefill_and_decode_servers_each_get_chips_and_efa_devices_of_one_group(
    trn2: InstanceType, namespace: Namespace, nodes: Sequence[str]
) -> None:
    """Four of each fill two nodes; what is left has no place for another."""
    made, *servers = inference("prefill-decode.yaml")
    for server in servers:
        server["spec"]["replicas"] = 4
    namespace.apply(made, *servers)

    def there(count: int) -> list[str] | None:
        names = [str(item["metadata"]["name"]) for item in namespace.pods()]
        return names if len(names) == count else None

    names = eventually("the pods to exist", lambda: there(8))
    namespace.wait_ready(*names)
    taken = [(namespace.node_of(name), check_pair(namespace, name, trn2, 4)) for name in names]
    assert sorted(taken) == [(node, list(range(first, first + 4))) for node in nodes for first in range(0, 16, 4)]
    assert namespace.exec(names[0], "echo $VLLM_NIXL_SIDE_CHANNEL_HOST").strip()

    namespace.kubectl("scale", "deployment", "decode", "--replicas=5")
    (late,) = eventually(
        "one more", lambda: sorted({str(p["metadata"]["name"]) for p in namespace.pods()} - set(names))
    )
    namespace.wait_event(late, "cannot allocate all claims")


def test_each_pod_of_a_leaderworkerset_gets_chips_and_efa_devices_of_one_group(
    trn2: InstanceType, namespace: Namespace, kube: Kube
) -> None:
    made, group = inference("leaderworkerset-vllm.yaml")
    with LeaderWorkerSets(kube) as controller:
        namespace.apply(made)
        controller.apply(group, namespace=namespace.name)
        leader, worker = "vllm-neuron-0", "vllm-neuron-0-1"
        eventually("the pods to exist", lambda: len(controller.pods("vllm-neuron", namespace.name)) == 2)
        namespace.wait_ready(leader, worker)
        taken = [(namespace.node_of(name), *check_pair(namespace, name, trn2, 4)) for name in (leader, worker)]
        assert len(set(taken)) == 2
        assert namespace.exec(worker, "echo $LWS_WORKER_INDEX of $LWS_GROUP_SIZE").strip() == "1 of 2"
        controller.delete("vllm-neuron", namespace.name)
        eventually("the group to be gone", lambda: not controller.pods("vllm-neuron", namespace.name), 60)


def pods_of_jobset(namespace: Namespace, restart: int) -> list[str] | None:
    """The names of both pods of the example's JobSet, by index, that were made after so many restarts."""
    found = {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: str(pod["metadata"]["name"])
        for pod in namespace.pods()
        if pod["metadata"]["labels"].get("jobset.sigs.k8s.io/restart-attempt") == str(restart)
    }
    return [found["0"], found["1"]] if len(found) == 2 else None


def test_jobsets_own_controller_gives_each_pod_of_the_example_a_whole_node_again_after_a_restart_until_all_are_done(
    trn2: InstanceType, namespace: Namespace, lab: Cluster, kube: Kube, tmp_path: Path
) -> None:
    """The names by which its pods find each other are there; without DNS in these clusters nothing resolves them."""
    program = ["sh", "-c", "trap 'exit 0' TERM; until [ -e /tmp/status ]; do sleep 0.1; done; exit $(cat /tmp/status)"]
    objects = [stand_in(item) for item in yaml.safe_load_all((BATCH / "jobset-training.yaml").read_text())]
    made, text, jobset = [item for item in objects if isinstance(item, dict)]
    (job,) = jobset["spec"]["replicatedJobs"]
    (main,) = job["template"]["spec"]["template"]["spec"]["containers"]
    main["command"] = program
    with jobset_controller(lab, kube, tmp_path):
        namespace.apply(made, text, jobset)
        for restart in (0, 1):
            pods = eventually("the pods to exist", partial(pods_of_jobset, namespace, restart), 60)
            namespace.wait_ready(*pods)
            assert [check_pair(namespace, pod, trn2, 16) for pod in pods] == [list(range(16))] * 2
            assert len({namespace.node_of(pod) for pod in pods}) == 2
            told = [namespace.exec(pod, "echo $(hostname) $JOB_COMPLETION_INDEX; ls /program").split() for pod in pods]
            assert told == [[f"training-nodes-0-{index}", str(index), "sum.py"] for index in range(2)]
            if restart == 0:
                namespace.exec(pods[1], "echo 3 > /tmp/status")
        found = namespace.pod(pods[0])
        assert found is not None and found["spec"]["subdomain"] == "training"
        assert '"clusterIP":"None"' in namespace.kubectl("get", "service", "training", "-o", "jsonpath={.spec}")
        for pod in pods:
            namespace.exec(pod, "echo 0 > /tmp/status")
        namespace.kubectl("wait", "--for=condition=Completed", "jobset/training", "--timeout=60s", timeout=70)
        namespace.kubectl("delete", "jobset", "training", "--timeout=50s", timeout=60)
        eventually("its pods to be gone", lambda: not namespace.pods(), 60)


def made_by_operator(item: Object) -> list[Object]:
    """The pods that the operator of a resource makes of the templates in it; other objects as they are.

    Without what operators add: names in the DNS, variables, and containers that wait for others.
    """
    spec, name = item.get("spec", {}), item["metadata"]["name"]
    if item["kind"] == "PyTorchJob":
        templates = {
            role.lower(): (one["replicas"], one["template"]) for role, one in spec["pytorchReplicaSpecs"].items()
        }
    elif item["kind"] == "RayCluster":
        workers = {group["groupName"]: (group["replicas"], group["template"]) for group in spec["workerGroupSpecs"]}
        templates = {"head": (1, spec["headGroupSpec"]["template"]), **workers}
    else:
        return [item]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-{role}-{number}"}, "spec": made["spec"]}
        for role, (count, made) in templates.items()
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "chips", "nodes_used"),
    [("pytorchjob-training", 16, 2), ("raycluster", 4, 1)],
)
def test_the_pods_of_a_batch_example_get_the_chips_that_it_promises(
    trn2: InstanceType, namespace: Namespace, name: str, chips: int, nodes_used: int
) -> None:
    found = [
        made for item in yaml.safe_load_all((BATCH / f"{name}.yaml").read_text()) for made in made_by_operator(item)
    ]
    namespace.apply(*(item for item in map(stand_in, found) if isinstance(item, dict)))

    def users() -> list[str] | None:
        names = [str(item["metadata"]["name"]) for item in namespace.pods() if item["spec"].get("resourceClaims")]
        return names if len(names) == 2 else None

    names = eventually("the pods to exist", users)
    namespace.wait_ready(*names)
    assert len({namespace.node_of(user) for user in names}) >= nodes_used
    for user in names:
        assert len(namespace.allocated(namespace.claim_of(user))) == chips
        assert namespace.numbers(user) == list(range(chips))


def placed(namespace: Namespace, names: Sequence[str], count: int) -> list[str] | None:
    """Those of the pods that have a node, once they are so many."""
    found = [name for name in names if namespace.node_of(name)]
    return found if len(found) == count else None
