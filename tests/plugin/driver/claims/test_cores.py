"""Claims for cores: on the files of one node, and through kubelet's calls to the whole agent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from dra_driver.driver.claims.sharing import claims_of_containers
from dra_driver.driver.claims.situation import NodeFacts
from dra_driver.kube.api.errors import Unreachable
from dra_driver.kube.objects.core import ClaimingPod, Pod
from dra_driver.kube.objects.resource import EXTENDED_RESOURCE_CLAIM, ResourceClaim
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError
from tests.builders.agent import NODE, World, agent
from tests.builders.agent import node as bare_node
from tests.builders.claims import ApiServer, Node, claim, config, container, host, neuron_config, pod, result, uid
from tests.doubles.kubelet import Claim, KubeletError
from tests.golden import golden_error

VISIBLE = "NEURON_RT_VISIBLE_CORES"


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Node:
    return Node(tmp_path, api)


def cores(number: int, of_pod: str, *names: str, **changes: Any) -> ResourceClaim:
    """A claim of a pod for cores such as ``5-0``."""
    return claim(number, [result(f"neuron-core-{name}") for name in names], pods=[of_pod], template=True, **changes)


def told(node: Node, item: ResourceClaim) -> str:
    values = {entry.partition("=")[2] for entry in node.env(item) if entry.startswith(f"{VISIBLE}=")}
    return values.pop() if len(values) == 1 else repr(values)


# One node's files


def test_two_pods_share_a_chip_each_with_its_own_cores(node: Node, api: ApiServer) -> None:
    one, other = api.put(cores(1, "a", "5-0", "5-1")), api.put(cores(2, "b", "5-2"))
    for item, expected in ((one, "0-1"), (other, "2")):
        ids = node.prepare(item)
        nodes, env = container([node.spec(item)], ids)
        assert (nodes, env[VISIBLE]) == ({"/dev/neuron0": (240, 5)}, expected)
    with golden_error(DriverError):
        node.prepare(api.put(cores(3, "c", "5-2")))
    with golden_error(DriverError):
        node.prepare(api.put(claim(4, [5], pods=["d"])))
    node.unprepare(other)
    assert node.prepare(api.put(cores(3, "c", "5-2")))


def test_a_container_gets_the_device_numbers_that_there_are_when_the_pod_has_been_asked_for(tmp_path: Path) -> None:
    class Slow(ApiServer):
        def get_pod(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> Pod:
            here.inventory = host(major=241)
            return super().get_pod(namespace, name, timeout=timeout)

    api = Slow()
    here = Node(tmp_path, api)
    api.pods["a"] = pod("a", one=["claim-1"], other=["claim-2"])
    here.prepare(api.put(cores(1, "a", "5-0")))
    item = api.put(cores(2, "a", "6-0"))
    ids = here.prepare(item)
    nodes, _ = container([here.spec(item)], ids)
    assert set(nodes.values()) == {(241, 6)}


def test_cores_stay_held_over_a_restart(node: Node, api: ApiServer) -> None:
    one = api.put(cores(1, "a", "5-0", "5-1"))
    ids = node.prepare(one)
    node.restart()
    with golden_error(DriverError):
        node.prepare(api.put(cores(2, "b", "5-1")))
    assert node.prepare(api.put(cores(3, "c", "5-2")))
    assert node.prepare(one) == ids


def test_after_a_reboot_cores_keep_their_size_though_the_nodes_default_changed(node: Node, api: ApiServer) -> None:
    one = api.put(cores(1, "a", "5-2"))
    ids = node.prepare(one)
    before = node.env(one)
    node.reboot(major=251)
    node.inventory = replace(node.inventory, default_lnc=1)
    assert node.prepare(one) == ids
    assert node.env(one) == before
    assert f"{VISIBLE}=2" in before
    assert container([node.spec(one)], ids)[0] == {"/dev/neuron0": (251, 5)}
    # What is new on the chip is still offered at its size; on others at the node's.
    assert told(node, _prepared(node, cores(2, "b", "5-3"))) == "3"
    assert told(node, _prepared(node, cores(3, "c", "6-7"))) == "7"
    with golden_error(DriverError):
        node.prepare(api.put(cores(4, "d", "5-7")))


def _prepared(node: Node, item: ResourceClaim) -> ResourceClaim:
    node.prepare(node.api.put(item))
    return item


def test_the_agent_says_at_which_size_cores_of_a_chip_are_offered(node: Node, api: ApiServer) -> None:
    node.facts = NodeFacts(core_sizes={5: 1})
    assert told(node, _prepared(node, cores(1, "a", "5-2", "5-3"))) == "2-3"
    assert told(node, _prepared(node, cores(2, "b", "6-2", "6-3"))) == "2-3"
    assert "NEURON_LOGICAL_NC_CONFIG=1" in node.env(cores(1, "a", "5-2"))
    assert "NEURON_LOGICAL_NC_CONFIG=2" in node.env(cores(2, "b", "6-2"))


def test_the_size_of_a_chip_is_free_once_no_claim_holds_its_cores(node: Node, api: ApiServer) -> None:
    first = _prepared(node, cores(1, "a", "5-0", configs=[config(neuron_config(1))]))
    second = api.put(cores(2, "b", "5-1"))
    with golden_error(DriverError):
        node.prepare(second)
    node.unprepare(first)
    assert told(node, _prepared(node, second)) == "1"


def test_a_spoiled_file_holds_the_whole_chip_until_the_claim_is_prepared_again(node: Node, api: ApiServer) -> None:
    one = _prepared(node, cores(1, "a", "5-0"))
    ids = node.prepare(one)
    node.checkpoint_file(one).write_bytes(b"{")
    node.restart()
    with golden_error(DriverError):
        node.prepare(api.put(cores(2, "b", "5-3")))
    other = _prepared(node, cores(3, "c", "6-3"))
    assert told(node, other) == "7", "it is /dev/neuron1: the namespace of the claim that has 0 is not known"
    assert node.prepare(one) == ids
    assert told(node, _prepared(node, cores(2, "b", "5-3"))) == "3"


def test_a_spoiled_file_without_spec_is_known_from_the_api_server_by_chip(node: Node, api: ApiServer) -> None:
    one = _prepared(node, cores(1, "a", "5-0"))
    node.checkpoint_file(one).write_bytes(b"{")
    node.cdi.remove(uid(1))
    node.restart()
    assert [repair.kind for repair in node.reconciler.reconcile()] == ["learn"]
    with node.checkpoint.locked() as held:
        assert held.quarantined[uid(1)].chips == frozenset({5})


def test_claims_that_an_earlier_version_prepared_for_one_container_are_served_on(node: Node, api: ApiServer) -> None:
    items = [cores(1, "a", "5-0", "5-1"), cores(2, "a", "5-2")]
    api.pods["a"] = pod("a", one=["claim-1"], two=["claim-2"])
    ids = [device for item in items for device in node.prepare(api.put(item))]
    with node.checkpoint.locked() as held:
        for entry in list(held.entries.values()):
            devices = tuple(replace_struct(device, env={VISIBLE: "0-2"}) for device in entry.plan.devices)
            node.checkpoint.put(replace_struct(entry.plan, devices=devices))
    api.pods["a"] = pod("a", main=["claim-1", "claim-2"])
    for again in (node.restart, node.reboot):
        again()
        assert [device for item in items for device in node.prepare(item)] == ids
        assert [told(node, item) for item in items] == ["0-2", "0-2"]


def test_without_the_right_to_read_pods_a_second_claim_of_a_pod_is_refused(node: Node, api: ApiServer) -> None:
    api.pods_forbidden = True
    one, two = _prepared(node, cores(1, "a", "5-0")), api.put(cores(2, "a", "5-1"))
    with golden_error(DriverError):
        node.prepare(two)
    assert set(node.checkpointed()) == {uid(1)}
    assert told(node, one) == "0"
    api.pods_forbidden = False
    api.pods["a"] = pod("a", main=["claim-1"], other=["claim-2"])
    assert (told(node, _prepared(node, two)), told(node, one)) == ("1", "0")


def test_while_the_pod_cannot_be_read_the_claim_waits(node: Node, api: ApiServer) -> None:
    _prepared(node, cores(1, "a", "5-0"))
    two = api.put(cores(2, "a", "5-1"))
    get = api.get_pod

    def away(namespace: str, name: str, **options: Any) -> Any:
        raise Unreachable("connection refused")

    api.get_pod = away  # type: ignore[method-assign] # the answer about the pod is missing
    with golden_error(DriverError):
        node.prepare(two)
    assert set(node.checkpointed()) == {uid(1)}
    api.get_pod = get  # type: ignore[method-assign]
    api.pods["a"] = pod("a", main=["claim-1"], other=["claim-2"])
    assert told(node, _prepared(node, two)) == "1"


def test_where_pods_may_not_be_read_chips_of_extended_resources_are_numbered_as_one_set(
    node: Node, api: ApiServer
) -> None:
    """Clusters without cores work without that right."""
    api.pods_forbidden = True
    requests = ["container-0-request-0", "container-1-request-0"]
    item = claim(1, [result(4, requests[0]), result(5, requests[1])], template=True)
    metadata = msgspec.structs.replace(item.metadata, annotations={EXTENDED_RESOURCE_CLAIM: "true"})
    item = api.put(msgspec.structs.replace(item, metadata=metadata))
    node.prepare(item)
    assert node.paths(item) == {"/dev/neuron0": 4, "/dev/neuron1": 5}


def test_after_a_reboot_requests_keep_sizes_of_their_own(node: Node, api: ApiServer) -> None:
    configs = [config(neuron_config(1), "x")]
    item = api.put(claim(1, [result(4, "x"), result(5, "y")], pods=["a"], template=True, configs=configs))
    api.pods["a"] = pod("a", one=["claim-1/x"], two=["claim-1/y"])
    node.prepare(item)
    both = {"NEURON_LOGICAL_NC_CONFIG=1", "NEURON_LOGICAL_NC_CONFIG=2"}
    assert node.env(item) >= both
    node.reboot()
    node.prepare(item)
    assert node.env(item) >= both
    node.inventory = host(default_lnc=1)
    node.reboot()
    node.prepare(item)
    assert node.env(item) == {"NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1"}


# The whole agent


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # A short path: sockets lie below it, and theirs may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="c-") as directory, bare_node(Path(directory)) as made, agent(made) as one:
        one.ready()
        yield made


def stored(
    world: World, name: str, of_pod: str, devices: Sequence[tuple[str, str]], *, extended: bool = False
) -> Claim:
    """A claim of the pod, as the API server has it."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of_pod, "uid": f"uid-{of_pod}", "controller": True}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"} if extended else {}
    results = [{"request": r, "driver": DRIVER_NAME, "pool": NODE, "device": device} for r, device in devices]
    made = world.server.store.create(
        "resourceclaims",
        {
            "metadata": {
                "namespace": "default",
                "name": name,
                "ownerReferences": [owner],
                "annotations": annotations,
            },
            "spec": {"devices": {}},
            "status": {
                "allocation": {"devices": {"results": results, "config": []}},
                "reservedFor": [{"resource": "pods", "name": of_pod, "uid": f"uid-{of_pod}"}],
            },
        },
    )
    return Claim("default", name, made["metadata"]["uid"], (DRIVER_NAME,))


