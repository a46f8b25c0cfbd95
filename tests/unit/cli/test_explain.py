"""The command, as users call it."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.simulator.cluster import merge
from dra_driver.simulator.emulated_nodes import efa_of, emulated
from dra_driver.simulator.manifests import read_manifests
from dra_driver.simulator.placement import simulate
from tests.builders.documents import document as parsed
from tests.builders.overview import published, taint
from tests.builders.yamlfiles import as_yaml
from tests.golden import golden
from tests.paths import SPECS

CONNECTED = str(SPECS / "1x4-connected-devices.yaml")
ATTRIBUTES = "device.attributes['neuron.aws.com']"
Json = dict[str, Any]
Shell = Callable[..., tuple[int, str, str]]

CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "neuron.aws.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
}


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs the command: status, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["explain", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def claim(name: str, count: int = 1, *, allocated: tuple[str, ...] = (), node: str = "n0", **fields: Any) -> Json:
    made: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}]}
        },
    }
    made["spec"]["devices"]["requests"][0]["exactly"].update(fields)
    if allocated:
        results = [{"request": "r", "driver": "neuron.aws.com", "pool": node, "device": device} for device in allocated]
        made["status"] = {"allocation": {"devices": {"results": results}}}
    return made


def pod(name: str, *claims: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "main", "resources": {"claims": [{"name": item} for item in claims]}}],
            "resourceClaims": [{"name": item, "resourceClaimName": item} for item in claims],
            **spec,
        },
    }


def node(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def slices(name: str, count: int = 4) -> Json:
    devices = [{"name": f"neuron-device-{i}", "attributes": {"deviceId": {"int": i}}} for i in range(count)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{name}"},
        "spec": {
            "driver": "neuron.aws.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def write(path: Path, *documents: Json, name: str = "objects.yaml") -> str:
    file = path / name
    file.write_text(as_yaml(*documents))
    return str(file)


SMALL = (node("n0"), node("n1"), slices("n0"), slices("n1"), CLASS)


def test_an_example_that_fits(shell: Shell) -> None:
    status, out, _ = shell(CONNECTED, "--instance-type", "trn2.48xlarge=2")
    assert status == 0
    golden(out.splitlines()[0])
    golden(out.splitlines()[-1])


def test_an_example_that_does_not_fit(shell: Shell) -> None:
    status, out, _ = shell(CONNECTED, "--instance-type", "trn1.32xlarge")
    assert status == 1
    golden(out)


@pytest.mark.parametrize("example", sorted(SPECS.glob("*.yaml")), ids=lambda file: file.stem)
@pytest.mark.parametrize("kind", ["trn2.48xlarge", "trn2u.48xlarge"])
def test_it_agrees_with_simulate_on_every_example(example: Path, kind: str, shell: Shell) -> None:
    sources = [(str(example), example.read_text())]
    manifests = merge(emulated([(kind, 4)]), read_manifests(sources))
    manifests = merge(efa_of(manifests), manifests)
    outcomes = simulate(manifests, "1.37").outcomes
    status, out, _ = shell(str(example), "--instance-type", f"{kind}=4", "-o", "json")
    found = parsed(out)["items"]
    assert [item["fits"] for item in found] == [outcome.placed for outcome in outcomes]
    assert [item["node"] for item in found] == [outcome.node for outcome in outcomes]
    assert status == int(not all(outcome.placed for outcome in outcomes))


def test_pods_that_come_later_see_what_earlier_ones_took(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, pod("a", "a"), pod("b", "b"), claim("a", 3), claim("b", 3), claim("c", 1))
    status, out, _ = shell(file, "--objects", write(tmp_path, *SMALL[::2], name="cluster.yaml"))
    assert status == 1
    golden(out)


def test_what_does_not_fit_is_first_also_before_what_fits_with_a_trap(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, pod("a", "three"), claim("three", 3), pod("b", "all"), claim("all", 16))
    for options in ((), ("-o", "wide")):
        status, out, _ = shell(file, "--instance-type", "trn2.48xlarge", *options)
        assert status == 1
        assert "[unconnected]" in out
        assert out.startswith("Pod default/b does not fit")


def test_replicas_that_are_refused_alike_are_only_counted(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, *(item for name in "abcd" for item in (pod(name, name), claim(name, 9))))
    _, out, _ = shell(file, "--objects", write(tmp_path, *SMALL, name="cluster.yaml"))
    assert out.count("does not fit") == 1
    golden(out)


def test_one_pod_or_claim_of_a_cluster(shell: Shell, tmp_path: Path) -> None:
    held = claim("held", 3, allocated=("neuron-device-0", "neuron-device-1", "neuron-device-2"))
    broken = pod("broken", "is-not-there")
    cluster = write(tmp_path, *SMALL, held, claim("w", 2), pod("a", "held"), pod("w", "w"), broken)
    status, out, _ = shell("pod/w", "--objects", cluster)
    assert status == 0
    golden(out.splitlines()[0])
    golden(out)
    assert shell("claim/w", "--objects", cluster)[0] == 0
    status, out, _ = shell("po/a", "--objects", cluster)
    assert status == 0
    golden(out.splitlines()[0])


def test_everything_of_the_cluster_that_waits(shell: Shell, tmp_path: Path) -> None:
    held = claim("held", 1, allocated=("neuron-device-0",))
    cluster = write(tmp_path, *SMALL, held, claim("w", 4), pod("w", "w"), pod("h", "held"))
    status, out, _ = shell("--objects", cluster, "-o", "json")
    assert status == 0
    assert [(item["subject"], item["node"]) for item in parsed(out)["items"]] == [("pod default/w", "n1")]


def test_nodes_that_the_pod_may_not_use(shell: Shell, tmp_path: Path) -> None:
    tainted = node("n1", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    cluster = write(tmp_path, node("n0"), tainted, *SMALL[2:], name="cluster.yaml")
    file = write(tmp_path, pod("p", "c", nodeSelector={"disk": "fast"}), claim("c"))
    _, out, _ = shell(file, "--objects", cluster)
    golden(out)
    file = write(tmp_path, pod("p", "c"), claim("c", 5))
    golden(shell(file, "--objects", cluster)[1])


def test_a_pod_that_names_its_node(shell: Shell, tmp_path: Path) -> None:
    cluster = write(tmp_path, *SMALL, claim("c"), pod("p", "c", nodeName="n0"))
    status, out, _ = shell("--objects", cluster)
    assert status == 1
    golden(out)


def test_a_shared_claim_is_allocated_once(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, pod("a", "c"), pod("b", "c"), pod("d", "c", nodeSelector={"x": "y"}), claim("c", 4))
    status, out, _ = shell(file, "--objects", write(tmp_path, *SMALL, name="cluster.yaml"), "-o", "json")
    found = parsed(out)["items"]
    assert status == 1
    assert [item["fits"] for item in found] == [True, True, False]
    golden(found[1]["message"])
    golden(found[2]["message"])


def test_the_json_form(shell: Shell, tmp_path: Path) -> None:
    held = claim("held", 1, allocated=("neuron-device-1",))
    selector = [{"cel": {"expression": f"{ATTRIBUTES}.deviceId < 2"}}]
    cluster = write(tmp_path, node("n0"), slices("n0"), CLASS, held, claim("c", 2, selectors=selector))
    status, out, _ = shell("claim/c", "--objects", cluster, "-o", "json", "--kubernetes", "1.36")
    document = parsed(out)
    assert (status, document["kubernetes"]) == (1, "1.36")
    (found,) = document["items"]
    (group,) = found["nodeGroups"]
    assert found["claims"] == [{"namespace": "default", "name": "c"}]
    assert (found["fits"], found["node"], found["error"]) == (False, None, None)
    assert (group["nodeNames"], group["step"], group["missing"]) == (["n0"], "devices", 1)
    assert [(item["devices"], item["finding"]) for item in group["requests"][0]["groups"]] == [
        (["neuron-device-0"], "free"),
        (["neuron-device-1"], "in use"),
        (["neuron-device-2", "neuron-device-3"], "selector"),
    ]
    assert group["requests"][0]["groups"][2]["saw"] == {'device.attributes["neuron.aws.com"].deviceId': ["2", "3"]}
    golden(found["remedies"][0])


def test_what_is_not_considered_is_listed(shell: Shell, tmp_path: Path) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}}
    file = write(tmp_path, pod("p", "c", containers=[container]), claim("c"))
    _, out, _ = shell(file, "--objects", write(tmp_path, *SMALL, name="cluster.yaml"))
    golden(out.splitlines()[-1])


def test_standard_input_is_read(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    data = as_yaml(*[*SMALL, claim("c")]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert shell("--objects", "-")[0] == 0


def test_without_its_extra_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['lark'] = None; from dra_driver.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "explain", CONNECTED, "--instance-type", "trn2.48xlarge"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["pod/a", "claim/b", "--objects", "x"],
        ["pod/a", "--instance-type", "trn2.48xlarge"],
        ["pod/a"],
        ["pod/A"],
        [CONNECTED],
        [CONNECTED, "--instance-type", "trn9.huge"],
        ["absent.yaml", "--instance-type", "trn2.48xlarge"],
        [CONNECTED, "pod/other", "--instance-type", "trn2.48xlarge"],
        [CONNECTED, "claim/other", "--instance-type", "trn2.48xlarge"],
    ],
)
def test_arguments_that_cannot_be_used_are_one_error(arguments: list[str], shell: Shell) -> None:
    status, out, err = shell(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    golden(err)


@pytest.mark.parametrize(
    "content",
    [
        "a: [",
        "kind: Pod\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nope: 1}\n",
        "",
        as_yaml(pod("p", "absent")),
        as_yaml(claim("c", selectors=[{"cel": {"expression": "device.x"}}])),
        as_yaml(claim("c", deviceClassName="absent")),
    ],
)
def test_files_that_cannot_be_used_are_one_error(content: str, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(content)
    status, out, err = shell(str(file), "--instance-type", "trn2.48xlarge")
    assert (status, out, err.count("\n")) == (2, "", 1)
    golden(err)


def test_a_device_taint_rule_is_told_by_name(shell: Shell, tmp_path: Path) -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "repair"},
        "spec": {
            "deviceSelector": {"driver": "neuron.aws.com", "pool": "n0"},
            "taint": {"key": "broken", "effect": "NoExecute"},
        },
    }
    cluster = write(tmp_path, node("n0"), CLASS, slices("n0"), rule, name="cluster.yaml")
    status, out, _ = shell(write(tmp_path, claim("c", 2)), "--objects", cluster)
    assert status == 1
    golden(out)


def test_of_many_that_fit_the_first_are_shown_and_wide_output_has_each(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(as_yaml(*[claim(f"c{number:02}") for number in range(20)]))
    status, out, _ = shell(str(file), "--instance-type", "trn2.48xlarge=2")
    assert status == 0
    assert out.count(" fits: ") == 8
    golden(out)
    _, out, _ = shell(str(file), "--instance-type", "trn2.48xlarge=2", "-o", "wide")
    assert out.count(" fits: ") == 20


@pytest.mark.parametrize("option", ["-w", "-l"])
def test_an_option_of_kubectl_is_answered_with_what_to_use(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "-A", option])
    golden(capsys.readouterr().err)


# What was told wrongly once: remedies and traps that rest on what the nodes and the group say


def emulated_cluster(tmp_path: Path, nodes: dict[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Objects of trn2.48xlarge nodes: by name, what each offers by its label, and its lost chips."""
    objects: list[Json] = [CLASS]
    for name, (partitions, lost) in nodes.items():
        labels = {"node.kubernetes.io/instance-type": "trn2.48xlarge", "neuron.aws.com/partitions": partitions}
        objects.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        for item in published(name, partitions=partitions):
            for device in item["spec"].get("devices", ()):
                if device["name"] in {f"neuron-device-{chip}" for chip in lost}:
                    device["taints"] = [taint("device-lost")]
            objects.append({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **item})
    return ["--objects", write(tmp_path, *objects, name="cluster.yaml")]


