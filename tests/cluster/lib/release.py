"""The chart on the cluster under test, installed by real helm, and what a test may look at of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml
from lab import components, oci
from lab.build import Builder
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings

from dra_driver.kube.api.client import Transport
from dra_driver.legacy.rules import NeuronResource
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from tests.cluster.lib.installation import EMULATED
from tests.cluster.lib.installation import NAMESPACE as DRIVER_NAMESPACE
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.objects import IMAGE, SLEEP
from tests.cluster.lib.serviceaddress import ServiceAddress
from tests.manifests.pages import commands_of
from tests.paths import ROOT

INF1, TRN1 = "inf1.6xlarge", "trn1.32xlarge"
NEURON, CORE = NeuronResource.DEVICE.value, NeuronResource.CORE.value
NINE = ",".join(map(str, range(9)))
"""Value of NEURON_RT_VISIBLE_CORES for the documented pod with nine cores."""
CHART = ROOT / "charts/neuron-helm-chart"
NAME = "neuron-helm-chart"
NAMESPACE = "kube-system"
DETECTOR_NAMESPACE = "neuron-healthcheck-system"
EXTENDER = "k8s-neuron-scheduler"
SCHEDULER = "my-scheduler"
PLUGIN = "neuron-device-plugin-daemonset"
LABELS = {EXTENDER: "app=neuron-scheduler", SCHEDULER: "app=my-scheduler", PLUGIN: "name=neuron-device-plugin-ds"}
"""Labels of the pods by the name of what makes them."""
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
LEGACY = {"scheduler.enabled": "true"}
DEFAULT_SCHEDULER = {
    **LEGACY,
    "scheduler.customScheduler.enabled": "false",
    "scheduler.defaultScheduler.enabled": "true",
}
DRA = {"draDriver.enabled": "true", "devicePlugin.enabled": "false"}


def helm_program(major: int = 4) -> Path:
    """The helm of ``$HELM``, or of ``$HELM3``; else the lab's."""
    variable, version = {4: ("HELM", components.HELM_VERSION), 3: ("HELM3", components.HELM3_VERSION)}[major]
    if named := os.environ.get(variable):
        return Path(named)
    return Builder(Settings.from_environment(os.environ), Progress()).build([components.helm(version)])["helm"]


