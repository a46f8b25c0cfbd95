"""The command `scripts/cluster`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lab import command, components, modules, registry, state
from lab.build import Builder, available_modules
from lab.cluster import Cluster
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec, nodes_of_ultraservers, parse_labels, parse_labels_file

_FAILED = 1
# Commands that pass arguments on to another program, and how many arguments (including the command) are our own.
_OWN_WORDS = {"kubectl": 1, "exec": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 2 for wrong usage, otherwise as for `lab.command.run`."""
    words, passed_on = split_passed_on(sys.argv[1:] if arguments is None else arguments)
    parsed = _parser().parse_args(words)
    parsed.arguments = passed_on
    return command.run(lambda: parsed.run(parsed))


def split_passed_on(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split our own arguments from those of another program: all after `kubectl`, all after `exec NODE`.

    A first `-h` or `--help` is our own.
    """
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] == "--name" else 1
    own = index + _OWN_WORDS.get(words[index], len(words)) if index < len(words) else index
    if own < len(words) and words[own] in {"-h", "--help"}:
        own += 1
    return list(words[:own]), list(words[own:])


def _up(options: argparse.Namespace) -> int:
    texts = list(options.node_label)
    if options.node_labels_file:
        texts = parse_labels_file(_read(options.node_labels_file)) + texts
    spec = ClusterSpec(
        name=options.name,
        nodes=nodes_of_ultraservers(options.ultraservers) if options.ultraservers else options.nodes,
        kubernetes=options.kubernetes,
        kubelet=options.kubelet,
        runtime_config=_split(options.runtime_config),
        feature_gates=_split(options.feature_gates),
        kubelet_feature_gates=_split(options.kubelet_feature_gates),
        labels=parse_labels(texts),
        node_directories=tuple(options.node_dir),
    )
    cluster = Cluster(spec)
    cluster.up()
    program = "scripts/cluster" if options.name == "default" else f"scripts/cluster --name {options.name}"
    print(
        f"""
Kubernetes {spec.kubernetes} with {spec.nodes} node(s) is up. To use it:
  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.layout.directory}/bin:$PATH
  {program} kubectl get nodes
  {program} load IMAGE.tar      (from scripts/build-image; pods then use imagePullPolicy: IfNotPresent)
  {program} status
  {program} down
A node's /run/cdi, /var/lib/kubelet and logs are in {cluster.layout.directory}/n1 (cdi, kubelet, log) and so on."""
    )
    if options.ultraservers:
        print(
            f"""The nodes can stand for UltraServers, node-1 and the next for the first. With the driver's image loaded:
  scripts/install-dra-driver.sh --yes --kubectl "{program} kubectl" \\
    --emulate trn2u.48xlarge --emulated-ultraservers {options.ultraservers} IMAGE"""
        )
    return 0


def _down(options: argparse.Namespace) -> int:
    Cluster(ClusterSpec(name=options.name)).down()
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.name)
    spec = cluster.spec
    kubelet = "" if spec.kubelet_version == spec.kubernetes else f", kubelet {spec.kubelet_version}"
    print(f"cluster {spec.name}: Kubernetes {spec.kubernetes}{kubelet}, in {cluster.layout.directory}")
    rows = [(entry.name, "-" if entry.pid is None else str(entry.pid), entry.state) for entry in cluster.status()]
    width = max(len(name) for name, _, _ in rows)
    for name, pid, text in [("NAME", "PID", "STATE"), *rows]:
        print(f"{name:<{width}}  {pid:>8}  {text}")
    return 0 if all(text in {"running", "Ready"} for _, _, text in rows) else _FAILED


def _load(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.name)
    for archive in options.archive:
        cluster.load(Path(archive))
    return 0


def _load_test_image(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).load_test_image(*options.image)
    return 0


def _kubectl(options: argparse.Namespace) -> NoReturn:
    _become(Cluster.attach(options.name).kubectl_command(*options.arguments))


def _exec(options: argparse.Namespace) -> NoReturn:
    _become(Cluster.attach(options.name).node(options.node).enter_command(options.arguments))


def _become(words: list[str]) -> NoReturn:
    os.execvp(words[0], words)  # noqa: S606 - the user's own command, without a shell


def _build(options: argparse.Namespace) -> int:
    wanted: tuple[components.Component, ...] = options.only
    if not wanted:
        wanted = components.of_cluster(options.kubernetes, options.kubelet or options.kubernetes, available_modules())
        if options.test_driver:
            wanted = (*wanted, components.dra_test_driver(options.kubernetes))
    programs = Builder(Settings.from_environment(os.environ), Progress()).build(wanted)
    for name, path in sorted(programs.items()):
        print(f"{name}\t{path}")
    return 0


