"""``dra-driver check-unused`` against an API server: what the chart's hook says before `helm uninstall`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.cli import check_unused
from dra_driver.cli.main import main
from dra_driver.util import runtime
from tests.doubles.apiserver.server import ApiServer
from tests.golden import golden


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        yield made


USERS = (("web-0", "u0"), ("web-1", "u1"))


def asked(server: ApiServer, directory: Path, *options: str) -> int:
    return main(["check-unused", "--kubeconfig", str(server.kubeconfig(directory / "kubeconfig")), *options])


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        pytest.param((), 0, id="none"),
        pytest.param((("idle", "neuron.aws.com", 0), ("foreign", "gpu.example.com", 1)), 0, id="unused or of others"),
        pytest.param((("mine", "neuron.aws.com", 1), ("shared", "neuron.aws.com", 2)), 1, id="used"),
        pytest.param(tuple((f"claim-{index:02}", "neuron.aws.com", 1) for index in range(13)), 1, id="many"),
    ],
)
def test_claims_that_pods_use_are_named_and_keep_the_driver(
    server: ApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    claims: tuple[tuple[str, str, int], ...],
    status: int,
) -> None:
    for name, driver, pods in claims:
        server.add_claim("team", name, devices=[("r", "neuron-device-0")], driver=driver, pods=USERS[:pods])
    assert asked(server, tmp_path) == status
    golden(capsys.readouterr().out)


@pytest.mark.parametrize(("workloads", "claims", "status"), [(0, 0, 0), (2, 0, 1), (12, 1, 1)])
def test_workloads_of_ultraservers_keep_the_driver_where_the_operator_would_go_with_it(
    server: ApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    workloads: int,
    claims: int,
    status: int,
) -> None:
    for index in range(workloads):
        meta = {"namespace": "team", "name": f"train-{index:02}"}
        server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": {}})
    for _ in range(claims):
        server.add_claim("team", "mine", devices=[("r", "neuron-device-0")], pods=USERS[:1])
    assert asked(server, tmp_path) == (1 if claims else 0), "not asked for"
    capsys.readouterr()
    assert asked(server, tmp_path, "--ultraserver-workloads") == status
    golden(capsys.readouterr().out)


def test_without_the_kind_there_is_no_workload(tmp_path: Path) -> None:
    with ApiServer(custom_versions=()) as server:
        assert asked(server, tmp_path, "--ultraserver-workloads") == 0


def test_a_group_of_pods_is_named_as_one(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.add_claim("team", "mine", devices=[("r", "neuron-device-0")])
    claim = server.store.get("resourceclaims", "team/mine")
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": "g"}
    claim["status"]["reservedFor"] = [group]
    server.store.update("resourceclaims", "team/mine", claim)
    assert asked(server, tmp_path) == 1
    assert "team/mine, used by podgroups.scheduling.k8s.io workers" in capsys.readouterr().out


def test_names_of_those_that_use_a_claim_drive_no_terminal(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add_claim("team", "mine", devices=[("r", "neuron-device-0")], pods=[("web\x1b]0;owned\x07\u202e", "u0")])
    assert asked(server, tmp_path) == 1
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if "web" in line]
    assert all(map(str.isprintable, lines))


def test_what_the_api_server_does_not_tell_is_not_taken_for_unused(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail(403, times=10)
    assert asked(server, tmp_path) == 1
    assert "error: " in capsys.readouterr().err


DRIVER = {"metadata": {"namespace": "system", "name": "driver"}, "spec": {"template": {"spec": {}}}}


def deletions(server: ApiServer) -> list[dict[str, object]]:
    return [request.body for request in server.requests if request.method == "DELETE"]


@pytest.mark.parametrize("end", ["soon", "late", "before"])
def test_drivers_that_nobody_needs_end_before_their_rights_go(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The DaemonSet stays until its last pod has ended."""
    pods_end = {"soon": lambda _: server.store.delete("daemonsets", "system/driver"), "late": lambda _: None}
    monkeypatch.setattr(check_unused, "END_SECONDS", 0.3)
    monkeypatch.setattr(runtime, "sleep", pods_end.get(end))
    if end != "before":
        server.store.create("daemonsets", DRIVER)
    assert asked(server, tmp_path, "--end", "system/driver") == 0
    golden(capsys.readouterr().out)
    assert [body["propagationPolicy"] for body in deletions(server)] == ["Foreground"] * (end != "before")


def test_drivers_that_pods_need_are_left_alone(server: ApiServer, tmp_path: Path) -> None:
    server.add_claim("team", "mine", devices=[("r", "neuron-device-0")], pods=USERS[:1])
    assert asked(server, tmp_path, "--end", "system/driver") == 1
    assert deletions(server) == []


def test_drivers_that_cannot_be_ended_stop_the_uninstallation(server: ApiServer, tmp_path: Path) -> None:
    server.store.create("daemonsets", DRIVER)
    server.fail(403, method="DELETE", times=10)
    assert asked(server, tmp_path, "--end", "system/driver") == 1
