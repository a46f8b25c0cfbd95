"""What a fault means for the scheduler: the administrator's one table, and the taints that follow from it.

```yaml
keyDomain: health.neuron.aws.com
prepare: warn
rules:
- fault: hbm-uncorrectable
  effect: NoExecute
  graceSeconds: 60
- severity: degraded
  instanceTypes: [trn2.48xlarge]
  effect: NoSchedule
```

The first rule that fits a fault counts; without one, ``DEFAULT_EFFECTS`` by severity. The table is strictly decoded: a
table that is not understood ends the start of the driver, since the alternative is another table than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

import msgspec

from dra_driver.kube import formats
from dra_driver.kube.objects import limits
from dra_driver.neuron.health.faults import (
    DEFAULT_EFFECTS,
    FAULTS,
    SEVERITIES,
    TAINT_DOMAIN,
    ActiveFault,
    ChipHealth,
    Effect,
    Severity,
    gravity,
)
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from dra_driver.kube.documents import Origin

Prepare = Literal["warn", "refuse"]

EFFECTS: Final[tuple[Effect, ...]] = ("NoExecute", "NoSchedule", "None")
"""The strongest first."""
BLOCKING: Final[frozenset[Effect]] = frozenset({"NoExecute", "NoSchedule"})
"""Effects that keep the scheduler from allocating the device to a request that does not tolerate the taint."""
MAX_GRACE_SECONDS: Final = 7 * 86400
MAX_RULES: Final = 256
MAX_BYTES: Final = 1 << 20
"""A ConfigMap holds no more."""


@dataclass(frozen=True, slots=True)
class HealthTaint:
    """A taint of a device."""

    key: str
    value: Severity
    effect: Effect
    since: int
    """Unix time in whole seconds, for ``timeAdded``: from the fault, so that a restart of the driver changes nothing.

    With NoExecute, the end of the grace time: Kubernetes counts a pod's ``tolerationSeconds`` from there.
    """


class Blocking(NamedTuple):
    """A fault of a chip, with a taint that keeps claims away which do not tolerate it."""

    taint: HealthTaint
    text: str
    """What is wrong and what to do."""


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    """A row of the table. What is not given fits everything."""

    effect: str
    fault: str | None = None
    """A key of ``FAULTS``."""
    severity: str | None = None
    instance_types: tuple[str, ...] = ()
    """EC2 names, without HyperPod's prefix."""
    grace_seconds: int = 0
    """NoExecute only: how long the fault must have lasted; until then the effect is NoSchedule."""

    def fits(self, code: str, instance_type: str | None) -> bool:
        """Whether it is for this fault on this instance type (None: unknown)."""
        return (
            self.fault in (None, code)
            and self.severity in (None, FAULTS[code].severity)
            and (not self.instance_types or instance_type in self.instance_types)
        )