def running_pod(
    world: World, name: str, containers: dict[str, list[str]], extended: dict[str, str] | None = None
) -> None:
    """A pod whose containers use these claims, and have these requests of the claim ``<pod>-extended``.

    Requests of one container have spaces between.
    """
    claims = sorted({item for items in containers.values() for item in items})
    spec = {
        "containers": [
            {"name": key, "image": "x", "resources": {"claims": [{"name": f"my-{item}"} for item in items]}}
            for key, items in containers.items()
        ],
        "resourceClaims": [{"name": f"my-{item}", "resourceClaimTemplateName": "t"} for item in claims],
    }
    status: dict[str, Any] = {
        "resourceClaimStatuses": [{"name": f"my-{item}", "resourceClaimName": item} for item in claims]
    }
    if extended:
        status["extendedResourceClaimStatus"] = {
            "resourceClaimName": f"{name}-extended",
            "requestMappings": [
                {"containerName": key, "resourceName": "aws.amazon.com/neuroncore", "requestName": request}
                for key, requests in extended.items()
                for request in requests.split()
            ],
        }
    world.server.store.create(
        "pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
            "spec": spec,
            "status": status,
        },
    )


def environment(world: World, of: Sequence[Any]) -> dict[str, str]:
    """What a container gets with these prepared devices: its variables, and the host's paths of its device nodes."""
    edits = {
        f"{spec['kind']}={device['name']}": device["containerEdits"]
        for spec in world.specs()
        for device in spec["devices"]
    }
    found: dict[str, str] = {}
    for device in of:
        for name in device.cdi_ids:
            found |= dict(entry.split("=", 1) for entry in edits[name]["env"])
            found |= {node["path"]: node.get("hostPath", node["path"]) for node in edits[name]["deviceNodes"]}
    return found


