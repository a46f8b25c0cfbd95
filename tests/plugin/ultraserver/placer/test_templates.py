"""The templates of workloads, as the operator writes them to an API server, and what it says of the fence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.kube.api.resources import Collection
from dra_driver.neuron.names import CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.neuron.ultraserver_objects import FINALIZER, MAX_FINALIZERS, ULTRASERVER_WORKLOADS
from dra_driver.ultraserver.placer.template import LABEL
from tests.doubles.apiserver.http import Fault
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object, Refused
from tests.eventually import eventually
from tests.golden import golden
from tests.plugin.ultraserver.placer.test_operator import (
    KIND,
    add_server,
    allocations,
    ask,
    conditions,
    placing,
    state,
    workload,
)


def install(server: ApiServer) -> None:
    """The classes and the policy."""
    for row in DEVICE_CLASSES:
        spec: Object = {"selectors": [{"cel": {"expression": row.expression}}]}
        server.store.create("deviceclasses", {"metadata": {"name": row.name}, "spec": spec})
    server.store.create("validatingadmissionpolicies", {"metadata": {"name": CLASSES_POLICY}, "spec": {}})
    spec = {"policyName": CLASSES_POLICY, "validationActions": ["Deny"]}
    server.store.create("validatingadmissionpolicybindings", {"metadata": {"name": CLASSES_POLICY}, "spec": spec})


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        add_server(running, "s0")
        add_server(running, "s1")
        install(running)
        yield running


def template(server: ApiServer, name: str) -> Object | None:
    try:
        return server.store.get("resourceclaimtemplates", f"a/{name}")
    except Refused:
        return None


def there(server: ApiServer, name: str) -> Object:
    eventually(lambda: template(server, name) is not None)
    return template(server, name) or {}


def ready(server: ApiServer, name: str) -> tuple[str, str, str]:
    item = workload(server, name)
    return conditions(item)["Ready"] if "status" in item else ("", "", "")


def is_taken(server: ApiServer, name: str) -> bool:
    return ready(server, name)[1] == "TemplateNameTaken"


def says_of_the_fence(server: ApiServer, name: str) -> bool:
    return "Fenced" in str(workload(server, name).get("status"))


def create(server: ApiServer, name: str, **fields: Any) -> Object:
    """A template as a tenant makes it."""
    meta = {"namespace": "a", "name": name, **fields}
    requests = [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]
    spec = {"spec": {"devices": {"requests": requests}}}
    return server.store.create("resourceclaimtemplates", {"metadata": meta, "spec": spec})


@pytest.mark.parametrize("late", [False, True], ids=["list", "watch"])
def test_a_tenants_template_that_is_no_text_holds_up_no_workload(server: ApiServer, late: bool) -> None:
    """The API server keeps what is in ``parameters`` as it came, and anybody may use the operator's label."""

    def write() -> None:
        meta = {"namespace": "b", "name": "odd", "labels": {LABEL: "x"}}
        config = [{"opaque": {"driver": "example.com", "parameters": {"a": "\udcff"}}}]
        spec = {"spec": {"devices": {"config": config}}}
        server.store.create("resourceclaimtemplates", {"metadata": meta, "spec": spec})

    if not late:
        write()
    with placing(server):
        if late:
            ask(server, "before", servers=1)
            eventually(lambda: ready(server, "before")[0] == "True")
            write()
        ask(server, "train", servers=1)
        eventually(lambda: ready(server, "train")[0] == "True")


def test_a_template_selects_by_uid_and_names_mode_core_size_and_workload(server: ApiServer) -> None:
    spec = {"instanceType": KIND, "serverCount": 1, "topologySize": 2, "config": {"logicalNeuronCore": 1}}
    meta = {"namespace": "a", "name": "train", "generation": 1}
    spec |= {"resourceClaimTemplate": {"name": "nodes"}}
    uid = server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": spec})["metadata"]["uid"]
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
    made = there(server, "nodes")
    assert made["metadata"]["labels"] == {LABEL: uid}
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "name": "train",
            "uid": uid,
            "controller": True,
        }
    ]
    devices = made["spec"]["spec"]["devices"]
    assert devices["requests"] == [
        {
            "name": "node",
            "exactly": {
                "deviceClassName": WORKLOAD_CLASS,
                "selectors": [{"cel": {"expression": f"device.attributes['neuron.aws.com'].workloadUID == '{uid}'"}}],
                "allocationMode": "ExactCount",
                "count": 1,
                "tolerations": [
                    {
                        "key": "neuron.aws.com/ultraserver-workload",
                        "operator": "Equal",
                        "value": uid,
                        "effect": "NoSchedule",
                    }
                ],
            },
        }
    ]
    configs = [one["opaque"]["parameters"] for one in devices["config"]]
    assert [one["workload"] for one in configs] == [uid, uid]
    assert [one.get("ultraserverMode") or one["logicalNeuronCore"] for one in configs] == [2, 1]
    assert template(server, "train") is None


