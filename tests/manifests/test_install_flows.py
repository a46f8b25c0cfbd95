"""The installer's ways through a cluster: what it asks, waits for, refuses and says."""

from __future__ import annotations

import copy
import json
import os
import pty
import select
import shutil
import subprocess
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dra_driver.driver.node_labels import KEYS
from dra_driver.neuron.health.condition import PROBLEMS, TYPE
from dra_driver.neuron.names import PRESENT
from tests.builders.programs import ended
from tests.doubles import kubectl
from tests.doubles.apiserver.server import ApiServer
from tests.golden import golden
from tests.manifests.support import (
    IMAGE,
    INSTALLER,
    KUBECTL,
    NEEDS_KUBECTL,
    Object,
    documents,
    install,
    of_kind,
    ordered,
    pod_spec,
    printed,
    rendered,
)
from tests.paths import ROOT

pytestmark = NEEDS_KUBECTL

Reply = tuple[str, str, int]

OLD = "registry.example/neuron-dra-driver:1.2.2"
GROUPS = '{"groups":[{"name":"resource.k8s.io","versions":[%s]}]}'


def served(*versions: str) -> str:
    listed = ",".join(f'{{"groupVersion":"resource.k8s.io/{version}"}}' for version in versions)
    return GROUPS % listed


def version(minor: int) -> str:
    return f'{{\n  "major": "1",\n  "minor": "{minor}+",\n  "gitVersion": "v1.{minor}.1-eks-1"\n}}'


class Cluster:
    """A kubectl of our own: replies can be set for what occurs in its arguments.

    Only `kustomize`, which asks no cluster, is that of the real one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.command = directory / "kubectl"
        fake = kubectl.__file__
        self.command.write_text(
            f'#!/bin/sh\ncase " $* " in *" kustomize "*) exec {KUBECTL} "$@" ;; esac\n'
            f'exec {sys.executable} -S {fake} {directory} "$@"\n'
        )
        self.command.chmod(0o755)
        self.rules: dict[str, list[Reply]] = {}
        # A healthy cluster of two nodes; the slices have 16 devices each.
        self.reply("config current-context", "prod-west\n")
        self.reply("config view", "https://api.example:6443")
        self.reply("get --raw /apis/admissionregistration", '{"resources":[{"name":"validatingadmissionpolicies"}]}')
        self.reply("get --raw /apis", served("v1"))
        self.reply("get nodes -l", "node-a\nnode-b\n")
        self.reply("get nodes -L", "NAME STATUS INSTANCE-TYPE\nnode-a Ready m5.large\n")
        self.reply(
            "get nodes",
            'node-a|trn2.48xlarge|<no value>|"v1.37.1"\nnode-b|trn2.48xlarge|<no value>|"v1.37.1-eks-1"\n',
        )
        self.reply("get daemonsets --all-namespaces", "kube-system kube-proxy\n")
        # Nothing is installed yet.
        self.reply("neuron\\.aws\\.com/install-options")
        self.reply("get daemonset neuron-dra-driver-kubelet-plugin --ignore-not-found")
        self.reply("get deployment neuron-dra-driver-placer --ignore-not-found")
        self.reply("get namespace neuron-dra-driver --ignore-not-found", "")
        self.reply("get deviceclasses", "")
        self.reply("get deviceclass neuron.aws.com --ignore-not-found", "")
        self.reply("get deviceclass ", "aws.amazon.com/neuron")
        self.reply("get --raw /version", version(37))
        self.reply("apply -f -", "daemonset.apps/neuron-dra-driver-kubelet-plugin created\n")
        self.reply("rollout status daemonset", "successfully rolled out\n")
        self.reply("rollout status deployment", "successfully rolled out\n")
        self.reply("get daemonset ", "2")
        self.reply("get pods", "node-a\nnode-b\n")
        chips = " ".join(f"neuron-device-{index}" for index in range(16))
        self.reply("get resourceslices", f'node-b|{chips} |"trn2.48xlarge"\nnode-a|{chips} |"trn2.48xlarge"\n')
        self.reply("get resourceclaims", "")
        self.reply("delete ", "deleted\n")
        self.reply("rollout restart", "restarted\n")

    def reply(self, text: str, output: str = "", errors: str = "", status: int = 0) -> None:
        """Answer every call with `text` among its arguments like this."""
        self.sequence(text, [(output, errors, status)])

    def sequence(self, text: str, replies: Sequence[Reply]) -> None:
        """Answer the calls with `text` one after the other; the last answer stays."""
        self.rules[text] = list(replies)

    def installed(self, *options: str, labels: Mapping[str, str] | None = None, noted: str = "") -> None:
        """Have an installation with these options; `labels` choose its nodes as well, `noted` is in its annotation."""
        objects = rendered(*options, OLD)
        daemonset = of_kind(objects, "DaemonSet")
        if labels:
            pod_spec(daemonset)["nodeSelector"] = labels
        if noted:
            daemonset["metadata"]["annotations"] = {"neuron.aws.com/install-options": noted}
        self.has_applied(objects)

    def has_applied(self, objects: list[Object]) -> None:
        """Have these objects: the real kubectl reads of DaemonSet and Deployment what the installer asks for."""
        cases = []
        for item in objects:
            kind, name = item["kind"].lower(), item["metadata"]["name"]
            if kind in ("daemonset", "deployment"):
                file = self.directory / f"{kind}.json"
                file.write_text(json.dumps(item))
                reading = f'{KUBECTL} patch --local --filename={file} --type=merge --patch="{{}}" --output="$output"'
                cases.append(f'*" get {kind} {name} --ignore-not-found "*) for output; do :; done; exec {reading} ;;\n')
        script = self.command.read_text()
        self.command.write_text(script.replace("esac", f'esac\ncase " $* " in\n{"".join(cases)}esac', 1))
        classes = [item for item in objects if item["kind"] == "DeviceClass"]
        named = [f"{item['metadata']['name']}|{item['spec'].get('extendedResourceName', '')}\n" for item in classes]
        self.reply("get deviceclasses", "".join(named) + "efa.networking.k8s.aws|\n")

    def serve(self, api: ApiServer, *texts: str) -> None:
        """Have the real kubectl ask this API server in calls with such texts."""
        patterns = "|".join(f'*" {text} "*' for text in texts)
        asking = f'exec {KUBECTL} --server={api.url} --cache-dir={self.directory}/cache "$@"'
        script = self.command.read_text()
        self.command.write_text(script.replace("esac", f'esac\ncase " $* " in {patterns}) {asking} ;; esac', 1))

    def misbehave(self, text: str, command: str) -> None:
        """Have a command of the shell answer calls with this text, such as one that does not end."""
        script = self.command.read_text()
        self.command.write_text(script.replace("esac", f'esac\ncase " $* " in *"{text}"*) {command} ;; esac', 1))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the installer against this cluster."""
        return install(*arguments, environment=self.environment())

    def environment(self) -> dict[str, str]:
        """Write the rules; the environment that finds this kubectl."""
        (self.directory / "rules").write_text(repr(list(self.rules.items())))
        # A locale such as people have: in that of C, bash takes far less for printable.
        return {"PATH": f"{self.directory}:{os.environ['PATH']}", "KUBECTL": "kubectl", "LC_ALL": "C.UTF-8"}

    @property
    def calls(self) -> list[str]:
        """The arguments of all calls so far."""
        return [call["line"] for call in self.log()]

    @property
    def applied(self) -> str:
        """The YAML given to `kubectl apply`."""
        (text,) = [call["stdin"] for call in self.log() if "apply" in call["line"]]
        return str(text)

    @property
    def changes(self) -> list[str]:
        """Calls that change something."""
        return [line for line in self.calls if {"apply", "delete", "restart"} & set(line.split())]

    def log(self) -> list[dict[str, str]]:
        """All calls so far: arguments, what was given on stdin, the rule."""
        log = self.directory / "calls"
        return [literal_eval(call) for call in log.read_text().split("\n")[:-1]] if log.exists() else []


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_healthy_cluster_gets_the_driver_and_shows_what_is_published(cluster: Cluster) -> None:
    result = cluster.run(IMAGE)
    assert result.returncode == 0, result.stderr
    (container,) = pod_spec(of_kind(documents(cluster.applied), "DaemonSet"))["containers"]
    assert container["image"] == IMAGE
    assert "warning" not in result.stderr
    assert "prod-west" in result.stderr
    assert "https://api.example:6443" in result.stderr
    published = [line.split() for line in result.stderr.splitlines() if "devices in" in line]
    assert published == [
        ["node-a", "trn2.48xlarge", "16", "devices", "in", "1", "slice(s)"],
        ["node-b", "trn2.48xlarge", "16", "devices", "in", "1", "slice(s)"],
    ]
    assert "apply -f examples/specs/1x4-connected-devices.yaml" in result.stderr


