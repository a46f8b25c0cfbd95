"""Whether a host is as the code assumes: one function an assumption, from evidence to a verdict.

``ok``: seen as assumed. ``differs``: seen otherwise. ``not checked``: this host, or this way of looking, cannot show
it, and why. ``n/a``: hosts of this type, or with this kernel driver, do not have it, so that nothing depends on it.
Nothing is ``ok`` by default.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.emulation.options import NEW_FILES_SINCE
from dra_driver.neuron.emulation.tree import CORE_ERRORS, HEALTH_FAMILIES, NULL_DEVICE
from dra_driver.neuron.health.faults import FAULTS, Component
from dra_driver.neuron.health.kernel_log import Said, parse
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.operations.verification.evidence import Evidence, ListedDevice, SeenFile
from dra_driver.operations.verification.hostfiles import FILES, NO_SERVER, form_of
from dra_driver.util.text import first_of, quoted, ranges

State = Literal["ok", "differs", "not checked", "n/a"]
BUSY: Final = "busy"
MOST: Final = 4
"""Examples named of one kind."""
HEARTBEAT_SECONDS: Final = 60
"""After so long without a beat, the driver takes the firmware's health check for dead."""
_NULL: Final = "{}:{}".format(*NULL_DEVICE)
_ELECTED: Final = ("node_id_2", "node_id_4", "server_id_2", "server_id_4")
_FIRMWARE: Final = ("node_id", "node_cnt", "reservation_id")


class Verdict(NamedTuple):
    """What became of one assumption."""

    state: State
    seen: str
    """What the host shows, for people."""
    why: str = ""
    """Why it differs, was not checked, or does not apply."""


def ok(seen: str) -> Verdict:
    """The host is so."""
    return Verdict("ok", seen)


def differs(seen: str, why: str) -> Verdict:
    """It is not."""
    return Verdict("differs", seen, why)


def unchecked(why: str, seen: str = "") -> Verdict:
    """It cannot be told."""
    return Verdict("not checked", seen, why)


def inapplicable(why: str, seen: str = "") -> Verdict:
    """It does not matter on this host."""
    return Verdict("n/a", seen, why)


NO_CHIPS: Final = unchecked("no Neuron chip is in sysfs")
_UNKNOWN_TYPE: Final = "the instance type is not in the driver's table"

Check = Callable[[int, str], str]
"""Chip and text of its file -> what is wrong with it, or ""."""


def chip_files(host: Evidence, key: str, check: Check = lambda _chip, _text: "") -> Verdict:
    """Whether a file of each chip is there, can be read, has the expected form and passes the check."""
    named = {chip: host.of_chip(key, chip) for chip in host.chips}
    return _files({f"neuron{chip}": seen for chip, seen in named.items()}, key, check) if named else NO_CHIPS


def _files(files: Mapping[str, SeenFile | None], key: str, check: Check) -> Verdict:
    form, good, bad, unread = form_of(FILES[key]), Counter[str](), list[str](), list[str]()
    for name, seen in files.items():
        if seen is None:
            bad.append(f"{name} has no file")
        elif seen.text is None:
            unread.append(f"{name}: {seen.problem}")
        elif seen.text == BUSY:
            unread.append(f"{name} says busy")
        elif not form.fullmatch(seen.text):
            bad.append(f"{name} says {quoted(seen.text)}")
        elif problem := check(_number(name), seen.text):
            bad.append(f"{name}: {problem}")
        else:
            good[seen.text] += 1
    shown = _counted(good)
    if bad:
        return differs(shown, first_of(bad, MOST))
    return unchecked(f"{first_of(unread, MOST)}; run as root, or again later", shown) if unread else ok(shown)


def _number(name: str) -> int:
    found = re.match(r"neuron([0-9]+)", name)
    return int(found[1]) if found else -1


def _counted(texts: Counter[str]) -> str:
    return first_of([f"{count} x {quoted(text, 40)}" for text, count in sorted(texts.items())], MOST)


def node_file(host: Evidence, key: str) -> Verdict | str:
    """Text of a file of the node that has the expected form, or the verdict that there is none."""
    seen = host.file(key)
    if seen is None:
        return differs(f"no file {FILES[key].path}", "it is missing")
    if seen.text is None or seen.text == BUSY:
        return unchecked(f"{FILES[key].path}: {seen.problem or 'busy'}")
    if not form_of(FILES[key]).fullmatch(seen.text):
        return differs(quoted(seen.text), "it is not of the expected form")
    return seen.text


