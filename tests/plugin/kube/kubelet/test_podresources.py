"""kubelet's list of the devices of all containers, over real sockets: read while it arrives."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection
from h2.events import Event

from dra_driver.kube.kubelet import podresources
from dra_driver.kube.kubelet.api import podresources_v1_pb2 as api
from dra_driver.kube.kubelet.client import CallError
from dra_driver.kube.kubelet.podresources import (
    MAX_CONTAINERS,
    MAX_NAMES,
    MAX_SECONDS,
    SOCKET,
    ClaimUse,
    PodClaim,
    PodDevices,
    list_pods,
)
from dra_driver.util import runtime
from tests.calls import calls_in
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.doubles.pod_resources import answering, shared_claim
from tests.doubles.sample_driver import node_directory
from tests.golden import golden, golden_error

GPU = "example.com/gpu"
DRIVER = "gpu.example.com"
MOST_MIB = 24
"""That a list of any length may cost its reader."""


def pods(root: Path, seconds: float = 30.0) -> tuple[PodDevices, ...]:
    return list_pods(root, resources=GPU, driver=DRIVER, seconds=seconds)


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


def answer(seed: int) -> api.ListPodResourcesResponse:
    """As kubelet makes it: with resources, claims, drivers and fields of others, and parts of every length."""
    chosen = random.Random(seed)
    names = ["a", "b" * 200, GPU, f"{GPU}core", "example.org/nic"]
    found = api.ListPodResourcesResponse()
    claims = []
    for number in range(4):
        claim = api.DynamicResource(claim_name=f"claim-{number}", claim_namespace="team")
        for device in range(chosen.randrange(5)):
            cdi = [
                api.CDIDevice(name=f"{DRIVER}/device={'u' * 36}-{number}-{device}") for _ in range(chosen.randrange(3))
            ]
            claim.claim_resources.add(
                driver_name=chosen.choice([DRIVER, "nic.example.org"]),
                pool_name=f"node{chosen.randrange(2)}",
                device_name=f"gpu-{device}",
                cdi_devices=cdi,
            )
        claims.append(claim)
    for number in range(chosen.choice((0, 1, 5, 200))):
        pod = found.pod_resources.add(name=f"pod-{number}", namespace="team")
        for index in range(chosen.randrange(4)):
            container = pod.containers.add(name=f"c{index}")
            for _ in range(chosen.randrange(3)):
                ids = [str(chosen.randrange(99)) for _ in range(chosen.choice((0, 1, 40)))]
                container.devices.add(resource_name=chosen.choice(names), device_ids=ids)
            container.dynamic_resources.extend(chosen.sample(claims, chosen.randrange(4)))
    return found


def whole(message: api.ListPodResourcesResponse) -> list[tuple[Any, ...]]:
    """What a client knows that reads all of it at once."""
    found = []
    for pod in message.pod_resources:
        containers: dict[str, dict[str, set[str]]] = {}
        claims: dict[str, tuple[set[Any], set[str], set[str]]] = {}
        for container in pod.containers:
            mine = containers.setdefault(container.name, {})
            for entry in container.devices:
                if entry.resource_name.startswith(GPU):
                    mine.setdefault(entry.resource_name, set()).update(entry.device_ids)
            for claim in container.dynamic_resources:
                for device in claim.claim_resources:
                    if device.driver_name == DRIVER:
                        known = claims.setdefault(claim.claim_name, (set(), set(), set()))
                        known[0].add((device.pool_name, device.device_name))
                        known[1].update(cdi.name for cdi in device.cdi_devices)
                        known[2].add(container.name)
        found.append((pod.namespace, pod.name, containers, claims))
    return found


def seen(listed: tuple[PodDevices, ...]) -> list[tuple[Any, ...]]:
    found = []
    for pod in listed:
        containers = {name: {kind: set(ids) for kind, ids in mine.items()} for name, mine in pod.containers.items()}
        claims = {
            use.claim.name: (set(use.claim.devices), set(use.claim.cdi_devices), set(use.containers))
            for use in pod.claims
        }
        found.append((pod.namespace, pod.name, containers, claims))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_what_is_read_while_it_arrives_is_what_the_whole_message_says(root: Path, seed: int) -> None:
    message = answer(seed)
    # Fields that newer kubelets have, and older readers do not know: processors (3), memory (4).
    unknown = b"\x12\x03abc" + b"\x18\x07" + b"\x25\x00\x00\x00\x00" + b"\x29" + b"\x00" * 8
    with answering(root, lambda: message.SerializeToString() + unknown):
        assert seen(pods(root)) == whole(message)


@pytest.mark.parametrize("seed", range(8))
def test_a_message_that_is_cut_or_spoilt_is_no_answer_or_another_one(root: Path, seed: int) -> None:
    data = answer(seed + 3).SerializeToString()
    chosen = random.Random(seed)
    spoilt = [data[: chosen.randrange(len(data) + 1)] for _ in range(20)]
    for _ in range(60):
        at = chosen.randrange(len(data) + 1)
        spoilt.append(data[:at] + chosen.randbytes(chosen.randrange(1, 9)) + data[at + chosen.randrange(3) :])
    with answering(root, spoilt.pop):
        while spoilt:
            try:
                assert all(isinstance(pod.name, str) for pod in pods(root))
            except CallError as error:
                assert error.code == "INTERNAL"  # most of them


def test_a_claim_of_many_containers_costs_its_readers_a_few_megabytes(root: Path) -> None:
    """And is understood: a list of 60 MB, as 100 pods with 170 containers each make of a claim with eight devices."""
    program = (
        "import re, sys; from pathlib import Path; import dra_driver.driver.agent\n"
        "from dra_driver.kube.kubelet.podresources import list_pods\n"
        "status = Path('/proc/self/status')\n"
        "most = lambda: int(re.search(r'VmHWM:\\s+(.*) kB', status.read_text())[1])\n"
        "before = most()\n"
        f"pods = list_pods(Path(sys.argv[1]), resources={GPU!r}, driver={DRIVER!r}, seconds=120)\n"
        "uses = [use for pod in pods for use in pod.claims]\n"
        "print(len(pods), sum(len(use.containers) + use.unnamed for use in uses), len({use.claim for use in uses}))\n"
        "print(most() - before)\n"
    )
    data = shared_claim(DRIVER, pods=100, containers=170)
    with answering(root, lambda: data):
        done = subprocess.run(  # our own text
            [sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False, timeout=200
        )
    assert done.returncode == 0, done.stderr
    counts, kilobytes = done.stdout.splitlines()
    assert counts.split() == ["100", str(170 * 100), "1"]
    assert len(data) > 2 * MOST_MIB << 20
    assert int(kilobytes) < MOST_MIB << 10


def test_names_without_number_are_counted_and_only_so_many_are_kept(root: Path) -> None:
    claim = api.DynamicResource(claim_name="shared", claim_namespace="team")
    claim.claim_resources.add(driver_name=DRIVER, pool_name="node", device_name="gpu-0")
    message = api.ListPodResourcesResponse()
    for number in range(60):
        pod = message.pod_resources.add(name=f"p{number}", namespace="team")
        for index in range(300):
            container = pod.containers.add(name=f"c{index}", dynamic_resources=[claim])
            if index == 299:
                container.devices.add(resource_name=GPU, device_ids=["7"])
    with answering(root, message.SerializeToString):
        listed = pods(root)
    uses = [use for pod in listed for use in pod.claims]
    assert all(len(use.containers) + use.unnamed == 300 and len(use.containers) <= MAX_CONTAINERS for use in uses)
    assert sum(len(use.containers) for use in uses) == MAX_NAMES
    # What has devices is never left out.
    assert all(len(pod.containers) == MAX_CONTAINERS + 1 and pod.devices(GPU) == {"7"} for pod in listed)


def test_pod_resources_tell_devices_by_container_and_of_claims(root: Path) -> None:
    with DeviceManager(root) as kubelet:
        two = (Container("init", {}, init=True), Container("a", {}), Container("b", {}))
        kubelet.pods["u2"] = KnownPod("default", "two", "u2", two, claims=((DRIVER, "gpu-0"),))
        (found,) = pods(root)
    assert (found.namespace, found.name) == ("default", "two")
    assert found.containers == {"a": {}, "b": {}}
    assert found.claims == (ClaimUse(PodClaim("claim", frozenset({("node-a", "gpu-0")})), ("a", "b")),)


def test_a_kubelet_without_pod_resources_is_an_explained_error(root: Path) -> None:
    with DeviceManager(root, pod_resources=False):
        with pytest.raises(CallError, match="UNAVAILABLE") as error:
            pods(root)
        assert error.value.code == "UNAVAILABLE"
    with DeviceManager(root) as kubelet:
        kubelet.resources_fault = grpc.StatusCode.RESOURCE_EXHAUSTED
        with golden_error(CallError):
            pods(root)


@contextmanager
def saying(root: Path, data: bytes, then: str) -> Iterator[None]:
    """Kubelet's socket, behind which somebody says this, and closes the connection, keeps it, or says it on and on."""
    (root / SOCKET).parent.mkdir(exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / SOCKET))
    listener.listen()
    release = threading.Event()

    def serve() -> None:
        with listener.accept()[0] as accepted:
            accepted.recv(4096)
            accepted.sendall(data)
            if then == "hangs":
                release.wait(60)
            with suppress(OSError):
                while then == "drips" and not release.wait(0.02):
                    accepted.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        release.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    ("data", "then", "code"),
    [
        (b"", "hangs", "DEADLINE_EXCEEDED"),
        (b"", "closes", "UNAVAILABLE"),
        (bytes([0, 0, 1, 1, 4, 0, 0, 0, 0, 0x88]), "hangs", "INTERNAL"),
        (bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8), "hangs", "UNAVAILABLE"),
        (bytes([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]), "drips", "DEADLINE_EXCEEDED"),  # WINDOW_UPDATE, not answered
    ],
    ids=["silent", "closed", "an answer to nothing", "goes away", "drips"],
)
def test_who_is_silent_or_speaks_something_else_is_given_up(root: Path, data: bytes, then: str, code: str) -> None:
    with saying(root, data, then), pytest.raises(CallError) as error:
        pods(root, seconds=0.3)
    assert error.value.code == code
    golden(str(error.value))


