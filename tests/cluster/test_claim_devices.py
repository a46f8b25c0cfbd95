"""Which devices reach which containers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import claim, connected, container, pod, request, template

LIST = ["sh", "-c", "ls /dev/neuron* 2>/dev/null; env | grep ^NEURON_ | sort"]
ENVIRONMENT = {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}


def chips_seen(namespace: Namespace, files: NodeFiles, pod: str, container: str, *claims: str) -> list[int]:
    """The host's chips behind the devices of a container that uses these claims, by number."""
    shown: dict[int, int] = {}
    for name in claims:
        shown |= files.shown(namespace.claim_of(pod, name)["metadata"]["uid"])
    return [shown[number] for number in namespace.numbers(pod, container)]


def chips_allocated(namespace: Namespace, pod: str, name: str, request: str = "") -> set[int]:
    """Chips of a claim of a pod, or of one of its requests."""
    results = namespace.allocated(namespace.claim_of(pod, name))
    return {item.chip for item in results if request in ("", item.request)}


def test_a_claim_that_no_container_uses_is_prepared_and_shows_nothing(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    unused = pod("reserves", templates={"neurons": "one"}, containers=[container("main")], node="node-1")
    namespace.apply(template("one", request()), unused)
    namespace.wait_ready("reserves")
    assert set(node_files["node-1"].specs()) == {namespace.claim_of("reserves")["metadata"]["uid"]}
    assert (namespace.numbers("reserves"), namespace.environment("reserves")) == ([], {})


def test_each_container_gets_the_devices_of_the_requests_that_it_names_and_no_others(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    """Init containers, containers for one request each, one for the whole claim, and one for nothing."""
    namespace.apply(
        template("pair", request("small", 1), request("large", 3), constraints=[connected(4)]),
        pod(
            "requests",
            templates={"neurons": "pair"},
            init=[
                container("prepares", ("neurons", "large"), command=LIST),
                container("checks", command=LIST),
            ],
            containers=[
                container("one", ("neurons", "small")),
                container("three", ("neurons", "large")),
                container("all", "neurons"),
                container("none"),
            ],
            node="node-1",
        ),
    )
    namespace.wait_ready("requests")
    files = node_files["node-1"]
    wanted = {
        "one": chips_allocated(namespace, "requests", "neurons", "small"),
        "three": chips_allocated(namespace, "requests", "neurons", "large"),
        "all": chips_allocated(namespace, "requests", "neurons"),
        "none": set(),
    }
    assert [len(chips) for chips in wanted.values()] == [1, 3, 4, 0]
    for name, chips in wanted.items():
        assert chips_seen(namespace, files, "requests", name, "neurons") == sorted(chips)
        assert namespace.environment("requests", name) == (ENVIRONMENT if chips else {})
    assert namespace.numbers("requests", "all") == [0, 1, 2, 3]
    printed = namespace.kubectl("logs", "requests", "-c", "prepares").splitlines()
    seen = [f"/dev/neuron{number}" for number in namespace.numbers("requests", "three")]
    assert printed == [*seen, *(f"{name}={value}" for name, value in ENVIRONMENT.items())]
    assert namespace.kubectl("logs", "requests", "-c", "checks") == ""


def test_two_claims_of_a_container_never_shadow_each_others_devices(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    namespace.apply(
        template("two", request(count=2)),
        template("three", request(count=3)),
        pod(
            "both",
            templates={"a": "two", "b": "three"},
            containers=[container("main", "a", "b"), container("only-a", "a"), container("only-b", "b")],
            node="node-1",
        ),
    )
    namespace.wait_ready("both")
    files = node_files["node-1"]
    a, b = (chips_allocated(namespace, "both", name) for name in ("a", "b"))
    assert (len(a), len(b), len(a | b)) == (2, 3, 5)
    seen = chips_seen(namespace, files, "both", "main", "a", "b")
    assert (len(seen), set(seen)) == (5, a | b)
    assert namespace.numbers("both", "main") == [0, 1, 2, 3, 4]
    assert set(chips_seen(namespace, files, "both", "only-a", "a")) == a
    assert set(chips_seen(namespace, files, "both", "only-b", "b")) == b


def test_containers_and_pods_that_share_a_claim_see_the_same_devices(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    namespace.apply(
        claim("shared", request(count=2)),
        pod("first", {"neurons": "shared"}, containers=[container("a", "neurons"), container("b", "neurons")]),
        pod("second", {"neurons": "shared"}),
    )
    namespace.wait_ready("first", "second")
    node = namespace.node_of("first")
    assert namespace.node_of("second") == node
    chips = sorted(chips_allocated(namespace, "first", "neurons"))
    for name, part in (("first", "a"), ("first", "b"), ("second", "main")):
        assert namespace.numbers(name, part) == [0, 1]
        assert chips_seen(namespace, node_files[node], name, part, "neurons") == chips
    namespace.delete_pod("first")
    assert namespace.numbers("second") == [0, 1]
    uid = namespace.claim_of("second")["metadata"]["uid"]
    assert set(node_files[node].specs()) == {uid}, "the claim stays prepared for the second pod"


def test_a_pod_gets_a_new_claim_beside_one_that_is_prepared_already(
    driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    namespace.apply(
        claim("old", request(count=2)), claim("new", request(count=2)), pod("first", {"neurons": "old"}, node="node-1")
    )
    namespace.wait_ready("first")
    namespace.apply(pod("second", {"a": "new", "b": "old"}))
    namespace.wait_ready("second")
    assert namespace.node_of("second") == "node-1"
    files = node_files["node-1"]
    wanted = chips_allocated(namespace, "second", "a") | chips_allocated(namespace, "second", "b")
    seen = chips_seen(namespace, files, "second", "main", "a", "b")
    assert (len(seen), set(seen)) == (4, wanted)
    assert namespace.numbers("first") == [0, 1], "the first pod's devices are as they were"


def test_a_restarted_container_has_the_same_devices(driver: Installation, namespace: Namespace) -> None:
    once = ["sh", "-c", "test -e /keep/again || { touch /keep/again; exit 1; }; sleep infinity"]
    restarting = pod("restarts", templates={"neurons": "one"}, containers=[container("main", "neurons", command=once)])
    restarting["spec"] |= {"restartPolicy": "Always", "volumes": [{"name": "keep", "emptyDir": {}}]}
    restarting["spec"]["containers"][0]["volumeMounts"] = [{"name": "keep", "mountPath": "/keep"}]
    namespace.apply(template("one", request(count=2)), restarting)

    def restarted() -> bool:
        found = namespace.pod("restarts")
        statuses = found["status"].get("containerStatuses", []) if found else []
        return any(status["restartCount"] == 1 and status["ready"] for status in statuses)

    eventually("the container to be restarted", restarted, 60)
    assert namespace.numbers("restarts") == [0, 1]
    assert namespace.environment("restarts") == ENVIRONMENT
    assert namespace.claim_of("restarts")["status"]["reservedFor"][0]["name"] == "restarts"


@pytest.fixture
def admin_namespace(kube: Kube) -> Iterator[Namespace]:
    """A namespace in which claims may ask for admin access."""
    made = Namespace(kube, "test-admin-access")
    made.create({"resource.kubernetes.io/admin-access": "true"})
    yield made
    made.remove()


def test_admin_access_shows_all_devices_under_the_hosts_numbers_and_takes_none_away(
    driver: Installation, namespace: Namespace, admin_namespace: Namespace
) -> None:
    namespace.apply(template("four", request(count=4)), pod("works", templates={"neurons": "four"}, node="node-1"))
    namespace.wait_ready("works")
    admin_namespace.apply(
        template("look", request(count=None, admin=True)), pod("looks", templates={"neurons": "look"}, node="node-1")
    )
    admin_namespace.wait_ready("looks")
    assert admin_namespace.numbers("looks") == list(range(16))
    namespace.apply(template("rest", request(count=12)), pod("later", templates={"neurons": "rest"}, node="node-1"))
    namespace.wait_ready("later")
    mine, others = (chips_allocated(namespace, name, "neurons") for name in ("works", "later"))
    assert mine | others == set(range(16))
    assert not mine & others
    admin_namespace.delete_pod("looks")
    assert namespace.numbers("works") == [0, 1, 2, 3]
    assert namespace.numbers("later") == list(range(12))


def test_admin_access_is_refused_where_the_namespace_does_not_allow_it(
    driver: Installation, namespace: Namespace
) -> None:
    asked = claim("look", request(count=None, admin=True))
    refused = driver.kube.access.kubectl(
        f"--namespace={namespace.name}", "apply", "-f", "-", stdin=json.dumps(asked), check=False
    )
    assert refused.returncode != 0
    assert "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label" in refused.stderr
