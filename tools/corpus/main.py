"""Corpus: writes down what the product answers to fixed questions, so that two trees can be compared byte for byte.

A rebuild that is to change nothing shows it: record before, record after, and compare.

    .venv/bin/python tools/corpus/main.py record before     # in the tree of before
    .venv/bin/python tools/corpus/main.py record after      # in the tree of after
    .venv/bin/python tools/corpus/main.py compare before after
    .venv/bin/python tools/corpus/main.py show claims 17    # what the line "17" of claims.txt stands for, whole

Each line of a file is a question and the digest of its answer: of slices of every type, with every set of partitions
and every fault; of plans, checkpoint files, CDI specs and replies of random histories of claims; of allocations, of
`simulate` and `explain`; of decisions of the placer and the extender. Golden texts are copied as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 # what is asked is that of this tree

from dra_driver.cli.main import main as dra_driver  # noqa: E402
from dra_driver.driver.resourceslices.devices import effective_partitions, offer  # noqa: E402
from dra_driver.driver.resourceslices.pool import pool  # noqa: E402
from dra_driver.kube.api.errors import Unreachable  # noqa: E402
from dra_driver.legacy.placement import DoesNotFit, place  # noqa: E402
from dra_driver.legacy.resource_requests import ContainerRequest, Role  # noqa: E402
from dra_driver.legacy.rules import NeuronResource, hardware  # noqa: E402
from dra_driver.neuron.emulation.options import EmulationOptions  # noqa: E402
from dra_driver.neuron.emulation.writer import write_host  # noqa: E402
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth  # noqa: E402
from dra_driver.neuron.health.policy import HealthPolicy  # noqa: E402
from dra_driver.neuron.host.discover import discover  # noqa: E402
from dra_driver.neuron.host.inventory import NodeInventory  # noqa: E402
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES  # noqa: E402
from dra_driver.neuron.topology.partitions import NODE_DEVICE, Partitions  # noqa: E402
from dra_driver.util.errors import DriverError  # noqa: E402
from tests.builders.claims import (  # noqa: E402
    ApiServer,
    Node,
    claim,
    config,
    host,
    neuron_config,
    pod,
    result,
    uid,
    without,
)
from tests.builders.placer import World, ultraservers  # noqa: E402
from tests.generators.effort import short_searches  # noqa: E402
from tests.generators.partition_pods import random_pod  # noqa: E402
from tests.generators.simulator_cases import random_case  # noqa: E402
from tests.oracles.simulator_cases import Simulated, accepted  # noqa: E402

WORDS = ("chip", "core", "group", "group2", "group4", "group8", "node")
SETS = [".".join(words) for size in range(1, len(WORDS) + 1) for words in combinations(WORDS, size)]
SICK_SETS = ("chip", "chip.core", "chip.core.group.node", "node")
"""Of which each health state is asked."""


# Slices


@lru_cache(maxsize=4)
def _inventory(kind: str) -> NodeInventory:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "host"
        write_host(root, INSTANCE_TYPES[kind], EmulationOptions())
        return discover(root)


def slices(question: str) -> str:
    """``TYPE SET STATE``: what a node publishes."""
    kind, words, state = question.split()
    inventory = _inventory(kind)
    chips = inventory.chip_indexes
    health = NodeHealth()
    if state == "lost":
        inventory = without(inventory, *chips[:1])
    elif state != "well":
        fault = ActiveFault(state, 1_700_000_000)
        sick = (ChipHealth(chips[-1], (fault,)),)
        health = NodeHealth(chips=sick)
    made = offer(
        inventory, effective_partitions(inventory, Partitions.parse(words)), health, HealthPolicy(), 1_700_000_100.0
    )
    published = pool(made.devices, "node-1", "uid-1", counters=made.counters)
    fallback = pool(made.fallback, "node-1", "uid-1")
    return _text([msgspec.to_builtins(item) for item in (*published, *fallback)], made.problem, sorted(made.absent))


def _slice_questions() -> list[str]:
    kinds = [name for name, kind in INSTANCE_TYPES.items() if kind.devices]
    well = [f"{kind} {words} well" for kind in kinds for words in SETS]
    sick = [f"{kind} {words} {state}" for kind in kinds for words in SICK_SETS for state in ("lost", *sorted(FAULTS))]
    return well + sick


# Claims


def claims(question: str) -> str:
    """A number: a random history of claims on one node; after each step the reply, and all files."""
    random = Random(f"claims {question}")
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        items = {number: _random_claim(random, number) for number in range(8)}
        api = ApiServer(*items.values())
        for name in ("pod-0", "pod-1", "pod-2"):
            api.pods[name] = _random_pod(random, name, sorted(items))
        node = Node(root, api)
        for _ in range(random.randint(6, 18)):
            lines.append(_step(random, node, api, items))
            lines += [f"{path}: {text}" for path, text in _files(root)]
        node.checkpoint.close()
    return "\n".join(lines)


def _random_claim(random: Random, number: int) -> Any:
    kind = random.choice(("chips", "chips", "chips", "cores", "cores", "node", "admin", "group"))
    first = random.randrange(16)
    chosen: Mapping[str, list[Any]] = {
        "chips": random.sample(range(16), random.choice((1, 1, 2, 4))),
        "cores": [result(f"neuron-core-{first}-{core}") for core in range(random.choice((1, 2, 4)))],
        "node": [result(NODE_DEVICE)],
        "admin": [result(first, admin_access=True)],
        "group": [result(f"neuron-group4-{first // 4}")],
    }
    sizes = random.choice((None, None, None, 1, 2, 3))
    configs = () if sizes is None else (config(neuron_config(sizes)),)
    name = f"pod-{random.randrange(3)}"
    return claim(number, chosen[kind], pods=[name], template=random.random() < 0.5, configs=configs)


def _random_pod(random: Random, name: str, numbers: Sequence[int]) -> Any:
    of = [f"claim-{number}" for number in numbers if random.random() < 0.5] or ["claim-0"]
    return pod(name, main=of, other=random.sample(of, random.randint(0, len(of))))


def _step(random: Random, node: Node, api: ApiServer, items: dict[int, Any]) -> str:
    number = random.choice(sorted(items))
    what = random.choices(
        ("prepare", "unprepare", "away", "restart", "reboot", "repair", "again", "lost", "gone"),
        (40, 18, 6, 6, 4, 8, 6, 4, 4),
    )[0]
    reply: object = ""
    try:
        if what in ("prepare", "away"):
            api.down = Unreachable("the API server is away") if what == "away" else None
            reply = node.prepare(items[number])
        elif what == "unprepare":
            node.unprepare(items[number])
        elif what == "restart":
            node.restart()
        elif what == "reboot":
            node.reboot(major=random.choice((240, 241)))
        elif what == "repair":
            node.listed = {uid(number)} if random.random() < 0.5 else set()
            node.now += 600.0
            node.reconciler.reconcile()
        elif what == "again":
            items[number] = api.put(_random_claim(random, number))
        elif what == "lost":
            node.inventory = without(host(), random.randrange(16))
        else:
            api.delete(items[number])
    except DriverError as error:
        reply = f"{type(error).__name__}: {error}"
    finally:
        api.down = None
    return f"{what} {number}: {reply}"


def _files(root: Path) -> Iterator[tuple[str, str]]:
    """All but the lock, and the notes in which boot a spec was seen: they hold inode numbers and times."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "journal.lock" and not path.name.endswith("_boots"):
            yield str(path.relative_to(root)), path.read_bytes().decode(errors="replace")


