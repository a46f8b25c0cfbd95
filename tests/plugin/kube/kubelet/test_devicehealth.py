from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from dra_driver.kube.kubelet.api import dra_v1_pb2
from dra_driver.kube.kubelet.devicehealth import MAX_DEVICES, DeviceHealth, HealthStream
from dra_driver.kube.kubelet.dra import ClaimRef
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.util.errors import DriverError
from tests.doubles.kubelet import Kubelet
from tests.doubles.kubelet_health import MESSAGES, watch
from tests.doubles.sample_driver import DRIVER, SampleDriver, claim, client, node_directory, rpc, served
from tests.eventually import eventually
from tests.golden import golden, golden_error
from tests.paths import ROOT

V1, V1ALPHA1 = MESSAGES
BOTH = pytest.mark.parametrize("version", MESSAGES)
RELEASES = pytest.mark.parametrize("release", ["1.36", "1.37"])

UID_A, UID_B = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa"
WELL = [DeviceHealth("node-1", "gpu-0", "healthy"), DeviceHealth("node-1", "gpu-1", "healthy", "a little warm")]
SICK = [WELL[0], DeviceHealth("node-1", "gpu-1", "unhealthy", "memory errors; replace the card")]


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


@pytest.fixture
def kubelet(root: Path) -> Iterator[Kubelet]:
    with Kubelet(root) as kubelet:
        yield kubelet


def told(reply: Any) -> list[tuple[str, str, int, str]]:
    return [(d.device.pool_name, d.device.device_name, d.health, d.message) for d in reply.devices]


WELL_TOLD = [("node-1", "gpu-0", 1, ""), ("node-1", "gpu-1", 1, "a little warm")]
SICK_TOLD = [("node-1", "gpu-0", 1, ""), ("node-1", "gpu-1", 2, "memory errors; replace the card")]


def brings(stream: Any, expected: list[tuple[str, str, int, str]]) -> bool:
    return told(next(stream)) == expected


def sees(kubelet: Kubelet, health: str, message: str) -> bool:
    return kubelet.health.of(DRIVER, "node-1", "gpu-1") == (health, message)


def refusal(stream: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    call = cast("grpc.Call", caught.value)
    return call.code(), call.details() or ""


def health_of(stream: HealthStream, devices: list[DeviceHealth]) -> HealthStream:
    stream.set(devices)
    return stream


# -- what a stream brings


@BOTH
def test_a_stream_begins_with_the_whole_list_and_brings_every_change_at_once(kubelet: Kubelet, version: str) -> None:
    # The list that is repeated in time would come too late.
    health = health_of(HealthStream(period=200, timeout_seconds=500), WELL)
    before = int(time.time())
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, version, 60)
        first = next(stream)
        assert told(first) == WELL_TOLD
        assert {d.health_check_timeout_seconds for d in first.devices} == {500}
        assert all(before <= d.last_updated_time <= time.time() for d in first.devices)
        for devices, expected in ((SICK, SICK_TOLD), (WELL, WELL_TOLD), ([], [])):
            health.set(devices)
            assert told(next(stream)) == expected
        stream.cancel()


def test_the_list_is_repeated_in_time_and_an_equal_one_is_no_change(kubelet: Kubelet) -> None:
    health = health_of(HealthStream(period=0.4), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 60)
        next(stream)
        started = time.monotonic()
        health.set(list(WELL))
        for count in (1, 2):
            assert told(next(stream)) == WELL_TOLD
            # The list before may have been read late, on a busy machine.
            assert time.monotonic() - started > 0.4 * count - 0.2
        stream.cancel()