# --- the node -------------------------------------------------------------------------------------------------------


def instance_type(host: Evidence) -> Verdict:
    text = node_file(host, "product-name")
    if isinstance(text, Verdict):
        return text
    return ok(text) if host.kind is not None else differs(text, _UNKNOWN_TYPE)


def module_version(host: Evidence) -> Verdict:
    if host.file("module-version") is None:
        return differs(
            "no file sys/module/neuron/version", "the Neuron kernel driver is not loaded, or /sys is not whole"
        )
    text = node_file(host, "module-version")
    return text if isinstance(text, Verdict) else ok(text)


def boot_id(host: Evidence) -> Verdict:
    if host.file("boot-id") is None:
        return unchecked("the host's /proc is not visible; the driver then reads its container's, which says the same")
    text = node_file(host, "boot-id")
    return text if isinstance(text, Verdict) else ok("a boot id (left out)")


# --- chips ----------------------------------------------------------------------------------------------------------


def chip_directories(host: Evidence) -> Verdict:
    linked = sorted(int(name.removeprefix("neuron")) for (name,) in host.by_row.get("class-entry", {}))
    if not host.chips and not linked:
        return NO_CHIPS if host.file("module-version") is None else differs("none", "the kernel driver lists no chip")
    seen = f"chips {ranges(host.chips) or 'none'}; in /sys/class {ranges(linked) or 'none'}"
    if tuple(linked) != host.chips:
        return differs(seen, "sys/devices/virtual/neuron_device and sys/class/neuron_device list different chips")
    return ok(seen)


def chip_count(host: Evidence) -> Verdict:
    if host.kind is None or host.kind.devices is None:
        return unchecked(_UNKNOWN_TYPE if host.kind is None else "their number is not public", ranges(host.chips))
    expected = tuple(range(host.kind.devices))
    seen = f"{len(host.chips)} chips ({ranges(host.chips) or 'none'})"
    if host.chips == expected:
        return ok(seen)
    return differs(seen, f"a {host.kind.name} has {host.kind.devices}, numbered from 0")


def device_numbers(host: Evidence) -> Verdict:
    found = chip_files(host, "dev")
    numbers = [seen.text for chip in host.chips if (seen := host.of_chip("dev", chip)) and seen.text]
    if found.state != "ok" or (host.emulated and set(numbers) == {_NULL}):
        return found
    twice = sorted(number for number, count in Counter(numbers).items() if count > 1)
    if twice:
        return differs(found.seen, f"several chips have the number {first_of(twice, MOST)}")
    return ok(f"{numbers[0]} to {numbers[-1]}")


def device_nodes(host: Evidence) -> Verdict:
    nodes = {name: seen for (name,), seen in host.by_row.get("node", {}).items()}
    if not nodes:
        return unchecked("/dev has no Neuron node, so it is not the host's")
    bad = []
    for chip in host.chips:
        node, dev = nodes.get(f"neuron{chip}"), host.of_chip("dev", chip)
        if node is None:
            bad.append(f"/dev/neuron{chip} is missing")
        elif dev is not None and dev.text and node.number != dev.text:
            bad.append(f"/dev/neuron{chip} is {node.number}, sysfs says {quoted(dev.text)}")
    seen = f"{len(nodes)} nodes with mode {first_of(sorted({f'{node.mode:04o}' for node in nodes.values()}), MOST)}"
    return differs(seen, first_of(bad, MOST)) if bad else ok(seen)


def major_number(host: Evidence) -> Verdict:
    seen = host.file("proc-devices")
    if seen is None or seen.text is None:
        return unchecked("proc/devices cannot be read")
    if not host.chips:
        return NO_CHIPS
    listed = {line.split()[0] for line in seen.text.splitlines() if line.strip()}
    used = {dev.text.partition(":")[0] for chip in host.chips if (dev := host.of_chip("dev", chip)) and dev.text}
    shown = f"neuron has {', '.join(sorted(listed)) or 'no major number'}; the chips have {', '.join(sorted(used))}"
    if not listed:
        return differs(shown, "no character device driver is called neuron")
    return ok(shown) if used <= listed else differs(shown, "chips have a major number of another driver")


def core_count(host: Evidence) -> Verdict:
    expected = None if host.kind is None else host.kind.cores_per_device
    found = chip_files(
        host,
        "core_count",
        lambda _, text: f"{text} instead of {expected}" if expected and int(text) != expected else "",
    )
    return unchecked(_UNKNOWN_TYPE, found.seen) if found.state == "ok" and expected is None else found


