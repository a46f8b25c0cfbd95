"""Looks from time to time at what keeps pods of others from workloads, and whether claims can tolerate taints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.neuron.names import CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.ultraserver.placer.fence import BINDINGS, CLASSES, POLICIES, gaps_of
from dra_driver.ultraserver.placer.template import LABEL, keeps_tolerations, probe_of

PERIOD: Final = 300.0
"""Seconds between two looks; a tenth of it while something is missing or cannot be asked."""
CHANGED_TEMPLATE: Final = (
    "the API server does not store the template that it is sent; find out which admission webhook or policy changes "
    f"ResourceClaimTemplates, and have it leave out those with the label {LABEL}"
)
T = TypeVar("T")
log = logging.getLogger(__name__)


class FenceWatch:
    """What is installed of the fence, as far as the API server says.

    Args:
        transport: the API server.
        templates: where those of workloads are created.
        namespace: of a template that is only tried.
        clock: Unix time.
    """

    def __init__(
        self, transport: Transport, templates: Collection[Any], namespace: str, clock: Callable[[], float]
    ) -> None:
        self.gaps = ""
        """What may let others in."""
        self.tolerations: bool | None = None
        """Whether the API server keeps tolerations of claims; None: that is not known."""
        self._templates = templates
        self._namespace = namespace
        self._clock = clock
        self._classes = Collection(transport, CLASSES, timeout=REQUEST_SECONDS)
        self._policies = Collection(transport, POLICIES, timeout=REQUEST_SECONDS)
        self._bindings = Collection(transport, BINDINGS, timeout=REQUEST_SECONDS)
        self._due = 0.0

    def look(self) -> None:
        """Look, if it is time to. What cannot be asked is no gap."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + PERIOD / 10
        try:
            classes, _ = self._classes.list_all()
            policy, binding = (if_there(one, "", CLASSES_POLICY) for one in (self._policies, self._bindings))
        except ApiError as error:
            log.warning("it is not known whether pods of others are kept from workloads: %s", error)
            return
        kinds = {item.kind for item, one in ((POLICIES, policy), (BINDINGS, binding)) if one is not None}
        gaps = "; ".join(gaps_of(classes, kinds, binding))
        if gaps != self.gaps:
            log.warning("what keeps pods of others from workloads: %s", gaps or "all is installed")
        self.gaps = gaps
        if not gaps:
            self._due = self._clock() + PERIOD
        if WORKLOAD_CLASS in {item.metadata.name for item in classes}:
            self._try_tolerations()

    def _try_tolerations(self) -> None:
        try:
            answer = self._templates.create(self._namespace, probe_of(self._namespace), dry_run=True)
        except ApiError as error:
            log.warning("it is not known whether claims can tolerate taints: %s", error)
            return
        keeps = keeps_tolerations(answer)
        if keeps is None:
            log.warning("it is not known whether claims can tolerate taints: %s", CHANGED_TEMPLATE)
            return
        self.tolerations = keeps


def if_there(collection: Collection[T], namespace: str, name: str) -> T | None:
    """The object, or None; raises ApiError if the API server does not say."""
    try:
        return collection.get(namespace, name)
    except ApiError as error:
        if error.object_missing:
            return None
        raise