# Simulator


def allocations(question: str) -> str:
    """``RELEASE NUMBER``: what the pods of a random cluster get."""
    release, number = question.split()
    case = random_case(Random(f"case {number}"))
    missing = [item["metadata"]["name"] for item in case["classes"] if accepted(item, release) is False]  # type: ignore[arg-type] # one of the releases
    simulated = Simulated([case], release, missing)  # type: ignore[arg-type] # likewise
    said = []
    with short_searches():
        for asked in case["pods"]:
            expected = simulated.ask(asked)
            said.append(repr(expected))
            if expected.allocations and not expected.fatal:
                simulated.take({"allocations": expected.allocations[min(expected.allocations)]})
    return "\n".join(said)


def answers(question: str) -> str:
    """``TYPE NUMBER``: what `simulate` and `explain` say of random pods with claims for chips, cores, groups, nodes."""
    kind, number = question.split()
    random = Random(f"pods {question}")
    objects = list(_pods(random, kind, int(number)))
    options = ["--instance-type", kind, "--partitions", random.choice(("chip", "chip.core", "chip.core.group.node"))]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pods.yaml"
        file.write_text("\n---\n".join(json.dumps(item) for item in objects))
        shown = [_run([command, str(file), *options]) for command in ("simulate", "explain")]
        return "\n".join([*shown, _run(["simulate", str(file), *options, "-o", "json"])]).replace(directory, "DIR")


