"""A namespace of one test: what it applies there, what it sees there, and taking it away."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.cluster.lib.kube import Kube, Object, eventually

RUNNING_SECONDS = 130.0
"""After 60 to 90 s kubelet comes back to a pod that it could not start, as when it has not yet seen the pod's claim."""


class Allocated(NamedTuple):
    """One result of a claim's allocation."""

    request: str
    pool: str
    device: str

    @property
    def chip(self) -> int:
        """Number of the device on its host."""
        return int(self.device.removeprefix("neuron-device-"))


class DeviceFile(NamedTuple):
    """A device as a container sees it."""

    path: str
    kind: str
    major: int
    minor: int


@dataclass
class Namespace:
    """A namespace with the objects of one test."""

    kube: Kube
    name: str
    _device_classes: list[str] = field(default_factory=list)

    def create(self, labels: dict[str, str] | None = None) -> None:
        """Make it, ready for pods: those need its service account, which a controller makes."""
        metadata = {"name": self.name, "labels": labels or {}}
        self.kube.create("namespaces", {"metadata": metadata})
        account = partial(self.kube.get, "serviceaccounts", "default", self.name)
        eventually(f"the service account of {self.name}", account, 90)

    def apply(self, *objects: Object | str) -> None:
        """Apply objects or YAML texts here; DeviceClasses among them go away with the namespace."""
        applied = (item.partition("/") for item in self.kube.apply(*objects, namespace=self.name))
        self._device_classes += [name for kind, _, name in applied if kind.startswith("deviceclass.")]

    def delete_pod(self, name: str, *, within: float = 30.0, grace: int = 1) -> None:
        """End a pod and wait until it is gone, its claims being unprepared."""
        self.kube.delete("pods", name, self.name, grace=grace)
        eventually(f"pod {name} to be gone", lambda: self.pod(name) is None, within)

    def remove(self) -> None:
        """Take away everything; returns when no pod is left, so that all claims are unprepared."""
        for resource in ("deployments", "replicasets", "statefulsets", "pods"):
            self.kube.delete_all(resource, self.name, grace=1)
        eventually(f"the pods of {self.name} to be gone", lambda: not self.pods(), 60)
        self.kube.delete_all("resourceclaims", self.name)
        eventually(f"the claims of {self.name} to be gone", lambda: not self.claims(), 30)
        for name in dict.fromkeys(self._device_classes):
            self.kube.delete("deviceclasses", name)
        self.kube.delete("namespaces", self.name)

    def kubectl(self, *arguments: str, check: bool = True, timeout: float = 60.0) -> str:
        """Run kubectl in this namespace."""
        return self.kube.kubectl(f"--namespace={self.name}", *arguments, check=check, timeout=timeout)

    # Pods

    def pod(self, name: str) -> Object | None:
        """A pod, or None."""
        return self.kube.get("pods", name, self.name)

    def pods(self) -> list[Object]:
        """All pods."""
        return self.kube.find("pods", self.name)

    def phase(self, name: str) -> str:
        """Phase of a pod; "" when there is no such pod."""
        found = self.pod(name)
        return str(found["status"].get("phase", "")) if found else ""

    def wait_phase(self, name: str, phase: str, within: float = RUNNING_SECONDS) -> Object:
        """Wait until a pod has a phase; return the pod."""

        def probe() -> Object | None:
            found = self.pod(name)
            return found if found and found["status"].get("phase") == phase else None

        return eventually(f"pod {name} to be {phase}", probe, within)

    def wait_ready(self, *names: str, within: float = RUNNING_SECONDS) -> list[Object]:
        """Wait until pods are Ready; return them."""

        def ready(name: str) -> Object | None:
            found = self.pod(name)
            conditions = found["status"].get("conditions", []) if found else []
            return found if "Ready" in {entry["type"] for entry in conditions if entry["status"] == "True"} else None

        return [eventually(f"pod {name} to be Ready", partial(ready, name), within) for name in names]

    def node_of(self, name: str) -> str:
        """Node that a pod was scheduled to; "" before that."""
        found = self.pod(name)
        return str(found["spec"].get("nodeName", "")) if found else ""

    def exec(self, pod: str, script: str, container: str = "") -> str:
        """Standard output of a shell script in a container."""
        where = ("-c", container) if container else ()
        return self.kubectl("exec", pod, *where, "--", "sh", "-c", script)

    def printed(self, lines: int, *which: str) -> list[str]:
        """What a pod, or the pods of a selector, printed, once it is so many lines: Ready comes before the first."""

        def probe() -> list[str] | None:
            found = self.kubectl("logs", *which, "--tail=-1").splitlines()
            return found if len(found) >= lines else None

        return eventually(f"{lines} lines of {' '.join(which)}", probe, 10)

    def device_files(self, pod: str, container: str = "") -> list[DeviceFile]:
        """``/dev/neuron*`` of a container, by number."""
        listed = self.exec(pod, "for f in /dev/neuron*; do [ ! -e $f ] || stat -c '%n|%F|%t|%T' $f; done", container)
        files = []
        for line in listed.splitlines():
            path, kind, major, minor = line.split("|")
            files.append(DeviceFile(path, kind, int(major, 16), int(minor, 16)))
        return sorted(files, key=lambda item: int(re.sub(r"\D", "", item.path)))

    def numbers(self, pod: str, container: str = "") -> list[int]:
        """Numbers of the Neuron devices that a container sees."""
        return [int(re.sub(r"\D", "", item.path)) for item in self.device_files(pod, container)]

    def environment(self, pod: str, container: str = "") -> dict[str, str]:
        """Variables of a container whose name begins with NEURON."""
        lines = self.exec(pod, "env | grep ^NEURON || true", container).splitlines()
        return dict(line.split("=", 1) for line in lines)

    # Claims and events

    def claim(self, name: str) -> Object | None:
        """A claim, or None."""
        return self.kube.get("resourceclaims", name, self.name)

    def claims(self) -> list[Object]:
        """All claims."""
        return self.kube.find("resourceclaims", self.name)

    def claim_of(self, pod: str, name: str = "neurons") -> Object:
        """The claim that a pod knows by this name."""
        found = self.pod(pod)
        assert found is not None, f"there is no pod {pod}"
        # From a template or not: both lists name the pod's claims, and only one of the entries names the object.
        entries = [*found["spec"]["resourceClaims"], *found["status"].get("resourceClaimStatuses", [])]
        names = {entry["name"]: entry["resourceClaimName"] for entry in entries if "resourceClaimName" in entry}
        claim = self.claim(names[name])
        assert claim is not None, f"pod {pod} has no claim {name}"
        return claim

    def allocated(self, claim: Object) -> list[Allocated]:
        """What a claim was given, in the order of the allocation."""
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        return [Allocated(item["request"], item["pool"], item["device"]) for item in results]

    def events(self, name: str = "") -> list[Object]:
        """Events, of one object or of all, oldest first."""
        fields = f"involvedObject.name={name}" if name else ""
        return sorted(self.kube.find("events", self.name, fields=fields), key=lambda item: str(item["lastTimestamp"]))

    def wait_event(self, name: str, text: str, within: float = 60.0) -> str:
        """Wait for an event of an object whose message has ``text``; return the message."""

        def probe() -> str | None:
            messages = [str(event.get("message", "")) for event in self.events(name)]
            return next((message for message in messages if text in message), None)

        return eventually(f"an event of {name} with {text!r}", probe, within, every=0.3)
