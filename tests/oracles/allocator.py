"""The allocator in its simplest form: enumerate all choices in order, and take the first that is valid as a whole.

For small worlds with one complete pool, Kubernetes 1.37, selectors that do not fail and no constraints on ``All``;
there Kubernetes' search finds exactly this solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

Json = dict[str, Any]
Choice = tuple[tuple[str, int, bool, tuple[Json, ...]], ...]
"""For each request of all claims: its label, the index of its claim, whether it has admin access, and its devices."""


def first_solution(
    devices: Sequence[Json], sets: Json, claims: Sequence[Json], used: Sequence[str]
) -> list[list[tuple[str, str]]] | None:
    """For each claim the label and the device of each result; None if there is no solution."""
    requests = [
        list(_choices(number, request, devices))
        for number, claim in enumerate(claims)
        for request in claim["spec"]["devices"]["requests"]
    ]
    for choice in product(*requests):
        if _allowed(choice, devices, sets, claims, used):
            return [
                [(label, device["name"]) for label, owner, _, picked in choice if owner == number for device in picked]
                for number in range(len(claims))
            ]
    return None


def _choices(number: int, request: Json, devices: Sequence[Json]) -> Iterator[tuple[str, int, bool, tuple[Json, ...]]]:
    options = [(request["name"], request["exactly"])] if "exactly" in request else []
    options += [(f"{request['name']}/{item['name']}", item) for item in request.get("firstAvailable", ())]
    for label, option in options:
        fitting = [device for device in devices if _selected(device, option)]
        admin = bool(option.get("adminAccess"))
        if option.get("allocationMode") == "All":
            if fitting and all(_tolerated(device, option) for device in fitting):
                yield label, number, admin, tuple(fitting)
            continue
        tolerated = [device for device in fitting if _tolerated(device, option)]
        for picked in combinations(tolerated, option.get("count", 1)):
            yield label, number, admin, picked


def _selected(device: Json, option: Json) -> bool:
    wanted = [item["cel"]["expression"].split("=") for item in option.get("selectors", ())]
    return all(str(next(iter(device["attributes"][name].values()))) == value for name, value in wanted)


def _tolerated(device: Json, option: Json) -> bool:
    return not device.get("taints") or bool(option.get("tolerations"))


def _allowed(choice: Choice, devices: Sequence[Json], sets: Json, claims: Sequence[Json], used: Sequence[str]) -> bool:
    return (
        _nobody_has_them(choice, used)
        and _counters_last(choice, devices, sets, used)
        and all(
            _constraint_holds(constraint, number, choice)
            for number, claim in enumerate(claims)
            for constraint in claim["spec"]["devices"]["constraints"]
        )
    )


def _nobody_has_them(choice: Choice, used: Sequence[str]) -> bool:
    held: dict[str, set[int]] = {}
    for _, number, admin, picked in choice:
        for device in picked:
            holders = held.setdefault(device["name"], set())
            if number in holders if admin else (holders or device["name"] in used):
                return False
            holders.add(number)
    return True


def _counters_last(choice: Choice, devices: Sequence[Json], sets: Json, used: Sequence[str]) -> bool:
    left: Counter[tuple[str, str]] = Counter(
        {(group, name): amount for group, amounts in sets.items() for name, amount in amounts.items()}
    )

    def charge(device: Json) -> None:
        for entry in device.get("consumesCounters", ()):
            for name, counter in entry["counters"].items():
                left[entry["counterSet"], name] -= int(counter["value"])

    for device in devices:
        if device["name"] in used:
            charge(device)
    picked = [device for *_, found in choice for device in found]
    for device in picked:
        charge(device)
    return not any(device.get("consumesCounters") for device in picked) or min(left.values()) >= 0


def _constraint_holds(constraint: Json, number: int, choice: Choice) -> bool:
    names = constraint["requests"]
    concerned = [
        device["attributes"].get(_attribute(constraint))
        for label, owner, _, picked in choice
        if owner == number and (not names or label in names or label.split("/")[0] in names)
        for device in picked
    ]
    if None in concerned:
        return False
    values = [next(iter(value.items())) for value in concerned]
    return len(set(values)) <= 1 if "matchAttribute" in constraint else len(set(values)) == len(values)


def _attribute(constraint: Json) -> str:
    full: str = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    return full.removeprefix("a.example/")