def _pods(random: Random, kind: str, number: int) -> Iterator[Mapping[str, Any]]:
    for index in range(random.randint(1, 3)):
        name = f"p{number}-{index}"
        uses = []
        for order, item in enumerate(random_pod(random, kind).claims):
            uses.append({"name": f"c{order}", "resourceClaimName": f"{name}-c{order}"})
            meta = {"name": f"{name}-c{order}"}
            yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": item.spec()}
        names = [{"name": use["name"]} for use in uses]
        container = {"name": "main", "image": "a:1", "resources": {"claims": names}}
        spec = {"containers": [container], "resourceClaims": uses}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _run(words: Sequence[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: object = dra_driver(words)
        except SystemExit as end:
            status = end.code
    return f"{words[0]}: {status}\n{out.getvalue()}\n{err.getvalue()}"


# Decisions of controllers


def placer(question: str) -> str:
    """A number: what the placer decides in a random history."""
    random = Random(f"placer {question}")
    world = World(ultraservers(random.randint(1, 3)))
    lines = []
    for step in range(30):
        what = random.choice(("arrive", "arrive", "run", "intrude", "leave", "end", "restart", "sweep", "time"))
        keys = sorted({item.group for item in world.pods.values()})
        if what == "arrive" and len(keys) < 8:
            world.arrive(f"g{step}", random.choice((2, 4)), random.choice("abc"))
        elif what == "run":
            world.run_all()
        elif what == "intrude":
            world.intrude(random.choice(world.nodes).name)
        elif what == "leave":
            world.strangers.clear()
        elif what in ("end", "restart") and keys:
            (world.end if what == "end" else world.restart)(random.choice(keys))
        elif what == "sweep":
            world.sweep_all()
        else:
            world.now += random.choice((0.5, 5.0, 40.0, 400.0))
        actions = world.decide()
        lines.append(f"{what}: {[_plain(action) for action in actions]}")
        world.apply(actions[: random.choice((1, 3, 99))])
    return "\n".join(lines)


def extender(question: str) -> str:
    """A number: where the extender puts random pods on one node, and what it says of those that do not fit."""
    random = Random(f"extender {question}")
    kind = random.choice(("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", "inf1.24xlarge", "inf2.24xlarge"))
    row = INSTANCE_TYPES[kind]
    devices = row.devices or 1
    node = hardware(kind, devices, devices * row.cores_per_device // row.default_lnc)
    taken, lines = 0, [kind]
    for _ in range(12):
        requests = tuple(
            ContainerRequest(f"c{index}", random.choice((Role.MAIN, Role.MAIN, Role.INIT)), resource, count)
            for index in range(random.choice((1, 1, 2, 3)))
            for resource in (random.choice((NeuronResource.DEVICE, NeuronResource.CORE)),)
            for count in (random.choice((1, 1, 2, 3, 4, 8, 16)),)
        )
        placed = place(node, taken, requests)
        asked = [(one.container, one.role.name, one.resource.value, one.count) for one in requests]
        lines.append(f"{asked}: {placed}")
        if not isinstance(placed, DoesNotFit):
            for mask in placed:
                taken |= mask
        if random.random() < 0.1:
            taken = 0
    return "\n".join(lines)


# The files


QUESTIONS: Mapping[str, tuple[Callable[[str], str], Callable[[], Sequence[str]]]] = {
    "slices": (slices, _slice_questions),
    "claims": (claims, lambda: [str(number) for number in range(5000)]),
    "allocations": (
        allocations,
        lambda: [f"{release} {number}" for release in ("1.36", "1.37") for number in range(600)],
    ),
    "answers": (
        answers,
        lambda: [
            f"{kind} {number}" for kind in ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge") for number in range(60)
        ],
    ),
    "placer": (placer, lambda: [str(number) for number in range(1000)]),
    "extender": (extender, lambda: [str(number) for number in range(3000)]),
}
"""By file: who answers, and what is asked."""


def _text(*values: object) -> str:
    return json.dumps(values, indent=1, default=repr)


def _plain(action: Any) -> str:
    """An action without the pod's other fields, which the builder chooses."""
    if hasattr(action, "pod"):
        action = replace(action, pod=action.pod.name)
    elif hasattr(action, "pods"):
        action = replace(action, pods=tuple(item.name for item in action.pods))
    return repr(action)


def _digest(asked: tuple[str, str]) -> str:
    name, question = asked
    return hashlib.sha256(QUESTIONS[name][0](question).encode()).hexdigest()[:16]


def record(directory: Path, names: Sequence[str], jobs: int) -> None:
    """Answer all questions."""
    directory.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs, initializer=logging.disable) as pool_of:
        for name in names:
            questions = QUESTIONS[name][1]()
            digests = pool_of.map(_digest, ((name, question) for question in questions), chunksize=20)
            lines = [f"{question}: {digest}\n" for question, digest in zip(questions, digests, strict=True)]
            (directory / f"{name}.txt").write_text("".join(lines))
            print(f"{name}: {len(lines)} answers", flush=True)
    shutil.copytree(ROOT / "tests/golden", directory / "texts", ignore=lambda _, found: _not_texts(found))


def _not_texts(found: Sequence[str]) -> list[str]:
    return [name for name in found if name.startswith("__") or name.endswith(".py")]


def compare(one: Path, other: Path) -> int:
    """Print what differs; how much does."""
    files = sorted({path.relative_to(root) for root in (one, other) for path in root.rglob("*.txt")})
    count = 0
    for file in files:
        lines = [(root / file).read_text().splitlines() if (root / file).exists() else [] for root in (one, other)]
        changed = [line for line in dict.fromkeys(chain(*lines)) if (line in lines[0]) != (line in lines[1])]
        count += len(changed)
        for line in changed[:10]:
            print(f"{file}: {'-' if line in lines[0] else '+'} {line}")
    print(f"{count} lines differ")
    return count


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    recorder = actions.add_parser("record")
    recorder.add_argument("directory", type=Path)
    recorder.add_argument("names", nargs="*", metavar="FILE", help=f"of {', '.join(QUESTIONS)} (default: all)")
    recorder.add_argument("--jobs", type=int, default=2)
    comparer = actions.add_parser("compare")
    comparer.add_argument("one", type=Path)
    comparer.add_argument("other", type=Path)
    shower = actions.add_parser("show")
    shower.add_argument("name", choices=sorted(QUESTIONS))
    shower.add_argument("question", nargs="+")
    options = parser.parse_args()
    if options.action == "record":
        record(options.directory, options.names or list(QUESTIONS), options.jobs)
        return 0
    if options.action == "compare":
        return 1 if compare(options.one, options.other) else 0
    print(QUESTIONS[options.name][0](" ".join(options.question)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