def test_a_template_of_somebody_else_is_never_touched_and_its_name_taken_until_it_is_gone(server: ApiServer) -> None:
    foreign = create(server, "train")
    labelled = create(server, "other", labels={LABEL: "another"}, ownerReferences=[])
    for name in ("train", "other"):
        ask(server, name)
    with placing(server):
        for name in ("train", "other"):
            eventually(partial(is_taken, server, name))
            assert state(server, name) == "Allocated"
        assert template(server, "train") == foreign
        assert template(server, "other") == labelled
        server.store.delete("resourceclaimtemplates", "a/other")
        eventually(lambda: ready(server, "other")[0] == "True")
    assert there(server, "other")["metadata"]["ownerReferences"][0]["name"] == "other"
    assert template(server, "train") == foreign


def test_what_somebody_changes_of_an_own_template_is_put_right(server: ApiServer) -> None:
    uid = ask(server, "train")["metadata"]["uid"]
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
        first = there(server, "train")
        for field, value in (("labels", {}), ("ownerReferences", []), ("labels", {LABEL: "x"})):
            changed = there(server, "train")
            changed["metadata"][field] = value
            server.store.update("resourceclaimtemplates", "a/train", changed)
            eventually(lambda: there(server, "train")["metadata"].get("labels") == {LABEL: uid})
            eventually(lambda: len(there(server, "train")["metadata"].get("ownerReferences", ())) == 1)
        assert there(server, "train")["metadata"]["uid"] == first["metadata"]["uid"], "claims' template stays"
        changed = there(server, "train")
        changed["spec"]["spec"]["devices"]["config"] = []
        server.store.update("resourceclaimtemplates", "a/train", changed)
        eventually(lambda: there(server, "train")["spec"] == first["spec"])
        assert there(server, "train")["metadata"]["uid"] != first["metadata"]["uid"], "a spec never changes"
        server.store.delete("resourceclaimtemplates", "a/train")
        eventually(lambda: there(server, "train")["spec"] == first["spec"])


def test_the_workload_alone_owns_its_template(server: ApiServer) -> None:
    uid = ask(server, "train")["metadata"]["uid"]
    others = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{n}", "uid": f"c{n}"} for n in range(9)]
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
        changed = there(server, "train")
        changed["metadata"]["ownerReferences"] = others
        server.store.update("resourceclaimtemplates", "a/train", changed)
        eventually(lambda: [one["uid"] for one in there(server, "train")["metadata"]["ownerReferences"]] == [uid])


def test_in_a_namespace_that_ends_nothing_is_made_and_nobody_else_waits(server: ApiServer) -> None:
    text = "unable to create new content in namespace a because it is being terminated"
    path = "namespaces/a/resourceclaimtemplates"
    server.faults.append(Fault(path=path, method="POST", status=403, reason="Forbidden", message=text, times=10**6))
    ask(server, "train")
    meta = {"namespace": "b", "name": "other", "generation": 1}
    spec = {"instanceType": KIND, "serverCount": 1, "topologySize": 4}
    server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": spec})
    with placing(server):
        eventually(lambda: text in ready(server, "train")[2])
        golden(" ".join(ready(server, "train")))
        eventually(lambda: server.store.get("resourceclaimtemplates", "b/other"))


