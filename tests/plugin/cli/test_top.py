"""``dra-driver top``, and health and topology of a cluster, against an API server."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import kubectl_main, main
from tests.builders.documents import document as parsed
from tests.builders.overview import (
    CRASH_LOOP,
    CRASHED,
    add_holder,
    add_neuron_node,
    add_plugin_node,
    add_plugin_pod,
    add_waiting,
    daemon_set,
    driver_pod,
    of_a_tenant,
    of_device_plugin,
    taint,
)
from tests.builders.programs import ended
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.golden import golden

pytestmark = pytest.mark.slow

NO_ROOM = "0/3 nodes are available: 3 cannot allocate all claims. still not schedulable"
BROKEN = taint("hbm-uncorrectable")
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
"""A shell that runs the tests in the background has its children ignore the signal of Ctrl-C."""
LEFT_SCREEN = "\x1b[?1049l"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Two DRA nodes, one with a broken chip, one with a device plugin; who has chips there; a pod that waits."""
    with ApiServer() as made:
        add_neuron_node(made, "node-2")
        add_neuron_node(made, "node-10", partitions="chip.core", taints={"neuron-device-3": [BROKEN]})
        add_plugin_node(made, "old-1")
        add_holder(made, "ml", "train-0", "node-2", [f"neuron-device-{chip}" for chip in range(4, 8)])
        add_holder(made, "ml", "small", "node-10", ["neuron-core-0-0", "neuron-core-0-1"])
        add_holder(made, "web", "serve", "node-10", ["neuron-device-3"])
        add_plugin_pod(made, "web", "legacy", "old-1", "0,1")
        add_waiting(made, "ml", "big-1", NO_ROOM)
        made.store.create("pods", {"metadata": {"namespace": "ml", "name": "other"}, "spec": {"nodeName": "node-2"}})
        yield made


