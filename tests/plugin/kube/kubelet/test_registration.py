from __future__ import annotations

import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.kube.kubelet import server
from dra_driver.kube.kubelet.api import dra_v1_pb2
from dra_driver.kube.kubelet.grpcserver import SocketServer
from dra_driver.kube.kubelet.registration import RegistrationState
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from tests.doubles.kubelet import Kubelet, KubeletError
from tests.doubles.sample_driver import DRIVER, SampleDriver, claim, client, node_directory, rpc, served
from tests.eventually import eventually
from tests.golden import golden, golden_error

UID_A = "11111111-2222-3333-4444-555555555555"
UID_B = "66666666-7777-8888-9999-aaaaaaaaaaaa"


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


@pytest.fixture
def kubelet(root: Path) -> Iterator[Kubelet]:
    with Kubelet(root) as kubelet:
        yield kubelet


@pytest.fixture
def driver() -> SampleDriver:
    return SampleDriver()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# -- N1, N2, N13, N14: starts and restarts of either side


def test_registers_and_prepares(kubelet: Kubelet, driver: SampleDriver) -> None:
    with served(kubelet, driver) as plugin:
        kubelet.wait_registered(DRIVER)
        wanted = claim()
        (device,) = kubelet.prepare("pod", [wanted])[wanted.uid]
        assert (device.requests, device.pool, device.name) == (("gpu",), "node-1", "c")
        assert device.cdi_ids == (f"example.com/gpu={wanted.uid}",)
        kubelet.wait(lambda: plugin.registration.state is RegistrationState.REGISTERED, "registered")
        assert plugin.problems() == []
        kubelet.unprepare("pod")
        assert driver.prepared == set()


def test_registers_again_when_kubelet_restarts(kubelet: Kubelet, driver: SampleDriver) -> None:
    told: list[tuple[bool, str]] = []
    with served(kubelet, driver, on_registered=lambda ok, error: told.append((ok, error))) as plugin:
        kubelet.wait_registered(DRIVER)
        wanted = claim()
        kubelet.prepare("pod", [wanted])
        kubelet.restart()
        kubelet.wait_registered(DRIVER)
        kubelet.wait(lambda: len(told) == 2, "told of both registrations")
        assert told == [(True, "")] * 2
        assert plugin.registration.registrations == 2
        # kubelet has forgotten that the claim is prepared, and asks again.
        assert kubelet.prepare("pod", [wanted])[wanted.uid]
        assert driver.calls == [("prepare", wanted.uid)] * 2


def test_registers_with_a_kubelet_that_starts_later(root: Path, driver: SampleDriver) -> None:
    kubelet = Kubelet(root)
    with served(kubelet, driver) as plugin:
        golden(plugin.problems())
        with kubelet:
            kubelet.wait_registered(DRIVER)


def test_registers_again_when_the_plugin_restarts(kubelet: Kubelet, driver: SampleDriver) -> None:
    for _ in range(3):
        with served(kubelet, driver):
            kubelet.wait_registered(DRIVER)
            kubelet.prepare("pod", [claim()])
            kubelet.unprepare("pod")
        kubelet.wait(lambda: not kubelet.instances[DRIVER], "deregistered")


def test_kubelet_needs_one_connection(kubelet: Kubelet, driver: SampleDriver) -> None:
    with served(kubelet, driver) as plugin:
        kubelet.wait_registered(DRIVER)
        for number in range(20):
            kubelet.prepare(f"pod-{number}", [claim(f"c{number}")])

        def sockets() -> tuple[int, int]:
            lines = Path("/proc/net/unix").read_text().splitlines()
            bound = [line for line in lines if str(plugin.endpoint.parent) in line]
            return len(bound), sum(line.split()[5] == "03" for line in bound)

        # For a moment there is another one when the driver looks whether its servers answer.
        eventually(lambda: sockets() == (2, 1), what="one listening socket and one accepted connection")


def test_two_drivers_serve_one_claim_each_its_part(kubelet: Kubelet) -> None:
    one, two = SampleDriver(), SampleDriver()
    with served(kubelet, one, "one.example.com"), served(kubelet, two, "two.example.com"):
        kubelet.wait_registered("one.example.com")
        kubelet.wait_registered("two.example.com")
        shared = claim(drivers=("one.example.com", "two.example.com"))
        two.on_prepare = lambda c: (_ for _ in ()).throw(DriverError("not now"))
        with golden_error(KubeletError):
            kubelet.prepare("pod", [shared])
        kubelet.restart()  # in the middle of it
        kubelet.wait_registered("one.example.com")
        kubelet.wait_registered("two.example.com")
        two.on_prepare = lambda c: None
        assert len(kubelet.prepare("pod", [shared])[shared.uid]) == 2
        kubelet.unprepare("pod")
    assert one.calls[-1] == two.calls[-1] == ("unprepare", shared.uid)
    assert len([call for call in one.calls if call[0] == "prepare"]) == 2, "no roll-back, so it is asked again"


