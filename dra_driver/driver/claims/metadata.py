"""Files that tell a container what its devices are (KEP-5304, device metadata; beta in Kubernetes 1.37).

Each request of a claim has a file, which its containers see where ``container_edits.metadata_path`` says: the devices
with their attributes, as the ResourceSlices had them when the claim was prepared. Format and paths are those of
``k8s.io/dynamic-resource-allocation`` 0.37 (``api/metadata/v1beta1``, ``kubeletplugin/metadata.go``). That library does
it by CDI specs of their own; here the mounts are part of the claim's spec, so that they come and go with it.

All follows from the plan, and can be written again from it. So nothing is synced, as with CDI specs; but unlike those
the files are no place that a reboot empties, and a container does not start without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dra_driver.driver.claims.model import Plan
from dra_driver.driver.claims.situation import Situation
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError
from dra_driver.util.files import is_uuid, readable_content, remove_file, replace_file

API_VERSION: Final = "metadata.resource.k8s.io/v1beta1"


def with_metadata(plan: Plan, situation: Situation, directory: Path) -> Plan:
    """The plan with what its containers are to be told, if anything; files are to lie below ``directory``."""
    attributes = situation.facts.attributes
    if attributes is None:
        return plan
    devices = tuple(
        replace(device, attributes=dict(sorted(attributes.get(device.device, {}).items()))) for device in plan.devices
    )
    return replace(plan, devices=devices, metadata=str(directory / plan.uid), pod_claim=situation.claim.pod_claim)


def files(plan: Plan) -> dict[str, bytes]:
    """Content by name of the file; equal plans give equal bytes. {} for a plan that was made without."""
    if not plan.metadata:
        return {}
    requests: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for device in plan.devices:
        document = {"driver": DRIVER_NAME, "pool": device.pool, "name": device.device}
        entry = document | ({"attributes": device.attributes} if device.attributes else {})
        requests.setdefault(device.base_request, {}).setdefault(device.request, []).append(entry)
    return {f"{base}.json": _content(plan, subrequests) for base, subrequests in requests.items()}


def _content(plan: Plan, requests: Mapping[str, list[dict[str, Any]]]) -> bytes:
    document = {
        "kind": "DeviceMetadata",
        "apiVersion": API_VERSION,
        "metadata": {"name": plan.name, "namespace": plan.namespace, "uid": plan.uid, "generation": 1},
        **({"podClaimName": plan.pod_claim} if plan.pod_claim else {}),
        "requests": [{"name": name, "devices": devices} for name, devices in requests.items()],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


class MetadataDirectory:
    """The files of all claims below ``path``, a directory for each. Methods raise DriverError.

    As with CDI specs there is one writer at a time, and files are replaced atomically.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, plan: Plan) -> bool:
        """Write what is missing or different; False if there was nothing to do."""
        directory, wanted = Path(plan.metadata), files(plan)
        changed = False
        try:
            for name, data in wanted.items():
                if readable_content(directory / name) != data:
                    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                    replace_file(directory / name, data, temporary=f"{name}.tmp", mode=0o644, synced=False)
                    changed = True
        except OSError as error:
            raise self._unusable("write", directory, error) from error
        return changed

    def complete(self, plan: Plan) -> bool:
        """Whether all files of a claim are as they should be."""
        return all(readable_content(Path(plan.metadata) / name) == data for name, data in files(plan).items())

    def remove(self, uid: str) -> bool:
        """Remove the files of a claim; False if there were none."""
        directory = self.path / uid
        try:
            for child in directory.iterdir():
                remove_file(child)
            directory.rmdir()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unusable("remove", directory, error) from error
        return True

    def claims(self) -> Iterator[str]:
        """UIDs of claims that have files."""
        with suppress(OSError):  # without the directory there are none
            yield from sorted(
                path.name
                for path in self.path.iterdir()
                if is_uuid(path.name) and path.is_dir() and not path.is_symlink()
            )

    def _unusable(self, verb: str, path: Path, error: OSError) -> DriverError:
        return DriverError(
            f"cannot {verb} {path}: {error.strerror or error}",
            consequence="containers that need this file do not start",
            remedy="check the disk of kubelet's directory; with DEVICE_METADATA=off, new claims get no such files",
        )
