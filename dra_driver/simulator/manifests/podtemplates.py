"""Pod templates of job kinds: found by their shape in an object of any kind, and for how many pods each stands.

Operators put pod templates at places of their own (``spec.pytorchReplicaSpecs.Worker.template``,
``spec.workerGroupSpecs[0].template``), and new kinds appear all the time. So a template is recognized by what it is: an
object with ``spec.containers`` or ``containers`` below a key that ends in ``template``, a Pod within another object, or
a ``podSpec``. How many pods an operator makes of it is known for the kinds of a table, also where an object of such a
kind, or of one of Kubernetes, stands within another one; of others, one pod stands for each template.

Sources of the table: the CRDs of Kubeflow's training operator, trainer and MPI operator, Katib, KubeRay, JobSet,
LeaderWorkerSet, Volcano, Argo Rollouts, OpenKruise, OpenShift and SageMaker HyperPod's training operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dra_driver.kube.documents import ManifestError, Origin, children
from dra_driver.kube.objects.apps import PodTemplate
from dra_driver.kube.objects.core import PodSpec
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.simulator.manifests import unasked
from dra_driver.simulator.manifests.fields import convert
from dra_driver.simulator.manifests.idle import SCALED_TO_ZERO, SUSPENDED
from dra_driver.simulator.manifests.pods import MAX_PODS, ONE_OF_EACH_NODE
from dra_driver.simulator.manifests.workloads import CustomWorkload, PodSet

Path = tuple[str | int, ...]

MAX_LEVELS: Final = 64
"""Depth to which templates are searched; the deepest known one is at ten."""
MAX_TEMPLATES: Final = 1_000
"""Maximum number of pod templates in one object."""
_NOT_SEARCHED: Final = frozenset({("metadata",), ("status",)})
_SCHEMA: Final = "openAPIV3Schema"
"""Its examples and defaults may look like objects."""


def find(item: Any, origin: Origin) -> tuple[Path, ...]:
    """Paths of the pod specs (not of the templates around them) in an object, in the order of the text.

    Raises ManifestError for more than ``MAX_TEMPLATES``.
    """
    paths: list[Path] = []
    waiting: list[tuple[Path, Any]] = [((), item)]
    while waiting:
        path, value = waiting.pop()
        spec = _spec_path(path, value)
        if spec is not None:
            paths.append(spec)
            if len(paths) > MAX_TEMPLATES:
                raise origin.error(path, f"this is more than {MAX_TEMPLATES} pod templates in one object")
        elif len(path) < MAX_LEVELS and path not in _NOT_SEARCHED and path[-1:] != (_SCHEMA,):
            waiting += reversed([((*path, step), below) for step, below in _children(value)])
    return tuple(paths)


def claim_templates(item: Any) -> Iterator[str]:
    """Names of ResourceClaimTemplates that an object's operator makes: NVIDIA's ComputeDomain has one so."""
    waiting: list[tuple[int, str, Any]] = [(0, "", item)]
    while waiting:
        level, key, value = waiting.pop()
        name = value.get("name") if isinstance(value, dict) and key.lower().endswith("resourceclaimtemplate") else None
        if isinstance(name, str):
            yield name
        if level < MAX_LEVELS:
            waiting += [(level + 1, str(step), below) for step, below in _children(value)]


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    return (
        (step, below)
        for step, below in children(value)
        if isinstance(below, dict | list) and isinstance(step, str | int)
    )


def _spec_path(path: Path, value: Any) -> Path | None:
    """Path of the pod spec if the value at ``path`` is a pod template, a Pod or a pod spec; else None."""
    if not isinstance(value, dict):
        return None
    key = path[-1].lower() if path and isinstance(path[-1], str) else ""
    if key == "podspec" or (key.endswith("template") and "containers" in value):
        return path if _is_pod_spec(value) else None
    is_pod = value.get("kind") == "Pod" and value.get("apiVersion") == "v1"
    return (*path, "spec") if (is_pod or key.endswith("template")) and _is_pod_spec(value.get("spec")) else None


def _is_pod_spec(value: Any) -> bool:
    containers = value.get("containers") if isinstance(value, dict) else None
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in containers)
    )


def any_asks(item: Any, origin: Origin) -> bool:
    """Whether a pod of the object has a claim, or a limit of Neuron devices."""
    return any(unasked.asks(at(item, path) or {}) for path in find(item, origin))


def asks(item: Any, origin: Origin) -> bool:
    """Whether a pod template has claims or names Neuron resources, as far as its text says."""
    texts = (str(at(item, path)) for path in find(item, origin))
    return any("resourceClaims" in text or unasked.NEURON_RESOURCES in text for text in texts)


def at(item: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    value = item
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


@dataclass(frozen=True, slots=True)
class _Part:
    """An object within an object, read without a schema."""

    value: Any
    origin: Origin
    least: int = 0
    """The smallest number that is taken: 1 where what is scaled to zero is taken as resumed."""
    whole: Any = None
    """The object that it is a part of."""

    def below(self, *steps: str | int) -> _Part:
        """The value at a path; an absent one has no fields."""
        origin = self.origin.at((*self.origin.path, *steps), self.origin.subject)
        return replace(self, value=at(self.value, steps), origin=origin)

    def number(self, name: str, default: int) -> int:
        """A number of pods. Raises ManifestError for anything else."""
        value = self.value.get(name) if isinstance(self.value, dict) else None
        if value is None:
            return max(default, self.least)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PODS:
            raise self.origin.error((name,), f"{str(value)[:40]} is not a number from 0 to {MAX_PODS}")
        return max(value, self.least)

    def is_set(self, name: str) -> bool:
        """Whether a field is true."""
        return isinstance(self.value, dict) and self.value.get(name) is True


def _one(_: _Part) -> int:
    return 1


def _replicas(part: _Part) -> int:
    return part.number("replicas", 1)


def _ray_workers(part: _Part) -> int:
    least, most = part.number("minReplicas", 0), part.number("maxReplicas", MAX_PODS)
    return min(max(least, part.number("replicas", 0)), most) * part.number("numOfHosts", 1)


def _none_or_more(part: _Part) -> int:
    return part.number("replicas", 0)


def _replicated_job(part: _Part) -> int:
    job = part.below("template", "spec")
    parallel = job.number("parallelism", 1)
    return part.number("replicas", 1) * min(parallel, job.number("completions", parallel))


def _job(part: _Part) -> int:
    parallel = part.number("parallelism", 1)
    return min(parallel, part.number("completions", parallel))


def _of_trainer(part: _Part) -> int:
    """The job of Kubeflow's trainer that runs on the nodes has as many pods as there are nodes."""
    labels = at(part.value, ("template", "metadata", "labels"))
    is_trainer = isinstance(labels, dict) and labels.get(_STEP) == "trainer"
    if is_trainer or at(part.value, ("name",)) == "node":
        whole = replace(part, value=part.whole, origin=replace(part.origin, path=()))
        return whole.below("spec", "mlPolicy").number("numNodes", 1)
    return _replicated_job(part)