def core_directories(host: Evidence) -> Verdict:
    bad, counts = [], Counter[str]()
    for chip in host.chips:
        said, cores = host.of_chip("core_count", chip), host.cores(chip)
        counts[f"{len(cores)} cores"] += 1
        count = said.text if said is not None and said.text else str(host.kind.cores_per_device if host.kind else "")
        if not count.isdecimal():
            return unchecked("the number of cores cannot be read", _counted(counts))
        if cores != tuple(range(int(count[:3]))):
            bad.append(f"neuron{chip} has directories of the cores {ranges(cores) or 'none'}, of {count}")
    if not host.chips:
        return NO_CHIPS
    return differs(_counted(counts), first_of(bad, MOST)) if bad else ok(_counted(counts))


def architecture(host: Evidence) -> Verdict:
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE, chip_files(host, "device_name").seen)
    names = host.kind.sysfs
    rows = {"device_name": names.device_name, "arch_type": names.arch_type, "family": names.instance_type}
    found = [
        chip_files(host, key, lambda _, text, value=value: "" if text == value else f"{text} instead of {value}")  # type: ignore[misc]
        for key, value in rows.items()
    ]
    return _worst(found)


def _worst(found: Sequence[Verdict]) -> Verdict:
    """The first that differs, else the first that was not checked, with what all have seen."""
    seen = "; ".join(dict.fromkeys(verdict.seen for verdict in found if verdict.seen))
    for state in ("differs", "not checked"):
        for verdict in found:
            if verdict.state == state:
                return Verdict(verdict.state, seen, verdict.why)
    return ok(seen)


def serial_numbers(host: Evidence) -> Verdict:
    if host.kind is not None and host.kind.family == "inf1":
        return inapplicable("Inferentia chips of the first generation have none")
    found = chip_files(
        host, "serial_number", lambda _, text: "" if text.strip("0") else "it is empty: the firmware did not answer"
    )
    numbers = [seen.text for chip in host.chips if (seen := host.of_chip("serial_number", chip)) and seen.text]
    if found.state == "ok" and len(set(numbers)) < len(numbers):
        return differs("the same number twice", "two chips have the same serial number")
    return found._replace(seen=f"{len(set(numbers))} numbers (left out)")


def device_state(host: Evidence) -> Verdict:
    return chip_files(host, "reset")


# --- links ----------------------------------------------------------------------------------------------------------


def _neighbours(host: Evidence) -> dict[int, set[int]] | None:
    """None: some file cannot be used."""
    found = {}
    for chip in host.chips:
        seen = host.of_chip("connected_devices", chip)
        if seen is None or seen.text is None or not form_of(FILES["connected_devices"]).fullmatch(seen.text):
            return None
        found[chip] = {int(item) for item in seen.text.split(",") if item.strip()}
    return found


def links_form(host: Evidence) -> Verdict:
    return chip_files(host, "connected_devices")


def links_symmetric(host: Evidence) -> Verdict:
    links = _neighbours(host)
    if not links:
        return NO_CHIPS if links is not None else unchecked("some file connected_devices cannot be used")
    odd = [
        f"neuron{chip} names {other}, which does not name it"
        for chip, others in links.items()
        for other in sorted(others)
        if chip not in links.get(other, set()) or other == chip
    ]
    seen = f"{sum(map(len, links.values())) // 2} links"
    return differs(seen, first_of(odd, MOST)) if odd else ok(seen)


def links_fabric(host: Evidence) -> Verdict:
    links, kind = _neighbours(host), host.kind
    if not links:
        return NO_CHIPS if links is not None else unchecked("some file connected_devices cannot be used")
    shown = first_of([f"{chip}: {', '.join(map(str, sorted(others))) or 'none'}" for chip, others in links.items()], 2)
    if kind is None:
        return unchecked(_UNKNOWN_TYPE, shown)
    if not kind.fabric.adjacency_promised or "fabric" in kind.inferred:
        return inapplicable("the driver promises no links for this type", shown)
    if set(links) != set(range(kind.fabric.size)):
        return unchecked("the kernel driver prints links only where all chips are there", shown)
    bad = [
        f"neuron{chip} is linked to {ranges(sorted(others)) or 'none'}, not {ranges(kind.fabric.neighbours(chip))}"
        for chip, others in links.items()
        if others != set(kind.fabric.neighbours(chip))
    ]
    return differs(shown, first_of(bad, MOST)) if bad else ok(f"{kind.fabric.describe()}: {shown}")