def containers_without_devices(pods: int, containers: int) -> bytes:
    using = [api.ContainerResources(name=f"c{number}") for number in range(containers)]
    return (
        api.ListPodResourcesResponse(
            pod_resources=[api.PodResources(name="pod", namespace="tenant", containers=using)]
        ).SerializeToString()
        * pods
    )


@pytest.mark.parametrize(
    ("data", "containers", "calls_each"),
    [
        (containers_without_devices(4, 15_000), 60_000, 0.1),
        (shared_claim(DRIVER, pods=4, containers=5_000, devices=1), 20_000, 10),
    ],
    ids=["without devices", "that share a device"],
)
def test_a_short_container_costs_next_to_nothing(root: Path, data: bytes, containers: int, calls_each: float) -> None:
    """A node may have a million of them, and a list that is not read in time has the driver give out no devices."""
    with answering(root, lambda: data), calls_in(podresources) as calls:
        assert len(pods(root)) == 4
    assert calls.number < calls_each * containers


@contextmanager
def busy_once(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our own work on what has arrived first takes so long."""
    passed = 0.0
    receive = H2Connection.receive_data

    def work(http: H2Connection, data: bytes) -> list[Event]:
        nonlocal passed
        passed = seconds
        return receive(http, data)

    monkeypatch.setattr(H2Connection, "receive_data", work)
    with runtime.use(runtime.Runtime(monotonic=lambda: time.monotonic() + passed)):
        yield


def test_kubelet_has_its_time_for_itself_and_our_own_work_has_its_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = containers_without_devices(8, 15_000)  # more than is read at once
    of_kubelet = MAX_SECONDS / 2
    with answering(root, lambda: data):
        with busy_once(of_kubelet + 1, monkeypatch):  # the rest is what this machine may take besides
            assert len(pods(root, seconds=of_kubelet)) == 8
        with busy_once(MAX_SECONDS + 1, monkeypatch), golden_error(CallError):
            pods(root, seconds=of_kubelet)