class Release:
    """The one release. Remembers its settings, so that asking for the same again costs nothing."""

    def __init__(self, lab: Cluster, kube: Kube, helm: Path, image: str, directory: Path) -> None:
        self.lab = lab
        self.kube = kube
        self.notes = ""
        self.settings: Mapping[str, str] = {}
        self._image = image.rpartition(":")[::2]
        self.program = helm
        homes = {f"HELM_{name}_HOME": str(directory / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        search = f"{lab.layout.directory / 'bin'}:{os.environ['PATH']}"
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(kube.access.kubeconfig), "PATH": search}
        self._address: ServiceAddress | None = None

    def load_scheduler(self, directory: Path) -> None:
        """Load the cluster's own kube-scheduler into the nodes, under the name of the image that the chart uses."""
        archive = directory / "kube-scheduler.tar"
        program = self.lab.state.programs["kube-scheduler"]
        tools = oci.tools()  # for looking at it from within
        image = oci.Image(programs={**tools.programs, "usr/local/bin/kube-scheduler": program}, links=tools.links)
        oci.write_archive(image, [f"registry.k8s.io/kube-scheduler:v{self.lab.spec.kubernetes}"], archive)
        self.lab.load(archive)
        archive.unlink()

    # Changing it

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm on the cluster."""
        return self._run([str(self.program), *arguments], check=check)

    def shell(self, command: str) -> str:
        """Standard output of a command as a user runs it, in the checkout, with kubectl for the cluster."""
        return self._run(["bash", "-c", command], check=True).stdout

    def upgrade(self, settings: Mapping[str, str], *more: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``helm upgrade --install``, without waiting for anything."""
        return self.helm("upgrade", "--install", *more, NAME, str(CHART), *self.options(settings), check=check)

    def tested(self) -> str:
        """What the pods of ``helm test`` print, as helm shows it."""
        return self.helm("test", NAME).stderr.replace("\\n", "\n")

    def ensure(self, settings: Mapping[str, str], emulated: str) -> None:
        """Install or upgrade to these settings on nodes of an emulated type, and wait until everything is ready."""
        wanted = {**settings, "emulate": emulated}
        if self.settings == wanted:
            return
        # On one node the DRA driver and the device plugin do not follow each other without a pause.
        if self.settings and self._has_driver() != ("draDriver.enabled" in wanted):
            self.uninstall()
        self.settings = {}
        self.label_nodes(emulated)
        self.notes = self.upgrade(wanted).stdout
        self.settings = wanted
        if "scheduler.enabled" in wanted:
            self._make_reachable()
        self.wait_ready()

    def take_over(self, settings: Mapping[str, str], emulated: str) -> None:
        """Make what the installer has installed the release's, by the options that the chart's page names."""
        (options,) = re.findall(r"`helm upgrade --install ((?:--[a-z-]+ ?)+)`", (CHART / "README.md").read_text())
        self.settings = {**settings, "emulate": emulated}
        self.notes = self.upgrade(self.settings, *options.split()).stdout

    def uninstall(self) -> None:
        """Remove it as the chart's page says; returns when its pods, and what they offered, are gone."""
        self._unreachable()
        self.settings = {}
        blocks = [block for block in commands_of(CHART / "README.md") if block.value.endswith("for the removal")]
        helm, *more = [command.text for block in blocks for command in block.commands()]
        self.helm(*helm.split()[1:], "--ignore-not-found")
        eventually("the pods to be gone", lambda: not any(self.pods(name, ending=True) for name in LABELS), 90)
        for command in more:
            self.shell(command)
        for name in (DRIVER_NAMESPACE, DETECTOR_NAMESPACE):
            eventually(f"the namespace {name} to be gone", partial(self._lacks_namespace, name), 90)
        self.wait_allocatable(0, 0)

    def label_nodes(self, instance_type: str) -> None:
        """Say of which type the nodes are, as a cloud does; on emulated nodes nobody else does."""
        self.kube.kubectl("label", "nodes", "--all", "--overwrite", f"{INSTANCE_TYPE_LABEL}={instance_type}")

    def close(self) -> None:
        """Leave the cluster as it was."""
        self.uninstall()
        self.label_nodes(EMULATED)

    # Looking at it

    def wait_ready(self) -> None:
        """Wait until everything runs in its current version, and nothing in an older one."""
        for kind in ("daemonset", "deployment"):
            for item in self.made(kind):
                where = f"--namespace={item['metadata'].get('namespace', 'default')}"
                command = ("rollout", "status", where, f"{kind}/{item['metadata']['name']}", "--timeout=150s")
                self.kube.kubectl(*command, timeout=160)

    def made(self, kind: str = "") -> list[Object]:
        """The objects that the chart has made, as helm remembers them, of one kind or of all."""
        found = [item for item in yaml.safe_load_all(self.helm("get", "manifest", NAME).stdout) if item]
        return [item for item in found if not kind or item["kind"].lower() == kind]

    def would_make(self, kind: str, more: Mapping[str, str]) -> list[Object]:
        """The objects of one kind that the chart would make with more settings; nothing is changed."""
        text = self.helm("template", NAME, str(CHART), *self.options({**self.settings, **more})).stdout
        return [item for item in yaml.safe_load_all(text) if item and item["kind"].lower() == kind]

    def stored(self) -> list[Object]:
        """The same objects as the API server has them."""
        text = self.helm("get", "manifest", NAME).stdout
        items: list[Object] = json.loads(self.kube.kubectl("get", "-f", "-", "-o", "json", stdin=text))["items"]
        return items

    def pods(self, name: str, node: str = "", *, ending: bool = False) -> list[Object]:
        """The pods of a Deployment or DaemonSet of the legacy pair; only on demand those that are about to end."""
        fields = f"spec.nodeName={node}" if node else ""
        found = self.kube.find("pods", NAMESPACE, labels=LABELS[name], fields=fields)
        return [item for item in found if ending or "deletionTimestamp" not in item["metadata"]]

    def logs(self, name: str, node: str = "") -> str:
        """Logs of all its pods, or of that on a node."""
        return "".join(
            self.kube.kubectl(f"--namespace={NAMESPACE}", "logs", pod["metadata"]["name"], check=False)
            for pod in self.pods(name, node)
        )

    def exec(self, pod: Object, *command: str) -> str:
        """Standard output of a command in a pod's container."""
        return self.kube.kubectl(f"--namespace={NAMESPACE}", "exec", pod["metadata"]["name"], "--", *command)

    def client(self, pod: Object, directory: Path) -> Transport:
        """The API server as a pod sees it: with the pod's own token and nothing else."""
        config = json.loads(self.kube.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"][0]["user"] = {"token": self.exec(pod, "cat", _TOKEN)}
        path = directory / f"kubeconfig-of-{pod['metadata']['name']}"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return Transport.from_kubeconfig(str(path))

    def wait_allocatable(self, devices: int, cores: int) -> None:
        """Wait until each node offers so many chips and cores by a device plugin."""

        def probe() -> bool:
            found = [node["status"]["allocatable"] for node in self.kube.find("nodes")]
            counts = {tuple(int(item.get(name.value, "0")) for name in NeuronResource) for item in found}
            return counts == {(devices, cores)}

        eventually(f"{devices} chips and {cores} cores on each node", probe, 60)

    def commands(self) -> list[str]:
        """The commands that the notes name."""
        return [line.strip() for line in self.notes.splitlines() if line.startswith("  kubectl ")]

    def diagnose(self) -> str:
        """What to know of it after a failure."""
        where = ("--namespace", NAMESPACE)
        listed = self.kube.kubectl(*where, "get", "pods,endpointslices", "-o", "wide", check=False)
        events = self.kube.kubectl(*where, "get", "events", "--sort-by=.lastTimestamp", check=False)
        logs = [f"== {name}\n{self.logs(name)[-5000:]}" for name in LABELS]
        return "\n".join([listed, events[-4000:], *logs])

    def options(self, settings: Mapping[str, str]) -> list[str]:
        """Options of helm that set these, and the image."""
        named = {"image.repository": self._image[0], "image.tag": self._image[1], **settings}
        return [part for key, value in named.items() for part in ("--set", f"{key}={value}")]

    def _has_driver(self) -> bool:
        return "draDriver.enabled" in self.settings

    def _lacks_namespace(self, name: str) -> bool:
        return self.kube.get("namespaces", name) is None

    def _make_reachable(self) -> None:
        """Stand in for kube-proxy, and for the DNS entry of the Service in the pods of my-scheduler."""
        self._unreachable()
        address = ServiceAddress(self.kube, NAMESPACE, EXTENDER)
        address.open()
        self._address = address
        if self.kube.get("deployments", SCHEDULER, NAMESPACE) is not None:
            alias = {"ip": address.address, "hostnames": list(address.names)}
            patch = {"spec": {"template": {"spec": {"hostAliases": [alias]}}}}
            where = (f"--namespace={NAMESPACE}", "deployment", SCHEDULER)
            self.kube.kubectl("patch", *where, "--type=merge", f"--patch={json.dumps(patch)}")

    def _unreachable(self) -> None:
        if self._address is not None:
            self._address.close()
            self._address = None

    def _run(self, command: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done


def limited(name: str, limits: Mapping[str, int], *, scheduler: str = SCHEDULER, node: str = "") -> Object:
    """A pod as the documented one, with one container `main`."""
    counts = {key: str(count) for key, count in limits.items()}
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": IMAGE, "command": SLEEP, "resources": {"limits": counts}}],
    }
    if scheduler:
        spec["schedulerName"] = scheduler
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def notes_of(item: Object) -> dict[str, str]:
    found: dict[str, str] = item["metadata"].get("annotations") or {}
    return found


def line_with(text: str, *parts: str) -> str:
    """The only line in which all parts are."""
    (found,) = [line for line in text.splitlines() if all(part in line for part in parts)]
    return found