_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"


def _leaders(part: _Part) -> int:
    return part.number("replicas", 1)


def _workers(part: _Part) -> int:
    group = part.below("leaderWorkerTemplate")
    size = group.number("size", 1)
    led = at(group.value, ("leaderTemplate",)) is not None
    return part.number("replicas", 1) * (size - 1 if led else size)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The templates at one place of a known kind."""

    holder: tuple[str, ...]
    """Path of what says the number of pods; ``*`` is each key of an object or each item of a list."""
    template: tuple[str, ...]
    """Path from the holder to the pod template."""
    count: Callable[[_Part], int]
    role: str = ""
    """Part of the pods' names; for ``*``, that is the key, or the item's name."""
    assumed: str = ""
    """What is not known of their number."""


_Rules = tuple[_Rule, ...]


def _kubeflow(field: str) -> _Rules:
    return (_Rule(("spec", field, "*"), ("template",), _replicas),)


def _ray(*cluster: str) -> _Rules:
    return (
        _Rule((*cluster, "headGroupSpec"), ("template",), _one, "head"),
        _Rule((*cluster, "workerGroupSpecs", "*"), ("template",), _ray_workers),
    )


def _leader_worker_set(*spec: str) -> _Rules:
    group = "leaderWorkerTemplate"
    return (
        _Rule(spec, (group, "leaderTemplate"), _leaders, "leader" if len(spec) == 1 else ""),
        _Rule(spec, (group, "workerTemplate"), _workers),
    )


_PLAIN: Final = (_Rule(("spec",), ("template",), _replicas),)
_ON_EACH_NODE: Final = (_Rule(("spec",), ("template",), _one, assumed=ONE_OF_EACH_NODE),)
_OF_TRAINER: Final = (
    _Rule(("spec", "template", "spec", "replicatedJobs", "*"), ("template", "spec", "template"), _of_trainer),
)
KNOWN: Final[Mapping[tuple[str, str], _Rules]] = {
    ("kubeflow.org", "MPIJob"): (
        _Rule(("spec", "mpiReplicaSpecs", "Worker"), ("template",), _none_or_more),
        _Rule(("spec", "mpiReplicaSpecs", "*"), ("template",), _replicas),
    ),
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _kubeflow("tfReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("ray.io", "RayCluster"): _ray("spec"),
    ("ray.io", "RayService"): _ray("spec", "rayClusterConfig"),
    ("ray.io", "RayJob"): (
        *_ray("spec", "rayClusterSpec"),
        _Rule(("spec",), ("submitterPodTemplate",), _one, "submitter"),
    ),
    ("jobset.x-k8s.io", "JobSet"): (
        _Rule(("spec", "replicatedJobs", "*"), ("template", "spec", "template"), _replicated_job),
    ),
    ("batch.volcano.sh", "Job"): (_Rule(("spec", "tasks", "*"), ("template",), _replicas),),
    ("batch.volcano.sh", "CronJob"): (_Rule(("spec", "jobTemplate", "spec", "tasks", "*"), ("template",), _replicas),),
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): (
        _Rule(("spec", "replicaSpecs", "*"), ("template",), _replicas),
    ),
    ("argoproj.io", "Rollout"): _PLAIN,
    ("apps.openshift.io", "DeploymentConfig"): _PLAIN,
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): _leader_worker_set("spec", "roles", "*", "spec"),
    ("trainer.kubeflow.org", "TrainingRuntime"): _OF_TRAINER,
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _OF_TRAINER,
    ("apps.kruise.io", "DaemonSet"): _ON_EACH_NODE,
    ("apps.kruise.io", "CloneSet"): _PLAIN,
    ("apps.kruise.io", "StatefulSet"): _PLAIN,
}
"""Group and kind -> how many pods each of its templates stands for, whatever the version."""
_WITHIN: Final[Mapping[tuple[str, str], _Rules]] = {
    **KNOWN,
    ("", "Pod"): (_Rule((), (), _one),),
    **dict.fromkeys([("apps", kind) for kind in ("Deployment", "ReplicaSet", "StatefulSet")], _PLAIN),
    ("", "ReplicationController"): _PLAIN,
    ("apps", "DaemonSet"): _ON_EACH_NODE,
    ("batch", "Job"): (_Rule(("spec",), ("template",), _job),),
    ("batch", "CronJob"): (_Rule(("spec", "jobTemplate", "spec"), ("template",), _job),),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set("spec"),
}
"""The same for objects that stand within another one, such as an AppWrapper, a ManifestWork or a kro graph."""
_TIMES: Final[Mapping[tuple[str, str], tuple[Path, str, int]]] = {
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): (("spec",), "slices", 1),
    ("kubeflow.org", "Experiment"): (("spec",), "parallelTrialCount", 3),
}
"""Group and kind -> how often all that it has is made at once: path, field and default."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods an object wants of another one, which has their template."""

    kind: str
    name: str
    number: int