CHIPS = [{"cel": {"expression": f"{ATTRIBUTES}.resourceType == 'neuron_device'"}}]


def test_a_chip_of_another_node_that_is_mended_comes_before_more_free_devices(shell: Shell, tmp_path: Path) -> None:
    cluster = emulated_cluster(tmp_path, {"node-1": ("core", ()), "node-2": ("chip", (3,))})
    file = write(tmp_path, claim("all", 16, selectors=CHIPS), name="claim.yaml")
    status, out, _ = shell(file, *cluster)
    assert status == 1
    assert "neuron-device-3 of node node-2" in out
    assert "more free devices" not in out


def test_a_node_of_the_right_type_is_told_by_its_label_and_no_other_type(shell: Shell, tmp_path: Path) -> None:
    cluster = emulated_cluster(tmp_path, {"node-1": ("core", ())})
    status, out, _ = shell(write(tmp_path, claim("one", selectors=CHIPS), name="claim.yaml"), *cluster)
    assert status == 1
    assert "use a node of type" not in out.lower()
    golden([line for line in out.splitlines() if "neuron.aws.com/partitions" in line])


def test_an_attribute_of_a_constraint_that_is_written_nearly_so(shell: Shell, tmp_path: Path) -> None:
    wanted = claim("four", 4)
    wanted["spec"]["devices"]["constraints"] = [{"matchAttribute": "resource.aws.com/deviceGroup4_id"}]
    status, out, _ = shell(write(tmp_path, wanted), "--instance-type", "trn2.48xlarge")
    assert status == 1
    golden(next(line for line in out.splitlines() if line.startswith("  - ")))


