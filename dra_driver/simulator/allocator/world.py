"""A cluster as the allocator sees it, and what a pod's claims would get on one of its nodes."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from dra_driver.kube.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_driver.kube.objects.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.simulator.allocator.candidates import SearchContext, tainted
from dra_driver.simulator.allocator.capacity import Usage
from dra_driver.simulator.allocator.nodes import NodeView
from dra_driver.simulator.allocator.partial_allocation import Pick
from dra_driver.simulator.allocator.pool_devices import (
    Deadline,
    MayGoOn,
    SelectorFailure,
    Selectors,
    TimedSelector,
    TimeOver,
    unlimited,
    verdict,
)
from dra_driver.simulator.allocator.pools import PoolIndex
from dra_driver.simulator.allocator.release import Release, release
from dra_driver.simulator.allocator.requests import AllocationError, PreparedClaim, RequestAlternative, prepare
from dra_driver.simulator.allocator.search import Steps, search
from dra_driver.util.errors import DriverError

_SHARES = uuid.UUID("6d0cfb5e-9a55-4d0b-8f0c-2f6f7f5f0c1d")
"""Kubernetes generates random share ids; here the same input gives the same id."""


def allocation(prepared: PreparedClaim, picks: Sequence[Pick], node: str, release: Release) -> AllocationResult:
    """The allocation that kube-scheduler would write. Raises AllocationError for a node selector with several terms."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=tuple(_device(prepared, place, pick) for place, pick in enumerate(picks)),
            config=tuple(_config(prepared, picks, release)),
        ),
        node_selector=_node_selector(picks, node),
    )


def _device(prepared: PreparedClaim, place: int, pick: Pick) -> DeviceRequestAllocationResult:
    offer = pick.candidate.offer
    share, consumed = None, {}
    if offer.shareable:
        meta = prepared.claim.metadata
        share = str(uuid.uuid5(_SHARES, "/".join((meta.namespace, meta.name, meta.uid, str(place), *offer.id))))
        consumed = {name: amount.text for name, amount in (pick.candidate.amounts or {}).items()}
    return DeviceRequestAllocationResult(
        request=pick.option.label,
        driver=offer.driver,
        pool=offer.pool,
        device=offer.device.name,
        admin_access=pick.option.admin or None,
        tolerations=pick.option.tolerations,
        binding_conditions=offer.device.binding_conditions or (),
        binding_failure_conditions=offer.device.binding_failure_conditions or (),
        share_id=share,
        consumed_capacity=consumed,
    )


def _chosen(prepared: PreparedClaim, picks: Sequence[Pick]) -> list[RequestAlternative]:
    """The chosen alternative of each request; the first one for a request that got no devices."""
    taken = {pick.option for pick in picks}
    return [
        next((option for option in request.options if option in taken), request.options[0])
        for request in prepared.requests
    ]


def _config(
    prepared: PreparedClaim, picks: Sequence[Pick], release: Release
) -> Iterator[DeviceAllocationConfiguration]:
    """Entries of the classes, each once, then those of the claim.

    Up to 1.36 an entry of the claim is repeated for each request that it names. From 1.37 on it occurs once, and an
    entry for all requests names none.
    """
    options = _chosen(prepared, picks)
    entries: list[DeviceAllocationConfiguration] = []
    users: dict[str, list[RequestAlternative]] = {}
    for option in options:
        users.setdefault(option.device_class.metadata.name, []).append(option)
    for using in users.values():
        labels = tuple(option.label for option in using)
        entries += [
            DeviceAllocationConfiguration("FromClass", labels, item.opaque)
            for item in using[0].device_class.spec.config
        ]
    for item in prepared.claim.spec.devices.config:
        named = [option for option in options if {option.label, option.names[0]} & set(item.requests)]
        times = 1 if not item.requests else len(named) if release.keeps_config_requests else min(len(named), 1)
        entries += [DeviceAllocationConfiguration("FromClaim", item.requests, item.opaque)] * times
    for entry in entries:
        for_all = all({option.label, option.names[0]} & set(entry.requests) for option in options)
        if for_all and not release.keeps_config_requests:
            yield DeviceAllocationConfiguration(entry.source, (), entry.opaque)
        else:
            yield entry


def _node_selector(picks: Sequence[Pick], node: str) -> NodeSelector | None:
    """Where the allocation is usable: this node, the nodes that all devices are for, or (None) everywhere."""
    fields: dict[Hashable, NodeSelectorRequirement] = {}
    expressions: dict[Hashable, NodeSelectorRequirement] = {}
    for pick in picks:
        spec, device = pick.candidate.offer.spec, pick.candidate.offer.device
        source = device if spec.per_device_node_selection else spec
        if source.node_name is not None or device.binds_to_node:
            this = NodeSelectorRequirement("metadata.name", "In", (node,))
            return NodeSelector((NodeSelectorTerm(match_fields=(this,)),))
        terms = source.node_selector.node_selector_terms if source.node_selector is not None else ()
        if len(terms) > 1:
            raise AllocationError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            # Kubernetes puts all fields before all expressions, and keeps each requirement once.
            for requirements, items in ((fields, term.match_fields), (expressions, term.match_expressions)):
                for item in items:
                    requirements.setdefault((item.key, item.operator, frozenset(item.values)), item)
    if not fields and not expressions:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions.values()), tuple(fields.values())),))


NEWEST = "1.37"
"""The default release."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why claims are not allocated."""

    reason: str
    fatal: bool = False
    """Whether it ends the scheduling of the pod, as opposed to rejecting one node."""


