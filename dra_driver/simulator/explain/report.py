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


def text(found: Explanation, told: Collection[str] = ()) -> str:
    """The explanation in paragraphs. Traps whose names are in ``told`` are omitted."""
    lines = [_sentence(found.verdict)]
    lines += [_sentence(found.state)] if found.state else []
    lines += [f"  - {_sentence(item)}" for item in found.causes]
    if not found.bound:  # else the verdict lists them
        lines += [f"  {line}" for item in found.placed for line in _placed(item)]
    lines += [f"  {_sentence(text)}" for item in found.placed for text in item.says]
    lines += [f"  {_sentence(item.sentence)}" for item in found.refused]
    lines += [f"  {_sentence(f'warning: {item}')}" for item in found.warnings]
    tried = (
        " (each was tried)"
        if found.nodes and found.node is None and not any(item["remedy"] for item in found.evidence)
        else ""
    )
    lines += _listed(f"What would help{tried}:", [_sentence(item) for item in found.remedies])
    groups = obstacles(found)
    for group in groups[:MAX_GROUPS]:
        lines += ["", *group]
    if len(groups) > MAX_GROUPS:
        lines += ["", _sentence(f"{counted(len(groups) - MAX_GROUPS, 'more group')} of nodes: see -o json")]
    if found.nearest and len(groups) > 1:
        lines += ["", _sentence(f"nearest miss: {found.nearest}")]
    lines += _listed("Claims that hold needed devices:", _held(found))
    traps = [trap for trap in found.traps if trap.name not in told]
    lines += _listed("Known traps:", [f"[{trap.name}] {_sentence(trap.sentence)}" for trap in traps])
    return "\n".join(map(escaped, lines))


def brief(found: Explanation) -> str:
    """The verdict alone, if that is all that is to be said of what fits; else ""."""
    more = (found.state, found.causes, found.refused, found.warnings, found.remedies, found.traps)
    said = any(more) or any(item.says for item in found.placed)
    return "" if said or not found.fits else escaped(_sentence(found.verdict))


def obstacles(found: Explanation) -> list[list[str]]:
    """Lines about each group of nodes that are alike, those that lack the fewest devices first."""
    # That the claims fit on the chosen node is stated elsewhere.
    groups = sorted((group for group in found.nodes if group.nodes != (found.node,)), key=_order)
    return [list(map(escaped, _nodes(group))) for group in groups]


def texts(found: Sequence[Explanation]) -> str:
    """Several explanations; identical ones are only counted, and each trap is described once."""
    paragraphs: list[str] = []
    alike: list[Explanation] = []
    told: set[str] = set()
    for item in found:
        if alike and item.like != alike[0].like:
            paragraphs.append(_alike(alike))
            alike = []
        if item.like:
            alike.append(item)
        else:
            paragraphs.append(text(item, told))
            told |= {trap.name for trap in item.traps}
    return "\n\n".join([*paragraphs, *([_alike(alike)] if alike else [])])


def _alike(found: Sequence[Explanation]) -> str:
    names = shortened([item.subject for item in found], MAX_NAMES)
    return escaped(_sentence(f"{names}: the same as for {found[0].like}"))


def _held(found: Explanation) -> list[str]:
    """The first claims that hold what is in the way, and how many more there are."""
    lines = [_sentence(f"claim {item.claim} has {named(item.devices)}") for item in found.holders[:MAX_HOLDERS]]
    more = len(found.holders) - MAX_HOLDERS
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


def _requests(found: Diagnosis) -> Iterator[str]:
    claims = {view.claim for view in found.requests}
    for view in found.requests:
        whose = f" of claim {view.claim}" if len(claims) > 1 else ""
        which = f"request {view.request}{whose}: " if len(found.requests) > 1 else ""
        for group in view.groups:
            yield f"  - {_sentence(which + group.sentence)}"


def plain(found: Explanation) -> dict[str, Any]:
    """The explanation as objects of JSON; names as in ``cli.kinds``."""
    kind, _, name = found.subject.partition(" ")
    return {
        "subject": found.subject,
        "pod": _reference(name) if kind == "pod" else None,
        "like": found.like or None,
        "claims": list(map(_reference, found.claims)),
        "fits": found.fits,
        "node": found.node,
        "couldGoTo": list(found.could),
        "message": found.verdict,
        "podState": found.state or None,
        "causes": list(found.causes),
        "findings": list(found.evidence),
        "error": found.error or None,
        "allocations": [
            {
                "claim": reference(item.namespace, item.claim),
                "results": [msgspec.to_builtins(one) for one in item.devices],
                "claimSays": list(item.says),
            }
            for item in found.placed
        ],
        "nodeGroups": [{"nodeNames": list(group.nodes), **_diagnosis(group.diagnosis)} for group in found.nodes],
        "nearestMiss": found.nearest or None,
        "refusals": [{"claim": _reference(item.claim), "reason": item.reason} for item in found.refused],
        "warnings": list(found.warnings),
        "holders": [{"claim": _reference(item.claim), "devices": list(item.devices)} for item in found.holders],
        "remedies": list(found.remedies),
        "traps": [{"name": trap.name, "message": trap.sentence} for trap in found.traps],
    }


def _reference(name: str) -> dict[str, str]:
    namespace, _, own = name.rpartition("/")
    return reference(namespace, own)


def _diagnosis(found: Diagnosis) -> dict[str, Any]:
    return {
        "step": found.step,
        "message": found.sentence,
        "missing": found.short,
        "notes": list(found.notes),
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
            for view in found.requests
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
            for view in found.constraints
        ],
    }