# --- PCI and EFA ----------------------------------------------------------------------------------------------------


def pci_addresses(host: Evidence) -> Verdict:
    if not host.by_row.get("pci-device"):
        return unchecked("no PCI device of Amazon is visible")
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE)
    found, expected = host.pci(*host.kind.chip.pci_device_ids), host.kind.pci_bus_ids
    if expected is None:
        return unchecked(
            "no public source has the addresses of this type; the report has those of this host", _few(found)
        )
    return _same("PCI address", found, expected)


def _few(addresses: Iterable[str]) -> str:
    found = list(addresses)
    return first_of(found, MOST) if found else "none"


def _same(what: str, found: Sequence[str], expected: Iterable[str]) -> Verdict:
    lacking, more = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    if not lacking and not more:
        return ok(_few(found))
    parts = [f"{_few(lacking)} expected and not there"] if lacking else []
    parts += [f"{_few(more)} not expected"] if more else []
    return differs(_few(found), f"{what}: {'; '.join(parts)}")


def numa_nodes(host: Evidence) -> Verdict:
    kind = host.kind
    if kind is None or kind.pci_bus_ids is None or kind.numa_nodes is None:
        return unchecked("no public source has the NUMA nodes of this type" if kind is not None else _UNKNOWN_TYPE)
    said = {address: host.text("pci-numa", address) for address in kind.pci_bus_ids}
    if all(text is None for text in said.values()):
        return unchecked("no chip is at an address of the table")
    bad = [
        f"neuron{chip} ({address}) says {text or 'nothing'} instead of {node}"
        for chip, ((address, text), node) in enumerate(zip(said.items(), kind.numa_nodes, strict=True))
        if text != str(node)
    ]
    shown = _counted(Counter(f"NUMA node {text}" for text in said.values()))
    return differs(shown, first_of(bad, MOST)) if bad else ok(shown)


def efa_addresses(host: Evidence) -> Verdict:
    found = host.pci("efa[0-9a-f]")
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE, _few(found))
    if host.kind.efa_bdfs is None:
        return inapplicable(
            "no pairing with EFA devices is known for this type, so it has no device groups", _few(found)
        )
    if not host.by_row.get("pci-device"):
        return unchecked("no PCI device of Amazon is visible")
    if not found:
        return unchecked("the instance was launched without EFA devices, or they are not visible", "none")
    # EFA interfaces are chosen at launch: fewer are possible, others are not.
    more = sorted({*found} - {*host.kind.efa_bdfs})
    if more:
        return _same("EFA device", found, host.kind.efa_bdfs)
    return ok(f"{len(found)} of {len(set(host.kind.efa_bdfs))}: {_few(found)}")


def efa_near(host: Evidence) -> Verdict:
    kind = host.kind
    if kind is None or kind.efa_bdfs is None or kind.pci_bus_ids is None:
        return unchecked("the addresses of chips and EFA devices of this type are not both known")
    bad, near = [], 0
    for chip, (address, efa) in enumerate(zip(kind.pci_bus_ids, kind.efa_bdfs, strict=True)):
        nodes = host.text("pci-numa", address), host.text("pci-numa", efa)
        if None not in nodes:
            near += nodes[0] == nodes[1]
            if nodes[0] != nodes[1]:
                bad.append(f"neuron{chip} is on NUMA node {nodes[0]}, its EFA device {efa} on {nodes[1]}")
    if not bad and not near:
        return unchecked("no pair of a chip and its EFA device is visible")
    return (
        differs(f"{near} pairs share a NUMA node", first_of(bad, MOST))
        if bad
        else ok(f"{near} pairs share a NUMA node")
    )


# --- logical cores --------------------------------------------------------------------------------------------------

_LNC = re.compile(r"(?:export\s+)?NEURON_LOGICAL_NC_CONFIG\s*=\s*['\"]?([12])['\"]?", re.ASCII)


def _configured_lnc(host: Evidence) -> int | None:
    lines = [found for line in (host.text("logical_nc_config") or "").splitlines() if (found := _LNC.fullmatch(line))]
    return int(lines[-1][1]) if lines else None


def lnc_file(host: Evidence) -> Verdict:
    seen = host.file("logical_nc_config")
    if seen is None:
        return ok("no file: the chips' own default")
    value = _configured_lnc(host)
    if seen.text is None:
        return unchecked(seen.problem)
    allowed = host.kind.lnc_values if host.kind is not None else (1, 2)
    if value in allowed:
        return ok(f"NEURON_LOGICAL_NC_CONFIG={value}")
    return differs(quoted(seen.text), f"no line NEURON_LOGICAL_NC_CONFIG={' or '.join(map(str, allowed))}")


