"""Which programs the lab builds, and their cache keys."""

import dataclasses

import pytest

from lab import build, components, modules
from lab.errors import LabError

FILES = {"go.mod": b"module x\n\ngo 1.26.0\n", "go.sum": b"", "tools.go": b"package tools\n"}
UPSTREAM = """module k8s.io/kubernetes

go 1.26.0

require (
\tk8s.io/api v0.0.0
\tk8s.io/klog/v2 v2.140.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/cri-api => ./staging/src/k8s.io/cri-api
)
"""


def key(go: str = "go1.26.8", files: dict[str, bytes] | None = None) -> str:
    return components.key(components.kubernetes("1.37.1"), files or FILES, go, "x86_64")


def test_a_builds_key_changes_with_the_module_and_with_go_and_with_nothing_else() -> None:
    assert key() == key(files=dict(reversed(FILES.items())))
    assert len({key(), key(go="go1.27.3"), key(files={**FILES, "go.sum": b"more"})}) == 3
    assert key().startswith("kubernetes-1.37.1-")


def test_a_builds_key_changes_with_what_is_built() -> None:
    component = components.etcd()
    other = dataclasses.replace(component, link_flags="-s")
    tagged = dataclasses.replace(component, tags=("slim",))
    with_file = dataclasses.replace(component, files=(("example.com/m", "config/crd.yaml"),))
    assert len({components.key(item, FILES, "go1", "x") for item in (component, other, tagged, with_file)}) == 4
    assert with_file.products == (*component.programs, "crd.yaml")


@pytest.mark.parametrize(
    ("control_plane", "kubelet"),
    [("1.37.1", "1.37.1"), ("1.36.3", "1.36.3"), ("1.34.4", "1.33.13"), ("1.37.1", "1.36.3")],
)
def test_every_pair_of_versions_that_is_documented_can_be_built(control_plane: str, kubelet: str) -> None:
    found = components.of_cluster(control_plane, kubelet, build.available_modules())
    programs = {program: component.name for component in found for program in component.programs}
    assert programs["kube-apiserver"] == f"kubernetes-{control_plane}"
    assert programs["kubelet"].partition("-")[2] == kubelet
    assert {"etcd", "containerd", "containerd-shim-runc-v2", "ctr", "kubectl", "kube-scheduler"} <= programs.keys()


def test_a_version_without_a_module_is_refused_with_the_command_that_adds_it() -> None:
    with pytest.raises(LabError, match=r"scripts/cluster add-version 1\.2\.3"):
        components.of_cluster("1.2.3", "1.2.3", build.available_modules())


_OF_OTHERS = (
    *("kube", "etcd", "containerd", "helm", "prometheus", "jobset", "leaderworkerset"),
    *("registry", "crane", "cosign", "actionlint", "krew"),
)
LAB_MODULES = [name for name in build.available_modules() if name.startswith(_OF_OTHERS)]


@pytest.mark.parametrize("module", LAB_MODULES)
def test_every_module_is_complete_and_names_what_is_built_from_it(module: str) -> None:
    directory = build.MODULES / module
    assert (directory / "go.sum").stat().st_size > 0
    assert components.go_directive((directory / "go.mod").read_text()) >= (1, 24)
    kind, _, version = module.partition("-")
    built = {
        "etcd": components.etcd(),
        "containerd": components.containerd(),
        "helm": components.helm(version),
        "prometheus": components.prometheus(),
        "jobset": components.jobset(),
        "leaderworkerset": components.leaderworkerset(),
        "registry": components.registry(),
        "crane": components.crane(),
        "cosign": components.cosign(),
        "actionlint": components.actionlint(),
        "krew": components.krew(),
        "kubernetes": components.kubernetes(version),
        "kubelet": components.kubelet(version, ()),
    }[kind]
    assert built.module == module
    tools = (directory / "tools.go").read_text()
    assert all(f'_ "{package}"' in tools for package in built.packages)


def test_etcd_and_the_test_driver_are_renamed_to_what_they_are() -> None:
    assert components.etcd().renamed == {"server": "etcd"}
    assert components.dra_test_driver("1.37.1").renamed == {"test-driver": "dra-test-driver"}


def test_a_new_module_requires_the_published_versions_of_what_kubernetes_keeps_inside() -> None:
    text = modules.go_mod(components.kubernetes("1.37.2"), "1.37.2", UPSTREAM)
    assert "require k8s.io/kubernetes v1.37.2\n" in text
    assert "\tk8s.io/api => k8s.io/api v0.37.2\n\tk8s.io/cri-api => k8s.io/cri-api v0.37.2\n" in text
    assert "klog" not in text
    assert components.go_directive(text) == (1, 26, 0)


def test_a_go_mod_without_a_go_line_is_refused() -> None:
    with pytest.raises(LabError, match="no 'go' line"):
        components.go_directive("module x\n")


@pytest.mark.parametrize(("text", "numbers"), [("go1.26.8", (1, 26, 8)), ("1.9", (1, 9)), ("devel", ())])
def test_go_versions_compare_by_number(text: str, numbers: tuple[int, ...]) -> None:
    assert components.parse_go_version(text) == numbers
