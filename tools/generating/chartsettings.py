"""Which values of the chart become which variables, from the tables of settings (``dra_driver.util.options``)."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Final

from dra_driver.util.options import settings_of
from generating.reference import WORKLOADS

PATH: Final = "charts/neuron-helm-chart/templates/_settings.tpl"
TEMPLATE: Final = """\
{{/* Made by `scripts/generate chart-settings` from the tables of the programs' settings; do not edit. */}}
{{- define "neuron.settings" -}}
{%s}
{{- end -}}
"""


def template() -> str:
    """The template with the list for each workload. ``switch`` is how a switch is where it is left out."""
    workloads = []
    for command, workload in WORKLOADS.items():
        rows = [
            {"variable": setting.option.variable, "value": setting.option.chart}
            | {"switch": setting.option.default if setting.kind is bool else ""}
            for setting in settings_of(*import_module(f"dra_driver.cli.{command.replace('-', '_')}").TABLES)
            if setting.option.chart
        ]
        if rows:
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            workloads.append(f"{json.dumps(workload)}: [\n{lines}\n]")
    return TEMPLATE % ",\n".join(workloads)