Choice = Literal["only", "score", "alternative", "name"]
"""Why this node: no other fits, highest score, an earlier subrequest, or first by name."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocations of claims on a node, in the order of the claims. They are not in use yet: see ``Usage.take``."""

    node: str
    results: tuple[AllocationResult, ...]
    choice: Choice = "only"


Errors = Literal["nothing", "node", "usage"]
"""What errors depend on: ``nothing`` (there are none), ``node`` (only the node's devices), ``usage`` (also usage)."""


class World:
    """Slices, classes and usage. Slices and classes must not change; ``usage`` may.

    ``kubernetes`` is 1.36 or 1.37. ``deadline`` is called when a question about one node begins, and gives what says
    whether there is time left for it. Raises DriverError for another release.
    """

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        selectors: Selectors,
        usage: Usage | None = None,
        kubernetes: str = NEWEST,
        *,
        taint_rules: Iterable[DeviceTaintRule] = (),
        deadline: Deadline = unlimited,
    ) -> None:
        self.release = release(kubernetes)
        self.pools = PoolIndex(
            slices if self.release.follows_no_taint_rules else tainted(slices, taint_rules), self.release
        )
        self.classes = {item.metadata.name: item for item in classes}
        self._deadline = deadline
        self._has_time: MayGoOn = lambda: True
        self.selectors = Selectors(lru_cache(maxsize=4096)(partial(self._compiled, selectors)), selectors.view)
        self._harmless: dict[tuple[str, ...], bool] = {}
        self.usage = usage if usage is not None else Usage()

    def _compiled(self, selectors: Selectors, expression: str) -> TimedSelector:
        return TimedSelector(selectors.compile(expression), self._may_go_on)

    def _may_go_on(self) -> bool:
        return self._has_time()

    def begin(self, claims: Sequence[ResourceClaim]) -> None:
        """Begin the time for a question about one node, for the claims of one pod.

        Selectors raise TimeOver once it is over.
        """
        self._has_time = self._deadline(claims[0].metadata.namespace if claims else "")

    def prepare(self, claims: Sequence[ResourceClaim]) -> tuple[PreparedClaim, ...] | Refusal:
        """Prepare the claims of one pod, to be tried on several nodes."""
        try:
            return tuple(prepare(claim, self.classes, self.selectors) for claim in claims)
        except DriverError as error:
            return Refusal(str(error), fatal=True)

    def errors(self, claims: Sequence[PreparedClaim]) -> Errors:
        """On what an error that ends the scheduling of these claims can depend, as far as that is cheap to find out.

        Raises TimeOver.
        """
        self.begin([item.claim for item in claims])
        options = [option for item in claims for request in item.requests for option in request.options]
        if self.pools.peculiar or any(option.capacity for option in options):
            return "usage"
        if not all(self._never_fails(option) for option in options):
            return "usage"
        if not any(option.all_devices for option in options):
            return "nothing"
        return "usage" if any(item.claim.spec.devices.constraints for item in claims) else "node"

    def _never_fails(self, option: RequestAlternative) -> bool:
        harmless = self._harmless.get(option.key)
        if harmless is None:
            harmless = self._harmless[option.key] = not any(
                isinstance(verdict(offer, option.selectors, option.key, self.selectors.view), SelectorFailure)
                for offer in self.pools.kinds_of_offers
            )
        return harmless

    def state(self, node: NodeView) -> tuple[int, ...]:
        """Changes with the use of any device available to the node. Raises NodeSelectorError if that is unknown."""
        return tuple(self.usage.version(pool.key) for pool in self.pools.pools(node))

    def around(self, node: NodeView) -> SearchContext:
        """The search context of a node. Raises DriverError if its slices cannot be read."""
        return SearchContext(node, self.pools.pools(node), self.usage, self.selectors, self.release)

    def ask(
        self, claims: Sequence[PreparedClaim], node: NodeView, *, prune: bool = True, steps: Steps | None = None
    ) -> Allocation | Refusal:
        """What prepared claims would get on the node.

        With ``prune=False`` all combinations are tried as in Kubernetes, which may take long. ``steps`` limits the
        search, as Kubernetes does by time if not given.
        """
        self.begin([item.claim for item in claims])
        if not claims:
            return Allocation(node.name, ())
        try:
            around = self.around(node)
            picks = search(claims, around, prune=prune, steps=steps, may_go_on=self._has_time)
            if picks is None:
                broken = [pool for pool in around.pools if pool.invalid]
                return Refusal(_invalid(broken[0].key, broken[0].invalid) if broken else NO_SOLUTION)
            pairs = zip(claims, picks, strict=True)
            return Allocation(
                node.name, tuple(allocation(item, claim_picks, node.name, self.release) for item, claim_picks in pairs)
            )
        except DriverError as error:
            return Refusal(str(error), fatal=True)
        except TimeOver:
            return TIME_OVER


NO_SOLUTION = "cannot allocate all claims"
TIME_OVER = Refusal(
    "the search was given up, since it took longer than the 10 seconds of kube-scheduler or than all searches together "
    "may take; ask for fewer devices in one request, for larger devices, or with selectors that cost less",
    fatal=True,
)
"""Who gets this answer for claims should ask nothing more about them."""


def _invalid(key: tuple[str, str], reason: str) -> str:
    return f"invalid resource pools were encountered: {'/'.join(key)}: {reason}"
