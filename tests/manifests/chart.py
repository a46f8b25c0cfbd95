"""The chart as helm renders it, where there is a helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.programs import needing
from tests.manifests.support import Object, documents
from tests.paths import ROOT

CHART = ROOT / "charts/neuron-helm-chart"
TEMPLATES = sorted(path for path in (CHART / "templates").rglob("*") if path.is_file())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
HELM = os.environ.get("HELM") or shutil.which("helm")
HELM3 = os.environ.get("HELM3")
"""Beside it, a helm 3."""
needs_helm = needing(HELM, "there is no helm here; HELM=/path/to/helm names one")
needs_helm3 = needing(HELM3, "there is no helm 3 here; HELM3=/path/to/helm names one", pytest.mark.nightly)
KUBERNETES = "1.36.3"
OF_AWS = (ROOT / "tests/manifests/aws-values.yaml").read_text()
"""All values of AWS's chart of the same name."""
WORKLOADS = {
    "devicePlugin": "device-plugin",
    "scheduler": "scheduler-extender",
    "scheduler.customScheduler": "scheduler",
    "draDriver": "dra-driver",
    "draDriver.placer": "placer",
    "npd": "node-problem-detector",
    "npd.nodeRecovery": "node-recovery",
}
"""Where a workload's values are, and its label ``app.kubernetes.io/component``."""
EVERYTHING = (
    "scheduler.enabled=true",
    "scheduler.defaultScheduler.enabled=true",
    "draDriver.enabled=true",
    "draDriver.nodeSelector.neuron=dra",
    "draDriver.placer.enabled=true",
    "npd.enabled=true",
    "npd.nodeRecovery.enabled=true",
)
"""Settings with which all workloads are installed."""


def helm(*arguments: str, program: str | None = HELM) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster."""
    assert program is not None
    return subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


def template(
    *settings: str,
    kubernetes: str = KUBERNETES,
    values: str = "",
    options: tuple[str, ...] = (),
    program: str | None = HELM,
) -> list[Object]:
    """What the chart makes.

    Args:
        settings: ``a.b=c``, as for ``--set``.
        kubernetes: version of the cluster.
        values: text of a values file.
        options: more options of helm, such as ``--namespace=x``.
        program: the helm to use.
    """
    return documents(_rendered(CHART, program, kubernetes, settings, values, options))


def hooks(moment: str, *settings: str) -> list[Object]:
    """What helm makes at a moment only, such as ``pre-delete``."""
    made = template(*settings, options=("--no-hooks=false",))
    return [item for item in made if item["metadata"].get("annotations", {}).get("helm.sh/hook") == moment]


def objects_of(workload: str, *settings: str, **more: Any) -> list[Object]:
    """What the chart makes for one workload when all are installed (and, of ``settings``, more is said)."""
    part = WORKLOADS[workload]
    made = template(*EVERYTHING, *settings, **more)
    return [item for item in made if item["metadata"]["labels"]["app.kubernetes.io/component"] == part]


def reused(before: str, *settings: str, kubernetes: str = KUBERNETES) -> list[Object]:
    """What ``helm upgrade --reuse-values`` makes: values of the release before take the place of ``values.yaml``."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "chart"
        shutil.copytree(CHART, made)
        (made / "values.yaml").write_text(before)
        return documents(_rendered(made, HELM, kubernetes, settings, "", ()))


def notes(
    *settings: str, kubernetes: str = KUBERNETES, values: str = "", before: str = "", options: tuple[str, ...] = ()
) -> str:
    """What the chart says after an installation (with ``before``: an upgrade that reuses these values)."""
    with tempfile.TemporaryDirectory() as directory:
        # helm template renders no notes, and helm install asks a cluster: here they are one more template.
        made = Path(directory) / "chart"
        shutil.copytree(CHART, made)
        text = (made / "templates/NOTES.txt").read_text()
        quoted = f'{{{{- define "notes" -}}}}\n{text}{{{{- end -}}}}\nnotes: {{{{ include "notes" . | quote }}}}\n'
        (made / "templates/shown.yaml").write_text(quoted)
        if before:
            (made / "values.yaml").write_text(before)
        more = (*options, "--show-only", "templates/shown.yaml")
        found = documents(_rendered(made, HELM, kubernetes, settings, values, more))
    (shown,) = found
    return str(shown["notes"])


def refusal(*settings: str, values: str = "", options: tuple[str, ...] = ()) -> str:
    """Why helm does not render the chart."""
    result = _template(CHART, HELM, KUBERNETES, settings, values, options)
    assert result.returncode != 0, result.stdout
    return result.stderr


@cache
def _rendered(
    chart: Path, program: str | None, kubernetes: str, settings: tuple[str, ...], values: str, options: tuple[str, ...]
) -> str:
    result = _template(chart, program, kubernetes, settings, values, options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def _template(
    chart: Path, program: str | None, kubernetes: str, settings: tuple[str, ...], values: str, options: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    named = [part for setting in ("image.repository=registry.example/n", *settings) for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "values.yaml"
        file.write_text(values)
        # What helm runs at certain moments is no part of what it installs; --no-hooks=false among the options shows it.
        common = ("template", "neuron", str(chart), "--no-hooks", "--kube-version", kubernetes)
        return helm(*common, "--values", str(file), *named, *options, program=program)