# --- UltraServers ---------------------------------------------------------------------------------------------------


def ultraserver_files(host: Evidence) -> Verdict:
    there = [key for key in ("ultraserver_mode", *_ELECTED, *_FIRMWARE) if host.file(key) is not None]
    seen = ", ".join(there) or "none"
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE, seen)
    if host.kind.ultraserver is None:
        # Kernel drivers of 2024 have the files of an election on every host, with nothing in them.
        said = [key for key in there if (host.text(key) or "") not in {"", "-1", NO_SERVER, "0", "4"}]
        if said:
            return differs(
                seen, f"a {host.kind.name} is not part of an UltraServer, yet {first_of(said, MOST)} name one"
            )
        return ok(f"no UltraServer; files: {seen}")
    expected = ("ultraserver_mode", *(_ELECTED if host.kind.ultraserver.files == "elected" else _FIRMWARE))
    lacking = [key for key in expected if key not in there]
    return differs(seen, f"{first_of(lacking, 5)} missing") if lacking else ok(seen)


def _server_keys(host: Evidence) -> tuple[str, ...]:
    return _ELECTED if host.file("server_id_4") is not None or host.file("node_id_4") is not None else _FIRMWARE


def _no_server(host: Evidence) -> Verdict | None:
    """Why nothing can be said of this host's place in an UltraServer, if so."""
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE)
    if host.kind.ultraserver is None:
        return inapplicable(f"a {host.kind.name} is not part of an UltraServer")
    keys = (*_server_keys(host), "ultraserver_mode")
    if all(host.file(key) is None for key in keys):
        return unchecked("no file of an UltraServer is there")
    if any(host.text(key) == BUSY for key in keys):
        return unchecked("the election of the ids is still running; run again in some minutes")
    return None


def ultraserver_ids(host: Evidence) -> Verdict:
    reason = _no_server(host)
    if reason is not None:
        return reason
    keys = _server_keys(host)
    found = [node_file(host, key) for key in keys]
    wrong = [value for value in found if isinstance(value, Verdict)]
    if wrong:
        return _worst(wrong)
    said = dict(zip(keys, map(str, found), strict=True))
    shown = ", ".join(f"{key} {value}" for key, value in said.items() if not key.startswith(("server", "reserv")))
    sets = (
        [(nodes, said[f"server_id_{nodes}"], int(said[f"node_id_{nodes}"])) for nodes in (2, 4)]
        if keys is _ELECTED
        else [(int(said["node_cnt"]), said["reservation_id"], int(said["node_id"]))]
    )
    bad = []
    for nodes, server, node in sets:
        if node >= nodes:
            bad.append(f"node {node} of {nodes}")
        elif (server == NO_SERVER) != (node < 0) and nodes > 1:
            bad.append(f"of {nodes} nodes there is {'no' if server == NO_SERVER else 'a'} server id and node id {node}")
    return differs(shown, first_of(bad, MOST)) if bad else ok(f"{shown} (server ids left out)")


def ultraserver_modes(host: Evidence) -> Verdict:
    reason = _no_server(host)
    if reason is not None:
        return reason
    text = node_file(host, "ultraserver_mode")
    if isinstance(text, Verdict):
        return text
    numbers = {int(item) for item in text.split(",") if item.strip()}
    unknown = sorted(numbers - {0, *(mode.value for mode in Mode)})
    offered = sorted(mode.name for mode in Mode if mode.value in numbers)
    seen = f"{text or 'empty'} ({', '.join(offered) or 'none'})"
    if unknown:
        return differs(seen, f"unknown numbers {', '.join(map(str, unknown))}")
    if _server_keys(host) is not _ELECTED:
        return unchecked("how firmware without an election lists modes is not public", seen)
    sets = {nodes for nodes in (2, 4) if host.text(f"server_id_{nodes}") not in {None, "", NO_SERVER}}
    modes = {mode.nodes for mode in Mode if mode.value in numbers} - {1}
    # A link between two nodes may be down; a mode for more nodes than were elected is another meaning of the numbers.
    if modes - sets:
        return differs(seen, f"modes of {', '.join(map(str, sorted(modes - sets)))} nodes, but no such server id")
    return ok(seen)