def test_a_label_in_a_domain_that_no_node_has(shell: Shell, tmp_path: Path) -> None:
    text = (SPECS / "4-node-inference-us.yaml").read_text()
    file = tmp_path / "group.yaml"
    file.write_text(
        text.replace("neuron.amazonaws.com/ultraserver-server-id-4", "neuron.aws.com/ultraserver-server-id-4")
    )
    status, out, _ = shell(str(file), "--instance-type", "trn2u.48xlarge=4", "--partitions", "node")
    assert status == 1
    golden(next(line for line in out.splitlines() if line.startswith("  - ")))


@pytest.mark.parametrize(("size", "warned"), [(4, False), (2, True)])
def test_sizes_of_a_group_that_do_not_agree(size: int, warned: bool, shell: Shell, tmp_path: Path) -> None:
    text = (SPECS / "4-node-inference-us.yaml").read_text()
    assert "size: 4" in text
    file = tmp_path / "group.yaml"
    file.write_text(text.replace("size: 4", f"size: {size}"))
    _, out, _ = shell(str(file), "--instance-type", "trn2u.48xlarge=4", "--partitions", "node", "-o", "wide")
    warnings = [line for line in out.splitlines() if "ultraserverMode" in line and "Warning" in line]
    assert bool(warnings) is warned, out
    golden(warnings[:1])