class _Table(msgspec.Struct, frozen=True, rename="camel"):
    key_domain: str = TAINT_DOMAIN
    prepare: str = "warn"
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The decoded table."""

    key_domain: str = TAINT_DOMAIN
    """Domain of the taints' keys."""
    prepare: Prepare = "warn"
    """What to do with a claim that has an unhealthy chip and does not tolerate its taint."""
    rules: tuple[Rule, ...] = ()

    @classmethod
    def default(cls) -> Self:
        """An empty table."""
        return cls()

    @classmethod
    def load(cls, path: Path) -> Self:
        """The table in a file, YAML or JSON. UsageError says what is wrong with it, and where."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"the health policy {path} cannot be read: {error.strerror or error}") from error
        if len(data) > MAX_BYTES:
            raise UsageError(f"the health policy {path} is longer than {MAX_BYTES} bytes")
        try:
            return cls.parse(data.decode(), str(path))
        except UnicodeDecodeError as error:
            raise UsageError(f"the health policy {path} is not UTF-8: {error.reason}") from error

    @classmethod
    def parse(cls, text: str, name: str = "health policy") -> Self:
        """The table in a text; ``name`` is for errors (UsageError). An empty text is an empty table."""
        # Only where there is a table: they load PyYAML, which nothing else in a driver needs.
        from dra_driver.kube.decoding import Decoder
        from dra_driver.kube.documents import documents

        try:
            tables = list(documents(name, text))
            if len(tables) > 1:
                raise tables[1][0].error((), "there is a second document; one table is expected")
            if not tables:
                return cls()
            origin, value = tables[0]
            if not isinstance(value, dict):
                raise origin.error((), "an object with the fields keyDomain, prepare and rules is expected")
            table = Decoder().convert(value, _Table, origin)
            _check(table, origin)
        except DriverError as error:
            raise UsageError(str(error)) from error
        prepare: Prepare = "refuse" if table.prepare == "refuse" else "warn"
        return cls(table.key_domain, prepare, table.rules)

    def effect(self, code: str, instance_type: str | None) -> tuple[Effect, int]:
        """Effect of a fault, and the seconds that it must have lasted if that is NoExecute.

        A rule for many faults gives none of them a stronger effect than its row in ``FAULTS`` allows.
        """
        row = FAULTS[code]
        rule = next((rule for rule in self.rules if rule.fits(code, instance_type)), None)
        if rule is None:
            return DEFAULT_EFFECTS[row.severity], 0
        effect = max((_effect(rule.effect), row.strongest), key=EFFECTS.index)
        return effect, rule.grace_seconds if effect == "NoExecute" else 0

    def taint(self, fault: ActiveFault, instance_type: str | None, uptime: float) -> HealthTaint:
        """The taint of one fault ``uptime`` seconds after the boot."""
        effect, grace = self.effect(fault.code, instance_type)
        since = fault.since
        if grace:
            over = fault.uptime is not None and uptime >= fault.uptime + grace
            effect, since = (effect, since + grace) if over else ("NoSchedule", since)
        return HealthTaint(f"{self.key_domain}/{fault.code}", fault.fault.severity, effect, since)

    def taints(self, chips: Iterable[ChipHealth], instance_type: str | None, uptime: float) -> tuple[HealthTaint, ...]:
        """The taints of a device that is made of these chips, at most ``limits.MAX_TAINTS``.

        One for each key and effect, with the earliest time; the strongest effect first, then the gravest fault, then in
        the order of ``FAULTS``.
        """
        merged: dict[tuple[int, int, int], HealthTaint] = {}
        for chip in chips:
            for fault in chip.faults:
                taint = self.taint(fault, instance_type, uptime)
                place = (EFFECTS.index(taint.effect), *gravity(fault))
                first = merged.setdefault(place, taint)
                if taint.since < first.since:
                    merged[place] = taint
        return tuple(merged[place] for place in sorted(merged))[: limits.MAX_TAINTS]

    def blocking(
        self, chips: Iterable[ChipHealth], instance_type: str | None, uptime: float
    ) -> Mapping[int, tuple[Blocking, ...]]:
        """By host index of the chip, the faults that keep claims away; chips without any are left out."""
        by_chip = {
            chip.index: tuple(
                Blocking(taint, fault.text)
                for fault in chip.faults
                if (taint := self.taint(fault, instance_type, uptime)).effect in BLOCKING
            )
            for chip in chips
        }
        return {index: faults for index, faults in by_chip.items() if faults}

    def next_change(self, chips: Iterable[ChipHealth], instance_type: str | None, uptime: float) -> float | None:
        """When the taints change although the faults do not, in seconds since boot: the next end of a grace time.

        None: never.
        """
        ends = (
            fault.uptime + self.effect(fault.code, instance_type)[1]
            for chip in chips
            for fault in chip.faults
            if fault.uptime is not None and self.effect(fault.code, instance_type)[1]
        )
        return min((float(end) for end in ends if end > uptime), default=None)


def _effect(text: str) -> Effect:
    return next(effect for effect in EFFECTS if effect == text)


def _check(table: _Table, origin: Origin) -> None:
    """Raise ManifestError for the first value that is not legal."""
    if problem := formats.subdomain(table.key_domain):
        raise origin.error(("keyDomain",), problem)
    _one_of(table.prepare, get_args(Prepare), origin, ("prepare",))
    if len(table.rules) > MAX_RULES:
        raise origin.error(("rules",), f"there are {len(table.rules)} rules; at most {MAX_RULES} are allowed")
    for place, rule in enumerate(table.rules):
        _check_rule(rule, origin, ("rules", place))
        for earlier in range(place):
            if _covers(table.rules[earlier], rule):
                raise origin.error(
                    ("rules", place),
                    f"it has no effect, because rules[{earlier}] matches everything that it matches",
                    remedy="remove one of them, or put the narrower one first",
                )


def _check_rule(rule: Rule, origin: Origin, path: tuple[str | int, ...]) -> None:
    _one_of(rule.effect, EFFECTS, origin, (*path, "effect"))
    if rule.severity is not None:
        _one_of(rule.severity, SEVERITIES, origin, (*path, "severity"))
    if rule.fault is not None:
        _one_of(rule.fault, tuple(FAULTS), origin, (*path, "fault"))
        row = FAULTS[rule.fault]
        if EFFECTS.index(_effect(rule.effect)) < EFFECTS.index(row.strongest):
            raise origin.error(
                (*path, "effect"),
                f"{rule.effect} is not allowed for {rule.fault}, because pods can forge its signal",
                remedy=f"use one of: {', '.join(EFFECTS[EFFECTS.index(row.strongest) :])}",
            )
        if rule.severity not in (None, row.severity):
            raise origin.error((*path, "severity"), f"the severity of {rule.fault} is {row.severity}")
    if rule.grace_seconds and rule.effect != "NoExecute":
        raise origin.error((*path, "graceSeconds"), "is only valid with effect NoExecute")
    if not 0 <= rule.grace_seconds <= MAX_GRACE_SECONDS:
        raise origin.error((*path, "graceSeconds"), f"give a number from 0 to {MAX_GRACE_SECONDS}")
    for position, name in enumerate(rule.instance_types):
        _check_type(name, origin, (*path, "instanceTypes", position))
        if name in rule.instance_types[:position]:
            raise origin.error((*path, "instanceTypes", position), f"{name} is listed twice")


def _check_type(name: str, origin: Origin, path: tuple[str | int, ...]) -> None:
    from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPES, resolve

    try:
        resolve(name)
    except DriverError as error:
        raise origin.error(path, error.what, remedy=error.remedy) from None
    if name not in INSTANCE_TYPES:
        raise origin.error(path, f"omit {HYPERPOD_PREFIX}", remedy="the name without it also matches HyperPod's nodes")


def _one_of(value: str, legal: Iterable[str], origin: Origin, path: tuple[Any, ...]) -> None:
    from difflib import get_close_matches

    from dra_driver.util.text import quoted

    names = tuple(legal)
    if value not in names:
        near = get_close_matches(value[:64], names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise origin.error(path, f"{quoted(value)} is not known", remedy=f"{hint}use one of: {', '.join(names)}")


def _covers(earlier: Rule, later: Rule) -> bool:
    """Whether nothing that the later rule fits is left to it."""
    codes, types = set(_codes(later)), set(later.instance_types)
    all_types = not earlier.instance_types or (types and types <= set(earlier.instance_types))
    return codes <= set(_codes(earlier)) and bool(all_types)


def _codes(rule: Rule) -> Iterator[str]:
    return (
        code for code, row in FAULTS.items() if rule.fault in (None, code) and rule.severity in (None, row.severity)
    )
