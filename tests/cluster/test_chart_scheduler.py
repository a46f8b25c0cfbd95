"""The chart for the cluster's own scheduler: the extender behind a port of the nodes, as the notes say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.release import (
    CORE,
    DEFAULT_SCHEDULER,
    EXTENDER,
    INF1,
    LABELS,
    NAMESPACE,
    NINE,
    SCHEDULER,
    Release,
    limited,
    line_with,
)

pytestmark = [pytest.mark.nightly, pytest.mark.kubernetes("1.37", "1.34")]


def test_the_clusters_own_scheduler_asks_the_extender_when_it_is_configured_as_the_notes_say(
    release: Release, lab: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    release.ensure(DEFAULT_SCHEDULER, INF1)
    release.wait_allocatable(4, 16)
    assert not release.kube.find("deployments", NAMESPACE, labels=LABELS[SCHEDULER])
    (text,) = re.findall(r"(?ms)^  apiVersion: kubescheduler.*?(?=^\S)", release.notes)
    (command,) = [command for command in release.commands() if "get secret" in command]
    for place, value in zip(("CA", "CERTIFICATE", "KEY"), release.shell(command).split(), strict=True):
        text = text.replace(f"Data: {place}\n", f"Data: {value}\n")
    configuration = yaml.safe_load(text)
    configuration["clientConnection"]["kubeconfig"] = str(lab.layout.pki / "scheduler.kubeconfig")
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(configuration))
    lab.control_plane.stop("kube-scheduler")
    try:
        lab.control_plane.start("kube-scheduler", f"--config={file}")
        namespace.apply(limited("nine", {CORE: 9}, scheduler=""))
        namespace.wait_ready("nine")
        assert namespace.environment("nine")["NEURON_RT_VISIBLE_CORES"] == NINE
        assert namespace.numbers("nine") == [0, 1, 2]
        line_with(release.logs(EXTENDER), f"Allocated ids for POD {namespace.name}/nine are: {CORE} 0-8 for main;")
    finally:
        lab.control_plane.stop("kube-scheduler")
        lab.control_plane.start("kube-scheduler")