def test_what_is_repeated_is_the_health_of_now(kubelet: Kubelet) -> None:
    def hang_up() -> list[DeviceHealth]:
        raise DriverError("no word from the cards")

    looks: list[Callable[[], list[DeviceHealth]]] = [lambda: WELL]

    def look() -> list[DeviceHealth]:
        return looks[0]()

    health = health_of(HealthStream(look, period=0.1), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        for now, expected in (
            (lambda: WELL, WELL_TOLD),
            (lambda: SICK, SICK_TOLD),
            (
                hang_up,
                [
                    (*d[:2], 0, "the driver cannot determine the device's health: no word from the cards")
                    for d in SICK_TOLD
                ],
            ),
            (lambda: WELL, WELL_TOLD),
        ):
            looks[0] = now
            eventually(partial(brings, stream, expected))
        stream.cancel()


def test_news_that_comes_while_the_health_is_looked_at_is_not_undone(kubelet: Kubelet) -> None:
    def look() -> list[DeviceHealth]:
        health.set(SICK)
        return WELL

    health = health_of(HealthStream(look, period=0.1), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        assert [told(next(stream)) for _ in range(2)] == [WELL_TOLD, SICK_TOLD]
        stream.cancel()


def test_a_stream_that_is_opened_early_begins_when_the_health_is_known(kubelet: Kubelet) -> None:
    health = HealthStream(period=0.1)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        threading.Timer(0.4, health.set, [WELL]).start()
        assert told(next(stream)) == WELL_TOLD
        stream.cancel()


def test_the_last_state_of_a_flapping_device_arrives_and_its_rate_is_bounded(kubelet: Kubelet) -> None:
    health = health_of(HealthStream(), WELL)
    replies = []
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 60)
        replies.append(told(next(stream)))
        began = time.monotonic()
        while time.monotonic() < began + 0.8:
            health.set(SICK)
            health.set(WELL)
        health.set([])
        while replies[-1]:
            replies.append(told(next(stream)))
        elapsed = time.monotonic() - began
        stream.cancel()
    assert len(replies) <= 1 + elapsed / 0.1 + 2


@pytest.mark.parametrize(
    "devices",
    [
        [DeviceHealth("p", f"d{n}", "healthy") for n in range(MAX_DEVICES + 1)],
        [WELL[0], WELL[0]],
        [DeviceHealth("", "d", "healthy")],
        [DeviceHealth("p", "d\udcff", "healthy")],
        [DeviceHealth("p", "d", "poorly")],  # type: ignore[arg-type]
        [DeviceHealth("p" * 253, f"{n:063}", "healthy") for n in range(MAX_DEVICES)],
    ],
)
def test_a_list_that_kubelet_would_not_take_is_refused_and_the_former_stays(
    kubelet: Kubelet, devices: list[DeviceHealth]
) -> None:
    health = health_of(HealthStream(), WELL)
    with golden_error(DriverError):
        health.set(devices)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        assert told(next(stream)) == WELL_TOLD
        stream.cancel()


def test_messages_are_cut_to_what_kubelet_takes(kubelet: Kubelet) -> None:
    many = [DeviceHealth("node-1", f"gpu-{n}", "unhealthy", "ä" * 2000) for n in range(MAX_DEVICES)]
    health = health_of(HealthStream(), [DeviceHealth("p", "d", "unhealthy", "two\nlines and " + "ä" * 2000)])
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        (device,) = next(stream).devices
        assert device.message.startswith("two lines and ää")
        assert device.message.endswith("ää...")
        assert 1000 < len(device.message.encode()) <= 1024
        health.set(many)
        # This client's limit is kubelet's: 4 MiB. The former list may be repeated meanwhile.
        reply = next(found for found in stream if len(found.devices) > 1)
        assert len(reply.devices) == MAX_DEVICES
        assert {d.message[-4:] for d in reply.devices} == {"ä..."}
        stream.cancel()


@pytest.mark.parametrize(("period", "timeout"), [(20, 30), (0, 30), (-1, 30), (10, 0), (float("nan"), 30)])
def test_a_timeout_must_outlive_a_late_repetition(period: float, timeout: int) -> None:
    with golden_error(DriverError):
        HealthStream(period=period, timeout_seconds=timeout)


# -- many readers, and bad ones


def test_streams_are_bounded_and_a_closed_one_makes_room(kubelet: Kubelet) -> None:
    health = health_of(HealthStream(streams=3), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        streams = [watch(channel, version, 120) for version in (V1, V1ALPHA1, V1)]
        assert [told(next(stream)) for stream in streams] == [WELL_TOLD] * 3
        code, text = refusal(watch(channel, V1, 120))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        golden(text)
        streams.pop().cancel()

        def again() -> bool:
            stream = watch(channel, V1, 120)
            try:
                return told(next(stream)) == WELL_TOLD
            except grpc.RpcError:
                return False
            finally:
                stream.cancel()

        eventually(again)
        for stream in streams:
            stream.cancel()


def test_streams_take_no_workers_from_kubelets_calls(kubelet: Kubelet) -> None:
    driver, together = SampleDriver(), threading.Barrier(2)
    driver.on_prepare = lambda _: together.wait(30) and None
    health = health_of(HealthStream(), WELL)
    with served(kubelet, driver, workers=2, health=health) as plugin, client(plugin.endpoint) as channel:
        kubelet.wait_registered(DRIVER)
        streams = [watch(channel, V1, 120) for _ in range(4)]
        for stream in streams:
            next(stream)
        with ThreadPoolExecutor(2) as pool:
            pods = [pool.submit(kubelet.prepare, f"pod-{n}", [claim(f"c{n}")]) for n in range(2)]
            assert all(pod.result(30) for pod in pods)
        for stream in streams:
            stream.cancel()


def test_readers_that_die_leave_nothing_behind(kubelet: Kubelet, tmp_path: Path) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(
        "import sys\n"
        "from tests.doubles.kubelet_health import watch\n"
        "from tests.doubles.sample_driver import client\n"
        "with client(sys.argv[1]) as channel:\n"
        "    streams = [watch(channel, 'v1.DRAResourceHealth') for _ in range(4)]\n"
        "    print([len(next(s).devices) for s in streams], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    health = health_of(HealthStream(), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        process = subprocess.Popen(
            [sys.executable, reader, plugin.endpoint],
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "[2, 2, 2, 2]\n"
            assert refusal(watch(channel, V1, 120))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()

        def room() -> bool:
            streams = [watch(channel, V1, 120) for _ in range(4)]
            try:
                return [told(next(stream)) for stream in streams] == [WELL_TOLD] * 4
            except grpc.RpcError:
                return False
            finally:
                for stream in streams:
                    stream.cancel()

        eventually(room)


FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
"""Option of a client: it takes no more before it reads because the connection is quick."""


def test_a_slow_reader_holds_up_nobody_and_gets_the_last_list(kubelet: Kubelet) -> None:
    def list_of(word: str) -> list[DeviceHealth]:
        return [DeviceHealth("node-1", f"gpu-{n}", "unhealthy", f"{word} {'x' * 900}") for n in range(2000)]

    def begins(stream: Any, text: str) -> bool:
        return str(next(stream).devices[0].message).startswith(text)

    health = health_of(HealthStream(), list_of("first"))
    driver = SampleDriver()
    with (
        served(kubelet, driver, health=health) as plugin,
        client(plugin.endpoint, FIXED_WINDOW) as slow,
        client(plugin.endpoint) as quick,
    ):
        kubelet.wait_registered(DRIVER)
        sleeper, reader = watch(slow, V1, 120), watch(quick, V1, 120)
        next(sleeper)
        next(reader)
        for number in range(10):
            health.set(list_of(f"number {number}"))
            eventually(partial(begins, reader, f"number {number} "))
        assert kubelet.prepare("pod", [claim()])
        messages: list[str] = []
        while not messages or not messages[-1].startswith("number 9 "):
            messages.append(next(sleeper).devices[0].message)
        assert len(messages) < 9, "lists that were outdated before they could be sent are left out"
        sleeper.cancel()
        reader.cancel()


# -- the life of the server


@pytest.mark.parametrize("grace", [0, 60])
def test_open_streams_neither_hold_up_the_stop_nor_outlive_it(kubelet: Kubelet, grace: float) -> None:
    health = health_of(HealthStream(), WELL)
    with served(kubelet, SampleDriver(), health=health) as plugin, client(plugin.endpoint) as channel:
        streams = [watch(channel, version, 120) for version in MESSAGES]
        for stream in streams:
            next(stream)
        started = time.monotonic()
        plugin.stop(grace)
        assert time.monotonic() - started < 30
        for stream in streams:
            with pytest.raises((StopIteration, grpc.RpcError)):
                next(stream)
        assert refusal(watch(channel, V1, 5))[0] is grpc.StatusCode.UNAVAILABLE
        assert not [
            thread for thread in threading.enumerate() if thread.name.startswith("dra.sock-") and _streams(thread)
        ]


def _streams(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith("devicehealth.py"):
            return True
        frame = frame.f_back
    return False


def test_health_is_told_until_the_last_call_of_kubelet_has_ended(kubelet: Kubelet) -> None:
    driver, begun, heard = SampleDriver(), threading.Event(), threading.Event()

    def prepare(_: ClaimRef) -> None:
        begun.set()
        heard.wait(60)

    driver.on_prepare = prepare
    health = health_of(HealthStream(), WELL)
    with served(kubelet, driver, health=health) as plugin, client(plugin.endpoint) as channel:
        stream = watch(channel, V1, 120)
        next(stream)
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[{"namespace": "a", "name": "b", "uid": "c"}])
        with ThreadPoolExecutor(2) as pool:
            prepared = pool.submit(rpc, channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", request)
            begun.wait(30)
            stopping = pool.submit(plugin.stop, 60)
            eventually(lambda: not plugin.registration_socket.exists(), what="the stop to have begun")
            health.set(SICK)
            assert told(next(stream)) == SICK_TOLD
            heard.set()
            assert prepared.result(30).claims["c"].devices
            stopping.result(30)


# -- kubelet's side


@pytest.mark.parametrize(
    ("versions", "known"), [(("v1.DRAPlugin", "v1beta1.DRAPlugin"), "1.34"), (("v1beta1.DRAPlugin",), "1.33")]
)
def test_kubelets_that_know_no_health_register_the_driver_as_before(
    root: Path, versions: tuple[str, ...], known: str
) -> None:
    with (
        Kubelet(root, versions=versions, watches_health=None) as kubelet,
        served(kubelet, SampleDriver(), health=health_of(HealthStream(), WELL)),
    ):
        kubelet.wait_registered(DRIVER)
        assert kubelet.offered == [("v1.DRAPlugin", "v1beta1.DRAPlugin", V1, V1ALPHA1)], known
        assert kubelet.instance(DRIVER).version == versions[0]
        assert kubelet.prepare("pod", [claim()])
        assert kubelet.health.dialled == []


@RELEASES
def test_a_driver_without_health_does_not_offer_it(root: Path, release: str) -> None:
    with Kubelet(root, watches_health=release) as kubelet, served(kubelet, SampleDriver()):
        kubelet.wait_registered(DRIVER)
        assert kubelet.offered == [("v1.DRAPlugin", "v1beta1.DRAPlugin")]
        assert kubelet.prepare("pod", [claim()])
        # 1.36 dials all the same, in a thread of its own.
        dialled = [V1ALPHA1] if release == "1.36" else []
        eventually(lambda: [service for _, service in kubelet.health.dialled] == dialled)


@RELEASES
def test_kubelet_learns_of_a_fault_and_of_its_end(root: Path, release: str) -> None:
    health = health_of(HealthStream(), WELL)
    with Kubelet(root, watches_health=release) as kubelet, served(kubelet, SampleDriver(), health=health):
        kubelet.wait_registered(DRIVER)
        for devices, seen in (
            (WELL, ("Healthy", "a little warm")),
            (SICK, ("Unhealthy", "memory errors; replace the card")),
            (WELL, ("Healthy", "a little warm")),
        ):
            health.set(devices)
            eventually(partial(sees, kubelet, *seen))
        (dialled,) = {version for _, version in kubelet.health.dialled}
        assert dialled == {"1.37": V1, "1.36": V1ALPHA1}[release]


@RELEASES
def test_a_restart_of_the_driver_brings_the_stream_back(root: Path, release: str) -> None:
    with Kubelet(root, watches_health=release) as kubelet:
        for devices, seen in ((WELL, ("Healthy", WELL[1].message)), (SICK, ("Unhealthy", SICK[1].message))):
            with served(kubelet, SampleDriver(), health=health_of(HealthStream(), devices)):
                eventually(partial(sees, kubelet, *seen))
            eventually(partial(sees, kubelet, "Unknown", ""))


def test_what_the_next_instance_says_outlives_the_end_of_the_one_before_it(root: Path) -> None:
    health = health_of(HealthStream(period=0.5), SICK)
    with Kubelet(root, watches_health="1.37") as kubelet:
        with served(kubelet, SampleDriver(), pod_uid=UID_A, health=health_of(HealthStream(), WELL)):
            kubelet.wait_registered(DRIVER)
            eventually(partial(sees, kubelet, "Healthy", WELL[1].message))
            following = KubeletPlugin(
                SampleDriver(),
                DRIVER,
                plugin_dir=kubelet.plugins_dir / DRIVER,
                registrar_dir=kubelet.registry_dir,
                pod_uid=UID_B,
                health=health,
            )
            following.start()
            kubelet.wait_registered(DRIVER, instances=2)
        try:
            kubelet.wait_registered(DRIVER, instances=1)
            eventually(partial(sees, kubelet, "Unhealthy", SICK[1].message))
        finally:
            following.stop(1)


def test_a_restart_of_kubelet_brings_the_stream_back(root: Path) -> None:
    health = health_of(HealthStream(), SICK)
    with Kubelet(root, watches_health="1.37") as kubelet, served(kubelet, SampleDriver(), health=health):
        for _ in range(3):
            kubelet.restart()
            kubelet.wait_registered(DRIVER)
            eventually(lambda: kubelet.health.of(DRIVER, "node-1", "gpu-1")[0] == "Unhealthy")


def test_a_socket_that_was_deleted_costs_the_stream_one_dial(root: Path) -> None:
    health = health_of(HealthStream(), SICK)
    with (
        Kubelet(root, watches_health="1.37", redial_seconds=0.3) as kubelet,
        served(kubelet, SampleDriver(), health=health, check_interval=0.05) as plugin,
    ):
        eventually(lambda: kubelet.health.of(DRIVER, "node-1", "gpu-1")[0] == "Unhealthy")
        plugin.endpoint.unlink()
        eventually(lambda: len(kubelet.health.dialled) == 2)
        eventually(lambda: kubelet.health.of(DRIVER, "node-1", "gpu-1")[0] == "Unhealthy")


def test_a_device_that_is_left_out_turns_unknown_after_its_timeout(root: Path) -> None:
    health = health_of(HealthStream(period=0.2, timeout_seconds=1), WELL)
    with Kubelet(root, watches_health="1.37") as kubelet, served(kubelet, SampleDriver(), health=health):
        eventually(lambda: kubelet.health.of(DRIVER, "node-1", "gpu-1")[0] == "Healthy")
        health.set(WELL[:1])

        def states() -> list[str]:
            return [kubelet.health.of(DRIVER, "node-1", name)[0] for name in ("gpu-0", "gpu-1")]

        eventually(lambda: states() == ["Healthy", "Unknown"], what="its list to be repeated within the timeout")