def test_an_example_is_one_that_runs_on_what_is_published_and_slices_of_counters_count_no_device(
    cluster: Cluster,
) -> None:
    both = 'node-a|neuron-device-0 neuron-device-1 neuron-node |"trn2u.48xlarge"\nnode-a||\n'
    cluster.reply("get resourceslices", both)
    shown = cluster.run("--partitions", "chip.node", IMAGE).stderr
    golden(shown)
    assert "1x4-connected-devices.yaml" in shown
    cluster.reply("get resourceslices", 'node-a|neuron-core-0-0 neuron-core-0-1 |"inf2.xlarge"\n')
    assert "examples/specs" not in cluster.run("--partitions", "core", IMAGE).stderr


def test_nodes_of_ultraservers_are_shown_with_an_example_for_them(cluster: Cluster) -> None:
    cluster.reply("get resourceslices", 'node-a|neuron-node |"trn2u.48xlarge"\nnode-b|neuron-node |"trn2u.48xlarge"\n')
    shown = cluster.run(IMAGE).stderr
    published = [line.split() for line in shown.splitlines() if "devices in" in line]
    assert published == [
        [node, "trn2u.48xlarge", "1", "devices", "in", "1", "slice(s)"] for node in ("node-a", "node-b")
    ]
    assert "apply -f examples/specs/2-node-inference-us.yaml" in shown
    assert "1x4-connected-devices" not in shown


def test_what_is_applied_is_what_a_dry_run_prints(cluster: Cluster) -> None:
    cluster.run(IMAGE)
    assert cluster.applied == install("--dry-run", IMAGE).stdout


def test_a_namespace_of_somebody_else_is_let_in_only_by_who_may_label_it(cluster: Cluster) -> None:
    """Who is administrator there could run privileged pods, and pods with the driver's ServiceAccounts."""
    cluster.reply("get namespace neuron-dra-driver --ignore-not-found", "neuron-dra-driver|")
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    assert cluster.changes == []
    golden(result.stderr)
    cluster.reply("get namespace neuron-dra-driver --ignore-not-found", "neuron-dra-driver|baseline")
    forced = cluster.run("--force", IMAGE)
    assert forced.returncode == 0
    assert "namespace" in " ".join(line for line in forced.stderr.splitlines() if "warning" in line)


def test_a_namespace_that_lets_privileged_pods_in_is_taken_as_it_is(cluster: Cluster) -> None:
    """It was made for the driver, or is that of an installation, with or without its DaemonSet."""
    cluster.reply("get namespace neuron-dra-driver --ignore-not-found", "neuron-dra-driver|privileged")
    result = cluster.run(IMAGE)
    assert result.returncode == 0
    assert "warning" not in result.stderr


def test_the_second_run_changes_nothing_but_what_apply_finds_to_differ(cluster: Cluster) -> None:
    assert cluster.run(IMAGE).returncode == 0
    assert cluster.changes == ["apply -f -"]


def test_a_restart_is_done_only_when_asked_for(cluster: Cluster) -> None:
    assert cluster.run("--restart", IMAGE).returncode == 0
    assert cluster.changes == [
        "apply -f -",
        "-n neuron-dra-driver rollout restart daemonset/neuron-dra-driver-kubelet-plugin",
    ]


def test_without_an_image_nothing_is_asked_of_the_cluster(cluster: Cluster) -> None:
    assert cluster.run().returncode == 2
    assert cluster.calls == []


def test_a_dry_run_asks_nothing_of_the_cluster(cluster: Cluster) -> None:
    assert cluster.run("--dry-run", IMAGE).returncode == 0
    assert cluster.run("--dry-run", "--uninstall").returncode == 0
    assert cluster.calls == []


def test_kubectl_may_be_a_command_with_arguments(cluster: Cluster) -> None:
    result = cluster.run("--kubectl", "kubectl --context staging", IMAGE)
    assert result.returncode == 0
    assert cluster.calls
    assert all(line.startswith("--context staging ") for line in cluster.calls)
    assert "kubectl --context staging apply -f examples" in result.stderr


def test_a_missing_kubectl_is_named(cluster: Cluster) -> None:
    result = cluster.run("--kubectl", "oc-missing", IMAGE)
    assert result.returncode == 1
    golden(result.stderr)


def answer_on_a_terminal(cluster: Cluster, answer: str, *arguments: str) -> tuple[int, str]:
    """Run the installer with a terminal as its standard input, and type `answer` once it asks."""
    controller, terminal = pty.openpty()
    with ended(
        subprocess.Popen(
            [str(INSTALLER), *arguments], env=cluster.environment(), stdin=terminal, stdout=terminal, stderr=terminal
        )
    ) as process:
        os.close(terminal)
        said = b""
        while select.select([controller], [], [], 20)[0]:
            try:
                more = os.read(controller, 4096)
            except OSError:  # the terminal's other end is closed
                break
            asked_before = b"[y/N]" in said
            said += more
            if b"[y/N]" in said and not asked_before:
                os.write(controller, answer.encode())
        status = process.wait(30)
    os.close(controller)
    return status, said.decode()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_on_a_terminal_the_context_is_confirmed(cluster: Cluster, answer: str, status: int) -> None:
    found, said = answer_on_a_terminal(cluster, answer, IMAGE)
    assert (found, bool(cluster.changes)) == (status, status == 0), said
    assert said.index("prod-west") < said.index("[y/N]")


def test_yes_skips_the_question_on_a_terminal(cluster: Cluster) -> None:
    status, said = answer_on_a_terminal(cluster, "", "--yes", IMAGE)
    assert status == 0
    assert "[y/N]" not in said


