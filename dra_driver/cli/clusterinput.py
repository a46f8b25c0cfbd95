"""Cluster input of the simulator's commands: emulated nodes, files, a live cluster."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.terminal import Progress
from dra_driver.neuron.names import DEVICES_VIEWER_ROLE, VIEWER_ROLE
from dra_driver.util.errors import UsageError, blaming_usage
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from dra_driver.kube.api.client import Transport
    from dra_driver.kube.api.resources import ResourceApi
    from dra_driver.kube.objects.resource import DeviceClass
    from dra_driver.operations.overview.rows import Frame
    from dra_driver.simulator.manifests import Manifests


MAX_OBJECT_BYTES = 4 << 20
"""Maximum file size; etcd limits an API object to 1.5 MiB."""


def read_text(filename: str, most: int = MAX_OBJECT_BYTES) -> str:
    """The UTF-8 text of a file (``-`` is standard input) of at most ``most`` bytes; raises UsageError otherwise."""
    try:
        return _content(filename, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{filename}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def _content(filename: str, most: int) -> bytes:
    try:
        if filename == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(filename).open("rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{filename}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise UsageError(f"{filename}: larger than {most} bytes; leave out what is not needed")
    return data


Listed = tuple[str, str, Sequence[Mapping[str, Any]]]
"""API version, kind, and the objects of that kind."""
WANTED: Final = ("Node", "Pod", "ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate")
"""Kinds, beside the DeviceTaintRules that most servers before 1.37 do not serve."""


@contextmanager
def asking(args: argparse.Namespace) -> Iterator[Transport]:
    """Access to the API server that the options of ``vocabulary.add_cluster`` select, for the duration of the block.

    Raises:
        UsageError: the kubeconfig or its context cannot be used, or the server does not answer. Exit status 1 is
            reserved for results about devices.
    """
    from dra_driver.kube.api.client import READ_TIMEOUT, Transport
    from dra_driver.kube.api.errors import ApiError

    timeout = args.request_timeout or READ_TIMEOUT
    with blaming_usage():
        transport = Transport.from_kubeconfig(args.kubeconfig, args.context, user=args.as_user or "", timeout=timeout)
        try:
            yield transport
        except ApiError as error:
            if error.status != 403:
                raise
            # The error's own remedy is that of the driver's service account.
            raise UsageError(error.what, remedy=f"the ClusterRole {VIEWER_ROLE} allows it") from error
        finally:
            transport.close()


def namespace(args: argparse.Namespace) -> str:
    """The namespace of what is named without one: that of -n, of the context with --from-cluster, or ``default``.

    Raises UsageError if the kubeconfig cannot be used.
    """
    if args.namespace:
        return str(args.namespace)
    if not vocabulary.from_cluster(args):
        return "default"
    from dra_driver.kube.api.client import context_namespace

    with blaming_usage():
        return context_namespace(args.kubeconfig, args.context)


def read_cluster(args: argparse.Namespace) -> tuple[Manifests, str]:
    """The objects of a cluster, and its release such as ``1.37`` ("" if unknown).

    Raises:
        UsageError: see ``asking``. ManifestError: it has too many pods.
    """
    from dra_driver.kube.api.resources import ResourceApi
    from dra_driver.simulator.cluster import merge, nodes_of
    from dra_driver.simulator.manifests import Manifests, read_stored

    with asking(args) as transport:
        rules, notes = _taint_rules(transport)
        lists, more = _listable(transport, "" if args.all_namespaces else namespace(args))
        found = read_stored([*lists, *rules])
        if not any(kind == "Node" for _, kind, _ in lists):
            found = replace(found, nodes=nodes_of(found.slices))
        release = released(ResourceApi(transport))
        unserved = _unserved(transport, found)
    return merge(found, Manifests(not_considered=(*notes, *more), unserved=unserved)), release


def _listable(transport: Transport, within: str) -> tuple[list[Listed], list[str]]:
    """What the user may list, and what has to be left out; of kinds of namespaces those of ``within`` at least."""
    from dra_driver.kube.api.codec import AS_SENT
    from dra_driver.kube.api.errors import ApiError

    lists, notes = [], []
    for kind in WANTED:
        try:
            lists.append(_listed(transport, kind))
        except ApiError as error:
            if error.status == 403 and kind in ("ResourceSlice", "DeviceClass"):
                raise UsageError(
                    error.what,
                    remedy=f"the ClusterRole {DEVICES_VIEWER_ROLE} allows it; without any rights: "
                    "dra-driver explain FILE --instance-type TYPE",
                ) from error
            if error.status != 403 or not (within or kind == "Node"):
                raise
            if kind == "Node":
                notes.append("Nodes (labels, taints, CPUs and memory are not known)")
                continue
            lists.append(_listed(transport, kind, within))
            free = " (the devices that they have look free)" if kind == "ResourceClaim" else ""
            notes.append(f"{AS_SENT[kind].plural} of namespaces other than {within}{free}")
    return lists, [f"what this user may not list: {', '.join(notes)}"] if notes else []


def _unserved(transport: Transport, found: Manifests) -> dict[str, str]:
    """See ``serving.unserved``; {} where pods of other namespaces may not be listed."""
    from dra_driver.neuron.health.taints import retired
    from dra_driver.neuron.names import DRIVER_NAME
    from dra_driver.operations.overview.reading import daemon_sets, daemons
    from dra_driver.operations.overview.serving import Daemon, unserved

    pods = daemons(transport)
    if pods is None:
        return {}
    by_node: dict[str, list[Daemon]] = {}
    for pod in pods:
        if pod.daemon is not None:
            by_node.setdefault(pod.node, []).append(pod.daemon)
    offered = {
        item.spec.node_name or ""
        for item in found.slices
        if item.spec.driver == DRIVER_NAME and not all(any(map(retired, device.taints)) for device in item.spec.devices)
    }
    return unserved(found.nodes, offered, by_node, daemon_sets(transport))


def _taint_rules(transport: Transport) -> tuple[list[Listed], tuple[str, ...]]:
    """Empty where they are not served; if they may not be listed, a note says so."""
    from dra_driver.kube.api.errors import ApiError

    try:
        return [_listed(transport, "DeviceTaintRule")], ()
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return [], ("DeviceTaintRules, which this user may not list",) if error.status == 403 else ()


def read_classes(transport: Transport) -> tuple[DeviceClass, ...]:
    """The DeviceClasses of a cluster; errors as for ``read_cluster``."""
    from dra_driver.simulator.manifests import read_stored

    return read_stored([_listed(transport, "DeviceClass")]).classes


def read_devices(transport: Transport) -> Manifests:
    """What a cluster offers, what keeps pods from it, and who has it; errors as for ``read_cluster``.

    What the user may not list is told by a warning.
    """
    from dra_driver.simulator.manifests import read_stored

    rules, notes = _taint_rules(transport)
    for note in notes:
        vocabulary.warn(f"not considered: {note}")
    return read_stored([*(_listed(transport, kind) for kind in ("ResourceSlice", "ResourceClaim")), *rules])


def _listed(transport: Transport, kind: str, within: str = "") -> Listed:
    """The newest served version, the kind, and its objects, of one namespace if one is given."""
    from dra_driver.kube.api.codec import AS_SENT
    from dra_driver.kube.api.resources import Collection
    from dra_driver.simulator.manifests import packed

    collection = Collection(transport, AS_SENT[kind], namespace=within)
    items, _ = collection.select(lambda item: packed(item, kind))
    return collection.version, kind, items


def released(api: ResourceApi) -> str:
    """The release of an API server, such as ``1.37``; "" if it cannot be found out."""
    release = api.server_version().release
    return "" if release is None else ".".join(map(str, release))


MAX_MANIFEST_BYTES: Final = 256 << 20
"""Per file: several times the objects of the largest cluster that Kubernetes is tested for."""
_NODE: Final = re.compile(r"([^=]{1,80})(?:=([0-9]{1,9}))?", re.ASCII)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``read_input`` needs in addition to the files: the source of the nodes, and the release."""
    parser.add_argument(
        "--objects",
        metavar="FILE",
        action="append",
        default=[],
        help="Nodes, ResourceSlices, DeviceClasses, ResourceClaims and Pods of a cluster; without FILE, its "
        "pending pods and claims are placed; - is stdin (repeatable)",
    )
    parser.add_argument(
        "--instance-type",
        metavar="TYPE[=N]",
        action="append",
        default=[],
        help="one or N emulated nodes of this EC2 instance type (repeatable)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="treat workloads of FILE, and groups of them, that are suspended or scaled to zero as resumed, with "
        "at least one replica (workloads suspended by a Kueue queue always are)",
    )
    emulation = parser.add_argument_group("emulated nodes")
    emulation.add_argument(
        "--emulated-ultraservers",
        metavar="SxN",
        default="",
        help="group the nodes into S servers of N nodes (default: servers of 4 nodes)",
    )
    emulation.add_argument(
        "--node-label",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a label of the nodes, in addition to those that their type has on EKS and with Karpenter (repeatable); "
        "for one node, give a Node object of its name: node-1 and so on",
    )
    emulation.add_argument(
        "--emulated-driver-version", metavar="V", help="version of the kernel driver (default: the newest known)"
    )
    vocabulary.add_partitions(emulation)
    emulation.add_argument(
        "--extended-resources",
        action="store_true",
        help="the DeviceClasses offer aws.amazon.com/neuron, aws.amazon.com/neuroncore and so on to pods without "
        "claims, as the driver's classes do if this is enabled",
    )
    vocabulary.add_kubernetes(parser)
    vocabulary.add_cluster(parser, "these objects", namespaces="objects that name none, and of pending pods")


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """A cluster together with the objects that are applied to it."""

    manifests: Manifests
    kubernetes: str
    """The Kubernetes release to simulate."""
    server: str
    """The release that is asked about, or that of the live cluster; "" without either."""


