"""Input of a cluster's daemons: addresses, paths, configurations, command lines."""

import ipaddress
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from lab import cgroups, cli, controlplane, layout, machine, nodeconfig, pki
from lab.errors import LabError
from lab.layout import ClusterLayout
from lab.settings import Settings
from lab.spec import ClusterSpec

CLUSTER = ClusterLayout("default", Path("/var/lib/ndl/default"))
PROGRAMS = {
    name: Path("/cache") / name for name in (*controlplane.COMPONENTS, "kubelet", "containerd", "kubectl", "ctr")
}
V1 = """25 1 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
30 25 0:27 / /mnt/elsewhere rw - cgroup cgroup rw,memory
"""
V2 = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"


def test_a_cluster_is_shown_under_its_own_name(tmp_path: Path) -> None:
    demo = ClusterLayout("demo", tmp_path)
    demo.pki.mkdir()
    for name in ("ca.crt", "admin.crt", "admin.key"):
        (demo.pki / name).write_text(name)
    pki.write_kubeconfig(demo.kubeconfig, demo, "admin")
    written = yaml.safe_load(demo.kubeconfig.read_text())
    (context,) = written["contexts"]
    assert written["current-context"] == context["name"] == written["clusters"][0]["name"] == "demo"
    assert context["context"] == {"cluster": "demo", "user": "admin"}


def test_nodes_share_no_name_address_directory_or_group() -> None:
    nodes = [CLUSTER.node(index) for index in range(1, layout.MAX_NODES + 1)]
    for kind in ("name", "address", "pod_range", "bridge", "cgroup", "directory"):
        assert len({getattr(node, kind) for node in nodes}) == layout.MAX_NODES
    assert all(len(node.bridge) <= 15 for node in nodes)
    assert all(ipaddress.ip_address(node.address) for node in nodes)
    assert all(ipaddress.ip_network(node.pod_range) for node in nodes)


def test_a_drivers_socket_fits_into_the_kernels_limit_even_with_the_longest_directories() -> None:
    settings = Settings.from_environment({"NEURON_DRA_LAB_DIR": "/" + "x" * 23})
    node = ClusterLayout("n" * layout.MAX_NAME_LENGTH, settings.state / ("n" * layout.MAX_NAME_LENGTH)).node(99)
    assert len(str(node.kubelet / "plugins/neuron.aws.com/dra.sock")) <= 107
    assert len(str(node.containerd_socket)) <= 107


@pytest.mark.parametrize(
    "environment",
    [{"NEURON_DRA_LAB_DIR": "relative"}, {"NEURON_DRA_CACHE": "x"}, {"NEURON_DRA_LAB_DIR": "/" + "x" * 30}],
)
def test_directories_that_cannot_work_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(LabError, match=r"[Nn]othing was done"):
        Settings.from_environment(environment)