@pytest.fixture
def kubelet_of(world: World) -> Iterator[World]:
    yield world
    for name in ("a", "b"):
        world.kubelet.unprepare(name)
    for kind in ("pods", "resourceclaims"):
        for item in world.server.store.list(kind)[0]:
            world.server.store.delete(kind, f"default/{item['metadata']['name']}")
    assert world.specs() == []


def test_pods_on_one_chip_are_told_their_own_cores(kubelet_of: World) -> None:
    world = kubelet_of
    one = stored(world, "one", "a", [("r", "neuron-core-3-0"), ("r", "neuron-core-3-1")])
    other = stored(world, "other", "b", [("r", "neuron-core-3-2"), ("r", "neuron-core-3-3")])
    found = [
        environment(world, world.kubelet.prepare(name, [item])[item.uid]) for name, item in (("a", one), ("b", other))
    ]
    expected = [("0-1", "/dev/neuron3"), ("2-3", "/dev/neuron3")]
    assert [(env[VISIBLE], env["/dev/neuron0"]) for env in found] == expected


def test_two_claims_of_different_containers_stay_apart(kubelet_of: World) -> None:
    world = kubelet_of
    claims = [stored(world, name, "a", [("r", f"neuron-core-3-{core}")]) for core, name in enumerate(("x", "y"))]
    running_pod(world, "a", {"main": ["x"], "side": ["y"]})
    prepared = world.kubelet.prepare("a", claims)
    assert [environment(world, prepared[item.uid])[VISIBLE] for item in claims] == ["0", "1"]


