"""The chart's files, rendered as its templates render them, without helm; and with helm where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.manifests.support import Object, documents
from tests.paths import ROOT

CHART = ROOT / "charts/neuron-helm-chart"
FILES = CHART / "files"
TEMPLATES = sorted(path for path in (CHART / "templates").iterdir())
HELM = os.environ.get("HELM") or shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm here; HELM=/path/to/helm names one")


def text_of(file: str, without: Iterable[str] = (), values: Mapping[str, str] | None = None) -> str:
    """A file of the chart as ``neuron.manifest`` in ``_helpers.tpl`` makes it."""
    text = (FILES / file).read_text()
    for name in without:
        text = re.sub(rf"(?s)[^\n]*# >>> {name}\n.*?# <<< {name}\n", "", text)
    text = re.sub(r"(?m)^ *# (>>>|<<<) .*\n", "", text)
    text = re.sub(r"(?m)^#.*\n", "", text)
    for before, after in sorted((values or {}).items()):
        text = text.replace(before, after)
    return text


def objects_of(file: str, without: Iterable[str] = (), values: Mapping[str, str] | None = None) -> list[Object]:
    """The objects of a file of the chart."""
    return documents(text_of(file, without, values))


def blocks(file: str) -> set[str]:
    """Names of the blocks that a file may lose."""
    return set(re.findall(r"# >>> (\S+)\n", (FILES / file).read_text()))


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster."""
    assert HELM is not None
    return subprocess.run(
        [HELM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False
    )


def template(*settings: str, kubernetes: str = "1.36.3") -> list[Object]:
    """What the chart makes with some settings (``a.b=c``)."""
    return documents(_rendered(CHART, kubernetes, settings))


def notes(*settings: str, kubernetes: str) -> str:
    """What the chart says after an installation with some settings."""
    with tempfile.TemporaryDirectory() as directory:
        # helm template renders no notes, and helm install asks a cluster: here they are one more template.
        made = Path(directory) / "chart"
        shutil.copytree(CHART, made)
        text = (made / "templates/NOTES.txt").read_text()
        quoted = f'{{{{- define "notes" -}}}}\n{text}{{{{- end -}}}}\nnotes: {{{{ include "notes" . | quote }}}}\n'
        (made / "templates/shown.yaml").write_text(quoted)
        found = documents(_rendered(made, kubernetes, settings, "--show-only", "templates/shown.yaml"))
    (shown,) = found
    return str(shown["notes"])


def _rendered(chart: Path, kubernetes: str, settings: Iterable[str], *more: str) -> str:
    options = [part for setting in ("image.repository=registry.example/n", *settings) for part in ("--set", setting)]
    result = helm("template", "neuron", str(chart), "--kube-version", kubernetes, *options, *more)
    assert result.returncode == 0, result.stderr
    return result.stdout