def test_an_unreachable_api_server_ends_it_before_any_change(cluster: Cluster) -> None:
    cluster.reply("get --raw /apis", "", "connection refused\n", 1)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    assert "connection refused" in result.stderr
    assert "nothing was changed" in result.stderr
    assert cluster.changes == []


@pytest.mark.parametrize("groups", ['{"groups":[{"name":"apps"}]}', served("v1alpha3")])
def test_a_cluster_without_dra_is_refused(cluster: Cluster, groups: str) -> None:
    cluster.reply("get --raw /apis", groups)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    assert "1.34" in result.stderr
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("versions", "chosen", "folder"),
    [
        (("v1", "v1beta2", "v1beta1"), "v1", "specs/1x4"),
        (("v1beta1", "v1beta2"), "v1beta2", "specs/v1beta1/1x4"),
        (("v1alpha3", "v1beta1"), "v1beta1", "specs/v1beta1/1x4"),
    ],
)
def test_the_best_served_api_version_is_used(
    cluster: Cluster, versions: tuple[str, ...], chosen: str, folder: str
) -> None:
    cluster.reply("get --raw /apis", served(*versions))
    result = cluster.run(IMAGE)
    assert result.returncode == 0
    classes = [item for item in documents(cluster.applied) if item["kind"] == "DeviceClass"]
    assert {item["apiVersion"] for item in classes} == {f"resource.k8s.io/{chosen}"}
    assert folder in result.stderr
    assert ("warning" in result.stderr) == (chosen != "v1")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ('node-a|trn2.48xlarge|<no value>|"v1.32.9"', "1.33 is the oldest"),
        (
            'node-a|trn2.48xlarge|<no value>|"v1.34.0"\nnode-b|trn2.48xlarge|<no value>|"v1.34.2"',
            "until kubelet is updated to 1.34.2",
        ),
        ('node-a|trn2.48xlarge||"v1.34.1-eks-113cf36"', "kubernetes/kubernetes#133920"),
        ('node-a|trn1.2xlarge|1|"v1.37.1"', "device plugin"),
    ],
)
def test_nodes_that_will_make_trouble_are_named(cluster: Cluster, node: str, said: str) -> None:
    cluster.reply("get nodes", node + "\n")
    result = cluster.run(IMAGE)
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert "node node-a" in warning
    assert said in warning
    assert result.returncode == 0


@pytest.mark.parametrize("version", ["v1.34.2", "v1.34.10", "v1.33.5", "v1.36.3+k3s1"])
def test_good_kubelets_are_not_warned_of(cluster: Cluster, version: str) -> None:
    cluster.reply("get nodes", f'node-a|trn2.48xlarge|0|"{version}"\n')
    result = cluster.run(IMAGE)
    assert result.returncode == 0
    assert "warning" not in result.stderr


def test_kubelets_are_looked_at_where_the_driver_would_run(cluster: Cluster) -> None:
    assert cluster.run("--node-selector", "example.com/neuron=yes", IMAGE).returncode == 0
    (asked,) = [line for line in cluster.calls if ".kubeletVersion" in line]
    assert asked.endswith(" -l example.com/neuron=yes")


def test_nodes_that_cannot_be_listed_are_not_taken_for_good_ones(cluster: Cluster) -> None:
    cluster.reply("get nodes", "", "Forbidden\n", 1)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    golden(result.stderr)
    assert cluster.changes == []


HOSTILE = [
    "v1.37.1\nnode-b|trn2.48xlarge|<no value>|v1.34.0",
    "v1.37.1 node-b trn2.48xlarge 4",
    'v1.37.1"|node-b|4',
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b2J\r\u202e",
]
"""What a node can write wherever the API server takes any text."""


with_timeout = pytest.mark.skipif(
    not shutil.which("timeout"), reason="without `timeout`, only kubectl keeps to a limit"
)
ENDLESS = [
    pytest.param("exec yes", id="many bytes"),
    pytest.param("while sleep 0.2; do printf x; done", id="few bytes", marks=with_timeout),
    pytest.param("sleep 100", id="none", marks=with_timeout),
]
"""Logs that kubelets can give for ever."""


