"""The simulator against a real API server and kube-scheduler, on random clusters and claims.

``SEED`` and ``SIMULATOR_CLAIMS`` choose other ones and more. A disagreement is made small and written to a
file, which belongs to ``tests/data/simulator-cases``. ``SIMULATOR_RECORD=FILE`` writes all cases and answers.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import MAX_MESSAGE
from tests.builders.refused_objects import refused, taken
from tests.cluster.lib.scheduling import Bench, Played
from tests.generators.cel_expressions import DOMAIN, KUBERNETES, expression
from tests.generators.effort import SEED
from tests.generators.shrinking import shrunk
from tests.generators.simulator_cases import Object, random_case, random_selector, reaches_all_nodes
from tests.oracles.simulator_cases import legal

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37", "1.36"),
    pytest.mark.timeout(600, func_only=True),
]

CLAIMS = int(os.environ.get("SIMULATOR_CLAIMS", "1500"))
RECORD = os.environ.get("SIMULATOR_RECORD", "")
TOGETHER = 48
"""Cases played at once."""
SHRINK_SECONDS = 60.0


@pytest.fixture(scope="module")
def bench(lab: Cluster) -> Iterator[Bench]:
    """The control plane, without the controllers that would act on nodes without kubelet."""
    lab.control_plane.stop("kube-controller-manager")
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="simulator-test")
    made = Bench(transport, lab.spec.kubernetes)
    with made.watching():
        yield made
    transport.close()
    lab.control_plane.start("kube-controller-manager")


def test_random_claims_get_what_the_simulator_says(bench: Bench, figures: list[str], tmp_path: Path) -> None:
    start = time.monotonic()
    played: list[Played] = []
    wrong: list[Played] = []
    for batch in _batches(_cases()):
        first = bench.play(batch)
        assert not [item.illegal for item in first if item.illegal]
        played += first
        if any(item.disagreements for item in first):
            # What is so once only is a matter of time, such as a scheduler that was late to see an object.
            pairs = zip(first, bench.play(batch), strict=True)
            wrong += [item for item, again in pairs if item.disagreements and again.disagreements]
    seconds = time.monotonic() - start
    if RECORD:
        rows = [json.dumps(item.recorded("random")) for item in played]
        Path(RECORD).write_text("[\n" + ",\n".join(rows) + "\n]\n")
    figures.append(f"simulator, Kubernetes {bench.version}: {_counts(played)}, {seconds:.0f} s")
    assert not wrong, _reports(bench, wrong, tmp_path)
    assert _claims(played) >= min(CLAIMS, 1000)


def test_random_expressions_are_refused_as_the_simulator_says(bench: Bench, figures: list[str]) -> None:
    random = Random(f"expressions {SEED}")
    driver = "a.w0000.example"
    texts = [
        expression(random, "bool", random.choice((1, 2, 3, 4)), KUBERNETES).replace(DOMAIN, driver)
        if number % 4
        else random_selector(random, driver)
        for number in range(3072)
    ]
    verdicts = {text: legal(text, bench.kubernetes) for text in texts}
    refused = {text for place in range(0, len(texts), 512) for text in _refused(bench, texts[place : place + 512])}
    wrong = [text for text, verdict in verdicts.items() if verdict is not None and verdict == (text in refused)]
    unknown = sum(verdict is None for verdict in verdicts.values())
    figures.append(
        f"selectors, Kubernetes {bench.version}: {len(verdicts)} different ones, {len(refused)} refused, "
        f"{unknown} that the simulator does not know, {len(wrong)} judged wrongly"
    )
    assert not [f"{'refused' if text in refused else 'accepted'}: {text}" for text in wrong]


def test_the_api_server_refuses_and_takes_what_is_refused_and_taken_on_reading(bench: Bench) -> None:
    """``tests/unit/simulator/manifests/test_refused_objects.py`` asks the simulator."""
    wrong = [f"taken: {name}" for name, item in _served(refused(), bench) if not bench.refusals(item)]
    for name, item in _served(taken(), bench):
        if text := bench.refusals(item):
            wrong.append(f"refused: {name}: {text}")
    assert not wrong, "\n".join(wrong)


def _served(rows: Iterable[tuple[str, Object]], bench: Bench) -> Iterator[tuple[str, Object]]:
    """1.36 serves no rules by default, divides by a step of 0, and takes capitals in what a constraint names."""
    others = ("step '0'", "'A.Example/n'") if bench.kubernetes == "1.36" else ()
    for name, item in rows:
        if not (others and item["kind"] == "DeviceTaintRule") and not name.endswith(others):
            yield name, item


def _refused(bench: Bench, texts: Sequence[str]) -> set[str]:
    """Which of up to 1,024 selectors the API server refuses: all in one claim, which is not made.

    The client keeps the beginning of a long answer alone: then fewer are asked for at once.
    """
    requests: list[Object] = []
    for place in range(0, len(texts), 32):
        selectors = [{"cel": {"expression": text}} for text in texts[place : place + 32]]
        requests.append({"name": f"r{place}", "exactly": {"deviceClassName": "any", "selectors": selectors}})
    claim = {"kind": "ResourceClaim", "metadata": {"name": "selectors"}, "spec": {"devices": {"requests": requests}}}
    problem = bench.refusals(claim)
    if len(problem) >= MAX_MESSAGE and len(texts) > 1:
        half = len(texts) // 2
        return _refused(bench, texts[:half]) | _refused(bench, texts[half:])
    return {
        text
        for number, request in enumerate(requests)
        for place, text in enumerate(item["cel"]["expression"] for item in request["exactly"]["selectors"])
        if f"requests[{number}].exactly.selectors[{place}].cel.expression:" in problem
    }


def _cases() -> list[Object]:
    """Random cases until they have enough claims."""
    made: list[Object] = []
    claims = 0
    while claims < CLAIMS:
        made.append(random_case(Random(f"{SEED} {len(made)}")))
        claims += sum(len(pod["claims"]) for pod in made[-1]["pods"])
    return made


def _batches(cases: Sequence[Object]) -> Iterator[Sequence[Object]]:
    """Many at once, but one by one where a case would take devices of another."""
    apart = [case for case in cases if not reaches_all_nodes(case)]
    for place in range(0, len(apart), TOGETHER):
        yield apart[place : place + TOGETHER]
    for case in cases:
        if reaches_all_nodes(case):
            yield [case]


def _claims(played: Sequence[Played]) -> int:
    """Claims that were compared."""
    return sum(
        len(pod["claims"])
        for item in played
        for pod, expected in zip(item.case["pods"], item.expected, strict=True)
        if not expected.unknown
    )


def _counts(played: Sequence[Played]) -> str:
    kinds: Counter[str] = Counter()
    for item in played:
        for answer, expected in zip(item.answers, item.expected, strict=True):
            kinds["not simulated" if expected.unknown else _kind(answer)] += 1
    pods = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    wrong = sum(bool(item.disagreements) for item in played)
    return f"{_claims(played)} claims in {len(played)} clusters (pods: {pods}), {wrong} of which disagreed at first"


def _kind(answer: Object) -> str:
    if "refused" in answer:
        return "refused"
    return "placed" if answer["node"] else str(answer["reason"])


def _reports(bench: Bench, wrong: Sequence[Played], directory: Path) -> str:
    """What the simulator is wrong about, each made small if it is so alone as well."""
    texts = []
    for number, item in enumerate(wrong):
        if number < 3 and _still_wrong(bench, [item.original])[0]:
            width = 1 if reaches_all_nodes(item.original) else TOGETHER // 2
            small = shrunk(
                item.original, lambda cases: _still_wrong(bench, cases), seconds=SHRINK_SECONDS / 3, width=width
            )
            (item,) = bench.play([small])  # noqa: PLW2901 # the same one, smaller
        file = directory / f"disagreement-{bench.kubernetes}-{number}.json"
        text = "; ".join(item.disagreements)
        file.write_text(json.dumps([item.recorded(text)], indent=1))
        texts.append(f"{text}\n  {file}")
    return "the simulator is wrong; put these files into tests/data/simulator-cases:\n" + "\n".join(texts)


def _still_wrong(bench: Bench, cases: Sequence[Object]) -> list[bool]:
    return [bool(item.disagreements) and not item.illegal for item in bench.play(cases)]