def read_input(args: argparse.Namespace, files: Sequence[str], *, named: bool = False) -> ClusterInput:
    """Read the sources given by the options of ``add_cluster_arguments``, and the files to apply.

    Args:
        args: the options.
        files: objects to apply to the cluster, whose own pending pods are then left out.
        named: whether the caller asks about one object by its name, so that -n selects nothing else.

    Raises:
        UsageError: the arguments are inconsistent, or a file cannot be read. ManifestError: a file's content is
            invalid.
    """
    from dra_driver.simulator.allocator.release import release
    from dra_driver.simulator.cel import RELEASES, nearest
    from dra_driver.simulator.cluster import merge, waiting_left_out
    from dra_driver.simulator.emulated_nodes import described, efa_of
    from dra_driver.simulator.manifests import Manifests, left_out, of_known_classes, of_templates, read_manifests

    live = vocabulary.from_cluster(args)
    _check(args, files, live=live)
    server, cluster = "", Manifests()
    if live:
        cluster, server = read_cluster(args)
    asked = args.kubernetes or server
    kubernetes = nearest(asked)
    notes = [difference(asked, kubernetes)] if asked and asked not in RELEASES else []
    if args.objects:
        with Progress("reading", "objects") as progress:
            cluster = merge(cluster, read_manifests(texts(args.objects), kubernetes, progress, in_cluster=True))
    emulated = emulated_nodes(args) if args.instance_type else Manifests()
    cluster = merge(emulated, cluster)
    if files:
        with Progress("reading", "objects") as progress:
            applied = of_templates(
                read_manifests(texts(files), kubernetes, progress, namespace(args), resume=args.resume)
            )
        cluster = merge(waiting_left_out(cluster), applied)
    elif not (named or args.all_namespaces) and (live or args.namespace):
        cluster = waiting_left_out(cluster, keep=namespace(args))
    cluster = described(cluster, emulated)
    cluster = merge(efa_of(cluster), cluster)
    if not named:
        cluster = of_known_classes(cluster)
    if cluster.taint_rules and release(kubernetes).follows_no_taint_rules:
        why = f"DRADeviceTaintRules is off by default in {kubernetes}"
        notes.append(f"DeviceTaintRule: {len(cluster.taint_rules)} ({why})")
    with_notes = merge(cluster, Manifests(not_considered=(*left_out(cluster), *notes)))
    return ClusterInput(with_notes, kubernetes, asked)