# -- versions: case C19


@pytest.mark.parametrize(
    ("offered", "kubelets", "spoken"),
    [
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), ("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), ("v1beta1.DRAPlugin",), "v1beta1.DRAPlugin"),
        (("v1beta1.DRAPlugin",), ("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("v1.DRAPlugin",), ("v1.DRAPlugin",), "v1.DRAPlugin"),
    ],
)
def test_kubelet_takes_the_first_version_it_has(
    root: Path, driver: SampleDriver, offered: tuple[str, ...], kubelets: tuple[str, ...], spoken: str
) -> None:
    with Kubelet(root, versions=kubelets) as kubelet, served(kubelet, driver, versions=offered):
        kubelet.wait_registered(DRIVER)
        assert kubelet.instance(DRIVER).version == spoken
        wanted = claim()
        assert kubelet.prepare("pod", [wanted])[wanted.uid][0].name == "c"
        kubelet.unprepare("pod")
        assert driver.calls == [("prepare", wanted.uid), ("unprepare", wanted.uid)]


def test_a_version_that_is_not_offered_is_not_served(kubelet: Kubelet, driver: SampleDriver) -> None:
    with (
        served(kubelet, driver, versions=["v1beta1.DRAPlugin"]) as plugin,
        client(plugin.endpoint) as channel,
        pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"),
    ):
        request = dra_v1_pb2.NodePrepareResourcesRequest()
        rpc(channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", request)


# -- refusal


def test_a_refusal_is_explained_and_shows_in_the_problems(
    root: Path, driver: SampleDriver, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[bool, str]] = []
    with (
        Kubelet(root, versions=["v2.DRAPlugin"]) as kubelet,
        served(kubelet, driver, on_registered=lambda ok, error: told.append((ok, error))) as plugin,
    ):
        kubelet.wait(lambda: len(told) >= 2, "told of repeated refusals")
        assert plugin.registration.state is RegistrationState.REFUSED
        assert "versions" in plugin.registration.error
        assert plugin.registration.refusals >= 2
        assert not any(ok for ok, _ in told)
        (problem,) = plugin.problems()
        golden(problem)
        golden(caplog.messages)
        kubelet.versions = ["v1.DRAPlugin"]
        kubelet.wait_registered(DRIVER)
        kubelet.wait(lambda: plugin.problems() == [], "no problem any more")


# -- sockets


def test_sockets_can_be_used_by_their_owner_only(kubelet: Kubelet, driver: SampleDriver) -> None:
    with served(kubelet, driver) as plugin:
        for path in (plugin.endpoint, plugin.registration_socket):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(plugin.endpoint.parent.stat().st_mode) & 0o007 == 0
        assert names(plugin.endpoint.parent) == ["dra.sock"]
        assert names(kubelet.registry_dir) == [f"{DRIVER}-reg.sock"]
    assert names(plugin.endpoint.parent) == []
    assert names(kubelet.registry_dir) == []


def test_the_service_answers_before_the_registration_socket_appears(root: Path, driver: SampleDriver) -> None:
    kubelet = Kubelet(root)
    seen: list[bool] = []
    done = threading.Event()

    def look() -> None:
        while not list(kubelet.registry_dir.glob("*.sock")):
            if done.is_set():
                return
        with client(kubelet.plugins_dir / DRIVER / "dra.sock") as channel:
            rpc(channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest())
        seen.append(True)

    looker = threading.Thread(target=look)
    looker.start()
    with served(kubelet, driver):
        looker.join(30)
        done.set()
        assert seen == [True]


def test_sockets_of_killed_instances_are_cleared_away_and_others_stay(kubelet: Kubelet, driver: SampleDriver) -> None:
    service_dir = kubelet.plugins_dir / DRIVER
    service_dir.mkdir()
    registry = kubelet.registry_dir
    dead = [
        service_dir / "dra.sock",
        service_dir / f"dra-{UID_A}.sock",
        service_dir / ".0a1b2c",
        registry / f"{DRIVER}-reg.sock",
        registry / f"{DRIVER}-{UID_A}-reg.sock",
        registry / f"{DRIVER}-Zm_2zKpbPAc-reg.sock",
    ]
    foreign = [registry / f"{DRIVER}-more-reg.sock", registry / "csi.example.com-reg.sock"]
    listening = registry / f"{DRIVER}-{UID_B}-reg.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(listening))
        listener.listen()
        for path in dead + foreign:
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(str(path))
        (service_dir / "journal").write_text("kept")
        with served(kubelet, driver):
            assert names(service_dir) == ["dra.sock", "journal"]
            ours = [f"{DRIVER}-reg.sock"]
            assert names(registry) == sorted([p.name for p in foreign] + [listening.name] + ours)


def test_a_deleted_socket_is_restored_and_kubelet_registers_again(kubelet: Kubelet, driver: SampleDriver) -> None:
    with served(kubelet, driver, check_interval=0.05) as plugin:
        kubelet.wait_registered(DRIVER)
        plugin.registration_socket.unlink()
        kubelet.wait(lambda: kubelet.registrations >= 2, "registered again")
        kubelet.wait_registered(DRIVER)
        plugin.endpoint.unlink()
        kubelet.wait(plugin.endpoint.exists, "service socket restored")
        kubelet.wait_registered(DRIVER)
        wanted = claim()
        kubelet.wait(lambda: kubelet.instance(DRIVER).connected(), "connected to the new socket")
        assert kubelet.prepare("pod", [wanted])[wanted.uid]


def test_a_call_in_flight_survives_the_restoring_of_its_socket(kubelet: Kubelet, driver: SampleDriver) -> None:
    go = threading.Event()
    driver.on_prepare = lambda c: go.wait(60) and None
    with served(kubelet, driver, check_interval=0.05) as plugin:
        kubelet.wait_registered(DRIVER)
        results: list[Any] = []
        wanted = claim()
        caller = threading.Thread(target=lambda: results.append(kubelet.prepare("pod", [wanted])))
        caller.start()
        kubelet.wait(lambda: driver.running == 1, "prepare runs")
        plugin.endpoint.unlink()
        kubelet.wait(plugin.endpoint.exists, "restored")
        go.set()
        caller.join(30)
        assert results
        assert results[0][wanted.uid]


def test_a_broken_directory_is_reported_so_that_the_process_can_end(kubelet: Kubelet, driver: SampleDriver) -> None:
    errors: list[BaseException] = []
    with served(kubelet, driver, check_interval=0.05, on_error=errors.append) as plugin:
        kubelet.wait_registered(DRIVER)
        kubelet.wait(lambda: plugin.problems() == [], "well")
        shutil.rmtree(plugin.endpoint.parent)
        kubelet.wait(lambda: bool(errors), "error reported")
        assert isinstance(errors[0], DriverError)
        assert "unix socket" in str(errors[0])
        assert any("sockets are broken" in problem for problem in plugin.problems())
        time.sleep(0.2)
        assert len(errors) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_no_longer_answers_is_reported(
    kubelet: Kubelet, driver: SampleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    with served(kubelet, driver, check_interval=0.05, on_error=errors.append) as plugin:
        kubelet.wait_registered(DRIVER)
        time.sleep(0.3)
        assert errors == []

        def break_down(*arguments: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            # gRPC's serving threads die of what they cannot handle, without telling anybody.
            patch.setattr("grpc._server._process_event_and_continue", break_down)
            patch.setattr(server, "PROBE_SECONDS", 0.2)
            kubelet.wait(lambda: bool(errors), "error reported")
        # Which of the two is found first is up to the threads that die.
        silent = next(path for path in (plugin.endpoint, plugin.registration_socket) if str(path) in str(errors[0]))
        golden(str(errors[0]).replace(str(silent), "SOCKET"))
        assert any("no longer answers" in problem for problem in plugin.problems())


def test_a_look_at_the_own_sockets_that_fails_oddly_is_not_the_last(
    kubelet: Kubelet, driver: SampleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [RuntimeError("can't start new thread")]
    real = SocketServer.answers

    def answers(own: SocketServer, seconds: float) -> bool:
        if failures:
            raise failures.pop()
        return real(own, seconds)

    monkeypatch.setattr(SocketServer, "answers", answers)
    with served(kubelet, driver, check_interval=0.05) as plugin:
        kubelet.wait_registered(DRIVER)
        kubelet.wait(lambda: not failures, "the failing look")
        plugin.registration_socket.unlink()
        kubelet.wait(lambda: kubelet.registrations >= 2, "registered again")


def test_an_error_that_no_thread_can_be_had_for_is_reported_once_there_is_one(
    kubelet: Kubelet, driver: SampleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    refused: list[str] = []
    spawn = runtime.spawn

    def refuse_once(work: Callable[[], object], name: str) -> runtime.Thread:
        if name == "on-error" and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return spawn(work, name)

    monkeypatch.setattr(runtime, "spawn", refuse_once)
    with served(kubelet, driver, check_interval=0.05, on_error=errors.append) as plugin:
        kubelet.wait_registered(DRIVER)
        shutil.rmtree(plugin.endpoint.parent)
        kubelet.wait(lambda: bool(errors), "error reported")
    assert refused == ["on-error"]


def test_a_directory_that_cannot_be_listed_is_explained(
    kubelet: Kubelet, driver: SampleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)  # root may list any directory
    with golden_error(DriverError), served(kubelet, driver):
        pass


def test_a_socket_taken_by_another_process_is_reported_and_left_to_it(kubelet: Kubelet, driver: SampleDriver) -> None:
    second = SampleDriver()
    with served(kubelet, driver, check_interval=0.05) as old:
        kubelet.wait_registered(DRIVER)
        with served(kubelet, second, check_interval=0.05) as new:
            kubelet.wait(lambda: len([p for p in old.problems() if "another process" in p]) == 2, "reported")
            old.stop(1)
            assert new.endpoint.exists()
            assert new.registration_socket.exists()
            kubelet.wait_registered(DRIVER)
            kubelet.prepare("pod", [claim()])
            assert second.calls
            assert not driver.calls


def test_something_that_is_no_socket_is_never_removed(kubelet: Kubelet, driver: SampleDriver) -> None:
    path = kubelet.registry_dir / f"{DRIVER}-reg.sock"
    path.write_text("precious")
    plugin = KubeletPlugin(driver, DRIVER, plugin_dir=kubelet.plugins_dir / DRIVER, registrar_dir=kubelet.registry_dir)
    with golden_error(DriverError):
        plugin.start()
    assert path.read_text() == "precious"
    assert names(kubelet.registry_dir) == [path.name]
    assert names(kubelet.plugins_dir / DRIVER) == [], "nothing is left behind"


def test_long_paths_get_the_short_names(root: Path, driver: SampleDriver) -> None:
    name = "a" * 20 + "." + "b" * 42  # 63 characters, the most
    deep = root / ("d" * (len("/var/lib/kubelet") - len(str(root)) - 1))
    deep.mkdir()
    assert len(str(deep)) == len("/var/lib/kubelet")
    with Kubelet(deep) as kubelet, served(kubelet, driver, name, pod_uid=UID_A) as plugin:
        for path in (plugin.registration_socket, plugin.endpoint):
            assert UID_A not in path.name
            assert len(str(path)) <= 107
        kubelet.wait_registered(name)
        kubelet.prepare("pod", [claim(drivers=(name,))])


def test_a_path_that_no_name_fits_is_explained(root: Path, driver: SampleDriver) -> None:
    with golden_error(DriverError):
        KubeletPlugin(driver, DRIVER, plugin_dir=root, registrar_dir=root / ("d" * 100))


@pytest.mark.parametrize(
    "options",
    [
        {"driver_name": "Upper.example.com"},
        {"driver_name": "a" * 64},
        {"driver_name": "../evil"},
        {"pod_uid": "../../etc"},
        {"versions": []},
        {"versions": ["v3.DRAPlugin"]},
    ],
)
def test_arguments_that_cannot_work_are_refused(root: Path, driver: SampleDriver, options: dict[str, Any]) -> None:
    with pytest.raises(DriverError):
        KubeletPlugin(driver, **{"driver_name": DRIVER, "plugin_dir": root, "registrar_dir": root, **options})


# -- rolling update (C8, section 2.11)


def test_a_rolling_update_leaves_no_gap(kubelet: Kubelet) -> None:
    old, new = SampleDriver(), SampleDriver()
    with served(kubelet, new, pod_uid=UID_B) as second:
        second.stop()
        with served(kubelet, old, pod_uid=UID_A) as first:
            kubelet.wait_registered(DRIVER)
            first_claim, second_claim, third_claim = claim("a"), claim("b"), claim("c")
            kubelet.prepare("pod-a", [first_claim])
            with served(kubelet, new, pod_uid=UID_B):
                kubelet.wait_registered(DRIVER, instances=2)
                kubelet.prepare("pod-b", [second_claim])
                first.stop()
                kubelet.wait_registered(DRIVER, instances=1)
                kubelet.prepare("pod-c", [third_claim])
                kubelet.unprepare("pod-a")
    assert old.calls == [("prepare", first_claim.uid)]
    assert new.calls == [
        ("prepare", second_claim.uid),
        ("prepare", third_claim.uid),
        ("unprepare", first_claim.uid),
    ]
    assert names(kubelet.registry_dir) == []


def test_a_failed_update_falls_back_to_the_old_instance(kubelet: Kubelet) -> None:
    old, new = SampleDriver(), SampleDriver()
    with served(kubelet, old, pod_uid=UID_A):
        kubelet.wait_registered(DRIVER)
        with served(kubelet, new, pod_uid=UID_B):
            kubelet.wait_registered(DRIVER, instances=2)
        kubelet.wait_registered(DRIVER, instances=1)
        kubelet.prepare("pod", [claim()])
    assert len(old.calls) == 1


# -- GetInfo while others work


def test_get_info_answers_while_every_worker_prepares(kubelet: Kubelet, driver: SampleDriver) -> None:
    go = threading.Event()
    driver.on_prepare = lambda c: go.wait(60) and None
    with served(kubelet, driver, workers=8):
        kubelet.wait_registered(DRIVER)
        pods = [threading.Thread(target=kubelet.prepare, args=(f"pod-{n}", [claim(f"c{n}")])) for n in range(12)]
        for pod in pods:
            pod.start()
        kubelet.wait(lambda: driver.running == 8, "all workers busy")
        # Another kubelet that sees the socket for the first time, ten times over.
        with Kubelet(kubelet.registry_dir.parent) as other:
            for _ in range(10):
                other.restart()
                other.wait_registered(DRIVER)
            assert other.failures == []
        go.set()
        for pod in pods:
            pod.join(30)
    assert len(driver.prepared) == 12


def test_a_hanging_reaction_to_registration_holds_up_nobody(kubelet: Kubelet, driver: SampleDriver) -> None:
    go = threading.Event()
    with served(kubelet, driver, on_registered=lambda ok, error: go.wait(60) and None):
        for _ in range(6):
            kubelet.restart()
            kubelet.wait_registered(DRIVER)
        assert kubelet.failures == []
        go.set()


# -- stop


def test_stop_lets_running_calls_finish_and_refuses_new_ones(kubelet: Kubelet, driver: SampleDriver) -> None:
    go = threading.Event()
    driver.on_prepare = lambda c: go.wait(60) and None
    with served(kubelet, driver) as plugin, client(plugin.endpoint) as channel:
        rpc(channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest())
        kubelet.wait_registered(DRIVER)
        instance = kubelet.instance(DRIVER)
        results: list[Any] = []
        wanted = claim()
        caller = threading.Thread(target=lambda: results.append(instance.call("NodePrepareResources", [wanted], 10)))
        # kubelet itself would cut its connection when the registration socket goes; the call is what is looked at.
        kubelet.stop_watching()
        caller.start()
        kubelet.wait(lambda: driver.running == 1, "prepare runs")
        stopper = threading.Thread(target=plugin.stop, args=(10,))
        stopper.start()
        kubelet.wait(lambda: not plugin.registration_socket.exists(), "registration socket gone")
        kubelet.wait(lambda: not plugin.endpoint.exists(), "service socket gone")
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE") as refused:
            rpc(channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest())
        golden(refused.value.details() or "")
        assert stopper.is_alive()
        assert not plugin.wait(0)
        go.set()
        caller.join(30)
        stopper.join(30)
        assert plugin.wait(0)
        assert results[0].claims[wanted.uid].error == ""


def test_stop_does_not_wait_beyond_its_grace(kubelet: Kubelet, driver: SampleDriver) -> None:
    go = threading.Event()
    driver.on_prepare = lambda c: go.wait(60) and None
    with served(kubelet, driver) as plugin:
        kubelet.wait_registered(DRIVER)
        failures: list[BaseException] = []

        def call() -> None:
            try:
                kubelet.prepare("pod", [claim()])
            except KubeletError as error:
                failures.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        kubelet.wait(lambda: driver.running == 1, "prepare runs")
        started = time.monotonic()
        plugin.stop(0.3)
        assert time.monotonic() - started < 30
        caller.join(30)
        assert failures
        go.set()


def test_stop_may_be_called_twice_and_before_start(root: Path, driver: SampleDriver) -> None:
    plugin = KubeletPlugin(driver, DRIVER, plugin_dir=root / "p", registrar_dir=root / "r")
    plugin.stop(0)
    plugin.stop(0)
    assert plugin.wait(0)


def test_the_umask_does_not_matter(kubelet: Kubelet, driver: SampleDriver) -> None:
    before = os.umask(0)
    try:
        with served(kubelet, driver) as plugin:
            assert stat.S_IMODE(plugin.endpoint.stat().st_mode) == 0o600
    finally:
        os.umask(before)