def test_nobody_is_told_to_wait_for_claims_of_the_pods_own_group(shell: Shell, tmp_path: Path) -> None:
    text = (SPECS / "4-node-inference-us.yaml").read_text()
    file = tmp_path / "group.yaml"
    file.write_text(text)
    status, out, _ = shell(str(file), "--instance-type", "trn2u.48xlarge=3", "--partitions", "node")
    assert status == 1
    assert "when this claim ends" not in out
    assert "when one of these claims ends" not in out


def test_compatibility_groups_are_told_with_their_feature_gate(shell: Shell, tmp_path: Path) -> None:
    """kube-scheduler leaves slices that have them out, so that their pool is never complete."""
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 2}
    of_node: Json = {"driver": "part.example", "nodeName": "node-1", "pool": pool}
    consumed = [{"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["g"]}]
    slices: list[Json] = [
        {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "2"}}}]},
        {"devices": [{"name": "p0", "consumesCounters": consumed}]},
    ]
    file = tmp_path / "input.yaml"
    items = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"s{place}"},
            "spec": {**of_node, **part},
        }
        for place, part in enumerate(slices)
    ]
    file.write_text("---\n".join(map(yaml.safe_dump, [*items, claim("c", 2)])))
    _, out, _ = shell(str(file), "--instance-type", "trn2.3xlarge")
    assert "lices of pool part.example/node-1 have compatibilityGroups" in out
    assert "are missing" not in out
    golden(out)


def test_a_pod_of_a_cluster_whose_template_is_not_there(shell: Shell, tmp_path: Path) -> None:
    lost = pod("lost")
    lost["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimTemplateName": "nowhere"}]
    lost["metadata"]["uid"] = "u-1"
    status, out, _ = shell("pod/lost", "--objects", write(tmp_path, *SMALL, lost), "-o", "json")
    assert status == 1
    golden(parsed(out)["items"][0]["remedies"])