def beside_nothing(not_considered: Sequence[str]) -> str:
    """For an error that there is nothing to answer about: what there is instead, in parentheses; "" without any."""
    more = [f"and {len(not_considered) - _SHOWN} more"] if len(not_considered) > _SHOWN else []
    return f" (not considered: {'; '.join([*not_considered[:_SHOWN], *more])})" if not_considered else ""


_SHOWN: Final = 6


def difference(asked: str, kubernetes: str) -> str:
    """What is to be said of an answer for a release by the rules of another."""
    text = f"what is different in Kubernetes {asked}: it is simulated by the rules of {kubernetes}"
    if asked in vocabulary.BEFORE_1_36:
        text += (
            "; API servers before 1.36 drop taints, shared counters and consumable capacity unless feature gates are on"
        )
    return text


def _check(args: argparse.Namespace, files: Sequence[str], *, live: bool) -> None:
    if not args.instance_type and not args.objects and not live and not files:
        raise UsageError("nothing is given", remedy="give a FILE and --instance-type TYPE; --help has examples")
    if args.instance_type and not files and not args.objects and not live:
        raise UsageError("no FILE is given, so there is nothing to place", remedy="give the YAML of pods or claims")
    if [*files, *args.objects].count("-") > 1:
        raise UsageError("- (standard input) is given twice", remedy="read one of the two from a file")
    for option in ("emulated_ultraservers", "node_label", "partitions", "extended_resources"):
        if getattr(args, option) and not args.instance_type:
            raise UsageError(
                f"--{option.replace('_', '-')} goes with --instance-type", remedy="also give the nodes' type"
            )


