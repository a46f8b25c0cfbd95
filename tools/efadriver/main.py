"""The command `scripts/emulated-efa-driver`."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.cli.daemon import run_until, stopped_by_signals
from dra_driver.driver.resourceslices.controller import SliceController
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.codec import PARTIAL_RESOURCE_CLAIMS, Resource
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection, ResourceApi
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.neuron.emulation.efa import (
    EFA_CDI_KIND,
    EFA_CLASS,
    EFA_DRIVER_NAME,
    EFA_SELECTOR,
    cdi_spec,
    efa_devices,
    published,
)
from dra_driver.neuron.topology.instance_types import InstanceType, resolve_emulation
from dra_driver.util.errors import DriverError
from dra_driver.util.logs import configure

_CLASSES: Final[Resource[dict[str, Any]]] = Resource(
    dict, "DeviceClass", "deviceclasses", PARTIAL_RESOURCE_CLAIMS.versions
)
_CDI_OWNER: Final = "devices"


class EmulatedEfaDriver:
    """What kubelet calls. All devices of the node are in one CDI spec, so no claim leaves anything behind.

    Args:
        api: the API server.
        node: name of the Node, and of the pool.
        kind: type of the host.
        directory: CDI specs of ``EFA_CDI_KIND``.
    """

    def __init__(self, api: ResourceApi, node: str, kind: InstanceType, directory: SpecDirectory) -> None:
        self._api = api
        self._node = node
        self._names = {device.name for device in efa_devices(kind)}
        self._spec = cdi_spec(kind)
        self._directory = directory
        self._writing = threading.Lock()

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        """The devices that the claim was given; a reboot may have taken the CDI spec away."""
        found = self._api.get_claim(claim.namespace, claim.name, timeout=max(deadline - time.monotonic(), 0.1) / 2)
        if found.metadata.uid != claim.uid:
            raise DriverError(f"claim {claim.namespace}/{claim.name} was replaced", remedy="delete the pod")
        allocation = found.status.allocation
        results = [item for item in allocation.devices.results if item.driver == EFA_DRIVER_NAME] if allocation else []
        unknown = [item.device for item in results if item.pool != self._node or item.device not in self._names]
        if unknown or not results:
            what = f"this node has no EFA device {unknown[0]}" if unknown else "the claim was given no EFA device"
            raise DriverError(what, remedy="delete the claim, so that it is allocated anew")
        with self._writing:
            self._directory.write(_CDI_OWNER, self._spec)
        return [
            PreparedDevice((item.request,), item.pool, item.device, (self._directory.qualified(item.device),))
            for item in results
        ]

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """Nothing to do."""


class Service:
    """The driver with its slices and its class, from start to stop; ``on_error`` is ``KubeletPlugin``'s."""

    def __init__(
        self,
        transport: Transport,
        kind: InstanceType,
        options: argparse.Namespace,
        on_error: Callable[[BaseException], None],
    ) -> None:
        api = ResourceApi(transport)
        self._transport = transport
        self._kind = kind
        self._slices = SliceController(api, EFA_DRIVER_NAME, options.node_name)
        self._plugin = KubeletPlugin(
            EmulatedEfaDriver(api, options.node_name, kind, SpecDirectory(options.cdi_root, EFA_CDI_KIND)),
            EFA_DRIVER_NAME,
            plugin_dir=options.kubelet_directory / "plugins" / EFA_DRIVER_NAME,
            registrar_dir=options.kubelet_directory / "plugins_registry",
            # kubelet deletes the slices when it starts.
            on_registered=lambda registered, _: self._slices.trigger("registered") if registered else None,
            on_error=on_error,
        )

    def start(self) -> None:
        """Publish, and let kubelet in. ApiError if the class can be neither found nor made."""
        self._ensure_class()
        self._slices.set_desired(Desired(published(self._kind)))
        self._slices.start()
        self._plugin.start()

    def stop(self) -> None:
        """Serve no more; the slices stay until kubelet misses the driver, and the class stays."""
        self._plugin.stop(5)
        self._slices.stop()

    def _ensure_class(self) -> None:
        document = {
            "metadata": {"name": EFA_CLASS},
            "spec": {"selectors": [{"cel": {"expression": EFA_SELECTOR}}]},
        }
        try:
            Collection(self._transport, _CLASSES).create("", document)
        except ApiError as error:
            if error.status != 409:
                raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (status 0); status 1 if it cannot."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/emulated-efa-driver",
        description="Offer the EFA devices that a node of an instance type would have, as AWS's EFA DRA driver does, "
        f"and give containers device files that do nothing. Makes the DeviceClass {EFA_CLASS} if there is none. "
        "For tests and trials: never on a node with EFA devices or with that driver, which has the same name.",
        epilog="example: scripts/emulated-efa-driver --node-name node-1 --instance-type trn2.48xlarge "
        "--kubeconfig admin.conf",
    )
    parser.add_argument("--node-name", required=True, metavar="NAME", help="name of this node's Node object")
    parser.add_argument("--instance-type", required=True, metavar="TYPE", help="what it pretends to be")
    parser.add_argument("--kubeconfig", required=True, metavar="FILE", help="an administrator's kubeconfig")
    parser.add_argument("--kubelet-directory", type=Path, default=Path("/var/lib/kubelet"), help="(%(default)s)")
    parser.add_argument("--cdi-root", type=Path, default=Path("/var/run/cdi"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    failures: list[BaseException] = []
    try:
        kind = resolve_emulation(options.instance_type)
        if not efa_devices(kind):
            raise DriverError(f"no EFA pairing of {kind.name} is known", remedy="give a type such as trn2.48xlarge")
        transport = Transport.from_kubeconfig(options.kubeconfig, user_agent="emulated-efa-driver")
        configure("text", 2)
        with stopped_by_signals() as stop:

            def failed(error: BaseException) -> None:
                failures.append(error)
                stop.set()

            run_until(stop, Service(transport, kind, options, failed))
    except DriverError as error:
        failures.append(error)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
