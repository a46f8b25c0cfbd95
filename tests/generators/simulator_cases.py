"""Random clusters and claims, small but with everything that affects an allocation.

A case is plain JSON: ``nodes``, ``slices``, ``classes``, optionally ``taintRules``, and ``pods``, each with its
``name``, the ``nodes`` on which it may run and its ``claims`` in order. Pods are created one after the other. All names
contain ``TOKEN``, which ``renamed`` replaces by another token of the same length, so that many cases can be in one
cluster without conflicts.

Objects that the API server would refuse are not generated, except for CEL: the grammar of expressions also produces
invalid and failing ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.generators.cel_expressions import DOMAIN, KUBERNETES, expression

Object = dict[str, Any]

TOKEN = "w0000"
"""Part of every name of a case."""

ATTRIBUTES = ("n", "b", "s", "v", "group", "numa.example/n")


def renamed(case: Object, number: int) -> Object:
    """The same case with unique names."""
    found: Object = json.loads(json.dumps(case).replace(TOKEN, token(number)))
    return found


def token(number: int) -> str:
    """The replacement for ``TOKEN`` in names."""
    return f"w{number:04}"


def reaches_all_nodes(case: Object) -> bool:
    """Whether the case's devices are visible to other cases in the same cluster."""
    return any(
        spec.get("allNodes") or any(item.get("allNodes") for item in spec.get("devices", ()))
        for spec in (item["spec"] for item in case["slices"])
    )


def random_case(random: Random) -> Object:
    """A cluster of one to three nodes with one to three drivers, and pods until it is almost full."""
    made = _Case(random)
    case = {"nodes": made.nodes, "slices": made.slices(), "classes": made.classes, "pods": made.pods()}
    return case | {"taintRules": made.taint_rules(case["slices"])}


def random_selector(random: Random, driver: str) -> str:
    """An expression such as users write, rarely a bad one."""
    text = random.choice(_EXPRESSIONS if random.randrange(100) < 95 else _FAILING)
    if random.randrange(100) < 20:
        other = random.choice(_EXPRESSIONS)
        text = random.choice((f"{text} && {other}", f"{text} || {other}", f"!({text})"))
    return text.replace("«", f'device.attributes["{driver}"]').replace("»", f'device.capacity["{driver}"]')


cases = st.randoms(use_true_random=False).map(random_case)
"""The strategy for tests of pure code."""


