"""The driver of docs/develop/library.md, as on the page: alone, and beside this driver in the same claim."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import Stopwatch, is_ready, nudge, uid_of, wait_driver_ready, wait_gone
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template
from tests.cluster.test_health_stream import wait_health
from tests.manifests.pages import listings

pytestmark = pytest.mark.nightly

NODE = "node-1"
BOARD = "board.example.com"
LABEL = "app=board-driver"
DIRECTORY = f"/var/lib/kubelet/plugins/{BOARD}"


class BoardDriver:
    """The page's driver as its DaemonSet; the node has boards, the other node none."""

    def __init__(self, lab: Cluster, kube: Kube, image: str) -> None:
        self._node, self._kube = lab.node(NODE), kube
        code: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "board-driver"}}
        self._objects = [code | {"data": {"driver.py": listings()["driver.py"]}}]
        shown = list(yaml.safe_load_all(listings()["board.yaml"]))
        self.pod = [item for item in shown if item["kind"] in {"Pod", "ResourceClaimTemplate"}]
        self._objects += [item for item in shown if item not in self.pod]
        for item in self._objects:
            if item["kind"] == "DaemonSet":
                (container,) = item["spec"]["template"]["spec"]["containers"]
                container["image"] = image

    def set_board(self, name: str, text: str = "") -> None:
        """Offer a board, with what is wrong with it."""
        self._node.run(["sh", "-c", f"mkdir -p {DIRECTORY}/boards && printf %s '{text}' >{DIRECTORY}/boards/{name}"])

    def start(self) -> None:
        """Start it, and wait until its boards are on offer."""
        self._kube.apply(*self._objects, namespace="default")
        eventually("the boards to be published", self.offered, 60)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._kube.kubectl("delete", "daemonset", "board-driver", "--ignore-not-found", "--namespace=default")
        eventually("the driver to have ended", lambda: not self._kube.find("pods", "default", labels=LABEL), 30)

    def remove(self) -> None:
        """Leave nothing of it."""
        self.stop()
        for item in self._objects:
            self._kube.kubectl("delete", "--ignore-not-found", "--namespace=default", "-f-", stdin=yaml.safe_dump(item))
        self._kube.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={BOARD}")
        self._node.run(["rm", "-r", DIRECTORY])

    def slice(self) -> Object | None:
        """The slice of the node."""
        found = self._kube.find("resourceslices", fields=f"spec.driver={BOARD},spec.nodeName={NODE}")
        return found[0] if found else None

    def offered(self) -> list[tuple[str, int]]:
        """The node's boards and how many taints they have."""
        devices = (self.slice() or {"spec": {}})["spec"].get("devices", [])
        return [(device["name"], len(device.get("taints", ()))) for device in devices]

    def specs(self) -> list[str]:
        """Its CDI specs on the node."""
        return self._node.run(["sh", "-c", "ls /run/cdi | grep ^example.com-board_ || true"]).stdout.split()


@pytest.fixture
def board_driver(installation: Installation, lab: Cluster, kube: Kube) -> Iterator[BoardDriver]:
    """The other driver, running, with one board."""
    made = BoardDriver(lab, kube, installation.image)
    made.set_board("zero")
    made.start()
    yield made
    made.remove()


def test_the_driver_of_the_page_serves_a_pod_from_slice_to_container(
    board_driver: BoardDriver, lab: Cluster, kube: Kube, namespace: Namespace
) -> None:
    stopwatch = Stopwatch()
    before = board_driver.slice()
    assert before is not None
    namespace.apply(*board_driver.pod)
    namespace.wait_ready("with-board")
    stopwatch.lap("the pod is ready")
    assert namespace.printed(1, "with-board") == ["zero"]
    assert namespace.exec("with-board", "head -c 3 $BOARD_ZERO | od -An -tx1").split() == ["00"] * 3
    assert len(board_driver.specs()) == 1

    board_driver.set_board("zero", "its fan stands still")
    assert wait_health(namespace, "with-board", "Unhealthy", within=30) == "its fan stands still"
    eventually("the taint", lambda: board_driver.offered() == [("zero", 1)])
    tainted = board_driver.slice()
    steadily("the slice, which is written once", lambda: board_driver.slice() == tainted, 3)
    board_driver.set_board("zero")
    eventually("the taint to go", lambda: board_driver.offered() == [("zero", 0)])
    stopwatch.lap("its health was seen")

    lab.node(NODE).restart_kubelet()
    after = eventually("another slice", partial(_other, board_driver, before))
    stopwatch.lap("the slice is back after a restart of kubelet")
    namespace.delete_pod("with-board")
    assert board_driver.specs() == []
    assert board_driver.slice() == after
    (pod,) = kube.find("pods", "default", labels=LABEL, fields=f"spec.nodeName={NODE}")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def _other(board_driver: BoardDriver, before: Object) -> Object | None:
    """The slice, if it is not this one."""
    found = board_driver.slice()
    return found if found and found["metadata"]["uid"] != before["metadata"]["uid"] else None


def test_a_claim_of_two_drivers_waits_for_both_and_neither_disturbs_the_other(
    driver: Installation,
    lab: Cluster,
    kube: Kube,
    board_driver: BoardDriver,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
) -> None:
    files = node_files[NODE]
    wait_driver_ready(driver, NODE)
    board_driver.set_board("full")
    eventually("both boards to be on offer", lambda: len(board_driver.offered()) == 2)
    both = template("both", request("neurons", 2), request("board", device_class=BOARD))
    namespace.apply(both, template("own", request()), pod("first", templates={"both": "both"}, node=NODE))
    _wait_ready(namespace, "first")
    assert namespace.numbers("first") == [0, 1]
    assert namespace.exec("first", "ls /dev/board").strip() in {"full", "zero"}
    first = uid_of(namespace.claim_of("first", "both"))

    stopwatch = Stopwatch()
    board_driver.stop()
    namespace.kubectl("delete", "pod", "first", "--grace-period=1", "--wait=false")
    namespace.apply(
        pod("second", templates={"both": "both"}, node=NODE), pod("own", templates={"own": "own"}, node=NODE)
    )
    namespace.wait_ready("own")
    stopwatch.lap("a pod that needs only this driver is ready while the other driver is away")
    message = namespace.wait_event("second", BOARD)
    stopwatch.lap(f"kubelet says: {message}")
    lab.node(NODE).restart_kubelet()
    eventually("the slice of this driver to be there again", lambda: kube.slices(NODE))
    assert namespace.phase("second") == "Pending"
    assert namespace.pod("first") is not None

    board_driver.start()
    _wait_ready(namespace, "second")
    nudge(namespace, "first")
    wait_gone(namespace, "first")
    stopwatch.lap("one pod runs, the other is gone")
    assert first not in files.specs()
    assert set(files.checkpoint()) == {
        uid_of(namespace.claim_of("second", "both")),
        uid_of(namespace.claim_of("own", "own")),
    }
    assert namespace.numbers("second") == [0, 1]


def _wait_ready(namespace: Namespace, name: str) -> None:
    """Wait for a pod whose other driver kubelet may not have registered yet, which only kubelet knows."""

    def probe() -> bool:
        nudge(namespace, name)
        found = namespace.pod(name)
        return found is not None and is_ready(found)

    eventually(f"pod {name} to be Ready", probe, 60, every=2)
