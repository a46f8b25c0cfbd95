"""What the Dockerfile says of the image itself, so that it is written once: variables, labels, command and ports."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping


def settings(text: str, arguments: Mapping[str, str]) -> dict[str, object]:
    """Return the settings of the last stage, by the names of the OCI, with build arguments filled in."""
    last = re.split(r"(?m)^FROM .*$", re.sub(r"\\\n\s*", "", text))[-1]
    for name, value in arguments.items():
        last = last.replace(f"${{{name}}}", value)
    instructions = re.findall(r"(?m)^(ENV|LABEL|EXPOSE|ENTRYPOINT|CMD) +(.+)$", last)
    listed: dict[str, list[str]] = {"ENV": [], "LABEL": []}
    config: dict[str, object] = {}
    for name, rest in instructions:
        match name:
            case "ENTRYPOINT" | "CMD":
                config[{"ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}[name]] = json.loads(rest)
            case "EXPOSE":
                config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
            case _:
                listed[name] += shlex.split(rest)
    labels = dict(pair.split("=", 1) for pair in listed["LABEL"])
    return {**config, "Env": listed["ENV"], "Labels": labels}