# --- health ---------------------------------------------------------------------------------------------------------


def _since(host: Evidence, families: set[str] | None = None) -> Verdict | None:
    """Why a host need not have the files of newer kernel drivers, if so."""
    if host.version is None:
        return unchecked("the version of the kernel driver is not known")
    if host.version < NEW_FILES_SINCE:
        return inapplicable(f"kernel drivers before {'.'.join(map(str, NEW_FILES_SINCE))} have no such files")
    if families is not None and host.kind is None:
        return unchecked(_UNKNOWN_TYPE)
    if families is not None and host.kind is not None and host.kind.family not in families:
        return inapplicable(f"only chips of {', '.join(sorted(families))} have them")
    return None


def ecc_counters(host: Evidence) -> Verdict:
    names = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")
    return _worst([chip_files(host, name) for name in names])


def corrected_counters(host: Evidence) -> Verdict:
    return _since(host) or _worst([chip_files(host, name) for name in ("sram_ecc_corrected", "mem_ecc_corrected")])


_COMPONENTS: Final = frozenset(row.signal.name for row in FAULTS.values() if isinstance(row.signal, Component))


def components(host: Evidence) -> Verdict:
    def check(_chip: int, text: str) -> str:
        unknown = sorted({name.strip() for name in text.split(",") if name.strip()} - _COMPONENTS)
        return f"unknown names {', '.join(unknown)}" if unknown else ""

    return _since(host, HEALTH_FAMILIES) or chip_files(host, "unhealthy_components", check)


def health_files(host: Evidence) -> Verdict:
    names = ("healthcheck_heartbeat", "hw_error_event")
    return _since(host, HEALTH_FAMILIES) or _worst([chip_files(host, name) for name in names])


def heartbeat(host: Evidence) -> Verdict:
    reason = _since(host, HEALTH_FAMILIES)
    if reason is not None:
        return reason
    if not host.waited_seconds:
        return unchecked(f"not waited for; give --wait {HEARTBEAT_SECONDS + 5}")
    before = {chip: seen.text for chip in host.chips if (seen := host.of_chip("healthcheck_heartbeat", chip))}
    still = sorted(chip for chip, text in before.items() if host.heartbeats.get(chip) == text)
    moved = f"{len(before) - len(still)} of {len(before)} moved in {host.waited_seconds} s"
    if not before:
        return unchecked("there is no heartbeat")
    if not still:
        return ok(moved)
    if host.waited_seconds < HEARTBEAT_SECONDS:
        return unchecked(f"neuron{ranges(still)} stood still, but for less than {HEARTBEAT_SECONDS} s", moved)
    return differs(moved, f"the heartbeats of {ranges(still)} stand still")


def core_counters(host: Evidence) -> Verdict:
    if not host.chips:
        return NO_CHIPS
    if not any(host.by_row.get(name) for name in CORE_ERRORS):
        return differs("none", "no core has a counter of failed executions")
    found = []
    for name in CORE_ERRORS:
        files = {
            f"neuron{chip} core {core}": host.file(name, f"neuron{chip}", f"neuron_core{core}")
            for chip in host.chips
            for core in host.cores(chip)
        }
        found.append(_files(files, name, lambda _chip, _text: ""))
    return _worst(found)._replace(seen=f"{sum(len(host.by_row.get(name, {})) for name in CORE_ERRORS)} counters")


def kernel_log(host: Evidence) -> Verdict:
    if host.kernel_log is None:
        return unchecked("no kernel log was given; save one with 'dmesg --raw' and give it with --kernel-log")
    if not host.kernel_log:
        return unchecked("the log has no line of the Neuron runtime, so no execution has failed since boot")
    bad = [f"{quoted(line)} ({said})" for line in host.kernel_log if not isinstance(said := parse(line), Said)]
    seen = f"{len(host.kernel_log)} lines"
    return differs(seen, first_of(bad, 2)) if bad else ok(seen)


# --- neuron-ls ------------------------------------------------------------------------------------------------------


def _listed(host: Evidence, judge: Callable[[ListedDevice], str], show: Callable[[ListedDevice], object]) -> Verdict:
    if host.neuron_ls is None:
        return unchecked("no output of neuron-ls was given; save 'neuron-ls -j' and give it with --neuron-ls")
    if not host.neuron_ls:
        return differs("none", "neuron-ls lists no device")
    bad = [f"device {entry.neuron_device}: {text}" for entry in host.neuron_ls if (text := judge(entry))]
    seen = _counted(Counter(str(show(entry)) for entry in host.neuron_ls))
    return differs(seen, first_of(bad, MOST)) if bad else ok(seen)