_REFERS: Final[Mapping[tuple[str, str], tuple[str, str, Path]]] = {
    ("argoproj.io", "Rollout"): ("workloadRef", "Deployment", ("replicas",)),
    ("trainer.kubeflow.org", "TrainJob"): ("runtimeRef", "ClusterTrainingRuntime", ("trainer", "numNodes")),
}
"""Group and kind -> the field of ``spec`` that refers, the kind to which it does by default, and the number of pods."""
_SIZED: Final = dict.fromkeys(("TrainingRuntime", "ClusterTrainingRuntime"), ("spec", "mlPolicy", "numNodes"))


def size_of_another(item: Any, group: str, kind: str) -> Size | None:
    """What an Argo Rollout says of its Deployment, or a TrainJob of its runtime."""
    if (group, kind) not in _REFERS:
        return None
    field, default, path = _REFERS[group, kind]
    reference, number = at(item, ("spec", field)), at(item, ("spec", *path))
    if not isinstance(reference, dict) or not isinstance(reference.get("name"), str):
        return None
    if number is None and kind == "TrainJob":
        return None  # as many as the runtime says
    whole = number if isinstance(number, int) and not isinstance(number, bool) else 1
    return Size(str(reference.get("kind") or default), reference["name"], whole)


def resized(item: dict[str, Any], number: int) -> dict[str, Any]:
    """The object as if it said this number itself."""
    path = _SIZED.get(str(item.get("kind")), ("spec", "replicas"))
    part: Any = number
    for length in range(len(path) - 1, -1, -1):
        around = at(item, path[:length])
        part = {**(around if isinstance(around, dict) else {}), path[length]: part}
    return dict(part)


