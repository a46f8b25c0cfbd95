"""Claims of groups of pods (KEP-5729): which pods share the claim of their PodGroup, and where that puts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.documents import ManifestError
from dra_driver.simulator.cluster import merge
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.explain import Target, explanations
from dra_driver.simulator.manifests import Manifests, left_out, read_manifests
from dra_driver.simulator.objects import objects
from dra_driver.simulator.placement import Outcome, simulate
from dra_driver.simulator.preparation import NodeDrivers, StoredObjects, prepared_on_nodes
from tests.golden import golden

Object = dict[str, Any]
CHIPS: Object = {"name": "chips", "resourceClaimTemplateName": "chips"}
GROUP = "workers"


def template(count: int = 4, name: str = "chips") -> Object:
    requests = [{"name": "chips", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def group(*claims: Object, name: str = GROUP, **more: Any) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": list(claims), **more},
    }


def pod_spec(*claims: Object, of: str = GROUP) -> Object:
    uses = [{"name": claim["name"]} for claim in claims]
    return {
        "schedulingGroup": {"podGroupName": of},
        "resourceClaims": list(claims),
        "containers": [{"name": "main", "image": "x", "resources": {"claims": uses}}],
    }


def job(count: int, spec: Object) -> Object:
    of_job = {"completions": count, "parallelism": count, "template": {"spec": spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": of_job}


def job_set(count: int, spec: Object) -> Object:
    jobs = [{"name": "w", "template": job(count, spec)}]
    meta = {"name": "train"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {"replicatedJobs": jobs},
    }


def deployment(count: int, spec: Object) -> Object:
    of_template = {"metadata": {"labels": {"app": "x"}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "train"},
        "spec": {"replicas": count, "selector": {"matchLabels": {"app": "x"}}, "template": of_template},
    }


def read(*items: Object) -> Manifests:
    return read_manifests([("f.yaml", json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))])


def placed(manifests: Manifests, nodes: int = 2) -> tuple[Outcome, ...]:
    return simulate(merge(emulated([("trn2.48xlarge", nodes)]), manifests), "1.37").outcomes


@pytest.mark.parametrize("workload", [job, job_set, deployment])
def test_all_pods_of_a_group_have_its_one_claim_on_one_node(workload: Any) -> None:
    outcomes = placed(read(template(16), group(CHIPS), workload(3, pod_spec(CHIPS))))
    assert len(outcomes) == 3
    (claim,) = {claim.metadata.key: claim for outcome in outcomes for claim in outcome.claims}.values()
    assert len({outcome.node for outcome in outcomes}) == 1
    assert [(owner.kind, owner.name) for owner in claim.metadata.owner_references] == [("PodGroup", GROUP)]
    stored = StoredObjects.of(outcomes)
    (kept,) = stored.claims.values()
    (consumer,) = kept.status.reserved_for
    assert (consumer.resource, consumer.api_group, consumer.name) == ("podgroups", "scheduling.k8s.io", GROUP)
    for pod in stored.pods.values():
        assert [item.resource_claim_name for item in pod.status.resource_claim_statuses] == [claim.metadata.name]


@given(
    name=st.sampled_from(["chips", "other"]),
    named=st.booleans(),
    value=st.sampled_from(["chips", "more"]),
    of=st.sampled_from([GROUP, "others"]),
)
def test_an_entry_has_to_be_equal_in_all_fields_to_that_of_the_pods_own_group(
    name: str, named: bool, value: str, of: str
) -> None:
    entry: Object = {"name": name, "resourceClaimName" if named else "resourceClaimTemplateName": value}
    manifests = read(template(), template(name="more"), group(CHIPS), job(2, pod_spec(entry, of=of)))
    shared = {reference.group is not None for pod in manifests.pods for reference in pod.claims}
    assert shared == {entry == CHIPS and of == GROUP}
    if not named:
        claims = {reference.claim for pod in manifests.pods for reference in pod.claims}
        assert len(claims) == (1 if shared == {True} else 2)


def test_a_claim_that_is_named_is_reserved_for_the_group() -> None:
    entry = {"name": "chips", "resourceClaimName": "mine"}
    claim = {**template(), "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": template()["spec"]["spec"]}
    stored = StoredObjects.of(placed(read(claim, group(entry), job(3, pod_spec(entry)))))
    (kept,) = stored.claims.values()
    assert [consumer.resource for consumer in kept.status.reserved_for] == ["podgroups"]


def test_a_group_of_another_source_counts() -> None:
    pods = read(template(16), job(2, pod_spec(CHIPS)))
    assert {outcome.node for outcome in placed(merge(read(group(CHIPS)), pods))} == {"node-1"}


def test_what_is_not_shared_is_told() -> None:
    named = CHIPS | {"resourceClaimTemplateName": "more"}
    golden(left_out(read(template(), job(2, pod_spec(CHIPS)))))
    golden(left_out(read(template(), template(name="more"), group(named), job(2, pod_spec(CHIPS)))))
    assert left_out(read(template(), group(CHIPS), job(2, pod_spec(CHIPS)))) == ()


def test_who_waits_for_the_claim_of_a_group_is_told_what_ends_it() -> None:
    outcomes = placed(read(template(12), group(CHIPS), job(2, pod_spec(CHIPS))), nodes=1)
    held = read_manifests(
        [("f", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(outcomes)}))], in_cluster=True
    )
    waits = read(
        template(8), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}, "spec": pod_spec(CHIPS, of="")}
    )
    manifests = merge(merge(emulated([("trn2.48xlarge", 1)]), held), waits)
    (item,) = explanations(manifests, "1.37", target=Target("pod", "default", "w"))
    golden(item.remedies)


def test_what_a_cluster_says_of_the_claim_holds() -> None:
    told = group(CHIPS) | {
        "status": {"resourceClaimStatuses": [{"name": "chips", "resourceClaimName": "workers-chips-x"}]}
    }
    (name,) = {
        reference.claim for pod in read(template(), told, job(2, pod_spec(CHIPS))).pods for reference in pod.claims
    }
    assert name == "workers-chips-x"


def test_every_container_of_the_group_gets_the_whole_claim() -> None:
    manifests = merge(emulated([("trn2.48xlarge", 1)]), read(template(4), group(CHIPS), job(2, pod_spec(CHIPS))))
    outcomes = simulate(manifests, "1.37").outcomes
    (item,) = prepared_on_nodes(outcomes, StoredObjects.of(outcomes), NodeDrivers(manifests)).values()
    assert item.plan is not None, item.problem
    assert (item.plan.warnings, sorted(item.plan.nodes)) == ((), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (group({"name": "chips"}), "exactly one of"),
        (group(CHIPS, CHIPS), "uplicate"),
        (group(*({"name": f"c{n}", "resourceClaimName": "x"} for n in range(5))), "at most 4"),
        (group(CHIPS, podGroupName="x"), "podGroupName"),
    ],
)
def test_wrong_claims_of_a_group_are_refused(wrong: Object, text: str) -> None:
    with pytest.raises(ManifestError, match=text) as refused:
        read(wrong)
    golden(str(refused.value))
