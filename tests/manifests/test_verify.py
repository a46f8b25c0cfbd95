"""``install-dra-driver.sh --verify``: the Job, its rights, and which nodes are looked at."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.doubles.apiserver.server import ApiServer
from tests.golden import golden
from tests.manifests.support import IMAGE, NEEDS_KUBECTL, Object, documents, install, of_kind, pod_spec, rendered
from tests.manifests.test_install_flows import ENDLESS, Cluster, drives_a_terminal

pytestmark = NEEDS_KUBECTL

NODES = """\
node-a   trn2.48xlarge
node-b   trn2.48xlarge
node-c   m5.large
node-d   ml.trn1.32xlarge
node-e   <none>
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Five nodes of four kinds; every Job completes."""
    made = Cluster(tmp_path)
    made.rules.clear()
    made.reply("config ", "prod-west\n")
    made.reply("get nodes", NODES)
    made.reply("get node node-d ", "containerd://1.7.27")
    made.reply("get node ", "containerd://2.1.5")
    made.reply("get namespace ", "neuron-dra-driver|privileged")
    made.reply("get job ", "SuccessCriteriaMet=True Complete=True ")
    made.reply("-c lines", "45 ok, 0 differs, 0 not checked\n")
    made.reply("-c report", '{"kind": "HostReport"}\n')
    made.reply("apply ", "created\n")
    made.reply("create namespace ", "created\n")
    made.reply("label --overwrite namespace ", "labeled\n")
    made.reply("delete ", "deleted\n")
    monkeypatch.chdir(tmp_path)
    return made


def job(*arguments: str) -> Object:
    (found,) = rendered("--verify", *arguments, IMAGE)
    return found


@pytest.mark.parametrize("emulate", [(), ("--emulate", "trn2.48xlarge")], ids=["hardware", "emulated"])
def test_the_job_has_no_right_but_to_read(emulate: tuple[str, ...]) -> None:
    spec = pod_spec(job(*emulate))
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    on_host = {volume["name"] for volume in spec["volumes"] if "hostPath" in volume}
    assert on_host
    for container in spec["containers"] + spec.get("initContainers", []):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        }
        for mount in container["volumeMounts"]:
            assert mount["name"] not in on_host or mount["readOnly"] is True
            assert mount["mountPath"].startswith("/host")


def test_it_mounts_what_is_read_and_not_the_whole_host() -> None:
    paths = [volume["hostPath"]["path"] for volume in pod_spec(job("--kubelet-root", "/data/kubelet"))["volumes"]]
    assert sorted(paths) == [
        "/data/kubelet/device-plugins",
        "/data/kubelet/plugins_registry",
        "/data/kubelet/pod-resources",
        "/opt",
        "/sys/bus",
        "/sys/class",
        "/sys/devices",
        "/sys/module",
    ]
    mounts = pod_spec(job("--kubelet-root", "/data/kubelet"))["containers"][0]["volumeMounts"]
    assert "/host/var/lib/kubelet/plugins_registry" in [mount["mountPath"] for mount in mounts]


def test_one_node_of_each_neuron_type_is_looked_at(cluster: Cluster, tmp_path: Path) -> None:
    result = cluster.run("--verify", IMAGE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("45 ok") == 2
    assert sorted(path.name for path in tmp_path.glob("verify-*")) == [
        "verify-ml.trn1.32xlarge.json",
        "verify-trn2.48xlarge.json",
    ]
    assert json.loads((tmp_path / "verify-trn2.48xlarge.json").read_text())["kind"] == "HostReport"
    jobs = [of_kind(documents(call["stdin"]), "Job") for call in cluster.log() if call["line"] == "apply -f -"]
    assert [item["metadata"]["name"] for item in jobs] == [
        "neuron-verify-trn2-48xlarge",
        "neuron-verify-ml-trn1-32xlarge",
    ]
    for item, node, runtime in zip(
        jobs, ("node-a", "node-d"), ("containerd://2.1.5", "containerd://1.7.27"), strict=True
    ):
        required = pod_spec(item)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required == {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        }
        assert [entry["args"] for entry in pod_spec(item)["containers"]] == [["--container-runtime", runtime]] * 2
        assert not {container["image"] for container in pod_spec(item)["containers"]} - {IMAGE}
    assert not [line for line in cluster.calls if line.startswith("delete namespace")]


def test_a_namespace_that_was_made_for_it_is_removed(cluster: Cluster) -> None:
    cluster.reply("get namespace ", "")
    assert cluster.run("--verify", IMAGE).returncode == 0
    assert "create namespace neuron-dra-driver" in cluster.calls
    assert cluster.calls[-1] == "delete namespace neuron-dra-driver --wait=false"


def test_no_job_runs_in_a_namespace_of_somebody_else(cluster: Cluster) -> None:
    cluster.reply("get namespace ", "neuron-dra-driver|")
    assert cluster.run("--verify", IMAGE).returncode == 1
    assert not [line for line in cluster.calls if {"label", "create", "apply"} & set(line.split())]


def test_a_line_that_differs_fails_after_all_nodes_were_looked_at(cluster: Cluster) -> None:
    cluster.reply("get job ", "Failed=True ")
    result = cluster.run("--verify", IMAGE)
    assert result.returncode == 1
    assert result.stdout.count("45 ok") == 2
    golden(result.stderr)


def test_a_job_without_a_result_is_told_with_where_to_look(cluster: Cluster) -> None:
    cluster.reply("get job ", "")
    result = cluster.run("--verify", "--timeout", "1", IMAGE)
    assert result.returncode == 1
    assert "describe pods -l job-name=neuron-verify-trn2-48xlarge" in result.stderr


def nodes_of(cluster: Cluster) -> list[str]:
    """The nodes on which Jobs were to run, one after the other."""
    jobs = [of_kind(documents(call["stdin"]), "Job") for call in cluster.log() if call["line"] == "apply -f -"]
    rules = [
        pod_spec(item)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] for item in jobs
    ]
    return [rule["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] for rule in rules]


MANY = "".join(f"node-{letter}   trn2.48xlarge\n" for letter in "abcd") + "node-e   inf2.48xlarge\n"


@pytest.mark.parametrize(
    ("silent", "tried"),
    [(1, ["node-a", "node-b"]), (2, ["node-a", "node-b", "node-c"]), (3, ["node-a", "node-b", "node-c"])],
)
def test_another_node_of_the_type_is_tried_where_one_gives_no_result(
    cluster: Cluster, tmp_path: Path, silent: int, tried: list[str]
) -> None:
    cluster.reply("get nodes", MANY)
    jobs = ("neuron-verify-trn2-48xlarge", "neuron-verify-trn2-48xlarge-2", "neuron-verify-trn2-48xlarge-3")
    cluster.rules = {**{f"get job {name} ": [("", "", 0)] for name in jobs[:silent]}, **cluster.rules}
    result = cluster.run("--verify", "--timeout", "1", IMAGE)
    assert nodes_of(cluster) == [*tried, "node-e"]
    assert (tmp_path / "verify-trn2.48xlarge.json").exists() == (silent < 3)
    assert (tmp_path / "verify-inf2.48xlarge.json").exists()
    assert result.returncode == 1
    golden(result.stderr)


def test_a_line_that_differs_is_a_result_and_no_other_node_is_tried(cluster: Cluster) -> None:
    cluster.reply("get nodes", MANY)
    cluster.reply("get job ", "Failed=True ")
    assert cluster.run("--verify", IMAGE).returncode == 1
    assert nodes_of(cluster) == ["node-a", "node-e"]


@pytest.mark.parametrize("command", ENDLESS)
def test_a_log_without_an_end_holds_up_no_other_node(cluster: Cluster, tmp_path: Path, command: str) -> None:
    cluster.reply("get nodes", MANY)
    cluster.misbehave(" logs job/neuron-verify-trn2-48xlarge -c lines ", command)
    result = cluster.run("--verify", "--timeout", "1", IMAGE)
    assert nodes_of(cluster) == ["node-a", "node-b", "node-e"]
    assert len(result.stdout) < 512 << 10
    assert "warning: no result from node-a (trn2.48xlarge)\n" in result.stderr
    assert (tmp_path / "verify-inf2.48xlarge.json").exists()
    assert result.returncode == 1


def test_without_neuron_nodes_nothing_is_claimed(cluster: Cluster) -> None:
    cluster.reply("get nodes", "node-c m5.large\n")
    result = cluster.run("--verify", IMAGE)
    assert result.returncode == 1
    golden(result.stderr)


def test_nodes_without_the_label_are_named_by_another(cluster: Cluster, tmp_path: Path) -> None:
    cluster.reply("get nodes", "node-e <none>\n")
    assert cluster.run("--verify", "--node-selector", "pool=neuron", IMAGE).returncode == 0
    assert any("get nodes --no-headers -l pool=neuron" in line for line in cluster.calls)
    assert (tmp_path / "verify-none.json").exists()


INJECTED = (
    'x"], image: registry.example/any, command: [sh, -c, id], securityContext: {privileged: true, '
    "allowPrivilegeEscalation: true, capabilities: {add: [SYS_ADMIN]}}} #"
)


@pytest.mark.parametrize(
    "runtime",
    [
        f"containerd://2.1.5\nnode-b   trn2.48xlarge   {INJECTED}",
        f"containerd://2.1.5\nvictim   inf1.xlarge   {INJECTED}",
        INJECTED,
        f"containerd://2.1.5{INJECTED}",
        'containerd://2.1.5"',
        "containerd://2.1.5\n\\",
        "containerd://../../etc",
        "containerd://" + "9" * 64,
        "--container-runtime",
        "\x1b]0;owned\x07",
        "containerd://\u202e2.1.5\u200b",
        "",
    ],
)
def test_a_node_chooses_nothing_of_the_job(cluster: Cluster, runtime: str) -> None:
    """A kubelet writes its Node's ``nodeInfo`` as it likes."""
    with ApiServer() as api:
        for name, says in (
            ("node-a", runtime),
            ("node-b", "containerd://2.1.5"),
            ("node-d", "containerd://1.7.27-0ubuntu1~24.04.1"),
        ):
            kind = "ml.trn1.32xlarge" if name == "node-d" else "trn2.48xlarge"
            meta = {"name": name, "labels": {"node.kubernetes.io/instance-type": kind}}
            api.store.create("nodes", {"metadata": meta, "status": {"nodeInfo": {"containerRuntimeVersion": says}}})
        cluster.serve(api, "get nodes --no-headers", "get node")
        result = cluster.run("--verify", IMAGE)
    jobs = [of_kind(documents(call["stdin"]), "Job") for call in cluster.log() if call["line"] == "apply -f -"]
    expected = {"node-b": "containerd://2.1.5", "node-d": "containerd://1.7.27-0ubuntu1~24.04.1"}
    (dry,) = rendered("--verify", IMAGE)
    for item, node in zip(jobs, expected, strict=True):
        (term,) = pod_spec(item)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchFields"][0].pop("values") == [node]
        assert [entry.pop("args") for entry in pod_spec(item)["containers"]] == [
            ["--container-runtime", expected[node]]
        ] * 2
        template = pod_spec(copy.deepcopy(dry))
        for entry in template["containers"]:
            entry.pop("args")
        template["affinity"] = pod_spec(item)["affinity"]
        assert pod_spec(item) == template
    assert result.returncode == 1, "a node of which nothing can be said is no success"
    assert "warning: node node-a says that its container runtime is" in result.stderr
    assert not drives_a_terminal(result.stdout + result.stderr)