def _registry(options: argparse.Namespace) -> int:
    with registry.serving(Settings.from_environment(os.environ), Progress(), options.port) as address:
        print(
            f"The registry is {address}. Publish into it, and run pods of its images on clusters of scripts/cluster:\n"
            f"  scripts/release --publish {address} --repository-url https://git.example/neuron-dra-driver\n"
            "It speaks HTTP, so helm needs --plain-http with the lines that the notes of that release have.\n"
            "Ctrl-C stops it and removes all that it has.",
            flush=True,
        )
        with suppress(KeyboardInterrupt):  # also for SIGTERM, see lab.command
            signal.pause()
    return 0


def _clean(_: argparse.Namespace) -> int:
    settings = Settings.from_environment(os.environ)
    up = [layout.name for layout in state.layouts(settings.state)]
    if up:
        raise LabError(
            f"The cluster {up[0]!r} uses the cache; nothing was removed. First: scripts/cluster --name {up[0]} down"
        )
    for name in ("bin", "go", "images"):
        directory = settings.cache / name
        if directory.exists():
            shutil.rmtree(directory)
            print(f"removed {directory}")
    return 0


def _add_version(options: argparse.Namespace) -> int:
    progress = Progress()
    go = Builder(Settings.from_environment(os.environ), progress).toolchain()
    directory = modules.add(options.version, go, progress, kubelet_only=options.kubelet_only)
    print(f"{directory} was written. Next: commit it, and scripts/cluster up --kubernetes {options.version}")
    return 0


