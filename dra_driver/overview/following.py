"""The objects of an overview from the API server: listed once, or followed by watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.watch import Informer
from dra_driver.names import DRIVER_NAME
from dra_driver.overview.objects import CLAIMS, NODES, PODS, SLICES, Claim, Node, Pod, Slice
from dra_driver.overview.view import Cluster
from dra_driver.util.errors import DriverError

STOP_SECONDS: Final = 2.0
_OWN_SLICES: Final = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)


def _counts(pod: Pod) -> bool:
    return pod.counts


def _matters(claim: Claim) -> bool:
    """Claims of other drivers, once allocated, are nobody's here."""
    return bool(claim.held) or not claim.allocated


def listed(transport: Transport) -> Cluster:
    """The objects as stored now. Raises ApiError for a kind that cannot be listed."""
    return Cluster(
        Collection(transport, NODES).list_all()[0],
        Collection(transport, SLICES, _OWN_SLICES).list_all()[0],
        list(filter(_matters, Collection(transport, CLAIMS).list_all()[0])),
        list(filter(_counts, Collection(transport, PODS).list_all()[0])),
    )


class Followed:
    """The objects as four watches deliver them. A context manager; ``cluster`` may be called from any thread."""

    def __init__(self, transport: Transport) -> None:
        self._event = threading.Event()
        changed: Callable[[], None] = self._event.set
        self._nodes: Informer[Node] = Informer("nodes", Collection(transport, NODES), changed)
        self._slices: Informer[Slice] = Informer("slices", Collection(transport, SLICES, _OWN_SLICES), changed)
        self._claims: Informer[Claim] = Informer("claims", Collection(transport, CLAIMS), changed, _matters)
        self._pods: Informer[Pod] = Informer("pods", Collection(transport, PODS), changed, _counts)
        self._all = (self._nodes, self._slices, self._claims, self._pods)

    def __enter__(self) -> Self:
        for informer in self._all:
            informer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for informer in self._all:
            informer.stop(STOP_SECONDS)

    def wait_listed(self, poll: float = 0.05) -> None:
        """Return when everything has been listed. Raises DriverError if something cannot be."""
        while not all(informer.current for informer in self._all):
            trouble = self.trouble
            if trouble:
                raise DriverError(trouble)
            self._event.wait(poll)

    def wait_changed(self, seconds: float) -> bool:
        """Whether something has changed since the last call, or does so within that time."""
        changed = self._event.wait(seconds)
        self._event.clear()
        return changed

    @property
    def trouble(self) -> str:
        """Why some of it is not followed now, or ""."""
        return next((informer.last_error for informer in self._all if informer.last_error), "")

    def cluster(self) -> Cluster:
        """The objects as known now."""
        return Cluster(self._nodes.objects(), self._slices.objects(), self._claims.objects(), self._pods.objects())
