"""Formats an explanation as text, and as plain objects for JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from dra_driver.simulator.explain.values import Diagnosis, Explanation, NodesAlike, Placed
from dra_driver.util.envelope import reference
from dra_driver.util.text import escaped
from dra_driver.util.wording import MAX_NAMES, counted, named, natural, shortened

MAX_GROUPS = 20
"""Maximum number of node groups described individually in the text; JSON has all."""
MAX_HOLDERS = 8
"""Maximum number of claims named as holders in the text; JSON has all."""


def text(explanation: Explanation, traps_above: Collection[str] = ()) -> str:
    """The explanation in paragraphs. Traps whose names are in ``traps_above`` are omitted."""
    lines = [_sentence(explanation.verdict)]
    lines += [_sentence(explanation.state)] if explanation.state else []
    lines += [f"  - {_sentence(item)}" for item in explanation.causes]
    if not explanation.bound:  # else the verdict lists them
        lines += [f"  {line}" for item in explanation.placed for line in _placed(item)]
    lines += [f"  {_sentence(text)}" for item in explanation.placed for text in item.says]
    lines += [f"  {_sentence(item.sentence)}" for item in explanation.refused]
    lines += [f"  {_sentence(f'warning: {item}')}" for item in explanation.warnings]
    tried = (
        " (each was tried)"
        if explanation.nodes and explanation.node is None and not any(item["remedy"] for item in explanation.evidence)
        else ""
    )
    lines += _listed(f"What would help{tried}:", [_sentence(item) for item in explanation.remedies])
    groups = obstacles(explanation)
    for group in groups[:MAX_GROUPS]:
        lines += ["", *group]
    if len(groups) > MAX_GROUPS:
        lines += ["", _sentence(f"{counted(len(groups) - MAX_GROUPS, 'more group')} of nodes: see -o json")]
    if explanation.nearest and len(groups) > 1:
        lines += ["", _sentence(f"nearest miss: {explanation.nearest}")]
    lines += _listed("Claims that hold needed devices:", _holders(explanation))
    traps = [trap for trap in explanation.traps if trap.name not in traps_above]
    lines += _listed("Known traps:", [f"[{trap.name}] {_sentence(trap.sentence)}" for trap in traps])
    return "\n".join(map(escaped, lines))


def brief(explanation: Explanation) -> str:
    """The verdict alone, if the claims fit and there is nothing to add; else ""."""
    parts = (
        explanation.state,
        explanation.causes,
        explanation.refused,
        explanation.warnings,
        explanation.remedies,
        explanation.traps,
    )
    more = any(parts) or any(item.says for item in explanation.placed)
    return "" if more or not explanation.fits else escaped(_sentence(explanation.verdict))


def obstacles(explanation: Explanation) -> list[list[str]]:
    """Lines about each group of nodes that are alike, those that lack the fewest devices first."""
    # That the claims fit on the chosen node is stated elsewhere.
    groups = sorted((group for group in explanation.nodes if group.nodes != (explanation.node,)), key=_order)
    return [list(map(escaped, _nodes(group))) for group in groups]


def texts(explanations: Sequence[Explanation]) -> str:
    """Several explanations; identical ones are only counted, and each trap is described once."""
    paragraphs: list[str] = []
    alike: list[Explanation] = []
    traps_above: set[str] = set()
    for item in explanations:
        if alike and item.like != alike[0].like:
            paragraphs.append(_alike(alike))
            alike = []
        if item.like:
            alike.append(item)
        else:
            paragraphs.append(text(item, traps_above))
            traps_above |= {trap.name for trap in item.traps}
    return "\n\n".join([*paragraphs, *([_alike(alike)] if alike else [])])


def _alike(explanations: Sequence[Explanation]) -> str:
    names = shortened([item.subject for item in explanations], MAX_NAMES)
    return escaped(_sentence(f"{names}: the same as for {explanations[0].like}"))


def _holders(explanation: Explanation) -> list[str]:
    """The first claims that hold what is in the way, and how many more there are."""
    lines = [_sentence(f"claim {item.claim} has {named(item.devices)}") for item in explanation.holders[:MAX_HOLDERS]]
    more = len(explanation.holders) - MAX_HOLDERS
    return [*lines, _sentence(f"{counted(more, 'more claim')}: see -o json")] if more > 0 else lines


def _order(group: NodesAlike) -> tuple[bool, bool, int]:
    """Order: nodes where devices are found, then errors, then those that lack the fewest devices."""
    step, short = group.diagnosis.step, group.diagnosis.short
    return step not in ("fits", "refused"), step != "error", short if short is not None else 1 << 30


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, *(f"  - {item}" for item in items)] if items else []


def _sentence(content: str) -> str:
    """Capitalised, with a full stop."""
    return f"{content[:1].upper()}{content[1:]}."


def _placed(item: Placed) -> Iterator[str]:
    by_pool: dict[tuple[str, str, str], list[str]] = {}
    for one in item.devices:
        by_pool.setdefault((one.request, one.driver, one.pool), []).append(one.device)
    name = f"{item.namespace}/{item.claim}" if item.namespace else item.claim
    for (request, driver, pool), devices in by_pool.items():
        yield f"claim {name}, request {request}: {named(devices)} of pool {driver}/{pool}"


def _nodes(group: NodesAlike) -> Iterator[str]:
    names = natural(group.nodes)
    who = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes ({shortened(names, MAX_NAMES)})"
    yield _sentence(f"{who}: {group.diagnosis.sentence}")
    for note in group.diagnosis.notes if group.diagnosis.step != "pools" else ():
        yield f"  - {_sentence(note)}"
    yield from _requests(group.diagnosis)


def _requests(diagnosis: Diagnosis) -> Iterator[str]:
    claims = {view.claim for view in diagnosis.requests}
    for view in diagnosis.requests:
        whose = f" of claim {view.claim}" if len(claims) > 1 else ""
        which = f"request {view.request}{whose}: " if len(diagnosis.requests) > 1 else ""
        for group in view.groups:
            yield f"  - {_sentence(which + group.sentence)}"


def plain(explanation: Explanation) -> dict[str, Any]:
    """The explanation as objects of JSON; names as in ``cli.kinds``."""
    kind, _, name = explanation.subject.partition(" ")
    return {
        "subject": explanation.subject,
        "pod": _reference(name) if kind == "pod" else None,
        "like": explanation.like or None,
        "claims": list(map(_reference, explanation.claims)),
        "fits": explanation.fits,
        "node": explanation.node,
        "couldGoTo": list(explanation.could),
        "message": explanation.verdict,
        "podState": explanation.state or None,
        "causes": list(explanation.causes),
        "findings": list(explanation.evidence),
        "error": explanation.error or None,
        "allocations": [
            {
                "claim": reference(item.namespace, item.claim),
                "results": [msgspec.to_builtins(one) for one in item.devices],
                "claimSays": list(item.says),
            }
            for item in explanation.placed
        ],
        "nodeGroups": [{"nodeNames": list(group.nodes), **_diagnosis(group.diagnosis)} for group in explanation.nodes],
        "nearestMiss": explanation.nearest or None,
        "refusals": [{"claim": _reference(item.claim), "reason": item.reason} for item in explanation.refused],
        "warnings": list(explanation.warnings),
        "holders": [{"claim": _reference(item.claim), "devices": list(item.devices)} for item in explanation.holders],
        "remedies": list(explanation.remedies),
        "traps": [{"name": trap.name, "message": trap.sentence} for trap in explanation.traps],
    }


def _reference(name: str) -> dict[str, str]:
    namespace, _, own = name.rpartition("/")
    return reference(namespace, own)


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "step": diagnosis.step,
        "message": diagnosis.sentence,
        "missing": diagnosis.short,
        "notes": list(diagnosis.notes),
        "requests": [
            {
                "claim": _reference(view.claim),
                "request": view.request,
                "wanted": view.wanted,
                "free": view.free,
                "total": view.total,
                "groups": [
                    {
                        "devices": list(group.devices),
                        "finding": group.state,
                        "message": group.sentence,
                        "clause": group.clause or None,
                        "saw": {name: list(values) for name, values in group.saw},
                        "usedUpBy": list(group.blockers),
                    }
                    for group in view.groups
                ],
            }
            for view in diagnosis.requests
        ],
        "constraints": [
            {
                "constraint": view.kind,
                "attribute": view.attribute,
                "requestNames": list(view.requests),
                "wanted": view.wanted,
                "groups": [
                    {
                        "description": share.label,
                        "devices": list(share.devices),
                        "freeDevices": list(share.free),
                        "missing": share.short,
                    }
                    for share in view.shares
                ],
            }
            for view in diagnosis.constraints
        ],
    }