def _node_action(action: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        node = Cluster.attach(options.name).node(options.node)
        getattr(node, action)()
        return 0

    return run


def _cluster_action(action: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        getattr(Cluster.attach(options.name), action)()
        return 0

    return run


_NODE_ACTIONS = (
    ("stop-kubelet", "stop_kubelet", "Stop a node's kubelet; pods go on."),
    ("start-kubelet", "start_kubelet", "Start a node's kubelet."),
    ("restart-kubelet", "restart_kubelet", "Stop and start a node's kubelet."),
    ("restart-containerd", "restart_containerd", "Stop and start a node's containerd; pods go on."),
    ("reboot-node", "reboot", "Kill all that runs on a node, empty /run/cdi, and start the node again."),
)
_CLUSTER_ACTIONS = (
    ("stop-apiserver", "stop_apiserver", "Stop the API server; nodes and pods go on."),
    ("start-apiserver", "start_apiserver", "Start the API server again."),
)
"""Commands that stop and restart components: name, method, help."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/cluster",
        description="Run a real Kubernetes on this machine, built from source, without a container registry or engine.",
        epilog="Example: scripts/cluster up --nodes 2 && scripts/cluster kubectl get nodes && scripts/cluster down",
    )
    parser.add_argument("--name", default="default", help="name of the cluster (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, text: str, example: str, run: Callable[[argparse.Namespace], int], *, named: bool = True
    ) -> argparse.ArgumentParser:
        epilog = f"Example: scripts/cluster {example}"
        added = commands.add_parser(name, allow_abbrev=False, help=text, description=text, epilog=epilog)
        if named:
            added.add_argument(
                "--name", default=argparse.SUPPRESS, help="name of the cluster; may also precede the command"
            )
        added.set_defaults(run=run)
        return added

    _add_up(add("up", "Build missing programs and start a cluster.", "up --nodes 2 --node-label node-1:a=b", _up))
    add("down", "Stop a cluster and remove everything that belongs to it.", "down", _down)
    add("status", "Show the processes and nodes of a cluster.", "status", _status)
    load = add("load", "Import image archives into every node.", "load out/driver.tar", _load)
    load.add_argument("archive", nargs="+", metavar="IMAGE.tar", help="OCI or docker archive")
    test_image = add(
        "load-test-image",
        "Import a 4 MB image with bash and busybox's tools into every node, under the given names.",
        "load-test-image public.ecr.aws/ubuntu/ubuntu:22.04",
        _load_test_image,
    )
    test_image.add_argument("image", nargs="*", help="image names (default: localhost/ndl-tools:1)")
    kubectl = "Run the cluster's kubectl with all following arguments."
    add("kubectl", kubectl, "kubectl get resourceslices -o wide", _kubectl, named=False)
    run = "Run the following command in the mount namespace of a node."
    add("exec", run, "exec node-1 ls /run/cdi", _exec, named=False).add_argument(
        "node", help="name of the node, such as node-1"
    )
    _add_build(
        add("build", "Only build the programs, and print their paths.", "build --test-driver", _build, named=False)
    )
    add(
        "registry",
        "Run a registry of container images on the loopback interface until Ctrl-C; nodes can pull from it.",
        "registry --port 5000",
        _registry,
        named=False,
    ).add_argument("--port", type=int, default=5000, help="its port (default: %(default)s)")
    add(
        "clean",
        "Remove all cached programs and images; the next start builds them again.",
        "clean",
        _clean,
        named=False,
    )
    version = add(
        "add-version",
        "Write the Go module for building another Kubernetes version.",
        "add-version 1.37.2",
        _add_version,
        named=False,
    )
    version.add_argument("version", help="Kubernetes version, such as 1.37.2")
    version.add_argument(
        "--kubelet-only", action="store_true", help="only for kubelet, with a control plane of another version"
    )
    for name, action, text in _NODE_ACTIONS:
        add(name, text, f"{name} node-1", _node_action(action)).add_argument("node", help="such as node-1")
    for name, action, text in _CLUSTER_ACTIONS:
        add(name, text, name, _cluster_action(action))
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    _add_versions(up)
    size = up.add_mutually_exclusive_group()
    size.add_argument("--nodes", type=int, default=1, help="number of nodes (default: %(default)s)")
    size.add_argument(
        "--ultraservers",
        default="",
        metavar="SxN",
        help="start the nodes of S UltraServers of N nodes, such as 2x4; prints how to install the driver for them",
    )
    up.add_argument("--runtime-config", action="append", default=[], metavar="GROUP/VERSION=true", help="APIs to serve")
    up.add_argument(
        "--feature-gates", action="append", default=[], metavar="NAME=true", help="feature gates of all components"
    )
    up.add_argument(
        "--kubelet-feature-gates",
        action="append",
        default=[],
        metavar="NAME=true",
        help="feature gates of kubelet, instead of those",
    )
    up.add_argument(
        *("--node-label", "--label"),
        action="append",
        default=[],
        metavar="[NODE:]KEY=VALUE",
        help="label of all nodes or of one (repeatable)",
    )
    up.add_argument("--node-labels-file", metavar="FILE", help="file with such labels, one per line")
    up.add_argument(
        "--node-dir",
        action="append",
        default=[],
        metavar="PATH",
        help="path at which every node gets its own directory",
    )


def _add_build(build: argparse.ArgumentParser) -> None:
    _add_versions(build)
    what = build.add_mutually_exclusive_group()
    what.add_argument("--test-driver", action="store_true", help="also build Kubernetes' own DRA test driver")
    for option, only, text in (
        ("--helm", (components.helm(),), f"helm {components.HELM_VERSION}"),
        ("--helm3", (components.helm(components.HELM3_VERSION),), f"helm {components.HELM3_VERSION}"),
        ("--prometheus", (components.prometheus(),), f"Prometheus {components.PROMETHEUS_VERSION} and promtool"),
        ("--karpenter", (components.karpenter(),), f"Karpenter {components.KARPENTER_VERSION} with its kwok provider"),
        ("--jobset", (components.jobset(),), f"the controller of JobSet {components.JOBSET_VERSION}"),
        (
            "--leaderworkerset",
            (components.leaderworkerset(),),
            f"the controller of LeaderWorkerSet {components.LEADERWORKERSET_VERSION}",
        ),
        ("--cdi-loader", (components.cdi_loader(),), "the program that loads CDI specs for tests"),
        (
            "--registry",
            (components.registry(), components.crane()),
            f"a registry of images {components.REGISTRY_VERSION}, and crane {components.CRANE_VERSION}",
        ),
        ("--cosign", (components.cosign(),), f"cosign {components.COSIGN_VERSION}"),
        ("--krew", (components.krew(),), f"krew {components.KREW_VERSION}, which installs plugins of kubectl"),
        ("--actionlint", (components.actionlint(),), f"actionlint {components.ACTIONLINT_VERSION}, for workflows"),
    ):
        what.add_argument(option, dest="only", action="store_const", const=only, default=(), help=f"build only {text}")


def _add_versions(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(name.partition("-")[2] for name in available_modules() if name.startswith("kube"))
    parser.add_argument(
        "--kubernetes", default=DEFAULT_KUBERNETES, metavar="VERSION", help=f"one of {known} (default: %(default)s)"
    )
    parser.add_argument("--kubelet", default="", metavar="VERSION", help="version of kubelet, if it differs")


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(",") if part)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path} cannot be read: {error}. Nothing was done.") from error
