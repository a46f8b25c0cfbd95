"""Two instances on one state directory: what the one that ends would still do, the other could not set right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.kube.objects.resource import ReportedClaim, ResourceClaim
from dra_driver.util.errors import DriverError
from tests.builders.claims import ApiServer, Node, claim
from tests.doubles.kubelet import Claim, Kubelet, KubeletError
from tests.doubles.sample_driver import DRIVER, node_directory, served
from tests.eventually import eventually
from tests.golden import golden, logged

SOON = 20.0
OLD, NEW = (f"{number:08x}-aaaa-4bbb-8ccc-000000000000" for number in (1, 2))
"""UIDs of the pods of the two instances."""
ITEM = claim(1, [4])
CLAIM = Claim(ITEM.metadata.namespace, ITEM.metadata.name, ITEM.metadata.uid, (DRIVER,))


class SlowApiServer(ApiServer):
    """Answers when it is told to."""

    def __init__(self, *claims: ResourceClaim) -> None:
        super().__init__(*claims)
        self.asked, self.go = threading.Event(), threading.Event()

    def get_claim(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> ResourceClaim:
        self.asked.set()
        assert self.go.wait(SOON)
        return super().get_claim(namespace, name, timeout=timeout, most=most)


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, ApiServer(ITEM))
    yield made
    made.checkpoint.close()


class Refusals(ClaimStatusWriter):
    """Keeps those that it hears of."""

    def __init__(self) -> None:
        self.errors: list[DriverError] = []

    def note_refused(self, _claim: ReportedClaim, error: DriverError) -> None:
        self.errors.append(error)


@contextmanager
def update(new: Node, *methods: str) -> Iterator[Kubelet]:
    """Kubelet, which has called the old instance, and now has the ``new`` one alone; then the old one goes on."""
    api = SlowApiServer(ITEM)
    status = Refusals()
    old = Node(new.root, api, status=status)
    with (
        node_directory() as root,
        Kubelet(root) as kubelet,
        ThreadPoolExecutor(len(methods) + 1) as calls,
        served(kubelet, old.preparer, pod_uid=OLD) as going,
    ):
        kubelet.wait_registered(DRIVER)
        instance = kubelet.instance(DRIVER)
        answers: list[Future[object]] = []
        for number, method in enumerate(methods, 1):
            answers.append(calls.submit(instance.call, method, [CLAIM], 45.0))
            eventually(lambda number=number: going._activity._running == number, SOON)  # type: ignore[misc]
        assert api.asked.wait(SOON)
        with served(kubelet, new.preparer, pod_uid=NEW):
            kubelet.wait_registered(DRIVER, 2)
            end = calls.submit(going.stop, SOON)
            assert all(isinstance(answer.exception(SOON), KubeletError) for answer in answers)
            yield kubelet
            api.go.set()
            end.result(SOON)
            eventually(lambda: not going._activity._running, SOON)
    assert not status.errors, "the claim says what the next instance has done"
    old.checkpoint.close()


def test_a_late_preparation_holds_no_chip_that_nobody_would_unprepare(
    new: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant's claim may wait for long, and its pod be deleted when kubelet has turned to the next instance."""
    with update(new, "NodePrepareResources") as kubelet:
        kubelet.prepare("pod-1", [CLAIM])
        kubelet.unprepare("pod-1")
    golden(*logged(caplog, "no longer waits"))
    assert not new.checkpointed()
    assert not new.cdi.list()
    assert new.prepare(new.api.put(claim(2, [4], namespace="other")))


def test_a_late_unpreparation_frees_no_chip_of_a_container_that_runs(new: Node) -> None:
    """It waited for a preparation of the same claim, which is shared by pods that come and go."""
    with update(new, "NodePrepareResources", "NodeUnprepareResources") as kubelet:
        kubelet.prepare("pod-2", [CLAIM])
    assert list(new.checkpointed().values()) == [(4,)]
    assert list(new.cdi.list()) == [ITEM.metadata.uid]
