"""The commands for people, as the user of a kubeconfig."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.lib.namespace import Namespace


class Commands:
    """The commands, as the user of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def run(self, *arguments: str, status: int = 0) -> str:
        """Standard output, and standard error after it."""
        command = [sys.executable, "-m", "dra_driver", *arguments, "--kubeconfig"]
        done = subprocess.run([*command, str(self.kubeconfig)], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def explain(self, namespace: Namespace, name: str, status: int = 1) -> str:
        """``explain`` of a pod."""
        return self.run("explain", f"pod/{name}", "-n", namespace.name, status=status)

    def findings(self, namespace: Namespace, name: str) -> list[dict[str, Any]]:
        """What ``explain`` finds of a pod that is not well, the cause first."""
        text = self.run("explain", f"pod/{name}", "-n", namespace.name, "-o", "json", status=1)
        (item,) = json.loads(text[: text.rindex("}") + 1])["items"]
        found: list[dict[str, Any]] = item["findings"]
        return found

    def node(self, name: str) -> Any:
        """A node as ``top`` shows it."""
        frame = json.loads(self.run("top", "-o", "json", "-A"))
        return next(node for node in frame["items"] if node["node"] == name)