class _Case:
    """Decides names and rare features once for the whole case, so that its parts are consistent."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes = [
            {
                "metadata": {
                    "name": f"{TOKEN}-n{index}",
                    "labels": {"world": TOKEN, "zone": random.choice("ab"), "rack": str(index)},
                }
            }
            for index in range(random.choice((1, 1, 2, 2, 3)))
        ]
        self.drivers = [f"{letter}.{TOKEN}.example" for letter in "abc"[: random.choice((1, 1, 1, 2, 2, 3))]]
        self.ragged = self.chance(20)
        """Devices lack attributes, or have them with other types."""
        self.shared = self.chance(40)
        """Devices that several claims can share."""
        self.partitions = self.chance(35)
        self.tainted = self.chance(30)
        self.networked = self.chance(20)
        """Slices for more than one node."""
        self.everywhere = self.networked and self.chance(30)
        self.broken = self.chance(6)
        """Pools that are incomplete or contradict themselves."""
        self.binding = self.chance(12) and not self.shared
        """Devices with binding conditions: their pods stay pending, so the node must be known in advance.

        Not together with shared devices: while a pod waits for these conditions, kube-scheduler 1.37.1 counts twice
        what its claims consume, as an allocation in flight and as one that it has been told of
        (``dynamicresources/dra_manager.go``, ``GatherAllocatedState``): what the next pod gets depends on the moment.
        """
        self.wild = self.chance(25)
        """Expressions of any kind."""
        self.classes = [self._class(index) for index in range(random.choice((1, 2, 3)))]

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def some(self, items: Sequence[str], least: int = 0) -> list[str]:
        """A random subset, in the original order."""
        count = self.random.randint(min(least, len(items)), len(items))
        chosen = set(self.random.sample(range(len(items)), count))
        return [item for place, item in enumerate(items) if place in chosen]

    # Devices

    def slices(self) -> list[Object]:
        return [
            item for driver in self.drivers for number in range(self._pools()) for item in self._pool(driver, number)
        ]

    def _pools(self) -> int:
        return len(self.nodes) + self.random.choice((-1, 0, 0, 0, 0, 0, 1) if len(self.nodes) > 1 else (0, 0, 1))

    def _pool(self, driver: str, number: int) -> list[Object]:
        # Pools of several drivers have the same names on purpose.
        name = f"{TOKEN}-pool{number}"
        where = self._where(number)
        counters = self._counter_sets() if self.partitions and self.chance(80) else []
        contents: list[Object] = [{"sharedCounters": counters}] if counters else []
        numbers = iter(range(100))
        for _ in range(self.random.choice((1, 1, 1, 2))):
            devices = [
                self._device(driver, next(numbers), counters, where) for _ in range(self.random.choice((2, 3, 4, 6, 8)))
            ]
            contents.append({"devices": devices})
        generation = self.random.choice((0, 1, 5))
        pool = {"name": name, "generation": generation, "resourceSliceCount": len(contents)}
        # The order of the names matters, so it differs from the order of creation.
        order = self.random.sample(range(10), len(contents) + 1)
        made = [
            {
                "metadata": {"name": f"{TOKEN}-{driver[0]}-{name[-1]}-{place}"},
                "spec": {"driver": driver, "pool": pool, **where, **content},
            }
            for place, content in zip(order[1:], contents, strict=True)
        ]
        if self.chance(10):
            old = json.loads(json.dumps(self.random.choice(made if self.everywhere else made[bool(counters) :])))
            old["metadata"]["name"] = f"{TOKEN}-{driver[0]}-{name[-1]}-{order[0]}"
            old["spec"]["pool"]["generation"] = generation + self.random.choice((1, -1) if generation else (1,))
            made.append(old)
        # Up to 1.36 every node sees all counters, even those of broken pools.
        if self.broken and (not counters or self.everywhere):
            self._break(made)
        return made

    def _break(self, slices: list[Object]) -> None:
        victim = self.random.choice(slices)["spec"]
        kind = self.random.randrange(3)
        if kind == 0:
            # In all slices: if they differed, the result would depend on the scheduler's arbitrary order of slices.
            for item in slices:
                pool = item["spec"]["pool"]
                item["spec"]["pool"] = {**pool, "resourceSliceCount": pool["resourceSliceCount"] + 1}
        elif kind == 1 and "devices" in victim:
            for item in slices:
                for device in item["spec"].get("devices", [])[:1]:
                    device["name"] = "dev-0"
        elif "devices" in victim:
            amounts = {"cores": {"value": "1"}}
            victim["devices"][0]["consumesCounters"] = [{"counterSet": "unknown", "counters": amounts}]

    def _where(self, number: int) -> Object:
        if self.networked and self.chance(60):
            if self.everywhere and self.chance(60):
                return {"allNodes": True}
            return self.random.choice(({"nodeSelector": self._node_selector()}, {"perDeviceNodeSelection": True}))
        return {"nodeName": self.nodes[number % len(self.nodes)]["metadata"]["name"]}

    def _node_selector(self) -> Object:
        choices: tuple[Object, ...] = (
            {"key": "zone", "operator": "In", "values": [self.random.choice("ab")]},
            {"key": "zone", "operator": "NotIn", "values": ["b"]},
            {"key": "rack", "operator": "Gt", "values": ["0"]},
            {"key": "rack", "operator": "Lt", "values": ["1"]},
            {"key": "zone", "operator": "Exists"},
            {"key": "row", "operator": "DoesNotExist"},
        )
        own = {"key": "world", "operator": "In", "values": [TOKEN]}
        term: Object = {"matchExpressions": [own, *self.random.sample(choices, self.random.choice((0, 1, 1, 2)))]}
        if self.chance(10):
            name = self.random.choice(self.nodes)["metadata"]["name"]
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [name]}]
        return {"nodeSelectorTerms": [term]}

    def _counter_sets(self) -> list[Object]:
        return [
            {
                "name": f"set-{number}",
                "counters": {
                    "cores": {"value": self.random.choice(("2", "4", "8", "16"))},
                    "memory": {"value": "16Gi"},
                },
            }
            for number in range(self.random.choice((1, 1, 2)))
        ]

    def _device(self, driver: str, number: int, counters: list[Object], where: Object) -> Object:
        made: Object = {"name": f"dev-{number}"}
        attributes = {name: value for name in ATTRIBUTES if (value := self._attribute(name)) is not None}
        if attributes:
            made["attributes"] = self._named(driver, attributes)
        if self.shared and self.chance(60):
            made["allowMultipleAllocations"] = True
        capacity = {
            name: self._capacity(name, made) for name in self.some(("memory", "slots"), 0 if self.ragged else 2)
        }
        if capacity:
            made["capacity"] = self._named(driver, capacity)
        if counters and self.chance(85):
            made["consumesCounters"] = [self._consumption(item) for item in self._chosen(counters)]
        if self.tainted and self.chance(35):
            made["taints"] = [self._taint() for _ in range(self.random.choice((1, 1, 2)))]
        if "perDeviceNodeSelection" in where:
            made |= self._where_device()
        if "nodeSelector" in where and self.chance(15):
            made["bindsToNode"] = True
        if self.binding and self.chance(30):
            made |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
        return made

    def _named(self, driver: str, values: Object) -> Object:
        """Some with qualified names. None with both forms: then Kubernetes picks either at random."""
        if not self.ragged:
            return values
        return {f"{driver}/{key}" if "/" not in key and self.chance(15) else key: item for key, item in values.items()}

    def _where_device(self) -> Object:
        if self.everywhere and self.chance(30):
            return {"allNodes": True}
        if self.chance(50):
            return {"nodeName": self.random.choice(self.nodes)["metadata"]["name"]}
        return {"nodeSelector": self._node_selector()}

    def _chosen(self, counters: list[Object]) -> list[Object]:
        return counters if len(counters) > 1 and self.chance(30) else [self.random.choice(counters)]

    def _consumption(self, counter_set: Object) -> Object:
        amounts = {"cores": {"value": self.random.choice("11124")}}
        if self.chance(30):
            amounts["memory"] = {"value": self.random.choice(("1Gi", "4Gi", "0"))}
        return {"counterSet": counter_set["name"], "counters": amounts}

    def _attribute(self, name: str) -> Object | None:
        if self.chance(15 if self.ragged else 2):
            return None
        kind = name[-1] if len(name) == 1 else "n" if name == "numa.example/n" else "s"
        if self.ragged and self.chance(10):
            kind = self.random.choice("nbsv")
        values: dict[str, Object] = {
            "n": {"int": self.random.choice((0, 1, 1, 2, 5))},
            "b": {"bool": self.chance(60)},
            "s": {"string": self.random.choice(("a", "b", "abc", "1.2.3", ""))},
            "v": {"version": self.random.choice(("1.2.3", "1.2.4", "2.0.0-rc.1", "1.2.3+build"))},
        }
        return values[kind]

    def _capacity(self, name: str, device: Object) -> Object:
        value = (
            self.random.choice(("8Gi", "4Gi", "16Gi", "8192Mi", "4.5Gi", "8.0Gi"))
            if name == "memory"
            else self.random.choice(("2", "4", "8", "8", "4000m", "4.0"))
        )
        made: Object = {"value": value}
        if device.get("allowMultipleAllocations") and self.chance(70):
            made["requestPolicy"] = self._policy(name)
        return made

    def _policy(self, name: str) -> Object:
        """With amounts that are valid for every value of that capacity."""
        unit = "Gi" if name == "memory" else ""
        default = f"{self.random.choice('12')}{unit}"
        kind = self.random.randrange(4)
        if kind == 0:
            return {"default": self.random.choice((default, "500m", "0"))}
        if kind == 1:
            return {"default": default, "validValues": [f"1{unit}", f"2{unit}"]}
        span: Object = {"min": f"1{unit}"}
        if kind == 2:
            span["step"] = f"1{unit}"
        if self.chance(50):
            span["max"] = f"2{unit}"
        return {"default": default, "validRange": span}

    def _taint(self) -> Object:
        made = {
            "key": self.random.choice(("hot", "old")),
            "effect": self.random.choice(("NoSchedule", "NoExecute", "None")),
        }
        return made | ({"value": "very"} if self.chance(50) else {})

    def taint_rules(self, slices: list[Object]) -> list[Object]:
        """Always for a driver of this case, so that devices of other cases are not affected."""
        made = []
        for number in range(self.random.choice((0, 1, 1, 2)) if self.tainted else 0):
            spec = self.random.choice(slices)["spec"]
            selector = {"driver": spec["driver"]}
            if self.chance(70):
                selector["pool"] = spec["pool"]["name"]
            if self.chance(80):
                selector["device"] = f"dev-{self.random.choice((0, 0, 1, 2))}"
            rule: Object = {"deviceSelector": selector, "taint": self._taint()}
            if self.chance(10):
                del rule["deviceSelector"]
            made.append({"metadata": {"name": f"{TOKEN}-rule{number}"}, "spec": rule})
        return made

    # Classes and claims

    def _class(self, number: int) -> Object:
        spec: Object = {}
        driver = self.random.choice(self.drivers)
        if self.chance(85):
            spec["selectors"] = [_cel(f'device.driver == "{driver}"')]
            if self.chance(15):
                spec["selectors"].append(_cel(self._expression(driver)))
        elif self.wild:
            spec["selectors"] = [_cel(self._expression(driver))]
        if self.chance(35):
            spec["config"] = [self._opaque() for _ in range(self.random.choice((1, 2)))]
        return {"metadata": {"name": f"{TOKEN}-class{number}"}, "spec": spec}

    def _opaque(self) -> Object:
        return {
            "opaque": {"driver": self.random.choice(self.drivers), "parameters": {"level": self.random.randrange(9)}}
        }

    def _expression(self, driver: str) -> str:
        if self.wild and self.chance(40):
            text = expression(self.random, "bool", self.random.choice((1, 2, 2, 3)), KUBERNETES)
            return text.replace(DOMAIN, driver)
        return random_selector(self.random, driver)

    def pods(self) -> list[Object]:
        names = [item["metadata"]["name"] for item in self.nodes]
        made = []
        for number in range(self.random.choice((2, 3, 4, 5))):
            claims = [
                self._claim(f"{TOKEN}-p{number}-c{index}")
                for index in range(self.random.choice((1, 1, 1, 1, 1, 2, 2, 3)))
            ]
            nodes = names if not self.binding and self.chance(35) else [self.random.choice(names)]
            made.append({"name": f"{TOKEN}-p{number}", "nodes": nodes, "claims": claims})
        return made

    def _claim(self, name: str) -> Object:
        requests = [self._request(f"r{index}") for index in range(self.random.choice((1, 1, 1, 1, 2, 2, 3)))]
        labels = [label for item in requests for label in _labels(item)]
        devices: Object = {"requests": requests}
        if self.chance(30):
            devices["constraints"] = [self._constraint(labels) for _ in range(self.random.choice((1, 1, 1, 2)))]
        if self.chance(25):
            devices["config"] = [
                {**self._opaque(), **self._scope(labels)} for _ in range(self.random.choice((1, 1, 2)))
            ]
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}

    def _scope(self, labels: list[str]) -> Object:
        named = self.some(labels, 1) if self.chance(50) else []
        return {"requests": named} if named else {}

    def _constraint(self, labels: list[str]) -> Object:
        name = self.random.choice(ATTRIBUTES)
        full = name if "/" in name else f"{self.random.choice((self.drivers[0], *self.drivers))}/{name}"
        kind = "matchAttribute" if self.chance(60) else "distinctAttribute"
        return {kind: full, **self._scope(labels)}

    def _request(self, name: str) -> Object:
        if self.chance(25):
            count = self.random.choice((1, 2, 2, 3))
            return {"name": name, "firstAvailable": [{"name": f"s{i}", **self._wanted()} for i in range(count)]}
        wanted = self._wanted()
        if self.chance(5):
            wanted["adminAccess"] = True
        return {"name": name, "exactly": wanted}

    def _wanted(self) -> Object:
        made: Object = {"deviceClassName": self._class_name()}
        if self.chance(8):
            made["allocationMode"] = "All"
        elif self.chance(40):
            made |= {"allocationMode": "ExactCount", "count": self.random.choice((1, 2, 2, 2, 3, 4))}
        if self.chance(22):
            driver = self.random.choice(self.drivers)
            made["selectors"] = [_cel(self._expression(driver)) for _ in range(self.random.choice((1, 1, 2)))]
        if self.tainted and self.chance(50):
            made["tolerations"] = [self._toleration() for _ in range(self.random.choice((1, 1, 2)))]
        if self.chance(40 if self.shared else 4):
            names = self.some(("memory", "slots"), 1) if self.chance(95) else ["other"]
            if self.ragged and self.chance(10):
                names = [f"{self.random.choice(self.drivers)}/{name}" for name in names]
            made["capacity"] = {
                "requests": {name: self.random.choice(_AMOUNTS.get(name[-6:], _SLOTS)) for name in names}
            }
        return made

    def _class_name(self) -> str:
        if self.random.randrange(300) == 0:
            return f"{TOKEN}-missing"
        name: str = self.random.choice(self.classes)["metadata"]["name"]
        return name

    def _toleration(self) -> Object:
        made: Object = {}
        if self.chance(80):
            made["key"] = self.random.choice(("hot", "old"))
        if "key" not in made or self.chance(40):
            made["operator"] = "Exists"
        elif self.chance(50):
            made |= {"operator": "Equal", "value": "very"} if self.chance(50) else {"value": "very"}
        if self.chance(40):
            made["effect"] = self.random.choice(("NoSchedule", "NoExecute"))
        return made


def _cel(text: str) -> Object:
    return {"cel": {"expression": text}}


def _labels(request: Object) -> list[str]:
    """The names that constraints and configuration may use for it."""
    return [request["name"], *(f"{request['name']}/{item['name']}" for item in request.get("firstAvailable", ()))]


_SLOTS = ("1", "1", "2", "500m", "1500m", "3", "5")
_AMOUNTS = {"memory": ("1Gi", "1Gi", "2Gi", "512Mi", "1536Mi", "3Gi", "1e3", "2k", "16Gi"), "slots": _SLOTS}

_EXPRESSIONS = (
    "«.n >= 1",
    "«.n < 2",
    "«.n in [1, 2, 5]",
    "«.b",
    "!«.b",
    '«.s == "a"',
    '«.s.startsWith("a")',
    '«.s.matches("^[ab]$")',
    "«.v.compareTo(semver('1.2.3')) >= 0",
    '«.v.isLessThan(semver("2.0.0"))',
    "»['memory'].compareTo(quantity('8Gi')) >= 0",
    "»['slots'].isGreaterThan(quantity('3'))",
    "»['slots'].isInteger()",
    "»['memory'].asInteger() > 5000000000",
    "has(«.b) && «.b",
    '"n" in «',
    "«.exists(k, k == 'n')",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "device.attributes['numa.example'].n == 1",
    "device.attributes[?'numa.example'][?'n'].orValue(0) < 2",
    "cel.bind(d, «, d.n < 2 && d.b)",
    "device.driver.endsWith('.example')",
    "«.s in ['a', 'abc']",
    "true",
)
"""Common selectors; « stands for the attributes of a driver, » for its capacities."""

_FAILING = (
    "«.missing == 1",
    "«.s > 4",
    "«.n",
    "»['missing'].isInteger()",
    "device.attributes['numa.example'].missing",
    "«.b && «.missing == 2",
    "«.n.startsWith('a')",
    "device.unknown == 1",
    "«.n ==",
    '"a" == 1',
    "«.v == '1.2.3'",
    "semver(«.s).major() == 1",
    "quantity(«.s).isInteger()",
)
"""Invalid, or failing on some devices or all."""