def test_all_nodes_that_say_nonsense_is_not_taken_for_no_nodes(cluster: Cluster) -> None:
    cluster.reply("get node ", "docker")
    cluster.reply("get node node-d ", "docker")
    result = cluster.run("--verify", IMAGE)
    assert result.returncode == 1
    assert not [line for line in cluster.calls if line.startswith("apply")]
    golden(result.stderr)


@pytest.mark.parametrize("there", [True, False])
def test_a_report_is_written_through_no_link_that_somebody_has_put_there(
    cluster: Cluster, tmp_path: Path, there: bool
) -> None:
    """A kubelet chooses what it says, and whoever made the directory, such as a clone, where it would be written."""
    mine = tmp_path / "home/.bashrc"
    mine.parent.mkdir()
    if there:
        mine.write_text("mine\n")
    (tmp_path / "verify-trn2.48xlarge.json").symlink_to("home/.bashrc")
    (tmp_path / "verify-ml.trn1.32xlarge.json").mkdir()
    result = cluster.run("--verify", IMAGE)
    assert mine.exists() == there
    assert not there or mine.read_text() == "mine\n"
    report = tmp_path / "verify-trn2.48xlarge.json"
    assert (report.is_symlink(), json.loads(report.read_text())["kind"]) == (False, "HostReport")
    assert (result.returncode, "no result from node-d (ml.trn1.32xlarge)" in result.stderr) == (1, True)


def test_what_a_kubelet_gives_as_a_log_is_bounded_and_drives_no_terminal(cluster: Cluster, tmp_path: Path) -> None:
    cluster.reply("-c lines", "\x1b]0;owned\x07 45 ok, 0 differs\n", "\x1b]0;owned\x07 kubelet says\n")
    cluster.reply("-c report", "x" * (5 << 20))
    result = cluster.run("--verify", IMAGE)
    assert "kubelet says" in result.stderr
    assert result.returncode == 1, "too long a report is none"
    assert not drives_a_terminal(result.stdout + result.stderr)
    assert not (tmp_path / "verify-trn2.48xlarge.json").exists()


def test_it_does_not_go_with_a_removal() -> None:
    result = install("--verify", "--uninstall")
    assert (result.returncode, "exclude each other" in result.stderr) == (2, True)
