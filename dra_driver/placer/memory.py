"""Which groups stay away from which servers: a ConfigMap, since the pods that would say it are deleted."""

from __future__ import annotations

from typing import Final

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import CONFIG_MAPS, ConfigMap, ObjectMeta
from dra_driver.placer.snapshot import read_released, write_released
from dra_driver.placer.values import Released

NAME: Final = "neuron-dra-driver-placer"
KEY: Final = "released"


class Memory:
    """Read once a term, written before a group is released. Calls raise ApiError."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._maps = Collection(transport, CONFIG_MAPS, timeout=REQUEST_SECONDS)
        self._namespace = namespace
        self._known: tuple[Released, ...] | None = None
        self._version = ""

    def read(self) -> tuple[Released, ...]:
        """What is remembered."""
        if self._known is None:
            try:
                self._learn(self._maps.get(self._namespace, NAME))
            except ApiError as error:
                if not error.object_missing:
                    raise
                self._known, self._version = (), ""
        return self._known or ()

    def add(self, released: Released, now: float) -> None:
        """Remember a group and its server until the time it says."""
        same = (released.namespace, released.group, released.server)
        others = [item for item in self.read() if (item.namespace, item.group, item.server) != same]
        meta = ObjectMeta(name=NAME, namespace=self._namespace, resource_version=self._version)
        document = ConfigMap(meta, {KEY: write_released([*others, released], now)})
        try:
            if self._version:
                self._learn(self._maps.replace(self._namespace, NAME, document))
            else:
                self._learn(self._maps.create(self._namespace, document))
        except ApiError:
            self._known = None
            raise

    def _learn(self, stored: ConfigMap) -> None:
        self._known = read_released((stored.data or {}).get(KEY, ""))
        self._version = stored.metadata.resource_version