def test_a_node_of_the_right_type_that_offers_something_else(shell: Shell, tmp_path: Path) -> None:
    cluster = emulated_cluster(tmp_path, {"node-1": ("group4", ())})
    wanted = claim("one")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "chips.example.com"
    chips = {**CLASS, "metadata": {"name": "chips.example.com"}, "spec": {"selectors": CHIPS}}
    status, out, _ = shell(write(tmp_path, wanted, chips, name="claim.yaml"), *cluster, "-o", "json")
    assert status == 1
    golden(parsed(out)["items"][0]["remedies"])


@pytest.mark.parametrize(
    ("uses", "warned"),
    [
        ([], True),
        ([{"name": "c", "request": "x"}], True),
        ([{"name": "c"}], False),
        ([{"name": "c", "request": "r"}], False),
    ],
    ids=["no claim", "no such request", "the claim", "the request"],
)
def test_a_claim_of_which_no_container_gets_anything(
    uses: list[Json], warned: bool, shell: Shell, tmp_path: Path
) -> None:
    held = claim("c", 1, allocated=("neuron-device-0",))
    for given in (claim("c"), held):
        asked = pod("p", "c", containers=[{"name": "main", "resources": {"claims": uses}}])
        status, out, _ = shell("pod/p", "--objects", write(tmp_path, *SMALL, given, asked))
        assert status == 0
        assert ("Warning: " in out) is warned
    if warned:
        golden(line for line in out.splitlines() if "Warning: " in line)


CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-03-01T10:00:00Z"}
MAINTENANCE = {"key": "maintenance", "value": "planned", "effect": "NoExecute"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "taints",
    [[CORDON], [MAINTENANCE], [CORDON, MAINTENANCE], [CORDON, NOT_READY]],
    ids=["cordon", "taint", "both", "sick"],
)
def test_a_node_that_people_closed_is_told_with_all_that_opens_it(
    taints: list[Json], shell: Shell, tmp_path: Path
) -> None:
    closed = node("n1", taints=taints, unschedulable=CORDON in taints)
    full = claim("held", 4, allocated=tuple(f"neuron-device-{place}" for place in range(4)))
    objects = write(tmp_path, node("n0"), closed, *SMALL[2:], full, claim("c"), pod("p", "c"))
    status, out, _ = shell("pod/p", "--objects", objects)
    assert status == 1
    golden(out)
    golden(parsed(shell("pod/p", "--objects", objects, "-o", "json")[1])["items"][0]["remedies"], "remedies")
    if NOT_READY in taints:  # it goes away by itself, and not before the node is well
        return
    opened = write(tmp_path, *SMALL, full, claim("c"), pod("p", "c"), name="opened.yaml")
    assert shell("pod/p", "--objects", opened)[0] == 0


def test_nobody_is_told_to_wait_for_a_claim_that_no_pod_uses(shell: Shell, tmp_path: Path) -> None:
    held = claim("held", 4, allocated=tuple(f"neuron-device-{place}" for place in range(4)))
    held["status"]["reservedFor"] = [{"apiGroup": "example.com", "resource": "sandboxes", "name": "s1", "uid": "1"}]
    objects = write(tmp_path, *SMALL[:1], *SMALL[2:3], CLASS, held, claim("c"), pod("p", "c"))
    status, out, _ = shell("pod/p", "--objects", objects)
    assert status == 1
    golden(out)
    golden(parsed(shell("pod/p", "--objects", objects, "-o", "json")[1])["items"][0]["remedies"], "remedies")


def test_a_pod_that_may_not_run_where_its_claim_has_its_devices(shell: Shell, tmp_path: Path) -> None:
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}]}
    held = claim("c", 1, allocated=("neuron-device-0",))
    held["status"]["allocation"]["nodeSelector"] = selector
    labelled = [
        {**node(name), "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}} for name in ("n0", "n1")
    ]
    asked = pod("p", "c", nodeSelector={"kubernetes.io/hostname": "n1"})
    objects = write(tmp_path, *labelled, *SMALL[2:], held, asked)
    status, out, _ = shell("pod/p", "--objects", objects)
    assert status == 1
    golden(out)
    golden(parsed(shell("pod/p", "--objects", objects, "-o", "json")[1])["items"][0]["remedies"], "remedies")
