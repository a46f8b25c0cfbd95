"""Which programs the lab builds, from which Go module, and the cache key of a build."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lab.errors import LabError

ETCD_VERSION = "3.6.16"
CONTAINERD_VERSION = "2.3.7"
HELM_VERSION = "4.3.1"
PROMETHEUS_VERSION = "3.16.0"
KARPENTER_VERSION = "1.15.0"
JOBSET_VERSION = "0.10.1"
LEADERWORKERSET_VERSION = "0.9.0"
HELM3_VERSION = "3.22.0"
ACTIONLINT_VERSION = "1.7.12"
REGISTRY_VERSION = "3.1.2"
CRANE_VERSION = "0.22.1"
COSIGN_VERSION = "3.1.3"
KREW_VERSION = "0.5.0"

_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
# Go names a program after its package's directory (ignoring a last element such as v3).
_KARPENTER_WITH_TEMPLATES = f"neuron-dra-driver.invalid/lab/karpenter-{KARPENTER_VERSION}"
_PROGRAM_NAMES = {
    "go.etcd.io/etcd/server/v3": "etcd",
    "k8s.io/kubernetes/test/e2e/dra/test-driver": "dra-test-driver",
    "sigs.k8s.io/karpenter/kwok": "karpenter-kwok",
    "sigs.k8s.io/lws/cmd": "leaderworkerset",
    _KARPENTER_WITH_TEMPLATES: "karpenter-kwok-with-devices",
}
_BUILT_NAMES = {"go.etcd.io/etcd/server/v3": "server"}


@dataclass(frozen=True)
class Component:
    """Programs that are built together.

    Attributes:
        name: Name with version, such as `kubernetes-1.37.1`; also the name of its directory in the cache.
        module: Directory below `gomodules` with go.mod, go.sum and the Go files.
        packages: Import paths of the programs.
        link_flags: Values that the linker sets in the programs, mainly their version.
        tags: Build tags.
        files: Files that belong to the programs: the Go module and the path in it.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    link_flags: str
    tags: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the programs, as they are in the cache."""
        return tuple(_PROGRAM_NAMES.get(package, package.rpartition("/")[2]) for package in self.packages)

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the programs and of the files, as they are in the cache."""
        return (*self.programs, *(path.rpartition("/")[2] for _, path in self.files))

    @property
    def renamed(self) -> dict[str, str]:
        """Programs for which Go uses another name: Go's name to ours."""
        names = {package: _BUILT_NAMES.get(package, package.rpartition("/")[2]) for package in self.packages}
        return {names[package]: ours for package, ours in zip(self.packages, self.programs, strict=True)}


def kubernetes(version: str) -> Component:
    """Return Kubernetes' own five programs."""
    return Component(
        name=f"kubernetes-{version}",
        module=f"kubernetes-{version}",
        packages=tuple(f"k8s.io/kubernetes/cmd/{program}" for program in _CONTROL_PLANE),
        link_flags=_kubernetes_link_flags(version),
    )


def kubelet(version: str, modules: Iterable[str]) -> Component:
    """Return only kubelet, from the module of its Kubernetes version or from one that has only kubelet."""
    whole = f"kubernetes-{version}"
    return Component(
        name=f"kubelet-{version}",
        module=whole if whole in modules else f"kubelet-{version}",
        packages=("k8s.io/kubernetes/cmd/kubelet",),
        link_flags=_kubernetes_link_flags(version),
    )


def dra_test_driver(version: str) -> Component:
    """Return Kubernetes' own DRA test driver, for comparison in benchmarks."""
    return Component(
        name=f"dra-test-driver-{version}",
        module=f"kubernetes-{version}",
        packages=("k8s.io/kubernetes/test/e2e/dra/test-driver",),
        link_flags=_kubernetes_link_flags(version),
    )


def benchmark_client() -> Component:
    """Return the client that measures DRA drivers; its source is in the module itself."""
    return _own("benchmark-client")


def extender_load() -> Component:
    """Return the program that measures the extender by acting as both of its peers; its source is in the module."""
    return _own("extender-load")


def cdi_loader() -> Component:
    """Return the program that loads CDI specs with the library that runtimes use; its source is in the module."""
    return _own("cdi-loader")


def _own(name: str) -> Component:
    """A program whose source is in the lab's module of its name."""
    return Component(name, name, (f"neuron-dra-driver.invalid/lab/{name}",), "-s -w")


def etcd() -> Component:
    """Return etcd."""
    return _program("etcd", ETCD_VERSION, "go.etcd.io/etcd/server/v3")


def containerd() -> Component:
    """Return containerd with its shim and its client."""
    base = "github.com/containerd/containerd/v2"
    return Component(
        name=f"containerd-{CONTAINERD_VERSION}",
        module=f"containerd-{CONTAINERD_VERSION}",
        packages=tuple(f"{base}/cmd/{program}" for program in ("containerd", "containerd-shim-runc-v2", "ctr")),
        link_flags=f"-s -w -X {base}/version.Version=v{CONTAINERD_VERSION}",
    )


def helm(version: str = HELM_VERSION) -> Component:
    """Return helm, which is used to test the chart: the present one, or 3."""
    library = f"helm.sh/helm/v{version.partition('.')[0]}"
    return _program("helm", version, f"{library}/cmd/helm", f"{library}/internal/version.version")


def prometheus() -> Component:
    """Return Prometheus and promtool, which test the alerts and the dashboard."""
    base = "github.com/prometheus/prometheus/cmd"
    return Component(
        name=f"prometheus-{PROMETHEUS_VERSION}",
        module=f"prometheus-{PROMETHEUS_VERSION}",
        packages=(f"{base}/prometheus", f"{base}/promtool"),
        link_flags=f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",
        # Tests have static targets and pods; clouds' own discovery is most of the code.
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    )