def listed_devices(host: Evidence) -> Verdict:
    found = _listed(host, lambda _: "", lambda _: "device")
    numbers = tuple(sorted(entry.neuron_device for entry in host.neuron_ls or ()))
    if found.state == "ok" and numbers != host.chips:
        return differs(ranges(numbers), f"sysfs has the chips {ranges(host.chips) or 'none'}")
    return found._replace(seen=ranges(numbers)) if found.state == "ok" else found


def listed_addresses(host: Evidence) -> Verdict:
    expected = host.kind.pci_bus_ids if host.kind is not None else None
    if expected is None:
        found = _listed(host, lambda _: "", lambda entry: entry.bdf or "none")
        why = "no public source has the addresses of this type; the report has those of this host"
        return unchecked(why, found.seen) if found.state == "ok" else found

    def judge(entry: ListedDevice) -> str:
        # Older tools leave the domain out.
        bdf = entry.bdf if entry.bdf.count(":") == 2 else f"0000:{entry.bdf}"
        wanted = expected[entry.neuron_device] if entry.neuron_device < len(expected) else "none"
        return "" if not entry.bdf or bdf == wanted else f"{bdf} instead of {wanted}"

    if host.neuron_ls and not any(entry.bdf for entry in host.neuron_ls):
        return unchecked("this neuron-ls lists no PCI addresses")
    return _listed(host, judge, lambda entry: entry.bdf)


def listed_links(host: Evidence) -> Verdict:
    links = _neighbours(host) or {}

    def judge(entry: ListedDevice) -> str:
        if entry.neuron_device not in links:
            return ""
        said, shown = set(entry.connected_to or ()), links[entry.neuron_device]
        return (
            ""
            if said == shown
            else f"linked to {ranges(sorted(said)) or 'none'}, sysfs: {ranges(sorted(shown)) or 'none'}"
        )

    if host.neuron_ls and not links:
        return unchecked("some file connected_devices cannot be used")
    return _listed(host, judge, lambda entry: f"{len(entry.connected_to or ())} links")


def listed_cores(host: Evidence) -> Verdict:
    kind = host.kind
    if kind is None:
        return unchecked(_UNKNOWN_TYPE)
    size = _configured_lnc(host) if _configured_lnc(host) in kind.lnc_values else kind.default_lnc
    cores = kind.cores_per_device // (size or 1)

    def judge(entry: ListedDevice) -> str:
        lnc, first = entry.logical_neuroncore_config, entry.neuron_device * cores
        if lnc is not None and lnc != size:
            return f"logical core size {lnc} instead of {size}"
        if entry.nc_count is not None and entry.nc_count != cores:
            return f"{entry.nc_count} cores instead of {cores}"
        if entry.neuroncore_ids and entry.neuroncore_ids != tuple(range(first, first + cores)):
            return f"cores {ranges(entry.neuroncore_ids)} instead of {first}-{first + cores - 1}"
        return ""

    return _listed(host, judge, lambda entry: f"{entry.nc_count} cores")


def listed_memory(host: Evidence) -> Verdict:
    if host.kind is None:
        return unchecked(_UNKNOWN_TYPE)
    expected = host.kind.device_memory_bytes
    if host.neuron_ls and all(entry.memory_size is None for entry in host.neuron_ls):
        return unchecked("this neuron-ls lists no memory")
    return _listed(
        host,
        lambda entry: "" if entry.memory_size == expected else f"{entry.memory_size} bytes instead of {expected}",
        lambda entry: f"{entry.memory_size} bytes",
    )


# --- kubelet, runtime, containers -----------------------------------------------------------------------------------


def container_sysfs(host: Evidence) -> Verdict:
    if host.container_chips is None:
        return unchecked("this did not run in a container")
    seen = f"the container sees {ranges(host.container_chips) or 'none'}, the host {ranges(host.chips) or 'none'}"
    if not host.chips:
        return NO_CHIPS
    return ok(seen) if host.container_chips == host.chips else differs(seen, "the container's /sys shows other chips")


def kubelet_directories(host: Evidence) -> Verdict:
    there = [key for key in ("plugins", "plugins_registry") if host.file(key) is not None]
    sockets = any(host.file(key) is not None for key in ("device-plugin-socket", "pod-resources-socket"))
    seen = ", ".join(there) or "none"
    if not there and not sockets:
        return unchecked("no directory of kubelet is visible below /var/lib/kubelet")
    return ok(seen) if "plugins_registry" in there else differs(seen, "/var/lib/kubelet/plugins_registry is missing")


