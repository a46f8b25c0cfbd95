"""``dra-driver report``: one archive for a bug report, from a cluster, a node, or both."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dra_driver.kube.api.client import Transport
    from dra_driver.operations.report.allowed import Rule
    from dra_driver.operations.report.archive import Collected
    from dra_driver.simulator.explain import Explanation

STDOUT: Final = "-"
MAX_EXPLAINED: Final = 50
"""Pods and claims of which it is explained why they wait."""
EXPLAINED: Final = frozenset({"Node", "Pod", "ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate"})
"""Kinds that explanations rest on."""
EXPLAINED_SECONDS: Final = 60.0
"""For all of these together."""
NAMESPACE_SECONDS: Final = 15.0
"""Of these, what the searches for one namespace may take."""
MAX_REASON_BYTES: Final = 300
OWN_NAMESPACES: Final = ("neuron-dra-driver", "neuron-healthcheck-system")
"""Their names are the same everywhere, and stay with --redact-names."""


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Collect what a bug report needs into one archive: versions, slices, claims, pods that use them, Nodes' "
        "labels and conditions, Events, settings and logs of the driver's programs, the output of top, health and "
        "explain; on a node, the devices, the checkpoint of claims and the record of health. Changes nothing.\n\nOnly "
        "fields on a fixed list are collected: no Secrets, no environment of other pods, no annotations but the "
        "driver's. MANIFEST.txt in the archive lists its contents; what cannot be read is printed and noted there, and "
        "the rest is still collected.",
        examples=(
            "report",
            "report --redact-names --archive issue.tar.gz",
            "report --node-name node-7",
            "report --host-root /",
        ),
        done="written, even if some things could not be read",
        refused="not written, or with a manifest alone, because nothing could be read",
    )
    vocabulary.add_cluster(parser)
    vocabulary.add_node_name(parser, "only what is on this node of the cluster", several=True)
    vocabulary.add_host_root(parser, "collect from this node, not from the cluster: its root directory, /")
    parser.add_argument(
        "--redact-names",
        action="store_true",
        help="replace names of namespaces, nodes, pods and claims, each with the same word everywhere",
    )
    parser.add_argument(
        "--archive", metavar="FILE", help="archive to write (default: dra-driver-report-TIME.tar.gz); - is stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Write the archive; what was collected is told on standard error."""
    from dra_driver.operations.report.archive import Collected, archive

    if args.host_root is not None and not args.host_root.is_dir():
        raise UsageError(f"--host-root {args.host_root} is not a directory", remedy="on a node, give --host-root /")
    args.from_cluster = args.host_root is None
    now, found = time.time(), Collected()
    if args.host_root is not None:
        _of_node(found, args.host_root)
    if vocabulary.from_cluster(args, "remove it or --host-root"):
        _of_cluster(found, args)
    data = archive(found, at=now, redact=args.redact_names, kept=OWN_NAMESPACES)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    target = args.archive or f"dra-driver-report-{stamp}.tar.gz"
    for file in sorted(found.files, key=lambda file: file.path):
        _tell(f"collected      {file.path}: {file.why}")
    for what, why in sorted(set(found.missing)):
        _tell(f"not collected  {what}: {why}")
    if target == STDOUT:
        sys.stdout.buffer.write(data)
        return 0
    _write(Path(target), data)
    print(f"written: {target} ({len(data)} bytes); MANIFEST.txt in it lists its contents")
    return 0 if found.files else 1


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _write(path: Path, data: bytes) -> None:
    """A new file that only its owner can read."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", remedy="give another name with --archive, or remove it") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DriverError(f"{path} cannot be written: {reason}") from error


def _of_node(found: Collected, root: Path) -> None:
    from dra_driver.cli.hostinput import found_state_dir, state_dirs
    from dra_driver.operations.report.node import read

    read(found, root, state_dirs(root)[0].parent, found_state_dir(root))


def _of_cluster(found: Collected, args: argparse.Namespace) -> None:
    from dra_driver.cli.clusterinput import asking
    from dra_driver.kube.api.errors import ApiError
    from dra_driver.operations.report.cluster import ClusterReader

    with asking(args) as transport:
        try:
            ClusterReader(found, transport, _workload(), args.node_name).read()
        except ApiError as error:
            found.missing.append((f"the cluster of {transport.server}", one_line(str(error), MAX_REASON_BYTES)))
            return
        try:
            _show(found, args, transport)
        except (DriverError, ModuleNotFoundError) as error:
            found.missing.append(("what top and health show", one_line(str(error), MAX_REASON_BYTES)))
    try:
        _explain(found)
    except (DriverError, ModuleNotFoundError) as error:
        found.missing.append(("what explain shows", one_line(str(error), MAX_REASON_BYTES)))


def _show(found: Collected, args: argparse.Namespace, transport: Transport) -> None:
    from dra_driver.cli.overviewoutput import Shown, cluster_table
    from dra_driver.operations.overview.reading import listed, readable
    from dra_driver.operations.overview.view import view
    from dra_driver.operations.report.archive import File

    cluster = listed(transport, readable(transport))
    # What kubelet says of users' containers has images, commands and probes.
    pods = [
        pod if pod.daemon is not None else replace(pod, state=replace(pod.state, detail="")) for pod in cluster.pods
    ]
    frame = view(replace(cluster, pods=pods), nodes=args.node_name)
    text = Shown("name", "", frozenset(), "text").text(frame, transport.server)
    found.files.append(File("cluster/top.txt", "what top shows, without messages of users' containers", text))
    table = cluster_table(frame.nodes, every_chip=False)
    found.files.append(File("cluster/health.txt", "what health shows", table))


def _explain(found: Collected) -> None:
    """Say why pods wait by what is in the report: what is left out of it cannot be told."""
    from dra_driver.cli.searchtime import SearchTime, deadline
    from dra_driver.kube.api.codec import AS_SENT, ServerVersion
    from dra_driver.operations.report.archive import File
    from dra_driver.simulator.cel import nearest
    from dra_driver.simulator.explain import explanations, texts
    from dra_driver.simulator.manifests import of_known_classes, read_stored

    content = {file.path: file.content for file in found.files}
    lists = [
        (served.versions[0], kind, content[path]["items"])
        for kind, served in AS_SENT.items()
        if kind in EXPLAINED and (path := f"cluster/{served.plural}.json") in content
    ]
    release = ".".join(map(str, ServerVersion(content["cluster/version.json"]["gitVersion"]).release or ()))
    has_time, shares = deadline(EXPLAINED_SECONDS), SearchTime(NAMESPACE_SECONDS)

    def begin(namespace: str) -> Callable[[], bool]:
        has_share = shares.begin(namespace)
        return lambda: has_share() and has_time()

    given = of_known_classes(read_stored(lists))
    waiting = explanations(given, nearest(release), server=release, deadline=begin)
    explained: list[Explanation] = []
    for item in islice(waiting, MAX_EXPLAINED):
        if not has_time():
            limit = f"{len(explained)} are explained: all would take longer than {EXPLAINED_SECONDS:.0f} seconds"
            found.missing.append(("why more pods wait", limit))
            break
        explained.append(item)
    else:
        if next(waiting, None) is not None:
            found.missing.append(("why more pods wait", f"the first {MAX_EXPLAINED} are explained"))
    text = texts([item for item in explained if not item.fits])
    if text or has_time():
        why = "why pods are pending, according to these files"
        found.files.append(File("cluster/explain.txt", why, text or "nothing waits for devices"))


def _workload() -> Rule:
    """What is kept of the driver's programs: the options of the daemons, and the variables that stand for them."""
    from dra_driver.cli.main import DAEMONS
    from dra_driver.operations.report.allowed import workload
    from dra_driver.util.options import settings_of

    tables = [table for name in DAEMONS for table in getattr(import_module(f"dra_driver.cli.{name}"), "TABLES", ())]
    rows = [setting.option for setting in settings_of(*tables)]
    words = {"--v", *(row.flag for row in rows), *(name.replace("_", "-") for name in DAEMONS)}
    return workload(frozenset(row.variable for row in rows), frozenset(words))