def _innermost(item: Any, path: Path) -> tuple[Path, _Rules]:
    """The object of a known kind that stands around a pod spec within ``item``, if there is one: path and rules."""
    for length in range(len(path), 0, -1):
        around = at(item, path[:length])
        if isinstance(around, dict) and isinstance(around.get("kind"), str):
            group = str(around.get("apiVersion") or "").rpartition("/")[0]
            is_template = around["kind"] == "Pod" and not _name(around)
            if around.get("apiVersion") and (group, around["kind"]) in _WITHIN and not is_template:
                return path[:length], _WITHIN[group, around["kind"]]
    return (), ()


def read(
    item: dict[str, Any],
    group: str,
    kind: str,
    origin: Origin,
    unknown: dict[str, None],
    *,
    in_cluster: bool = False,
    resume: bool = False,
) -> CustomWorkload | None:
    """An object of a kind that is no part of Kubernetes, with its pod templates; None if it has none.

    Args:
        item: the object.
        group: of its API.
        kind: its kind.
        origin: of the object.
        unknown: records the unknown fields of pods of kinds that are not in the table, whose pod specs may have more
            fields than Kubernetes'. In those of the table they are errors, unless a cluster holds the object.
        in_cluster: whether a cluster holds the object.
        resume: whether templates of which it makes no pods are taken as resumed.

    Raises:
        ManifestError: an invalid field, or a number of pods that no cluster has.
    """
    paths = find(item, origin)
    if not paths:
        return None
    kind_rules = KNOWN.get((group, kind), ())
    lenient = None if kind_rules and not in_cluster else unknown
    meta = _converted(item, ("metadata",), ObjectMeta, origin, None)
    root = _Part(item, origin, whole=item)
    above, name, default = _TIMES.get((group, kind), ((), "", 1))
    times = root.below(*above).number(name, default) if name else 1
    unsaid = f"how many pods {kind[:60]} of {group[:60] or 'v1'} makes (one for each pod template is taken)"
    sets: list[PodSet] = []
    for number, path in enumerate(paths):
        inner, rules = _innermost(item, path)
        match = _rule(rules if inner else kind_rules, path[len(inner) :])
        try:
            counted = match and _counted(match[0].count, root, (*inner, *match[1]), resume=resume)
        except ManifestError:
            if not inner:
                raise
            counted = None  # the number may be filled in later, as in a kro graph
        if match is not None and counted is not None:
            rule, place = match
            (count, idle), assumed = counted, rule.assumed
            role = "-".join(
                filter(None, (_name(at(item, inner)) if inner else "", rule.role or _role(root, place, inner)))
            )
        else:
            (count, idle), assumed = _counted(_one_or_none(root, path), root, path[:-2], resume=resume), unsaid
            role = _written(path)
        if any(role == other.role for other in sets):
            role = f"{role}-{number}"
        spec: PodSpec = _converted(item, path, PodSpec, origin, lenient)
        around = (*path[:-1], "metadata") if path[-1] == "spec" else None
        labels: ObjectMeta = _converted(item, around, ObjectMeta, origin, lenient) if around else ObjectMeta()
        sets.append(PodSet(PodTemplate(spec, labels), path, count * times, role, assumed, idle))
    return CustomWorkload(meta, tuple(sets))