def kubelet_sockets(host: Evidence) -> Verdict:
    wanted = {"device-plugin-socket": "device-plugins", "pod-resources-socket": "pod-resources"}
    there = [name for key, name in wanted.items() if host.file(key) is not None]
    if not there and host.file("plugins_registry") is None:
        return unchecked("no directory of kubelet is visible below /var/lib/kubelet")
    lacking = sorted({*wanted.values()} - {*there})
    seen = ", ".join(there) or "none"
    return differs(seen, f"no kubelet.sock in {', '.join(lacking)}") if lacking else ok(seen)


_RUNTIME = re.compile(r"(containerd|cri-o)://v?([0-9]{1,4})\.([0-9]{1,4}).*", re.ASCII)
_CDI_BY_DEFAULT: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_CDI_BY_SETTING: Final = {"containerd": (1, 7), "cri-o": (1, 23)}


def runtime_cdi(host: Evidence) -> Verdict:
    if not host.container_runtime:
        return unchecked("give --container-runtime, as in the Node's status.nodeInfo.containerRuntimeVersion")
    found = _RUNTIME.fullmatch(host.container_runtime)
    if found is None:
        return differs(quoted(host.container_runtime), "neither containerd nor CRI-O")
    name, version = found[1], (int(found[2]), int(found[3]))
    if version >= _CDI_BY_DEFAULT[name]:
        return ok(host.container_runtime)
    if version >= _CDI_BY_SETTING[name]:
        return unchecked("it has CDI where its settings say so (containerd: enable_cdi)", host.container_runtime)
    return differs(host.container_runtime, "it has no CDI")


def _outcomes(found: Mapping[int, str]) -> str:
    return _counted(Counter(found.values()))


def chips_open(host: Evidence) -> Verdict:
    return _opening(host, "once")


def chips_open_twice(host: Evidence) -> Verdict:
    return _opening(host, "twice")


def _opening(host: Evidence, how: Literal["once", "twice"]) -> Verdict:
    if host.opened is None:
        return unchecked("nothing was opened; give --probe host on the host itself, as root")
    found = host.opened.once if how == "once" else host.opened.twice
    tried = {chip: text for chip, text in found.items() if not text.startswith("left alone")}
    if not tried:
        return unchecked(first_of(sorted({*found.values()}), 2) or "no chip has a node")
    bad = [f"neuron{chip}: {text}" for chip, text in tried.items() if text != "ok"]
    return differs(_outcomes(found), first_of(bad, MOST)) if bad else ok(_outcomes(found))


def container_opens_own(host: Evidence) -> Verdict:
    if host.container is None:
        return unchecked("give --probe container in a pod with a claim")
    view = host.container
    if not view.nodes:
        return differs("no /dev/neuronN", "the container was given no chip")
    bad = [f"/dev/neuron{index}: {text}" for index, text in view.opened.items() if text != "ok"]
    seen = f"{len(view.nodes)} nodes, {_outcomes(view.opened)}"
    return differs(seen, first_of(bad, MOST)) if bad else ok(seen)


def container_opens_no_other(host: Evidence) -> Verdict:
    if host.container is None:
        return unchecked("give --probe container in a pod with a claim")
    if not host.container.others:
        return unchecked("the container sees no other chip of the host, or all share the null device (emulated)")
    bad = [f"neuron{chip}" for chip, text in host.container.others.items() if text == "ok"]
    seen = _outcomes(host.container.others)
    return differs(seen, f"it opened {first_of(bad, MOST)}, which it was not given") if bad else ok(seen)


def container_run(host: Evidence) -> Verdict:
    if host.container is None:
        return unchecked("give --probe container in a pod with a claim")
    numbers = {text: chip for chip in host.chips if (seen := host.of_chip("dev", chip)) and (text := seen.text)}
    given = [numbers[number] for _, number in sorted(host.container.nodes.items()) if number in numbers]
    if len(numbers) < len(host.chips) or len(given) < len(host.container.nodes) or not given:
        return unchecked(
            "which chips of the host they are cannot be determined (chips share a number, or are not in sysfs)"
        )
    shown = f"chips {', '.join(map(str, given))} of the host"
    run = list(range(given[0], given[0] + len(given)))
    return ok(shown) if given == run else differs(shown, "they are not consecutive and ascending")