def emulated_nodes(args: argparse.Namespace) -> Manifests:
    """The nodes of ``--instance-type``; raises UsageError if they cannot be emulated."""
    from dra_driver.simulator.emulated_nodes import emulated, provisioned

    with blaming_usage():
        nodes = emulated(
            [_node(text) for text in args.instance_type],
            ultraservers=args.emulated_ultraservers,
            partitions=vocabulary.partitions(args.partitions),
            driver_version=args.emulated_driver_version,
            extended_resources=args.extended_resources,
        )
    return provisioned(nodes, dict(_label(text) for text in args.node_label))


def _label(text: str) -> tuple[str, str]:
    from dra_driver.kube import formats

    key, sign, value = text.partition("=")
    problem = formats.label_key(key) or formats.label_value(value)
    if problem or not sign:
        raise UsageError(f"--node-label {text[:60]!r}: {problem or 'there is no ='}", remedy="write KEY=VALUE")
    return key, value


def _node(text: str) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--instance-type cannot be read: {text[:60]!r}", remedy="write trn2.48xlarge, or trn2.48xlarge=4"
        )
    return found[1], int(found[2] or 1)


def texts(names: Sequence[str]) -> list[tuple[str, str]]:
    """Files with their texts."""
    return [(name, read_text(name, MAX_MANIFEST_BYTES)) for name in names]


def check_namespace(transport: Transport, name: str) -> None:
    """Raise UsageError for a namespace that does not exist; who may not read namespaces learns nothing of it."""
    from dra_driver.kube.api.codec import AS_SENT
    from dra_driver.kube.api.errors import ApiError
    from dra_driver.kube.api.resources import Collection

    try:
        Collection(transport, AS_SENT["Namespace"]).get("", name)
    except ApiError as error:
        if error.status == 404:
            remedy = "list those that exist with: kubectl get namespaces"
            raise UsageError(f"namespace {name} does not exist", remedy=remedy) from error


def check_nodes(frame: Frame, names: Sequence[str]) -> None:
    """Raise UsageError for a name that no Neuron node of the cluster has."""
    missing = sorted({*names} - {row.name for row in frame.nodes})
    if missing:
        raise UsageError(
            f"no node with Neuron devices is named {first_of(missing, 4)}",
            remedy="list the nodes with Neuron devices with: dra-driver top --once",
        )
