"""What NeuronUltraServers and NeuronUltraServerWorkloads say of what was decided."""

from __future__ import annotations

from dra_driver.neuron.ultraserver_objects import (
    ACCEPTED_SPEC,
    AllocationPolicy,
    NeuronUltraServer,
    NeuronUltraServerWorkload,
    UltraServerMeta,
    WorkloadSpec,
)
from dra_driver.ultraserver.placer.objects import accepted_spec, server_status, workload_status
from dra_driver.ultraserver.placer.workload import Description, Extent, Grant, Verdict
from tests.golden import golden

KIND = "trn2u.48xlarge"


def test_a_server_says_who_has_it_and_what_is_wrong() -> None:
    server = NeuronUltraServer(UltraServerMeta(name="ultraserver-s0"))
    grants = [Grant("a/train", "u", ("n0", "n1"), 0, bound=True, at=0.0)]
    for description, of_it in ((Description("ultraserver-s0", KIND, (), ""), ()), (None, grants)):
        for condition in server_status(server, description, of_it, 0.0).conditions:
            golden(f"{condition.type} {condition.status} {condition.reason}: {condition.message}")


def test_a_workload_says_what_of_its_spec_is_not_followed() -> None:
    meta = UltraServerMeta(name="w", namespace="a", annotations={ACCEPTED_SPEC: accepted_spec(Extent(KIND, 1, 4))})
    spec = WorkloadSpec(KIND, 2, 4, allocation_policy=AllocationPolicy("RestartAll"))
    verdict = Verdict("Allocated", "Allocated", "1 of 1 UltraServers: ultraserver-s0", ("ultraserver-s0",))
    for condition in workload_status(NeuronUltraServerWorkload(meta, spec), verdict, 0.0).conditions:
        golden(f"{condition.type} {condition.status} {condition.reason}: {condition.message}")