def test_where_the_server_drops_tolerations_a_template_is_right_without(server: ApiServer) -> None:
    server.dropped_fields = ("spec.spec.devices.requests.exactly.tolerations",)
    ask(server, "train")
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
    first = there(server, "train")
    assert "tolerations" not in first["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    with placing(server, "two"):
        ask(server, "waits")
        eventually(lambda: ready(server, "waits")[0] == "True")
        assert there(server, "train") == first
    server.dropped_fields = ()
    with placing(server, "three"):
        eventually(lambda: "tolerations" in str(template(server, "train")))


def test_a_template_that_a_webhook_changes_is_told_and_not_made_again_at_once(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.dropped_fields = ("spec.spec.devices.config",)
    ask(server, "train")
    with placing(server):
        eventually(lambda: ready(server, "train")[1] == "TemplateNotWritten")
        golden(" ".join(ready(server, "train")))
        golden(next(text for text in caplog.messages if "not as it was sent" in text), "log")
        server.dropped_fields = ()
        eventually(lambda: ready(server, "train")[0] == "True")


def test_where_something_else_is_changed_tolerations_are_written(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.dropped_fields = ("spec.spec.devices.config",)
    ask(server, "train")
    with placing(server):
        assert "tolerations" in str(there(server, "train"))
    golden(next(text for text in caplog.messages if "tolerate taints" in text))


def test_what_lets_others_in_is_said_by_every_workload_until_it_is_installed(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.store.delete("validatingadmissionpolicybindings", CLASSES_POLICY)
    old = server.store.get("deviceclasses", "chip.neuron.aws.com")
    old["spec"]["selectors"] = [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]
    server.store.update("deviceclasses", "chip.neuron.aws.com", old)
    ask(server, "train")
    ask(server, "waits", servers=9)
    with placing(server):
        for name in ("train", "waits"):
            eventually(partial(says_of_the_fence, server, name))
            told = conditions(workload(server, name))["Fenced"]
            assert told[:2] == ("False", "NotInstalled")
            assert "DeviceClass chip.neuron.aws.com does not ask for" in told[2]
            assert "there is no ValidatingAdmissionPolicyBinding classes.neuron.aws.com" in told[2]
        eventually(lambda: state(server, "train") == "Allocated")
    golden(" ".join(conditions(workload(server, "train"))["Fenced"]), "condition")
    golden(next(text for text in caplog.messages if text.startswith("what keeps pods of others")))


def test_what_cannot_be_asked_is_told_and_no_gap(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    server.faults.append(Fault(path="resourceclaimtemplates", method="POST", status=403, reason="Forbidden", times=1))
    with placing(server):
        eventually(lambda: "tolerate taints" in caplog.text)
    server.faults.append(Fault(path="deviceclasses", status=403, reason="Forbidden", times=10**6))
    ask(server, "train")
    with placing(server, "two"):
        eventually(lambda: ready(server, "train")[0] == "True")
    assert "Fenced" not in conditions(workload(server, "train"))
    for text in caplog.messages:
        if text.startswith("it is not known"):
            golden(text)


def delete(server: ApiServer, name: str) -> None:
    """As kubectl does it: what has finalizers stays until they are gone."""
    meta = workload(server, name)["metadata"]
    workloads = Collection(server.transport(), ULTRASERVER_WORKLOADS)
    workloads.delete("a", name, meta["uid"], meta["resourceVersion"])


def is_gone(server: ApiServer, name: str) -> bool:
    return name not in [item["metadata"]["name"] for item in server.store.list("neuronultraserverworkloads")[0]]


def hold(server: ApiServer, node: str) -> None:
    """A claim that pods use has the whole node."""
    result = {"request": "node", "driver": "neuron.aws.com", "pool": node, "device": "neuron-node"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "name": "p"}]}
    server.store.create("resourceclaims", {"metadata": {"namespace": "a", "name": "pod-0-node"}, "status": status})


def test_a_workload_that_is_deleted_stays_until_its_pods_have_ended(server: ApiServer) -> None:
    """No pod gets a claim of it from then on, and nobody else gets its nodes before."""
    ask(server, "train", servers=2)
    ask(server, "waits")
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
        item = workload(server, "train")
        assert item["metadata"]["finalizers"] == [FINALIZER]
        item["metadata"]["finalizers"].append("example.com/other")
        server.store.update("neuronultraserverworkloads", "a/train", item)
        hold(server, "s1-n2")
        eventually(lambda: workload(server, "train")["metadata"]["finalizers"] == [FINALIZER, "example.com/other"])
        delete(server, "train")
        eventually(lambda: ready(server, "train")[1] == "InUse")
        eventually(lambda: template(server, "train") is None)
        assert ready(server, "train")[2] == "pods still hold nodes of ultraserver-s1"
        assert [one["workloadRef"] for one in allocations(server, "ultraserver-s1")] == ["a/train"]
        eventually(lambda: [one["workloadRef"] for one in allocations(server, "ultraserver-s0")] == ["a/waits"])
        server.store.delete("resourceclaims", "a/pod-0-node")
        eventually(lambda: workload(server, "train")["metadata"]["finalizers"] == ["example.com/other"])
        assert not allocations(server, "ultraserver-s1")
        eventually(lambda: ready(server, "waits")[0] == "True")
        delete(server, "waits")
        eventually(lambda: is_gone(server, "waits"))
        eventually(lambda: not allocations(server, "ultraserver-s0"))


def test_a_template_of_somebody_else_outlives_the_workload_of_its_name(server: ApiServer) -> None:
    create(server, "train")
    ask(server, "train")
    with placing(server):
        eventually(lambda: is_taken(server, "train"))
        delete(server, "train")
        eventually(lambda: is_gone(server, "train"))
    assert template(server, "train") is not None


def test_a_workload_with_more_finalizers_than_are_kept_keeps_them_all(server: ApiServer) -> None:
    made = ask(server, "train")
    made["metadata"]["finalizers"] = [f"example.com/{number}" for number in range(MAX_FINALIZERS + 20)]
    server.store.update("neuronultraserverworkloads", "a/train", made)
    with placing(server):
        eventually(lambda: ready(server, "train")[0] == "True")
        delete(server, "train")
        eventually(lambda: not allocations(server, "ultraserver-s0"))
        eventually(lambda: ready(server, "train")[1] == "Released")
    assert len(workload(server, "train")["metadata"]["finalizers"]) == MAX_FINALIZERS + 20