def test_the_second_claim_with_cores_of_a_container_is_refused_and_the_first_is_served_on(kubelet_of: World) -> None:
    world = kubelet_of
    first, second = (stored(world, name, "a", [("r", f"neuron-core-3-{core}")]) for core, name in enumerate(("x", "y")))
    world.kubelet.prepare("a", [first])
    running_pod(world, "a", {"main": ["x", "y"]})
    with golden_error(KubeletError):
        world.kubelet.prepare("a", [first, second])
    assert environment(world, world.kubelet.prepare("a", [first])[first.uid])[VISIBLE] == "0"


def test_containers_with_extended_resources_count_from_0_each(kubelet_of: World) -> None:
    world = kubelet_of
    requests = ["container-0-request-0", "container-1-request-0"]
    devices = [(requests[0], "neuron-core-3-2"), (requests[0], "neuron-core-3-3"), (requests[1], "neuron-core-4-0")]
    item = stored(world, "a-extended", "a", devices, extended=True)
    running_pod(world, "a", {"main": [], "side": []}, dict(zip(("main", "side"), requests, strict=True)))
    prepared = world.kubelet.prepare("a", [item])[item.uid]
    main, side = (
        environment(world, [device for device in prepared if device.requests == (request,)]) for request in requests
    )
    assert (main[VISIBLE], main["/dev/neuron0"]) == ("2,3", "/dev/neuron3")
    assert (side[VISIBLE], side["/dev/neuron0"]) == ("0", "/dev/neuron4")
    assert {name for name in main if name.startswith("/dev")} == {"/dev/neuron0"}