def test_the_cache_is_where_the_environment_says() -> None:
    assert Settings.from_environment({"NEURON_DRA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}).cache == Path("/a")
    assert Settings.from_environment({"XDG_CACHE_HOME": "/b"}).cache == Path("/b/neuron-dra-driver")
    assert Settings.from_environment({}).cache == Path.home() / ".cache/neuron-dra-driver"


def test_kubelet_accepts_version_1_groups_only_where_there_are_some() -> None:
    def config(*, cgroup_v1: bool) -> dict[str, object]:
        gates = ["A=true", "B=false"]
        text = nodeconfig.kubelet_config(CLUSTER.node(2), CLUSTER, gates, cgroup_v1=cgroup_v1)
        parsed: dict[str, object] = json.loads(text)
        return parsed

    assert config(cgroup_v1=True)["failCgroupV1"] is False
    assert "failCgroupV1" not in config(cgroup_v1=False)
    assert config(cgroup_v1=False)["featureGates"] == {"A": True, "B": False}
    assert config(cgroup_v1=False)["cgroupRoot"] == "/ndl/default/n2"


def test_containerd_is_told_in_valid_toml_where_cdi_specs_are() -> None:
    config = tomllib.loads(nodeconfig.containerd_config("/usr/sbin/runc", "overlayfs"))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"


def test_the_mount_namespace_shows_the_nodes_own_directories_quoted() -> None:
    command = nodeconfig.holder_command(ClusterLayout("a", Path("/x y")).node(1), ("/opt/aws/neuron",))
    assert command[:4] == ["unshare", "--mount", "--propagation", "private"]
    assert "mount --bind '/x y/n1/cdi' /run/cdi" in command[-1]
    assert "mount --bind '/x y/n1/health' /run/neuron-health" in command[-1]
    assert "mount --bind '/x y/n1/extra/opt-aws-neuron' /opt/aws/neuron" in command[-1]


def test_the_control_plane_gets_the_apis_and_gates_that_were_asked_for() -> None:
    spec = ClusterSpec(runtime_config=("resource.k8s.io/v1beta1=true",), feature_gates=("A=true", "B=false"))
    commands = {name: controlplane.command(name, spec, CLUSTER, PROGRAMS) for name in controlplane.COMPONENTS}
    assert "--runtime-config=resource.k8s.io/v1beta1=true" in commands["kube-apiserver"]
    assert all("--feature-gates=A=true,B=false" in command for name, command in commands.items() if name != "etcd")
    assert all(command[0] == f"/cache/{name}" for name, command in commands.items())


def test_nothing_of_the_control_plane_listens_on_an_outside_address() -> None:
    listening = ("--bind-address", "--listen-client-urls", "--listen-peer-urls")
    for name in controlplane.COMPONENTS:
        for argument in controlplane.command(name, ClusterSpec(), CLUSTER, PROGRAMS):
            flag, _, value = argument.partition("=")
            if flag in listening:
                assert value.startswith(("127.0.0.1", "http://127.0.0.1:", layout.API_ADDRESS))


def test_kubelet_sets_only_the_labels_that_it_may() -> None:
    labels = {"*": {"node.kubernetes.io/instance-type": "trn2.48xlarge", "node-restriction.kubernetes.io/x": "y"}}
    command = nodeconfig.kubelet_command(CLUSTER.node(1), CLUSTER, ClusterSpec(labels=labels), Path("/k"), 7)
    assert "--node-labels=node.kubernetes.io/instance-type=trn2.48xlarge" in command
    assert command[:3] == ["nsenter", "--mount=/proc/7/ns/mnt", "--"]


def test_hierarchies_of_both_versions_are_told_apart() -> None:
    mixed = cgroups.parse_mounts(V1)
    assert mixed.tracking == Path("/sys/fs/cgroup/pids")
    assert set(mixed.all) == {Path("/sys/fs/cgroup") / name for name in ("cpu,cpuacct", "pids", "systemd", "unified")}
    assert not mixed.pure_v2
    pure = cgroups.parse_mounts(V2)
    assert pure.pure_v2
    assert pure.tracking == Path("/sys/fs/cgroup")
    with pytest.raises(LabError, match="No control groups"):
        _ = cgroups.parse_mounts("").tracking


def test_groups_of_version_2_hand_their_controllers_down_to_the_nodes(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "ndl", tmp_path / "ndl/a"):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpu memory pids rdma\n")
        (directory / "cgroup.subtree_control").write_text("cpu\n")
    cgroups.make(cgroups.Hierarchies(v1={}, v2=tmp_path), "/ndl/a/n1")
    assert (tmp_path / "ndl/a/n1").is_dir()
    # A regular file keeps only the last write; the kernel would combine them.
    assert {(path / "cgroup.subtree_control").read_text() for path in (tmp_path, tmp_path / "ndl/a")} == {"+pids"}


def test_groups_of_version_1_get_their_parents_processors(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "ndl").mkdir()
    (tmp_path / "ndl/cpuset.cpus").write_text("\n")
    cgroups.make(cgroups.Hierarchies(v1={"cpuset": tmp_path}, v2=None), "/ndl")
    assert (tmp_path / "ndl/cpuset.cpus").read_text() == "0-1\n"


def test_missing_mount_points_are_listed_parents_first(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    targets = [f"{tmp_path}/there", f"{tmp_path}/a/b", f"{tmp_path}/a/c"]
    assert machine.missing_directories(targets) == [f"{tmp_path}/a", f"{tmp_path}/a/b", f"{tmp_path}/a/c"]


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["up", "--nodes", "2"], 3),
        (["kubectl", "-n", "x", "get", "pods", "--name"], 1),
        (["--name", "kubectl", "kubectl", "get"], 3),
        (["--name=a", "exec", "node-1", "ls", "-l"], 3),
        (["kubectl", "--help"], 2),
        (["exec"], 1),
        ([], 0),
        (["--name"], 1),
    ],
)
def test_words_for_other_programs_are_handed_on_untouched(words: list[str], own: int) -> None:
    assert cli.split_passed_on(words) == (words[:own], words[own:])


def test_wrong_usage_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["fly"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_clean_removes_programs_and_images_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_DRA_CACHE", str(tmp_path))
    monkeypatch.setenv("NEURON_DRA_LAB_DIR", "/nowhere/ndl")
    for name in ("bin", "images", "others"):
        (tmp_path / name).mkdir()
    assert cli.main(["clean"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["others"]
    assert str(tmp_path / "bin") in capsys.readouterr().out


def test_an_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--nodes", "-1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: Cannot make this cluster: -1 nodes")
    assert error.count("\n") == 1


def test_nodes_are_counted_or_follow_from_ultraservers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["up", "--nodes", "8", "--ultraservers", "2x4"])
    assert "not allowed with argument" in capsys.readouterr().err
    assert cli.main(["up", "--ultraservers", "26x4"]) == 1
    assert "104 nodes were asked for" in capsys.readouterr().err