def shown(server: ApiServer, directory: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    kubeconfig = str(server.kubeconfig(directory / "kubeconfig"))
    assert main([*arguments, "--kubeconfig", kubeconfig]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def top(server: ApiServer, directory: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return parsed(shown(server, directory, capsys, "top", "-o", "json", *arguments))


def test_yaml_says_what_json_says(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(server, tmp_path, capsys, "top", "-A", "-o", "yaml")
    assert list(yaml.safe_load_all(text)) == [top(server, tmp_path, capsys, "-A")]


def test_without_a_terminal_top_prints_once_who_has_which_chips_and_who_waits(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(server, tmp_path, capsys, "top", "-A").splitlines()
    rows = {line.split()[0]: line for line in lines if line}
    assert "12/16  ....####........" in rows["node-2"]
    assert "14/16  +..#............  neuron3: hbm-uncorrectable" in rows["node-10"]
    assert "10/12  ##.........." in rows["old-1"]
    assert [line.split()[0] for line in lines if line.startswith(("node-", "old-"))] == ["node-2", "node-10", "old-1"]
    assert any("train-0" in line and "neuron-device-4 to 7" in line and "Running" in line for line in lines)
    assert any("big-1" in line and "4 x neuron.aws.com" in line and NO_ROOM in line for line in lines)
    assert not any("other" in line.split() for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_the_namespace_selects_pods_but_what_others_hold_is_counted(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = top(server, tmp_path, capsys, "-n", "web")
    assert {holder["pod"]["name"] for holder in found["holders"]} == {"serve", "legacy"}
    assert found["pending"] == []
    assert {node["node"]: node["counts"]["allocated"] for node in found["items"]} == {
        "node-2": 4,
        "node-10": 2,
        "old-1": 2,
    }


def test_a_namespace_that_does_not_exist_is_bad_input(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    access = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig")), "-n", "nope"]
    for command in (["top", "--once"], ["explain"], ["explain", "pod/p"]):
        assert main([*command, *access]) == 2
        golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("sort", "first"), [("name", "node-2"), ("free", "node-10"), ("sick", "node-10")], ids=["name", "free", "sick"]
)
def test_nodes_are_sorted_as_asked(
    sort: str, first: str, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert top(server, tmp_path, capsys, "--sort", sort)["items"][0]["node"] == first


def test_a_node_without_neuron_devices_is_bad_input(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add_node("plain")
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    for command in (["top"], ["health"]):
        assert main([*command, "--node-name", "plain", "--kubeconfig", kubeconfig]) == 2
        golden(capsys.readouterr().err)


def test_names_of_pods_cannot_drive_a_terminal(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_waiting(server, "ml", "evil", "\x1b[2J[red]text[/red] \N{RIGHT-TO-LEFT OVERRIDE}")
    out = shown(server, tmp_path, capsys, "top", "-n", "ml")
    assert "\x1b" not in out
    assert "[red]text[/red]" in out
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in out


def test_watching_prints_every_change_and_lists_only_once(server: ApiServer, tmp_path: Path) -> None:
    code = f"{HEED} from dra_driver.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "-A", "-w", "-o", "json"]
    command += ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        before = parsed(process.stdout.readline())
        lists = server.count("GET", watch=False)
        add_holder(server, "ml", "late", "node-2", ["neuron-device-0"])
        for line in process.stdout:
            after = parsed(line)
            # The claim and its pod are two events.
            if any(holder["pod"]["name"] == "late" and holder["status"] for holder in after["holders"]):
                break
        assert server.count("GET", watch=False) == lists
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    allocated = [frame["items"][0]["counts"]["allocated"] for frame in (before, after)]
    assert allocated == [4, 5]


def test_on_a_terminal_the_screen_follows_the_cluster_in_as_many_lines_as_there_are(
    server: ApiServer, tmp_path: Path
) -> None:
    for place in range(40):
        add_waiting(server, "ml", f"waits-{place:02}", NO_ROOM)
    code = f"{HEED} from dra_driver.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "-A"]
    command += ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (30, 120))
    with ended(subprocess.Popen(command, stdout=theirs, stdin=theirs, env=os.environ | {"TERM": "xterm"})) as process:
        os.close(theirs)
        screen = read_until(ours, "more pending pods")
        assert "train-0" in screen
        assert len(screen.split("Neuron devices of")[-1].splitlines()) <= 30
        add_holder(server, "ml", "late", "node-2", ["neuron-device-0"])
        assert "#...####" in read_until(ours, "#...####")
        process.send_signal(signal.SIGINT)
        read_until(ours, LEFT_SCREEN)
        assert process.wait(30) == 0
    os.close(ours)


def read_until(terminal: int, text: str) -> str:
    """What is written to a terminal, up to the first reading that has the text."""
    found = ""
    while text not in found:
        found += os.read(terminal, 65536).decode("utf-8", "replace")
    return found


def test_who_may_not_list_is_told_what(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.fail(403, 100, path="/resourceclaims", message="resourceclaims is forbidden")
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    for command in (
        ["top", "--once"],
        ["top", "-w"],
        ["top", "-A"],
        ["health"],
        ["topology", "node-2", "--from-cluster"],
    ):
        assert main([*command, "--kubeconfig", kubeconfig]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert "resourceclaims is forbidden" in line
        assert "ClusterRole neuron-viewer" in line


# With rights in one namespace


def refuse_whole_cluster(server: ApiServer) -> None:
    """Answer as to a user who may list nothing but the objects of namespaces."""
    server.fail(403, 10**6, path=r"/(nodes|resourceslices|devicetaintrules)$", message="nodes is forbidden")
    server.fail(403, 10**6, path=r"/v1/(pods|resourceclaims)$", message="pods is forbidden")


def test_with_rights_in_one_namespace_its_pods_and_claims_are_shown(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_plugin_pod(server, "ml", "legacy-ml", "old-1", "2,3")
    refuse_whole_cluster(server)
    arguments = ["top", "-n", "ml", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    assert main([*arguments, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    found = parsed(out)
    assert [(row["pod"]["name"], row["node"], row["description"], row["indexes"]) for row in found["holders"]] == [
        ("train-0", "node-2", "neuron-device-4 to 7", [4, 5, 6, 7]),
        ("small", "node-10", "neuron-core-0-0 and 1", [0]),
        ("legacy-ml", "old-1", "neuron-device-2 and 3", [2, 3]),
    ]
    assert [(row["pod"]["name"], row["asks"]) for row in found["pending"]] == [("big-1", "4 x neuron.aws.com")]
    assert (found["types"], found["items"]) == (None, [])
    (line,) = err.splitlines()
    golden(line)

    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["ml", "train-0"] for line in lines)
    assert not any(line.startswith(("TYPE", "node-")) for line in lines)


@pytest.mark.parametrize("more", [["-A"], ["-n", "ml", "--node-name", "node-2"]], ids=["all namespaces", "a node"])
def test_what_needs_the_whole_cluster_is_refused_with_the_rights_it_needs(
    more: list[str], server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_whole_cluster(server)
    arguments = ["top", *more, "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    golden(line)


def test_who_sees_devices_and_one_namespace_sees_sick_chips_and_no_number_of_free_ones(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail(403, 10**6, path=r"/nodes$", message="nodes is forbidden")
    server.fail(403, 10**6, path=r"/v1/(pods|resourceclaims)$", message="pods is forbidden")
    arguments = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    assert main(["top", "-n", "ml", *arguments]) == 0
    said = capsys.readouterr()
    golden(said.err + "\n".join(said.out.splitlines()[1:]))
    assert main(["health", *arguments]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["node-10", "neuron3", "unhealthy", "hbm-uncorrectable"] in [line[:4] for line in lines]


def test_without_events_the_rest_is_shown(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail(403, 100, path="/events$", message="events is forbidden")
    arguments = ["top", "-A", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    assert main(arguments) == 0
    golden(capsys.readouterr().err)


def test_one_namespace_is_followed_too(server: ApiServer, tmp_path: Path) -> None:
    refuse_whole_cluster(server)
    code = f"{HEED} from dra_driver.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "-n", "ml", "-w", "-o", "json"]
    command += ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)) as process:
        assert process.stdout is not None
        assert [row["pod"]["name"] for row in parsed(process.stdout.readline())["holders"]] == ["train-0", "small"]
        add_holder(server, "web", "elsewhere", "node-2", ["neuron-device-1"])
        add_holder(server, "ml", "late", "node-2", ["neuron-device-0"])
        for line in process.stdout:
            pods = {row["pod"]["name"] for row in parsed(line)["holders"]}
            if "late" in pods:
                break
        assert "elsewhere" not in pods
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_screen_repeats_what_is_left_out(server: ApiServer, tmp_path: Path) -> None:
    refuse_whole_cluster(server)
    code = f"{HEED} from dra_driver.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "-n", "ml"]
    command += ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (30, 120))
    terminal = os.environ | {"TERM": "xterm"}
    with ended(
        subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=subprocess.DEVNULL, env=terminal)
    ) as process:
        os.close(theirs)
        screen = read_until(ours, "big-1")
        assert "this user may not list nodes" in screen
        process.send_signal(signal.SIGINT)
        read_until(ours, LEFT_SCREEN)
        assert process.wait(30) == 0
    os.close(ours)


@pytest.mark.parametrize("permitted", [True, False], ids=["permitted", "not permitted"])
def test_a_node_that_the_daemon_set_leaves_out_is_told_with_the_clause_to_those_who_may_read_it(
    permitted: bool, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wipe_slices("node-2")
    server.store.create("daemonsets", daemon_set("driver", {"nodeSelector": {"a": "b"}}))
    if not permitted:
        server.fail(403, 10**6, path="/daemonsets$", message="daemonsets is forbidden")
    lines = shown(server, tmp_path, capsys, "top", "--once").splitlines()
    golden(next(line for line in lines if line.startswith("node-2  -")))


# Taints by administrators


def taint_rule(server: ApiServer, name: str, **selector: str) -> None:
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/under-repair", "effect": "NoSchedule"}}
    spec["taint"]["timeAdded"] = "2026-02-01T00:00:00Z"
    server.store.create("devicetaintrules", {"metadata": {"name": name}, "spec": spec})


def test_top_health_and_topology_agree_on_what_taint_rules_keep_from_pods(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taint_rule(server, "repair", driver="neuron.aws.com", pool="node-2", device="neuron-device-9")
    taint_rule(server, "theirs", driver="gpu.example.com")
    nodes = {node["node"]: node for node in top(server, tmp_path, capsys)["items"]}
    assert nodes["node-2"]["counts"] == {"total": 16, "free": 11, "allocated": 4, "sick": 1}
    assert nodes["node-2"]["chips"][9]["state"] == "tainted"
    assert nodes["node-10"]["counts"]["free"] == 14
    health = shown(server, tmp_path, capsys, "health", "--node-name", "node-2").splitlines()
    row = "node-2 neuron9 tainted example.com/under-repair:NoSchedule tainted 2026-02-01T00:00:00Z NoSchedule "
    row += "delete DeviceTaintRule repair -"
    assert row.split() in [line.split() for line in health]
    assert "tainted device: 9" in shown(server, tmp_path, capsys, "topology", "--from-cluster", "node-2")


def test_chips_that_a_rule_keeps_from_pods_are_told_together_and_with_the_rule(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taint_rule(server, "bench", driver="neuron.aws.com", pool="node-2")
    golden(shown(server, tmp_path, capsys, "health"))
    golden("\n".join(shown(server, tmp_path, capsys, "top", "--once").splitlines()[2:8]))


def test_taint_rules_are_followed(server: ApiServer, tmp_path: Path) -> None:
    code = f"{HEED} from dra_driver.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "-A", "-w", "-o", "json"]
    command += ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        free = [parsed(process.stdout.readline())["items"][0]["counts"]["free"]]
        taint_rule(server, "repair", pool="node-2", device="neuron-device-9")
        free.append(parsed(process.stdout.readline())["items"][0]["counts"]["free"])
        server.store.delete("devicetaintrules", "repair")
        free.append(parsed(process.stdout.readline())["items"][0]["counts"]["free"])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert free == [12, 11, 12]


@pytest.mark.parametrize(("status", "warns"), [(404, False), (403, True)], ids=["not served", "refused"])
def test_without_taint_rules_the_rest_is_shown(
    status: int, warns: bool, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail(status, 100, path="/devicetaintrules", reason="NotFound" if status == 404 else "Forbidden")
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    for command in (["top"], ["health"], ["topology", "node-2", "--from-cluster"]):
        assert main([*command, "--kubeconfig", kubeconfig]) == 0
        assert ("evicetaintrules" in capsys.readouterr().err.lower()) == warns


def test_older_servers_wrap_devices_in_basic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer(versions=("v1beta1",)) as server:
        add_neuron_node(server, "node-1", taints={"neuron-device-3": [BROKEN]})
        (node,) = top(server, tmp_path, capsys)["items"]
    assert (node["instanceType"], node["counts"]) == (
        "trn2.48xlarge",
        {"total": 16, "free": 15, "allocated": 0, "sick": 1},
    )


# health and topology of a cluster


def test_health_of_a_cluster_names_sick_chips_with_who_has_them(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(server, tmp_path, capsys, "health").splitlines()
    sick = [line.split() for line in lines if "unhealthy" in line]
    since = "2026-01-01T00:00:00Z"
    row = f"node-10 neuron3 unhealthy hbm-uncorrectable unhealthy {since} NoSchedule replacement web/serve"
    assert sick == [row.split()]
    assert any(line.split()[:5] == ["node-10", "15", "of", "16", "healthy"] for line in lines)


def test_health_and_top_say_of_a_node_whose_driver_crashes_that_its_chips_are_not_known(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wipe_slices("node-2")
    server.store.create("pods", driver_pod("node-2", state=CRASH_LOOP, last=CRASHED, ready=False))
    golden(shown(server, tmp_path, capsys, "health"))
    one = shown(server, tmp_path, capsys, "health", "--node-name", "node-2").splitlines()
    assert [line.split()[:3] for line in one[1:17]] == [["node-2", f"neuron{chip}", "unknown"] for chip in range(16)]
    lines = shown(server, tmp_path, capsys, "top", "-A").splitlines()
    golden("\n".join(line for line in lines if line.startswith(("NODE", "node-2", "TYPE", "trn2"))))


CRASHING: Object = {"state": CRASH_LOOP, "last": CRASHED, "ready": False}


@pytest.mark.parametrize("own", [{}, CRASHING, None], ids=["runs", "crashes", "is gone"])
def test_no_tenant_hides_a_driver_or_speaks_for_one(
    own: Object | None, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may run a DaemonSet may give it and its pods any label, and its containers say what they like."""
    if own is None:
        server.wipe_slices("node-2")
    else:
        server.store.create("pods", driver_pod("node-2", **own))
    commands = (["top"], ["top", "-o", "json"], ["health"], ["explain", "small", "-n", "ml"], ["explain", "-A"])

    def said() -> list[str]:
        access = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
        statuses = [main([*command, *access]) for command in commands]
        return [*map(str, statuses), capsys.readouterr().out]

    before = said()
    runs: Object = {}
    for number, state in enumerate((runs, CRASHING)):
        for node in ("node-2", "node-10", "old-1"):
            forged = driver_pod(node, **state)
            for kind, item in {"driver": forged, "plugin": of_device_plugin(forged)}.items():
                item["metadata"] |= {"name": f"{kind}-{node}-{number}"}
                server.store.create("pods", of_a_tenant(item))
    server.store.create("daemonsets", of_a_tenant(daemon_set("forged", {"nodeSelector": {"c": "d"}})))
    assert said() == before


def test_no_daemon_set_that_may_have_no_pods_is_told_of_in_place_of_the_drivers(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pod Security refuses pods, and no DaemonSet: any may say that it mounts a directory of the node."""
    server.wipe_slices("node-2")
    own = daemon_set("driver", {"nodeSelector": {"a": "b"}})
    server.store.create("daemonsets", {**own, "status": {"currentNumberScheduled": 2}})
    before = [shown(server, tmp_path, capsys, *command) for command in (["top", "--once"], ["health"])]
    forged = daemon_set("forged", {"tolerations": [{"operator": "Exists"}]})
    forged["metadata"] |= {"namespace": "evil", "uid": "u-evil"}
    server.store.create("daemonsets", {**forged, "status": {"currentNumberScheduled": 0}})
    about = {"kind": "DaemonSet", "namespace": "evil", "name": "forged", "uid": "u-evil"}
    event: Object = {"metadata": {"namespace": "evil", "name": "e"}, "type": "Warning", "reason": "FailedCreate"}
    server.store.create("events", {**event, "involvedObject": about, "message": "ask evil.example for help"})
    assert [shown(server, tmp_path, capsys, *command) for command in (["top", "--once"], ["health"])] == before


def test_health_of_one_node_lists_all_its_chips(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(server, tmp_path, capsys, "health", "--node-name", "node-2")
    assert len(text.splitlines()) == 17
    found = parsed(shown(server, tmp_path, capsys, "health", "--node-name", "node-10", "-o", "json"))
    (node,) = found["items"]
    assert [chip["state"] for chip in node["chips"]].count("healthy") == 15
    assert node["chips"][0]["logicalCores"] == {"total": 4, "allocated": 2}
    assert node["chips"][3]["faults"][0]["remedy"] == "replacement"


def test_topology_of_a_live_node_draws_what_pods_have(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(server, tmp_path, capsys, "topology", "--from-cluster", "node-2")
    assert "[*4*]===[*5*]" in out.replace(" ", "")
    golden(out)
    sick = shown(server, tmp_path, capsys, "topology", "--from-cluster", "node-10")
    assert "unhealthy device: 3" in sick
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    assert main(["topology", "--from-cluster", "nowhere", "--kubeconfig", kubeconfig]) == 2
    golden(capsys.readouterr().err)


def test_as_a_plugin_of_kubectl_they_read_the_cluster_without_being_told(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    for arguments, text in ((["top"], "14/16"), (["health"], "hbm-uncorr"), (["topology", "node-10"], "device: 3")):
        assert kubectl_main([*arguments, "--kubeconfig", kubeconfig]) == 0
        assert text in capsys.readouterr().out