def actionlint() -> Component:
    """Return actionlint, which checks the workflows of the hosting site."""
    return _program("actionlint", ACTIONLINT_VERSION, "github.com/rhysd/actionlint/cmd/actionlint")


def karpenter() -> Component:
    """Return Karpenter with its kwok provider, and the same with templates of ResourceSlices (source in the module).

    It needs a newer Go than the rest: build it alone, so that the others keep theirs and need not be built again.
    """
    return Component(
        name=f"karpenter-{KARPENTER_VERSION}",
        module=f"karpenter-{KARPENTER_VERSION}",
        packages=("sigs.k8s.io/karpenter/kwok", _KARPENTER_WITH_TEMPLATES),
        link_flags=f"-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version={KARPENTER_VERSION}",
    )


def jobset() -> Component:
    """Return JobSet's controller, its CustomResourceDefinition and the registration of its webhooks."""
    module = "sigs.k8s.io/jobset"
    return Component(
        name=f"jobset-{JOBSET_VERSION}",
        module=f"jobset-{JOBSET_VERSION}",
        packages=(module,),
        link_flags=f"-s -w -X {module}/pkg/version.GitVersion=v{JOBSET_VERSION}",
        files=(
            (module, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
            (module, "config/components/webhook/manifests.yaml"),
        ),
    )


def leaderworkerset() -> Component:
    """Return LeaderWorkerSet's controller, its CustomResourceDefinitions and the registration of its webhooks."""
    module = "sigs.k8s.io/lws"
    return Component(
        name=f"leaderworkerset-{LEADERWORKERSET_VERSION}",
        module=f"leaderworkerset-{LEADERWORKERSET_VERSION}",
        packages=(f"{module}/cmd",),
        link_flags=f"-s -w -X {module}/pkg/version.GitVersion=v{LEADERWORKERSET_VERSION}",
        files=(
            (module, "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
            # The same program has the controller of these too, and ends if it cannot watch them.
            (module, "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml"),
            (module, "config/webhook/manifests.yaml"),
        ),
    )


def registry() -> Component:
    """Return the CNCF distribution, the registry of container images to which tests publish."""
    module = "github.com/distribution/distribution/v3"
    return _program("registry", REGISTRY_VERSION, f"{module}/cmd/registry", f"{module}/version.version")


def crane() -> Component:
    """Return crane, which pushes images and charts to a registry."""
    package = "github.com/google/go-containerregistry/cmd/crane"
    return _program("crane", CRANE_VERSION, package, f"{package}/cmd.Version")


def cosign() -> Component:
    """Return cosign, which signs what is published and verifies it."""
    stamp = "sigs.k8s.io/release-utils/version.gitVersion"
    return _program("cosign", COSIGN_VERSION, "github.com/sigstore/cosign/v3/cmd/cosign", stamp)


def krew() -> Component:
    """Return krew, which installs plugins of kubectl."""
    module = "sigs.k8s.io/krew"
    return _program("krew", KREW_VERSION, f"{module}/cmd/krew", f"{module}/internal/version.gitTag")


def _program(name: str, version: str, package: str, stamp: str = "") -> Component:
    """One program of the lab's module of its name and version; `stamp` is the variable of Go that holds the version."""
    flags = f"-s -w -X {stamp}=v{version}" if stamp else "-s -w"
    return Component(f"{name}-{version}", f"{name}-{version}", (package,), flags)


def of_cluster(kubernetes_version: str, kubelet_version: str, modules: Iterable[str]) -> tuple[Component, ...]:
    """Return what a cluster needs; a kubelet of a different version comes last.

    Raises:
        LabError: There is no module for one of the versions.
    """
    modules = tuple(modules)
    wanted = [etcd(), containerd(), kubernetes(kubernetes_version)]
    if kubelet_version != kubernetes_version:
        wanted.append(kubelet(kubelet_version, modules))
    for component in wanted:
        if component.module not in modules:
            raise LabError(
                f"No Go module for {component.name} in tools/lab/gomodules; nothing was built. "
                f"There are: {', '.join(sorted(name for name in modules if name.startswith('kube')))}. "
                f"Add it with: scripts/cluster add-version {component.name.rpartition('-')[2]}"
            )
    return tuple(wanted)


def key(component: Component, module_files: Mapping[str, bytes], go_version: str, architecture: str) -> str:
    """Return the name of a build's directory: component and a hash of everything that the build depends on."""
    digest = hashlib.sha256()
    parts = [component.link_flags, *component.packages, *component.tags, go_version, architecture]
    parts += [part for file in component.files for part in file]
    for name, content in sorted(module_files.items()):
        parts += [name, hashlib.sha256(content).hexdigest()]
    digest.update("\0".join(parts).encode())
    return f"{component.name}-{digest.hexdigest()[:12]}"


def go_directive(go_mod: str) -> tuple[int, ...]:
    """Return the Go version that a go.mod file requires.

    Raises:
        LabError: It specifies none.
    """
    found = re.search(r"^go (\d+(?:\.\d+)*)\s*$", go_mod, re.MULTILINE)
    if found is None:
        raise LabError("A go.mod of the lab has no 'go' line; nothing was built. Restore the file from the repository.")
    return parse_go_version(found.group(1))


def parse_go_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a Go version such as `1.26.8` or `go1.26.8`; empty if it is invalid."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def _kubernetes_link_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    base = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return "-s -w " + " ".join(f"-X {base}.{name}={value}" for name, value in values.items())
