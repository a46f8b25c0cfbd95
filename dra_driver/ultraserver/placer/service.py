"""The placer as a whole: a candidate in the election that assigns groups while it leads."""

from __future__ import annotations

from typing import Final

from dra_driver.kube.client import Transport
from dra_driver.kube.election import Times
from dra_driver.kube.leading import Leading
from dra_driver.ultraserver.placer.controller import Placer
from dra_driver.ultraserver.placer.values import Rules

LEASE_NAME: Final = "neuron-dra-driver-placer"


class Service(Leading):
    """Runs in threads of its own.

    Args:
        transport: the API server.
        namespace: of the lease and the ConfigMap.
        identity: in the lease; unique to this process.
        rules: settings.
        times: of the election.
    """

    def __init__(
        self, transport: Transport, namespace: str, identity: str, rules: Rules, times: Times | None = None
    ) -> None:
        super().__init__(
            "the placer",
            transport,
            namespace,
            LEASE_NAME,
            identity,
            lambda may_act, well: Placer(transport, namespace, rules, may_act, well),
            times,
        )