def drives_a_terminal(text: str) -> list[str]:
    """The characters in it that are not for print, but for the ends of lines."""
    return [character for character in text if character != "\n" and not character.isprintable()]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_node_says_of_itself_is_about_that_node_alone(cluster: Cluster, text: str) -> None:
    labels = {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
    with ApiServer() as api:
        for name, version, offered in (
            ("node-a", f"v1.34.0{text}", {"aws.amazon.com/neuron": "16"}),
            ("node-b", "v1.37.1", {}),
        ):
            node = {"metadata": {"name": name, "labels": labels}}
            api.store.create(
                "nodes", node | {"status": {"allocatable": offered, "nodeInfo": {"kubeletVersion": version}}}
            )
        cluster.serve(api, "get nodes -o")
        result = cluster.run("--node-selector", "node.kubernetes.io/instance-type=trn2.48xlarge", IMAGE)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert all(line.startswith("warning: node node-a ") for line in warnings)
    assert any("(trn2.48xlarge) offers 16 aws.amazon.com/neuron through a device plugin" in line for line in warnings)
    assert not drives_a_terminal(result.stderr)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_driver_publishes_is_shown_on_its_own_line(cluster: Cluster, text: str, version: str) -> None:
    def device(name: str, kind: str) -> Object:
        attributes = {"attributes": {"instanceType": {"string": kind}}}
        return {"name": name, **({"basic": attributes} if version == "v1beta1" else attributes)}

    devices = [device("neuron-device-0", text), device("neuron-device-1", "x")]
    with ApiServer(versions=(version,)) as api:
        for name, of_node in (("counters", []), ("chips", devices)):
            spec = {"driver": "neuron.aws.com", "nodeName": "node-a", "devices": of_node}
            api.store.create("resourceslices", {"metadata": {"name": name}, "spec": spec})
        cluster.serve(api, "get resourceslices --field-selector")
        result = cluster.run(IMAGE)
    (published,) = [line.split() for line in result.stderr.splitlines() if "devices in" in line]
    assert (published[0], published[-5:]) == ("node-a", ["2", "devices", "in", "2", "slice(s)"])
    assert not drives_a_terminal(result.stderr)


def test_what_pods_and_kubelets_write_is_shown_without_what_drives_a_terminal(cluster: Cluster) -> None:
    cluster.reply("rollout status daemonset", "", "timed out\n", 1)
    for what in ("get pods", "get events", "logs "):
        cluster.reply(what, "".join(HOSTILE) + "\n")
    named = "get pods -l app=neuron-dra-driver-kubelet-plugin --no-headers"
    cluster.rules = {named: [("pod-a false\n", "", 0)], **cluster.rules}
    result = cluster.run(IMAGE)
    assert "last events and log lines of pod-a" in result.stderr
    assert result.stderr.count("owned") == 3
    assert not drives_a_terminal(result.stderr)


@pytest.mark.parametrize("command", ENDLESS)
def test_a_log_without_an_end_keeps_nobody_from_the_rest(cluster: Cluster, command: str) -> None:
    cluster.reply("rollout status daemonset", "", "timed out\n", 1)
    named = "get pods -l app=neuron-dra-driver-kubelet-plugin --no-headers"
    cluster.rules = {named: [("pod-a false\npod-b false\n", "", 0)], **cluster.rules}
    cluster.reply("get events", "BackOff\n")
    cluster.reply("logs pod-b", "error: cannot reach the API server\n")
    cluster.misbehave(" logs pod-a ", command)
    result = cluster.run("--timeout", "1", IMAGE)
    assert "cannot reach the API server" in result.stderr
    assert "What to do:" in result.stderr
    assert len(result.stderr) < 32 << 10
    (call,) = [line for line in cluster.calls if "logs pod-b" in line]
    assert "--limit-bytes=16384" in call
    assert "--request-timeout=1s" in call, "kubectl keeps to a limit where there is no `timeout`"


def test_of_many_pods_that_are_not_ready_ten_are_explained(cluster: Cluster) -> None:
    cluster.reply("rollout status daemonset", "", "timed out\n", 1)
    named = "get pods -l app=neuron-dra-driver-kubelet-plugin --no-headers"
    pods = "".join(f"pod-{index} false\n" for index in range(13))
    cluster.rules = {named: [(pods, "", 0)], **cluster.rules}
    cluster.reply("get events", "BackOff\n")
    cluster.reply("logs ", "error\n")
    result = cluster.run(IMAGE)
    assert len([line for line in cluster.calls if " logs " in line]) == 10
    assert "3 more pods are not ready." in result.stderr


def test_the_device_plugin_of_the_vendor_is_named(cluster: Cluster) -> None:
    cluster.reply("get daemonsets --all-namespaces", "kube-system neuron-device-plugin-daemonset\nx kube-proxy\n")
    (warning,) = [line for line in cluster.run(IMAGE).stderr.splitlines() if line.startswith("warning")]
    assert "(kube-system/neuron-device-plugin-daemonset)" in warning


def test_without_admission_policies_the_rest_is_installed_and_it_is_said(cluster: Cluster) -> None:
    cluster.reply("get --raw /apis/admissionregistration", '{"resources":[]}')
    result = cluster.run(IMAGE)
    assert result.returncode == 0
    assert "ValidatingAdmissionPolicy" not in {item["kind"] for item in documents(cluster.applied)}
    assert "claim-status" not in cluster.applied, "a right that nothing would narrow"
    assert "has no ValidatingAdmissionPolicy" in result.stderr


def test_where_claims_are_to_say_nothing_the_right_is_not_given_and_one_of_before_is_taken(cluster: Cluster) -> None:
    assert cluster.run("--env", "CLAIM_STATUS=off", IMAGE).returncode == 0
    assert "neuron-dra-driver-claim-status" not in cluster.applied
    assert [text for text in cluster.changes if "delete" in text and "neuron-dra-driver-claim-status" in text]


def test_a_failed_apply_ends_it(cluster: Cluster) -> None:
    cluster.reply("apply -f -", "", "Error from server (Forbidden)\n", 1)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    golden(result.stderr)


def test_the_driver_is_waited_for_as_long_as_it_is_said(cluster: Cluster) -> None:
    assert cluster.run("--timeout", "7", IMAGE).returncode == 0
    (waited,) = [line for line in cluster.calls if "rollout status" in line]
    assert waited == "-n neuron-dra-driver rollout status daemonset/neuron-dra-driver-kubelet-plugin --timeout=7s"


def test_a_failed_start_shows_pods_events_log_and_what_to_do(cluster: Cluster) -> None:
    cluster.reply("rollout status daemonset", "", "timed out waiting for the condition\n", 1)
    ready = "custom-columns=NAME:.metadata.name,READY"
    cluster.rules = {
        f"get pods -l app=neuron-dra-driver-kubelet-plugin --no-headers -o {ready}": [
            ("plugin-1 true\nplugin-2 false\n", "", 0)
        ],
        "-o wide": [("NAME READY NODE\nplugin-2 0/1 node-b\n", "", 0)],
        **cluster.rules,
        "get events": [("BackOff   restarting failed container\n", "", 0)],
        "logs plugin-2": [("error: cannot reach the API server\n", "", 0)],
    }
    result = cluster.run("--timeout", "1", IMAGE)
    assert result.returncode == 1
    for text in ("not ready everywhere after 1 s", "node-b", "BackOff", "cannot reach the API server", "--uninstall"):
        assert text in result.stderr
    assert "logs plugin-1" not in " ".join(cluster.calls)
    assert "Published" not in result.stderr


@pytest.mark.parametrize("options", [(), ("--node-selector", "example.com/neuron=yes"), ("--emulate", "trn2.48xlarge")])
def test_no_matching_node_is_no_failure_and_is_explained(cluster: Cluster, options: tuple[str, ...]) -> None:
    cluster.reply("get daemonset ", "0")
    result = cluster.run(*options, IMAGE)
    assert result.returncode == 0
    golden(result.stderr)
    assert "m5.large" in result.stderr


RELEASES = {
    "a release": "Helm|neuron|prod",
    "a tool that renders the chart": "Helm||",
}


@pytest.mark.parametrize("marks", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("arguments", [(IMAGE,), ("--uninstall",)], ids=["install", "uninstall"])
def test_what_helm_has_installed_is_left_to_helm(cluster: Cluster, marks: str, arguments: tuple[str, ...]) -> None:
    cluster.reply("get deviceclass neuron.aws.com --ignore-not-found", marks)
    result = cluster.run(*arguments)
    assert result.returncode == 1
    golden(result.stderr)
    assert cluster.changes == []
    forced = cluster.run("--force", *arguments)
    assert forced.returncode == 0
    golden([line for line in forced.stderr.splitlines() if line.startswith("warning")], "forced")
    assert cluster.changes


def test_what_somebody_else_has_installed_is_no_release(cluster: Cluster) -> None:
    cluster.reply("get deviceclass neuron.aws.com --ignore-not-found", "kustomize||")
    assert cluster.run(IMAGE).returncode == 0


def test_the_marks_of_helm_are_those_that_the_installer_asks_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run(IMAGE)
    (asked,) = [line for line in cluster.calls if "get deviceclass neuron.aws.com --ignore-not-found" in line]
    annotations = {"meta.helm.sh/release-name": "neuron", "meta.helm.sh/release-namespace": "prod"}
    (made,) = [item for item in rendered(IMAGE) if item["metadata"]["name"] == "neuron.aws.com"]
    made["metadata"] |= {"annotations": annotations, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    # kubectl reads no DeviceClass of a file without a cluster; where metadata is, it is the same for all kinds.
    made |= {"apiVersion": "v1", "kind": "ConfigMap"}
    made.pop("spec")
    assert printed(asked.partition(" -o ")[2], made, tmp_path) == "Helm|neuron|prod"


@pytest.mark.parametrize("slices", ["", "node-a||\n", 'node-a|neuron-device-0 |"trn2.48xlarge"\nnode-b||\n'])
def test_ready_nodes_without_devices_are_not_called_a_success(cluster: Cluster, slices: str) -> None:
    cluster.reply("get resourceslices", slices)
    result = cluster.run(IMAGE)
    golden(result.stderr)


def test_ten_devices_are_not_taken_for_none(cluster: Cluster) -> None:
    cluster.reply("get resourceslices", "node-a|" + " ".join(f"d{index}" for index in range(10)) + ' |"x"\n')
    assert "warning" not in cluster.run(IMAGE).stderr


CLAIMS = (
    "default/pod0-neurons-x|neuron.aws.com neuron.aws.com|node-a node-a|neuron-device-0 neuron-device-1|pod0\n"
    "default/gpu|gpu.nvidia.com|node-a|gpu-0|pod1\n"
    "default/waiting||||\n"
    "default/lookalike|neuron.aws.com.example|node-a|neurondevice0|pod2\n"
    "default/left-over|neuron.aws.com|node-a|neurondevice5|\n"
)


FORMER = (
    "default/pod0-neurons-x|neuron.aws.com neuron.aws.com|node-a node-a|neurondevice2 neurondevice3|pod0\n"
    "default/unused|neuron.aws.com|node-a|neurondevice1|\n"
    "default/present|neuron.aws.com|node-a|neuron-device-4|pod1\n"
    "default/waiting||||\n"
)


def test_claims_under_the_names_of_the_vendors_beta_are_refused_because_their_chips_seem_free(
    cluster: Cluster,
) -> None:
    cluster.reply("get resourceclaims", FORMER)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    golden([line for line in result.stderr.splitlines() if "used by" in line])
    assert "neuron-device-0" in result.stderr
    assert cluster.changes == []
    forced = cluster.run("--force", IMAGE)
    assert forced.returncode == 0
    assert "warning: installing anyway" in forced.stderr


def test_uninstall_refuses_while_pods_use_devices(cluster: Cluster) -> None:
    cluster.reply("get resourceclaims", CLAIMS)
    result = cluster.run("--uninstall")
    assert result.returncode == 1
    golden([line for line in result.stderr.splitlines() if "used by" in line])
    assert "--force" in result.stderr
    assert cluster.changes == []


def test_forced_uninstall_says_what_becomes_of_the_pods(cluster: Cluster) -> None:
    cluster.reply("get resourceclaims", CLAIMS)
    result = cluster.run("--uninstall", "--force")
    assert result.returncode == 0
    assert "Terminating" in result.stderr
    assert cluster.changes


def test_uninstall_stops_when_it_cannot_tell_whether_devices_are_in_use(cluster: Cluster) -> None:
    cluster.reply("get resourceclaims", "", "Forbidden\n", 1)
    result = cluster.run("--uninstall")
    assert result.returncode == 1
    assert cluster.changes == []


def test_uninstall_removes_all_that_was_applied_and_the_pods_first(cluster: Cluster) -> None:
    done = cluster.run("--uninstall")
    removed = [line.removeprefix("delete --ignore-not-found ") for line in cluster.changes]
    golden(done.stderr)
    assert removed[0].startswith("-n neuron-dra-driver daemonset neuron-dra-driver-kubelet-plugin --cascade=foreground")
    text = " ".join(removed)
    for item in documents(install("--dry-run", "--placer", IMAGE).stdout):
        if item["kind"] not in ("ServiceAccount", "Role", "RoleBinding"):  # go with the namespace
            assert item["kind"].lower() in text
            assert item["metadata"]["name"] in text
    assert removed[-1] == "namespace neuron-dra-driver"
    assert "resourceslices --field-selector spec.driver=neuron.aws.com" in removed


def test_the_placer_is_waited_for_and_restarted_with_the_driver(cluster: Cluster) -> None:
    assert cluster.run("--placer", "--restart", "--timeout", "7", IMAGE).returncode == 0
    _, waited = [line for line in cluster.calls if "rollout status" in line]
    assert waited == "-n neuron-dra-driver rollout status deployment/neuron-dra-driver-placer --timeout=7s"
    assert len([line for line in cluster.calls if "rollout restart" in line]) == 2


def test_a_placer_that_does_not_become_ready_is_a_failure_that_says_where_to_look(cluster: Cluster) -> None:
    cluster.reply("rollout status deployment", "", "timed out waiting for the condition\n", 1)
    result = cluster.run("--placer", IMAGE)
    assert result.returncode == 1
    golden(result.stderr)


ITS_POLICIES = "neuron-dra-driver-placer-workloads neuron-dra-driver-placer-templates"
OF_OPERATOR = (
    "delete clusterrole neuron-ultraservers-viewer neuron-ultraservers-editor --ignore-not-found",
    "-n neuron-dra-driver delete rolebinding,role neuron-dra-driver-ultraservers --ignore-not-found",
    f"delete validatingadmissionpolicybinding,validatingadmissionpolicy {ITS_POLICIES} --ignore-not-found",
)
DEFINITIONS = "neuronultraservers.neuron.aws.com neuronultraserverworkloads.neuron.aws.com"


@pytest.mark.parametrize(
    ("there", "left_out"),
    [
        ("", set()),
        ("neuronultraservers.neuron.aws.com|placer\n", set()),
        ("neuronultraservers.neuron.aws.com|\n", {"neuronultraservers.neuron.aws.com"}),
        ("".join(f"{name}|of-aws\n" for name in DEFINITIONS.split()), set(DEFINITIONS.split())),
    ],
    ids=["none", "own", "unlabelled", "labelled"],
)
def test_definitions_of_others_stay_as_they_are(cluster: Cluster, there: str, left_out: set[str]) -> None:
    cluster.reply("get customresourcedefinitions", there)
    done = cluster.run("--ultraserver-operator", IMAGE)
    assert done.returncode == 0, done.stderr
    made = {item["metadata"]["name"] for item in documents(cluster.applied) if item["kind"].startswith("CustomRes")}
    assert made == set(DEFINITIONS.split()) - left_out
    golden([line for line in done.stderr.splitlines() if "CustomResourceDefinition" in line])


@pytest.mark.parametrize(
    ("options", "same_as"), [((), "--ultraserver-operator"), (("--reset",), "--placer")], ids=["update", "reset"]
)
def test_the_operator_is_kept_by_an_update_and_ends_with_a_reset(
    cluster: Cluster, options: tuple[str, ...], same_as: str
) -> None:
    cluster.installed("--ultraserver-operator")
    cluster.reply("get customresourcedefinitions", "")
    assert cluster.run(*options, IMAGE).returncode == 0
    assert cluster.applied == install("--dry-run", same_as, IMAGE).stdout, "the placer stays"
    assert {line in cluster.changes for line in OF_OPERATOR} == {bool(options)}


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_while_there_are_workloads_only_a_force_uninstalls(cluster: Cluster, options: tuple[str, ...]) -> None:
    cluster.installed("--ultraserver-operator")
    cluster.reply("get neuronultraserverworkloads", "  team-a/train\n  team-b/serve\n")
    done = cluster.run("--uninstall", *options)
    assert (done.returncode, bool(cluster.changes)) == ((0, True) if options else (1, False))
    golden(done.stderr.partition("Left in the cluster")[0])


def test_an_uninstallation_leaves_the_definitions_and_says_so(cluster: Cluster) -> None:
    cluster.installed("--ultraserver-operator")
    cluster.reply("get neuronultraserverworkloads", "")
    done = cluster.run("--uninstall")
    assert done.returncode == 0, done.stderr
    assert not [line for line in cluster.changes if "customresourcedefinition" in line]
    assert [line for line in cluster.changes if "neuron-ultraservers-viewer neuron-ultraservers-editor" in line]
    golden(done.stderr.partition("Left on the nodes")[0])


def test_without_admission_policies_the_placer_comes_without_its_own(cluster: Cluster) -> None:
    cluster.reply("get --raw /apis/admissionregistration", "", "not found\n", 1)
    assert cluster.run("--placer", IMAGE).returncode == 0
    assert "ValidatingAdmissionPolicy" not in cluster.applied
    assert "kind: Deployment" in cluster.applied


def test_what_is_left_on_nodes_is_all_that_the_driver_writes_there_and_the_chart_says_the_same(
    cluster: Cluster,
) -> None:
    command = cluster.run("--uninstall").stderr.partition("run\n")[2]
    label, patch = command.split("\n", 1)
    typed = subprocess.run(["bash", "-c", label.replace("kubectl", "echo")], capture_output=True, text=True, check=True)
    assert {word.removesuffix("-") for word in typed.stdout.split()[3:]} == KEYS | {PRESENT}
    change = json.loads(patch.partition("-p \\\n")[2].strip().removesuffix("; done").strip("'"))
    conditions = change["status"]["conditions"]
    assert {item["type"] for item in conditions} == {TYPE, *(problem.type for problem in PROBLEMS)}
    readme = (ROOT / "charts/neuron-helm-chart/README.md").read_text()
    assert " ".join(command.split()) in " ".join(readme.replace("$ ", "").split())


def test_uninstall_keeps_the_rest_while_the_pods_have_not_ended(cluster: Cluster) -> None:
    cluster.reply("delete ", "", "timed out waiting for the condition\n", 1)
    result = cluster.run("--uninstall")
    assert result.returncode == 1
    golden(result.stderr)
    assert len(cluster.changes) == 1


def test_uninstall_works_where_there_are_no_admission_policies(cluster: Cluster) -> None:
    cluster.reply("get --raw /apis/admissionregistration", "", "not found\n", 1)
    assert cluster.run("--uninstall").returncode == 0
    assert not [line for line in cluster.changes if "validatingadmissionpolicy" in line]


def test_a_dry_run_of_uninstall_prints_the_same_deletions(cluster: Cluster) -> None:
    printed = install("--uninstall", "--dry-run", environment={"KUBECTL": "kubectl"}).stdout.splitlines()
    cluster.run("--uninstall")
    assert printed == [f"kubectl {line}" for line in cluster.changes]


def applied_daemonset(cluster: Cluster) -> Object:
    return pod_spec(of_kind(documents(cluster.applied), "DaemonSet"))


def applied_environment(cluster: Cluster, kind: str) -> dict[str, str]:
    (container,) = pod_spec(of_kind(documents(cluster.applied), kind))["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]} | {"image": container["image"]}


def test_an_update_keeps_the_settings_that_it_is_not_told_to_change(cluster: Cluster) -> None:
    cluster.installed(
        "--emulate=trn2u.48xlarge",
        "--emulated-ultraservers=2x4",
        "--kubelet-root=/srv/kubelet",
        "--node-selector=example.com/neuron=yes",
        "--placer",
        "--group-timeout=60",
    )
    result = cluster.run(IMAGE)
    assert result.returncode == 0, result.stderr
    settings = "--emulate trn2u.48xlarge --emulated-ultraservers 2x4 --node-selector example.com/neuron=yes"
    settings += " --kubelet-root /srv/kubelet --placer --group-timeout 60"
    assert cluster.applied == install("--dry-run", *settings.split(), IMAGE).stdout


CONTROLLER, MANAGER = "system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager"


@pytest.mark.parametrize("told", [(), ("--claim-controller", CONTROLLER)], ids=["nothing", "controller"])
def test_an_update_keeps_the_settings_of_the_operator(cluster: Cluster, told: tuple[str, ...]) -> None:
    options = ("--ultraserver-operator", "--max-servers-per-namespace=7")
    cluster.installed(*options, f"--claim-controller={MANAGER}")
    cluster.reply("get customresourcedefinitions", "")
    result = cluster.run(*told, IMAGE)
    assert result.returncode == 0, result.stderr
    claims = told or ("--claim-controller", MANAGER)
    assert cluster.applied == install("--dry-run", *options, *claims, IMAGE).stdout
    assert applied_environment(cluster, "Deployment")["MAX_SERVERS_PER_NAMESPACE"] == "7"
    assert f"'{MANAGER}'" in cluster.applied or told
    assert (f"'{CONTROLLER}'" in cluster.applied) == bool(told)


KEPT = (
    "--toleration=dedicated=neuron:NoSchedule",
    "--toleration=*",
    "--image-pull-secret=registry",
    "--env=CONTIGUITY_POLICY=refuse",
    "--env=HEALTH_POLICY=/etc/it's here.yaml",
    "--resources=limits.memory=256Mi",
)
"""Options that an annotation tells the next run."""
BEFORE = documents((ROOT / "tests/data/installer-before.yaml").read_text())
BEFORE_OPTIONS = (
    "--extended-resources",
    "--emulate=trn2u.48xlarge",
    "--emulated-ultraservers=2x4",
    "--partitions=chip.core",
    "--node-selector=example.com/neuron=yes",
    "--kubelet-root=/srv/kubelet",
    "--placer",
    "--group-timeout=60",
    *KEPT,
)


def test_an_update_of_an_installation_by_the_script_of_before_keeps_every_option(cluster: Cluster) -> None:
    cluster.has_applied(BEFORE)
    cluster.reply("get deviceclasses", "chip.neuron.aws.com|aws.amazon.com/neuron\n")
    cluster.reply("get secret registry", "secret/registry\n")
    result = cluster.run(IMAGE)
    assert result.returncode == 0, result.stderr
    assert cluster.applied == install("--dry-run", *BEFORE_OPTIONS, IMAGE).stdout
    golden([line for line in result.stderr.splitlines() if line.startswith(("installed:", "will be:"))])


def test_an_update_of_an_installation_by_the_script_of_before_changes_nothing_that_cannot_be_changed() -> None:
    made = {(item["kind"], item["metadata"]["name"]): item for item in rendered(*BEFORE_OPTIONS, IMAGE)}
    for item in BEFORE:
        now = made[item["kind"], item["metadata"]["name"]]
        for field in ("apiVersion", "roleRef"):
            assert now.get(field) == item.get(field)
        assert now["metadata"].get("namespace") == item["metadata"].get("namespace")
        assert now.get("spec", {}).get("selector") == item.get("spec", {}).get("selector")
    for kind in ("DaemonSet", "Deployment"):
        before, now = (copy.deepcopy(of_kind(objects, kind)) for objects in (BEFORE, list(made.values())))
        pod_spec(before)["containers"][0]["image"] = IMAGE
        now["metadata"].pop("labels")
        before["metadata"].pop("labels", None)
        # New since then: the standard labels of pods.
        of_pods = now["spec"]["template"]["metadata"]["labels"]
        for name in [name for name in of_pods if name.startswith("app.kubernetes.io/")]:
            del of_pods[name]
        # New since then: why a container ended is in the pod's status.
        pod_spec(now)["containers"][0].pop("terminationMessagePolicy")
        # New since then: no probe ends it, and it knows from where kubelet probes.
        pod_spec(before)["containers"][0].pop("livenessProbe")
        environment = pod_spec(now)["containers"][0]["env"]
        environment.remove(next(variable for variable in environment if variable["name"] == "NODE_ADDRESS"))
        # Renamed since then, with dots for commas.
        for variable in pod_spec(before)["containers"][0]["env"]:
            if variable["name"] == "DEVICES":
                variable |= {"name": "PARTITIONS", "value": variable["value"].replace(",", ".")}
        assert ordered([now]) == ordered([before])


def test_an_update_shows_what_is_installed_and_what_will_be(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2.48xlarge", "--placer", "--group-timeout=60")
    status, said = answer_on_a_terminal(cluster, "n\n", "--group-timeout", "90", IMAGE)
    assert status == 1
    before, after = (line for line in said.split("[y/N]")[0].splitlines() if "--emulate trn2.48xlarge" in line)
    assert OLD in before
    assert before.endswith("--placer --group-timeout 60")
    assert IMAGE in after
    assert after.endswith("--placer --group-timeout 90")
    assert cluster.changes == []


def test_what_an_update_is_told_it_changes_and_nothing_else(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2.48xlarge", "--placer", "--group-timeout=60")
    assert cluster.run("--group-timeout", "90", "--node-selector", "a=b", IMAGE).returncode == 0
    assert applied_environment(cluster, "Deployment")["GROUP_TIMEOUT"] == "90"
    assert applied_environment(cluster, "DaemonSet")["NEURON_DRA_DRIVER_EMULATION_MODE"] == "trn2.48xlarge"
    assert applied_daemonset(cluster)["nodeSelector"] == {"a": "b"}


def test_an_update_renews_the_placer_that_is_installed(cluster: Cluster) -> None:
    cluster.installed("--placer", "--group-timeout=60")
    assert cluster.run("--restart", IMAGE).returncode == 0
    assert applied_environment(cluster, "Deployment")["image"] == IMAGE
    assert len([line for line in cluster.calls if "rollout restart" in line]) == 2
    assert [line for line in cluster.calls if "rollout status deployment/neuron-dra-driver-placer" in line]


def test_a_placer_is_added_to_an_emulated_installation_without_ending_the_driver(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2u.48xlarge", "--emulated-ultraservers=2x4")
    assert cluster.run("--placer", IMAGE).returncode == 0
    environment = applied_environment(cluster, "DaemonSet")
    assert (environment["NEURON_DRA_DRIVER_EMULATION_MODE"], environment["EMULATED_ULTRASERVERS"]) == (
        "trn2u.48xlarge",
        "2x4",
    )
    assert applied_environment(cluster, "Deployment")["GROUP_TIMEOUT"] == "300"


def test_another_emulated_type_does_not_inherit_the_ultraservers(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2u.48xlarge", "--emulated-ultraservers=2x4")
    assert cluster.run("--emulate", "trn2.48xlarge", IMAGE).returncode == 0
    assert "EMULATED_ULTRASERVERS" not in applied_environment(cluster, "DaemonSet")


def test_ultraservers_can_be_added_to_an_emulated_installation_alone(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2u.48xlarge")
    assert cluster.run("--emulated-ultraservers", "2x4", IMAGE).returncode == 0
    assert applied_environment(cluster, "DaemonSet")["EMULATED_ULTRASERVERS"] == "2x4"


def test_an_update_keeps_what_nodes_offer_and_the_extended_resources(cluster: Cluster) -> None:
    cluster.installed("--extended-resources", "--emulate=trn2.48xlarge", "--partitions=chip.core")
    result = cluster.run(IMAGE)
    assert result.returncode == 0, result.stderr
    settings = "--extended-resources --emulate trn2.48xlarge --partitions chip.core"
    assert cluster.applied == install("--dry-run", *settings.split(), IMAGE).stdout
    assert f"installed: {OLD} {settings} --kubelet-root /var/lib/kubelet\n" in result.stderr
    assert "warning" not in result.stderr


def test_reset_ends_extended_resources_and_what_nodes_offered(cluster: Cluster) -> None:
    cluster.installed("--extended-resources", "--partitions=core")
    assert cluster.run("--reset", IMAGE).returncode == 0
    assert cluster.applied == install("--dry-run", IMAGE).stdout


@pytest.mark.parametrize("reported", [version(35), version(34), "{}"])
def test_extended_resources_are_left_out_where_no_scheduler_would_serve_them(cluster: Cluster, reported: str) -> None:
    cluster.reply("get --raw /version", reported)
    result = cluster.run("--extended-resources", IMAGE)
    assert result.returncode == 0
    assert cluster.applied == install("--dry-run", IMAGE).stdout
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    golden(warning)


def test_extended_resources_that_the_api_server_drops_are_said(cluster: Cluster) -> None:
    cluster.reply("get deviceclass ", "")
    result = cluster.run("--extended-resources", "--partitions", "chip.core", IMAGE)
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert "DRAExtendedResource is off" in warning


def test_another_class_with_the_same_extended_resource_is_named(cluster: Cluster) -> None:
    theirs = "neuron.aws.amazon.com|aws.amazon.com/neuron\nmine|aws.amazon.com/neuron-3\ncores|\n"
    cluster.reply("get deviceclasses", f"chip.neuron.aws.com|aws.amazon.com/neuron\n{theirs}")
    result = cluster.run("--extended-resources", IMAGE)
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    golden(warning)
    assert "warning" not in cluster.run("--reset", IMAGE).stderr, "they do not matter without the option"


@pytest.mark.parametrize(("offered", "said"), [("", True), ("chip.node", True), ("chip.core", False), ("core", False)])
def test_it_is_said_where_limits_of_cores_would_wait(cluster: Cluster, offered: str, said: bool) -> None:
    options = ("--partitions", offered) if offered else ()
    result = cluster.run("--extended-resources", *options, IMAGE)
    assert ("neuroncore is served" in result.stderr) is said
    golden(result.stderr)


def test_an_update_keeps_tolerations_pull_secrets_variables_and_resources(cluster: Cluster) -> None:
    cluster.reply("get secret registry", "secret/registry\n")
    cluster.installed(*KEPT)
    result = cluster.run(IMAGE)
    assert result.returncode == 0, result.stderr
    assert cluster.applied == install("--dry-run", *KEPT, IMAGE).stdout
    assert of_kind(documents(cluster.applied), "DaemonSet")["metadata"]["annotations"] == {
        "neuron.aws.com/install-options": "".join(f"{option}\n" for option in KEPT)
    }
    (will_be,) = [line for line in result.stderr.splitlines() if line.startswith("will be:")]
    assert will_be.endswith(" ".join(KEPT))
    assert "warning" not in result.stderr


def test_what_is_given_of_a_repeatable_option_replaces_what_is_installed_of_it(cluster: Cluster) -> None:
    cluster.reply("get secret registry", "secret/registry\n")
    cluster.installed(*KEPT)
    assert cluster.run("--env", "CONTIGUITY_POLICY=allow", IMAGE).returncode == 0
    kept = [option for option in KEPT if not option.startswith("--env")]
    assert cluster.applied == install("--dry-run", "--env=CONTIGUITY_POLICY=allow", *kept, IMAGE).stdout


def test_reset_ends_tolerations_pull_secrets_variables_and_resources(cluster: Cluster) -> None:
    cluster.installed(*KEPT)
    assert cluster.run("--reset", IMAGE).returncode == 0
    assert cluster.applied == install("--dry-run", IMAGE).stdout


@pytest.mark.parametrize("line", ["--force", "x", "--toleration=a b", "--env=NODE_NAME=other", "--kubectl=sh"])
def test_options_in_the_annotation_are_not_trusted(cluster: Cluster, line: str) -> None:
    cluster.installed(noted=f"{line}\n")
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    assert "--reset" in result.stderr
    assert cluster.changes == []


def test_a_pull_secret_that_is_missing_is_said_with_the_command_that_makes_it(cluster: Cluster) -> None:
    cluster.reply("get secret registry", "")
    result = cluster.run("--image-pull-secret", "registry", IMAGE)
    assert result.returncode == 0
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    golden(warning)


def test_reset_takes_the_defaults_for_what_it_is_not_told(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2.48xlarge", "--placer", "--group-timeout=60")
    assert cluster.run("--reset", IMAGE).returncode == 0
    assert cluster.applied == install("--dry-run", "--placer", IMAGE).stdout


def test_labels_that_were_added_by_hand_are_not_taken_for_the_choice_of_nodes(cluster: Cluster) -> None:
    """The instance types still choose the nodes, and apply leaves alone what it has not written."""
    cluster.installed(labels={"example.com/pool": "a", "example.com/zone": "b"})
    assert cluster.run(IMAGE).returncode == 0
    assert cluster.applied == install("--dry-run", IMAGE).stdout


def test_a_setting_that_cannot_be_kept_is_not_guessed_at(cluster: Cluster) -> None:
    cluster.installed("--node-selector=example.com/pool=a", labels={"example.com/pool": "a", "example.com/zone": "b"})
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    golden(result.stderr)
    assert cluster.changes == []
    assert cluster.run("--node-selector", "example.com/pool=a", IMAGE).returncode == 0


@pytest.mark.parametrize(
    "text", ["get daemonset neuron-dra-driver-kubelet-plugin --", "get deployment", "get deviceclasses"]
)
def test_an_update_that_cannot_tell_what_is_installed_changes_nothing(cluster: Cluster, text: str) -> None:
    (rule,) = [rule for rule in cluster.rules if rule.startswith(text)]
    cluster.reply(rule, "", "Forbidden\n", 1)
    result = cluster.run(IMAGE)
    assert result.returncode == 1
    assert "Nothing was changed" in result.stderr
    assert cluster.changes == []


LEAVES_NODE_A = ("--node-selector", "example.com/neuron=yes")


def test_an_update_that_would_end_the_driver_beside_claims_is_refused(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2.48xlarge")
    cluster.reply("get nodes -l", "node-b\n")
    cluster.reply("get resourceclaims", CLAIMS + "default/elsewhere|neuron.aws.com|node-b|neuron-device-0|pod3\n")
    result = cluster.run(*LEAVES_NODE_A, IMAGE)
    assert result.returncode == 1
    golden([line for line in result.stderr.splitlines() if "used by" in line])
    assert "node-a" in result.stderr
    assert "--force" in result.stderr
    assert "Nothing was changed" in result.stderr
    assert cluster.changes == []
    (asked,) = [line for line in cluster.calls if "get nodes -l" in line]
    assert " -l example.com/neuron=yes " in asked


def test_a_reset_asks_for_the_nodes_of_the_known_instance_types(cluster: Cluster) -> None:
    from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES

    cluster.installed("--emulate=trn2.48xlarge")
    cluster.reply("get nodes -l", "")
    cluster.reply("get resourceclaims", CLAIMS)
    assert cluster.run("--reset", IMAGE).returncode == 1
    (asked,) = [line for line in cluster.calls if "get nodes -l" in line]
    types = [*INSTANCE_TYPES, *(f"ml.{name}" for name in INSTANCE_TYPES)]
    assert f" -l node.kubernetes.io/instance-type in ({','.join(types)}) " in asked


def test_another_kubelet_root_is_refused_while_claims_are_in_use(cluster: Cluster) -> None:
    """What was prepared stands in the old directory, and kubelet is not told of the new one's driver."""
    cluster.installed()
    cluster.reply("get resourceclaims", CLAIMS)
    result = cluster.run("--kubelet-root", "/srv/kubelet", IMAGE)
    assert result.returncode == 1
    golden(result.stderr)
    assert cluster.changes == []


def test_a_forced_update_says_what_becomes_of_the_pods(cluster: Cluster) -> None:
    cluster.installed("--emulate=trn2.48xlarge")
    cluster.reply("get nodes -l", "node-b\n")
    cluster.reply("get resourceclaims", CLAIMS)
    result = cluster.run("--force", *LEAVES_NODE_A, IMAGE)
    assert result.returncode == 0
    assert "Terminating" in result.stderr
    assert cluster.changes == ["apply -f -"]


@pytest.mark.parametrize(("stays", "claims"), [("node-b\n", ""), ("node-a\nnode-b\n", CLAIMS)])
def test_an_update_that_ends_the_driver_beside_no_claim_is_done(cluster: Cluster, stays: str, claims: str) -> None:
    cluster.installed("--emulate=trn2.48xlarge")
    cluster.reply("get nodes -l", stays)
    cluster.reply("get resourceclaims", claims)
    result = cluster.run(*LEAVES_NODE_A, IMAGE)
    assert result.returncode == 0
    golden(result.stderr)


def test_claims_do_not_keep_a_driver_from_coming_back(cluster: Cluster) -> None:
    """After a forced removal: where no driver runs, none can end."""
    cluster.reply("get pods", "")
    cluster.reply("get nodes -l", "")
    cluster.reply("get resourceclaims", CLAIMS)
    assert cluster.run(IMAGE).returncode == 0


def test_after_the_placer_the_example_with_its_gate_is_named(cluster: Cluster) -> None:
    cluster.reply("get resourceslices", 'node-a|neuron-node |"trn2u.48xlarge"\nnode-b|neuron-node |"trn2u.48xlarge"\n')
    shown = cluster.run("--placer", IMAGE).stderr
    (line,) = [line for line in shown.splitlines() if "2-node-inference-us.yaml" in line]
    command, _, rest = line.partition(" | ")
    assert rest.startswith("kubectl apply -f -")
    example = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    group = of_kind(documents(example.stdout), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert group["leaderTemplate"]["spec"]["schedulingGates"] == [{"name": "neuron.aws.com/ultraserver"}]


def test_uninstall_names_the_directory_that_the_driver_used(cluster: Cluster) -> None:
    cluster.installed("--kubelet-root=/srv/kubelet")
    assert "/srv/kubelet/plugins/neuron.aws.com" in cluster.run("--uninstall").stderr


def test_the_path_of_the_vendors_documentation_works_from_any_directory(tmp_path: Path) -> None:
    result = subprocess.run(
        [ROOT / "examples/scripts/install-dra-driver.sh", "--dry-run", IMAGE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == install("--dry-run", IMAGE).stdout