def test_an_init_container_with_several_requests_sees_all_their_chips(kubelet_of: World) -> None:
    world = kubelet_of
    beside, main = requests = ["container-0-request-0", "container-1-request-0"]
    item = stored(world, "a-extended", "a", [(beside, "neuron-device-3"), (main, "neuron-device-4")], extended=True)
    running_pod(world, "a", {"init": [], "main": []}, {"init": f"{main} {beside}", "main": main})
    prepared = world.kubelet.prepare("a", [item])[item.uid]
    found = environment(world, [device for device in prepared if device.requests[0] in requests])
    assert {path: host for path, host in found.items() if path.startswith("/dev")} == {
        "/dev/neuron0": "/dev/neuron4",
        "/dev/neuron1": "/dev/neuron3",
    }
    of_main = environment(world, [device for device in prepared if device.requests == (main,)])
    assert of_main["/dev/neuron0"] == "/dev/neuron4"


USES = st.lists(st.sampled_from([("c", ""), ("c", "r"), ("c", "s"), ("d", "")]), max_size=3, unique=True)


@given(st.lists(USES, max_size=6), st.lists(USES, max_size=4), st.lists(st.integers(0, 9), max_size=2))
@example([[("c", "")]] * 6, [], [])
def test_a_pod_in_short_tells_the_same_of_claims(main: list[Any], init: list[Any], mapped: list[int]) -> None:
    def containers(uses: list[Any], first: int) -> list[Any]:
        return [
            {
                "name": f"c{first + at}",
                "resources": {"claims": [{"name": n, "request": r} for n, r in items]},
                "image": "x",
            }
            for at, items in enumerate(uses)
        ]

    document = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"a": "x" * 9}},
        "spec": {
            "containers": containers(main, 0),
            "initContainers": containers(init, 6),
            "resourceClaims": [
                {"name": "c", "resourceClaimName": "one"},
                {"name": "d", "resourceClaimTemplateName": "t"},
            ],
            "volumes": [{"name": "v"}],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "d", "resourceClaimName": "two"}],
            "extendedResourceClaimStatus": {
                "resourceClaimName": "three",
                "requestMappings": [
                    {"containerName": f"c{at}", "requestName": "r", "resourceName": "x"} for at in mapped
                ],
            },
        },
    }
    whole, short = msgspec.convert(document, Pod), msgspec.convert(document, ClaimingPod).in_short

    def uses(of: Pod) -> set[frozenset[tuple[str, str]]]:
        return {frozenset(pairs) for _, pairs in claims_of_containers(of)}

    assert uses(short) == uses(whole)
    assert bool(short.spec.containers) == bool(whole.spec.containers)
    assert (short.metadata.uid, short.metadata.namespace) == ("u", "n")
    assert len(list(claims_of_containers(short))) <= 2 * (len(uses(whole)) + len(set(mapped)))


@pytest.mark.parametrize(("containers", "uses", "mappings"), [(5000, 1, 0), (2, 2500, 0), (1, 1, 50_000)])
def test_of_pods_that_use_too_many_different_claims_the_claim_is_refused(
    node: Node, api: ApiServer, containers: int, uses: int, mappings: int
) -> None:
    item = api.put(claim(1, [result("neuron-core-5-0"), result("neuron-core-6-0", request="other")], pods=["a"]))
    many = [
        {"name": f"c{at}", "resources": {"claims": [{"name": "c", "request": f"{at}-{use}"} for use in range(uses)]}}
        for at in range(containers)
    ]
    named = [{"name": "c", "resourceClaimName": item.metadata.name}]
    meta = {"name": "a", "namespace": "default", "uid": "a"}
    mapped = [{"containerName": "c0", "requestName": f"{at}", "resourceName": "r"} for at in range(mappings)]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": mapped}}
    document = {"metadata": meta, "spec": {"containers": many, "resourceClaims": named}, "status": status}
    api.pods["a"] = msgspec.convert(document, ClaimingPod).in_short
    assert len(msgspec.json.encode(api.pods["a"])) < 1_000_000, "and no more of it is kept than shows that"
    with golden_error(DriverError):
        node.prepare(item)