def _converted(item: Any, path: Path, kind: type[Any], origin: Origin, unknown: dict[str, None] | None) -> Any:
    return convert(at(item, path) or {}, kind, origin.at((*origin.path, *path), origin.subject), unknown)


def _counted(count: Callable[[_Part], int], root: _Part, place: Path, *, resume: bool) -> tuple[int, str]:
    """The number of pods that what is at ``place`` makes of its template, and why it makes none unless resumed."""
    holder = root.below(*place)
    number = count(holder)
    # What suspends the object as a whole is looked at by ``idle``.
    idle = SUSPENDED if len(place) > 1 and holder.is_set("suspend") else "" if number else SCALED_TO_ZERO
    if idle:
        number = count(replace(holder, least=1)) if resume else 0
    if number > MAX_PODS:
        raise root.origin.error(place, f"{number} is not a number from 0 to {MAX_PODS}")
    return number, idle


def _one_or_none(root: _Part, path: Path) -> Callable[[_Part], int]:
    """For a kind that is not known: none if something around the pod spec at ``path`` says so."""
    around = [at(root.value, path[:length]) for length in range(len(path))]
    numbers = [part.get(name) for part in around if isinstance(part, dict) for name in ("replicas", "parallelism")]
    return lambda part: part.least if 0 in numbers else 1


def _rule(rules: _Rules, path: Path) -> tuple[_Rule, Path] | None:
    """The rule for the pod spec at ``path``, and the path of what holds its number."""
    for rule in rules:
        pattern = (*rule.holder, *rule.template, "spec")
        if len(pattern) == len(path) and all(wanted in ("*", step) for wanted, step in zip(pattern, path, strict=True)):
            return rule, path[: len(rule.holder)]
    return None


def _name(item: Any) -> str:
    """The name of an object within another one, as a part of the pods' names; "" if it is filled in later."""
    name = at(item, ("metadata", "name"))
    return name.lower()[:63] if isinstance(name, str) and "$" not in name and "{" not in name else ""


def _role(root: _Part, place: Path, inner: Path) -> str:
    """What distinguishes the pods of this template in their names; "" for the only one."""
    if place in ((), ("spec",)):
        return ""
    if place[-1] == "spec":
        place = place[:-1]
    last = place[-1]
    if isinstance(last, str):
        return last.lower()[:63]
    entry = at(root.value, (*inner, *place))
    names = (entry.get(field) for field in ("name", "groupName")) if isinstance(entry, dict) else ()
    return next((name.lower()[:63] for name in names if isinstance(name, str) and name), str(last))


def _written(path: Path) -> str:
    """A role for a template at a place that is not known: the keys that are not in every path."""
    common = {"spec", "template", "containers", "podspec"}
    return "-".join(str(step).lower() for step in path if str(step).lower() not in common)[:120]
