"""Whether a host is as the code assumes: from evidence to a verdict.

``ok``: seen as assumed. ``differs``: seen otherwise. ``not checked``: this host, or this way of looking, cannot show
it, and why. ``n/a``: hosts of this type, or with this kernel driver, do not have it, so that nothing depends on it.
Nothing is ``ok`` by default.

Most assumptions are about files, and what of them is odd the driver's reader says: ``files`` judges these. The others
have a function each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.emulation.options import NEW_FILES_SINCE
from dra_driver.neuron.emulation.tree import HEALTH_FAMILIES
from dra_driver.neuron.health.assess import COMPONENT_NAMES, STALLED_SECONDS
from dra_driver.neuron.health.kernel_log import LogHint, parse
from dra_driver.neuron.host.devices import PCI_DEVICES
from dra_driver.neuron.host.inventory import Membership
from dra_driver.neuron.host.signals import HEARTBEAT
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.operations.verification.evidence import LEFT_ALONE, ContainerView, Evidence, ListedDevice
from dra_driver.operations.verification.hostfiles import BUSY, CLASS, DEVICES, FILES, NO_SERVER, VERSION
from dra_driver.util.text import first_of, quoted, ranges

State = Literal["ok", "differs", "not checked", "n/a"]
THERE: Final = "there"
"""What is seen of a directory or a socket."""
MOST: Final = 4
"""Examples named of one kind."""
HEARTBEAT_SECONDS: Final = int(STALLED_SECONDS)


class Verdict(NamedTuple):
    """What became of one assumption."""

    state: State
    seen: str
    """What the host shows, for people."""
    why: str = ""
    """Why it differs, was not checked, or does not apply."""


def ok(seen: str) -> Verdict:
    return Verdict("ok", seen)


def differs(seen: str, why: str) -> Verdict:
    return Verdict("differs", seen, why)


def unchecked(why: str, seen: str = "") -> Verdict:
    return Verdict("not checked", seen, why)


def inapplicable(why: str, seen: str = "") -> Verdict:
    return Verdict("n/a", seen, why)


_UNKNOWN_TYPE: Final = unchecked("the instance type is not in the driver's table")


def _judged(seen: str, odd: Sequence[str]) -> Verdict:
    return differs(seen, first_of(odd, MOST)) if odd else ok(seen)


def _as_read(host: Evidence, seen: str, *codes: str) -> Verdict:
    """What the driver's reader finds of it, if anything."""
    findings = _findings(host, codes)
    return differs(seen, findings) if findings else ok(seen)


Judge = Callable[[Evidence], Verdict]
Need = Callable[[Evidence], Verdict | None]
"""The verdict on a host that lacks something without which nothing can be said; None: it has it."""


class Check(NamedTuple):
    """How an assumption is checked."""

    where: str
    """What is looked at, for people."""
    judge: Judge


def needs(*reasons: Need) -> Callable[[Judge], Judge]:
    """For a judge that is asked only about hosts that have all of this."""

    def decorate(judge: Judge) -> Judge:
        return lambda host: _lacking(host, reasons) or judge(host)

    return decorate


def _lacking(host: Evidence, reasons: Iterable[Need]) -> Verdict | None:
    return next((verdict for reason in reasons if (verdict := reason(host)) is not None), None)


def some_chips(host: Evidence) -> Verdict | None:
    return None if host.chips else unchecked("the driver finds no Neuron chip here")


def known_type(host: Evidence) -> Verdict | None:
    return None if host.kind is not None else _UNKNOWN_TYPE


def of_known_type(judge: Callable[[Evidence, InstanceType], Verdict]) -> Judge:
    """For a judge that compares a host with its type."""
    return lambda host: _UNKNOWN_TYPE if host.kind is None else judge(host, host.kind)


def chips_with_serials(host: Evidence) -> Verdict | None:
    if host.kind is not None and host.kind.family == "inf1":
        return inapplicable("Inferentia chips of the first generation have none")
    return None


def new_kernel_driver(host: Evidence) -> Verdict | None:
    version = VERSION.fullmatch(host.inventory.driver_version or "")
    if version is None:
        return unchecked("the version of the kernel driver is not known")
    if tuple(map(int, version[1].split("."))) < NEW_FILES_SINCE:
        return inapplicable(f"kernel drivers before {'.'.join(map(str, NEW_FILES_SINCE))} have no such files")
    return None


def new_chips(host: Evidence) -> Verdict | None:
    if host.kind is not None and host.kind.family not in HEALTH_FAMILIES:
        return inapplicable(f"only chips of {', '.join(sorted(HEALTH_FAMILIES))} have them")
    return known_type(host)


# --- files ----------------------------------------------------------------------------------------------------------


def _shown(texts: Mapping[str, Sequence[str]]) -> str:
    """What files say, by their row's key, for people: one text, or how many files say what."""
    parts = []
    for key, said in texts.items():
        secret, several = FILES[key].keep != "text", "<" in FILES[key].path
        if several:
            parts.append(f"{len({*said})} different texts, left out" if secret else _counted(said))
        else:
            parts.append(f"{key} " * (len(texts) > 1) + ("left out" if secret else said[0]))
    return "; ".join(dict.fromkeys(parts))


def _counted(texts: Iterable[object]) -> str:
    counts = Counter(map(str, texts))
    shown = (f"{count} there" if text == THERE else f"{count} x {quoted(text, 40)}" for text, count in counts.items())
    return first_of(list(shown), MOST)


def files(
    *keys: str,
    findings: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
    absent: Verdict | None = None,
    odd: Callable[[str], str] = lambda _: "",
    unique: Callable[[Evidence], bool] = lambda _: False,
) -> Check:
    """Whether each of these files is there, can be read and parsed, and the driver's reader finds nothing odd in it.

    Args:
        keys: of the rows in ``hostfiles``; a row may stand for one file of each chip, or of each core.
        findings: codes with which the reader says that the assumption is wrong (``neuron/host/findings.py``).
        needs: what the host must have besides.
        absent: the verdict where none of the files is there.
        odd: what is wrong with a text that can be parsed, or "".
        unique: whether no two files of a kind may say the same.
    """

    def judge(host: Evidence) -> Verdict:
        paths = {path: key for key in keys for path in host.paths(key)}
        found = _findings(host, findings)
        if not paths:
            return differs("none", found) if found else some_chips(host) or unchecked("no core has a directory")
        if absent is not None and not any(path in host.files for path in paths):
            return absent
        verdict = _verdict(host, paths, found, odd, unique=unique(host))
        lacking = _lacking(host, needs)
        return verdict if lacking is None else lacking._replace(seen=verdict.seen)

    paths = [FILES[key].path.removeprefix(f"{DEVICES}/") for key in keys]
    return Check(", ".join(paths).replace("<chip>", "neuronN").replace("<core>", "neuron_coreM"), judge)


def _findings(host: Evidence, codes: Iterable[str]) -> str:
    """What the reader finds; not that it could not read a file, which may be different as root, or later."""
    found = [one for one in host.inventory.findings if one.code in codes]
    unread = {path for path, seen in host.files.items() if seen.text in {None, BUSY}}
    return first_of([one.text for one in found if one.subject not in unread], 2)


def _verdict(
    host: Evidence, paths: Mapping[str, str], findings: str, odd: Callable[[str], str], *, unique: bool
) -> Verdict:
    good: dict[str, list[str]] = {}
    bad: list[str] = []
    unread: list[str] = []
    for path, key in paths.items():
        name, seen = path.removeprefix(f"{DEVICES}/"), host.files.get(path)
        said = "" if seen is None else seen.number or (seen.text if seen.kind == "file" else THERE)
        if seen is None:
            bad.append(f"{name} is missing")
        elif said is None or said == BUSY:
            unread.append(f"{name}: {seen.problem or BUSY}")
        elif FILES[key].parse(said) is None:
            bad.append(f"{name} says {quoted(said)}")
        elif problem := odd(said):
            bad.append(f"{name}: {problem}")
        else:
            good.setdefault(key, []).append(said)
    shown = _shown(good)
    if findings or bad:
        return differs(shown, findings or first_of(bad, MOST))
    if unread:
        return unchecked(f"{first_of(unread, MOST)}; run as root, or again later", shown)
    twice = [key for key, texts in good.items() if unique and len({*texts}) < len(texts)]
    return differs(shown, f"the file {twice[0]} of several chips says the same") if twice else ok(shown)


def known_components(text: str) -> str:
    unknown = sorted({name.strip() for name in text.split(",") if name.strip()} - COMPONENT_NAMES)
    return f"unknown names {', '.join(unknown)}" if unknown else ""


# --- chips ----------------------------------------------------------------------------------------------------------


@of_known_type
def chip_count(host: Evidence, kind: InstanceType) -> Verdict:
    seen = f"{len(host.chips)} chips ({ranges(host.chips) or 'none'})"
    if kind.devices is None:
        return unchecked("their number is not public", seen)
    found = _as_read(host, seen, "no-devices", "devices-missing", "devices-unexpected")
    return found if found.state == "differs" else some_chips(host) or found


@needs(some_chips)
def core_directories(host: Evidence) -> Verdict:
    expected = {chip: host.inventory.physical_cores(chip) for chip in host.chips}
    cores = {chip: host.cores(chip) for chip in expected}
    seen = _counted(f"{len(there)} cores" for there in cores.values())
    if None in expected.values():
        return unchecked("the number of cores cannot be read", seen)
    odd = [
        f"neuron{chip} has directories of the cores {ranges(cores[chip]) or 'none'}, of {count}"
        for chip, count in expected.items()
        if cores[chip] != tuple(range(count or 0))
    ]
    return _judged(seen, odd)


def architecture(host: Evidence) -> Verdict:
    found = files("device_name", "arch_type", "family", findings=("architecture-mismatch",), needs=(known_type,))
    verdict, names = found.judge(host), host.kind.sysfs if host.kind is not None else None
    if verdict.state != "ok" or names is None:
        return verdict
    # The driver reads the name alone; where the others are not as the table has them, its row may be another chip's.
    expected = {"arch_type": names.arch_type, "family": names.instance_type}
    odd = [
        f"{path.removeprefix(f'{DEVICES}/')} says {host.text(path)} instead of {name}"
        for key, name in expected.items()
        for path in host.paths(key)
        if host.text(path) != name
    ]
    return _judged(verdict.seen, odd)


# --- links ----------------------------------------------------------------------------------------------------------


def readable_links(host: Evidence) -> Verdict | None:
    odd = any(device.connected is None for device in host.inventory.devices)
    return unchecked("some file connected_devices cannot be used") if odd else some_chips(host)


def _links(host: Evidence) -> dict[int, tuple[int, ...]]:
    return {device.index: device.connected or () for device in host.inventory.devices}


@needs(readable_links)
def links_symmetric(host: Evidence) -> Verdict:
    links = _links(host)
    odd = [
        f"neuron{chip} names {other}, which does not name it"
        for chip, others in links.items()
        for other in others
        if chip not in links.get(other, ()) or other == chip
    ]
    return _judged(f"{sum(map(len, links.values())) // 2} links", odd)


@needs(readable_links)
@of_known_type
def links_fabric(host: Evidence, kind: InstanceType) -> Verdict:
    shown = first_of([f"{chip}: {ranges(others) or 'none'}" for chip, others in _links(host).items()], 2)
    if not kind.fabric.adjacency_promised or "fabric" in kind.inferred:
        return inapplicable("the driver promises no links for this type", shown)
    if host.chips != tuple(range(kind.fabric.size)):
        return unchecked("the kernel driver prints links only where all chips are there", shown)
    return _as_read(host, f"{kind.fabric.describe()}: {shown}", "connected-mismatch")


# --- PCI and EFA ----------------------------------------------------------------------------------------------------


def visible_pci(host: Evidence) -> Verdict | None:
    there = any(path.startswith(PCI_DEVICES) for path in host.files)
    return None if there else unchecked("no PCI device of Amazon is visible")


def _pci(host: Evidence, *device_ids: str) -> tuple[str, ...]:
    """Addresses of Amazon's PCI devices whose id matches one of these regular expressions, ascending."""
    pattern = re.compile(f"0x(?:{'|'.join(device_ids)})")
    devices = {path.split("/")[-2]: seen.text for path, seen in host.files.items() if path.endswith("/device")}
    return tuple(sorted(address for address, text in devices.items() if pattern.fullmatch(text or "")))


def _few(addresses: Iterable[str]) -> str:
    return first_of(sorted({*addresses}), MOST) or "none"


@needs(visible_pci)
@of_known_type
def pci_addresses(host: Evidence, kind: InstanceType) -> Verdict:
    there, expected = _pci(host, *kind.chip.pci_device_ids), kind.pci_bus_ids
    if expected is None:
        return unchecked(
            "no public source has the addresses of this type; the report has those of this host", _few(there)
        )
    lacking, more = {*expected} - {*there}, {*there} - {*expected}
    odd = [f"{_few(lacking)} expected and not there"] if lacking else []
    return _judged(_few(there), [*odd, f"{_few(more)} not expected"] if more else odd)


@needs(some_chips)
def numa_nodes(host: Evidence) -> Verdict:
    chips = [device for device in host.inventory.devices if device.numa_node is not None]
    return _near(host, [(f"neuron{chip.index}", chip.pci_bus_id, str(chip.numa_node)) for chip in chips])


def _near(host: Evidence, expected: Iterable[tuple[str, str | None, str | None]]) -> Verdict:
    """Whether PCI devices (name, address, NUMA node) are where they are expected; None: it is not known."""
    there = [(name, _numa_node(host, address), node) for name, address, node in expected if node is not None]
    visible = [(name, found, node) for name, found, node in there if found is not None]
    if not visible:
        return unchecked("no device is visible at an address whose NUMA node is known")
    odd = [f"{name} is on NUMA node {found} instead of {node}" for name, found, node in visible if found != node]
    return _judged(_counted(f"NUMA node {found}" for _, found, _ in visible), odd)


def _numa_node(host: Evidence, address: str | None) -> str | None:
    return host.text(f"{PCI_DEVICES}/{address}/numa_node")


@needs(visible_pci, some_chips)
def pcie_roots(host: Evidence) -> Verdict:
    chips = [chip for chip in host.inventory.devices if chip.pci_bus_id is not None]
    if not chips or not any(seen.kind == "link" for seen in host.files.values()):
        return unchecked("no link of a PCI device is visible, or the addresses of the chips are not known")
    odd = [f"no root at the address of neuron{chip.index}" for chip in chips if chip.pcie_root is None]
    return _judged(_counted(chip.pcie_root for chip in chips if chip.pcie_root is not None), odd)


@of_known_type
def efa_addresses(host: Evidence, kind: InstanceType) -> Verdict:
    there = _pci(host, "efa[0-9a-f]")
    if kind.efa_bdfs is None:
        return inapplicable(
            "no pairing with EFA devices is known for this type, so it has no device groups", _few(there)
        )
    if not there:
        return visible_pci(host) or unchecked("the instance was launched without EFA devices, or they are not visible")
    # EFA interfaces are chosen at launch: fewer are possible, others are not.
    more = {*there} - {*kind.efa_bdfs}
    seen = f"{len(there)} of {len({*kind.efa_bdfs})}: {_few(there)}"
    return differs(seen, f"{_few(more)} not expected") if more else ok(seen)


@of_known_type
def efa_near(host: Evidence, kind: InstanceType) -> Verdict:
    pairs = zip(host.inventory.devices, kind.efa_bdfs or (), strict=False)
    expected = (
        (f"the EFA device of neuron{chip.index}", efa, _numa_node(host, chip.pci_bus_id)) for chip, efa in pairs
    )
    return _near(host, expected)


# --- UltraServers ---------------------------------------------------------------------------------------------------

_ELECTED: Final = ("node_id_2", "node_id_4", "server_id_2", "server_id_4")
_FIRMWARE: Final = ("node_id", "node_cnt", "reservation_id")


@of_known_type
def ultraserver_files(host: Evidence, kind: InstanceType) -> Verdict:
    there = [key for key in ("ultraserver_mode", *_ELECTED, *_FIRMWARE) if f"{CLASS}/{key}" in host.files]
    seen = ", ".join(there) or "none"
    if kind.ultraserver is None:
        # Kernel drivers of 2024 have the files of an election on every host, with nothing in them.
        said = [key for key in there if (host.text(f"{CLASS}/{key}") or "") not in {"", "-1", NO_SERVER, "0", "4"}]
        if said:
            return differs(seen, f"a {kind.name} is not part of an UltraServer, yet {first_of(said, MOST)} name one")
        return ok(f"no UltraServer; files: {seen}")
    expected = ("ultraserver_mode", *(_ELECTED if kind.ultraserver.files == "elected" else _FIRMWARE))
    lacking = [key for key in expected if key not in there]
    return differs(seen, f"{first_of(lacking, 5)} missing") if lacking else ok(seen)


def in_ultraserver(judge: Callable[[Evidence, Membership], Verdict]) -> Judge:
    """For a judge of the place in an UltraServer that a host has."""

    def judged(host: Evidence) -> Verdict:
        member = host.inventory.ultraserver
        if host.kind is None or member is None:
            return known_type(host) or inapplicable(f"a {host.inventory.instance_type} is not part of an UltraServer")
        if member.electing:
            return unchecked("the election of the ids is still running; run again in some minutes")
        if _findings(host, ("ultraserver-files-missing",)):
            return unchecked("no file of an UltraServer is there")
        return some_chips(host) or judge(host, member)

    return judged


@in_ultraserver
def ultraserver_ids(host: Evidence, member: Membership) -> Verdict:
    found = files(*(_ELECTED if member.elected else _FIRMWARE)).judge(host)
    if found.state != "ok":
        return found
    if member.elected:
        ids = {2: ("node_id_2", "server_id_2"), 4: ("node_id_4", "server_id_4")}
    else:
        ids = {int(host.text(f"{CLASS}/node_cnt") or 1): ("node_id", "reservation_id")}
    nothing = {"-1", NO_SERVER}
    said = {nodes for nodes, names in ids.items() if any(host.text(f"{CLASS}/{name}") not in nothing for name in names)}
    understood = said <= {1, *(one.nodes for one in member.sets)}
    return found if understood else _as_read(host, found.seen, "ultraserver-value-odd")


@in_ultraserver
def ultraserver_modes(host: Evidence, member: Membership) -> Verdict:
    found = files("ultraserver_mode").judge(host)
    if found.state != "ok":
        return found
    numbers = {int(item) for item in found.seen.split(",") if item} - {0}
    if len(numbers) > len(member.modes):
        return _as_read(host, found.seen, "ultraserver-value-odd")
    seen = f"{found.seen or 'empty'} ({', '.join(mode.name for mode in reversed(member.modes)) or 'none'})"
    if not member.elected:
        return unchecked("how firmware without an election lists modes is not public", seen)
    # A link between two nodes may be down; a mode for more nodes than were elected is another meaning of the numbers.
    sizes = {nodes for nodes in (2, 4) if host.text(f"{CLASS}/server_id_{nodes}") not in {None, "", NO_SERVER}}
    more = sorted({mode.nodes for mode in member.modes} - {1, *sizes})
    return _judged(seen, [f"a mode of {nodes} nodes, but no such server id" for nodes in more])


# --- health ---------------------------------------------------------------------------------------------------------


@needs(some_chips, new_kernel_driver, new_chips)
def heartbeat(host: Evidence) -> Verdict:
    if not host.waited_seconds:
        return unchecked(f"not waited for; give --wait {HEARTBEAT_SECONDS + 5}")
    before = {chip: host.text(f"{DEVICES}/neuron{chip}/{HEARTBEAT}") for chip in host.chips}
    beating = [chip for chip, text in before.items() if text is not None]
    still = [chip for chip in beating if host.heartbeats.get(chip) == before[chip]]
    seen = f"{len(beating) - len(still)} of {len(beating)} moved in {host.waited_seconds} s"
    if not beating:
        return unchecked("there is no heartbeat")
    if still and host.waited_seconds < HEARTBEAT_SECONDS:
        return unchecked(f"neuron{ranges(still)} did not advance, but for less than {HEARTBEAT_SECONDS} s", seen)
    return differs(seen, f"the heartbeats of {ranges(still)} do not advance") if still else ok(seen)


_NO_LOG: Final = unchecked("no kernel log was given; save one with 'dmesg --raw' and give it with --kernel-log")


def kernel_log(host: Evidence) -> Verdict:
    if host.kernel_log is None:
        return _NO_LOG
    if not host.kernel_log:
        return unchecked("the log has no line of the Neuron runtime, so no execution has failed since boot")
    odd = [f"{quoted(line)} ({said})" for line in host.kernel_log if not isinstance(said := parse(line), LogHint)]
    return _judged(f"{len(host.kernel_log)} lines", odd)


def firmware_answers(host: Evidence) -> Verdict:
    if host.unanswered is None:
        return _NO_LOG
    if not host.unanswered:
        return ok("no request timed out")
    return differs(
        first_of(host.unanswered, MOST),
        "the firmware of a chip did not answer: reboot the node or replace the instance; if it happens again, use "
        "another release of the kernel driver (older chips may need an older one)",
    )


# --- neuron-ls ------------------------------------------------------------------------------------------------------


NOTHING_TO_COMPARE: Final = "neuron-ls does not list it, or no public source documents the expected value"


def neuron_ls(host: Evidence) -> Verdict | None:
    if host.neuron_ls is None:
        return unchecked("no output of neuron-ls was given; save 'neuron-ls -j' and give it with --neuron-ls")
    return None if host.neuron_ls else differs("none", "neuron-ls lists no device")


@needs(neuron_ls)
def listed_devices(host: Evidence) -> Verdict:
    seen = ranges(sorted(entry.neuron_device for entry in host.neuron_ls or ()))
    ours = ranges(host.chips)
    return ok(seen) if seen == ours else differs(seen, f"sysfs has the chips {ours or 'none'}")


def listed(*fields: str) -> Check:
    """Whether neuron-ls says of every chip in these fields what the driver takes it for."""

    @needs(neuron_ls, some_chips)
    def judge(host: Evidence) -> Verdict:
        said = {entry.neuron_device: _said(entry) for entry in host.neuron_ls or ()}
        ours = {chip: _expected(host, chip) for chip in said}
        pairs = [
            (f"device {chip}: {field}", said[chip][field], ours[chip].get(field)) for chip in said for field in fields
        ]
        both = [(what, theirs, own) for what, theirs, own in pairs if theirs is not None and own is not None]
        odd = [f"{what} {theirs} instead of {own}" for what, theirs, own in both if theirs != own]
        seen = _counted(values[fields[0]] or "not listed" for values in said.values())
        return _judged(seen, odd) if both else unchecked(NOTHING_TO_COMPARE, seen)

    return Check("neuron-ls -j (--neuron-ls)", judge)


Values = Mapping[str, str | int | None]
"""By field of neuron-ls; None: it is not known."""


def _said(entry: ListedDevice) -> Values:
    # Older tools leave the domain out.
    domain = "0000:" if entry.bdf.count(":") == 1 else ""
    return {
        "bdf": f"{domain}{entry.bdf}" or None,
        "connected_to": ranges(sorted({*(entry.connected_to or ())})) or "none",
        "logical_neuroncore_config": entry.logical_neuroncore_config,
        "memory_size": entry.memory_size,
        "nc_count": entry.nc_count,
        "neuroncore_ids": ranges(entry.neuroncore_ids) or None,
    }


def _expected(host: Evidence, chip: int) -> Values:
    device, kind, size = host.inventory.device(chip), host.inventory.chip, host.inventory.core_size
    if device is None or kind is None:
        return {}
    cores = kind.cores // size
    return {
        "bdf": device.pci_bus_id,
        "connected_to": None if device.connected is None else ranges(device.connected) or "none",
        "logical_neuroncore_config": size,
        "memory_size": kind.memory_bytes,
        "nc_count": cores,
        "neuroncore_ids": ranges(range(chip * cores, (chip + 1) * cores)),
    }


# --- kubelet, runtime, containers -----------------------------------------------------------------------------------


@needs(some_chips)
def container_sysfs(host: Evidence) -> Verdict:
    if host.container_chips is None:
        return unchecked("this did not run in a container")
    seen = f"the container sees {ranges(host.container_chips) or 'none'}, the host {ranges(host.chips)}"
    return ok(seen) if host.container_chips == host.chips else differs(seen, "the container's /sys shows other chips")


def visible_kubelet(host: Evidence) -> Verdict | None:
    there = any(path.startswith("var/lib/kubelet/") for path in host.files)
    return None if there else unchecked("no directory of kubelet is visible below /var/lib/kubelet")


_RUNTIME = re.compile(r"(containerd|cri-o)://v?([0-9]{1,4})\.([0-9]{1,4}).*", re.ASCII)
_CDI_BY_DEFAULT: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_CDI_BY_SETTING: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
_REPLACES: Final = (1, 34)
_REPLACES_WITH_FIX: Final = (1, 32)
"""Of CRI-O, from which what CDI sets replaces a variable of the container."""


def of_runtime(judge: Callable[[str, str, tuple[int, int]], Verdict]) -> Judge:
    """For a judge of a runtime as the Node names it: by that text, name and version."""

    def judged(host: Evidence) -> Verdict:
        if not host.container_runtime:
            return unchecked("give --container-runtime, as in the Node's status.nodeInfo.containerRuntimeVersion")
        found = _RUNTIME.fullmatch(host.container_runtime)
        if found is None:
            return differs(quoted(host.container_runtime), "neither containerd nor CRI-O")
        return judge(host.container_runtime, found[1], (int(found[2]), int(found[3])))

    return judged


@of_runtime
def runtime_variables(text: str, name: str, version: tuple[int, int]) -> Verdict:
    if name == "containerd" or version >= _REPLACES:
        return ok(text)
    if version >= _REPLACES_WITH_FIX:
        return unchecked("releases that have cri-o#9292 do", text)
    return differs(text, "a variable of the pod or of the image wins: update CRI-O")


@of_runtime
def runtime_cdi(text: str, name: str, version: tuple[int, int]) -> Verdict:
    if version >= _CDI_BY_DEFAULT[name]:
        return ok(text)
    if version >= _CDI_BY_SETTING[name]:
        return unchecked("it has CDI where its settings say so (containerd: enable_cdi)", text)
    return differs(text, "it has no CDI")


def opens(how: Literal["once", "twice"]) -> Judge:
    """Whether every chip that was tried could be opened so."""

    def judge(host: Evidence) -> Verdict:
        if host.opened is None:
            return unchecked("nothing was opened; give --probe host on the host itself, as root")
        outcomes = host.opened.once if how == "once" else host.opened.twice
        tried = {chip: text for chip, text in outcomes.items() if not text.startswith(LEFT_ALONE)}
        if not tried:
            return unchecked(first_of(sorted({*outcomes.values()}), 2) or "no chip has a node")
        return _judged(_counted(outcomes.values()), _failed("neuron", tried))

    return judge


def _failed(prefix: str, outcomes: Mapping[int, str]) -> list[str]:
    return [f"{prefix}{index}: {text}" for index, text in outcomes.items() if text != "ok"]


def in_container(judge: Callable[[Evidence, ContainerView], Verdict]) -> Judge:
    """For a judge of what a container sees that was given chips."""
    nobody = unchecked("give --probe container in a pod with a claim")
    return lambda host: nobody if host.container is None else judge(host, host.container)


@in_container
def container_opens_own(_: Evidence, view: ContainerView) -> Verdict:
    if not view.nodes:
        return differs("no /dev/neuronN", "the container was given no chip")
    return _judged(f"{len(view.nodes)} nodes, {_counted(view.opened.values())}", _failed("/dev/neuron", view.opened))


@in_container
def container_opens_no_other(_: Evidence, view: ContainerView) -> Verdict:
    if not view.others:
        return unchecked("the container sees no other chip of the host, or all share the null device (emulated)")
    odd = [f"it opened neuron{chip}, which it was not given" for chip, text in view.others.items() if text == "ok"]
    return _judged(_counted(view.others.values()), odd)


@in_container
def container_run(host: Evidence, view: ContainerView) -> Verdict:
    numbers = {host.text(path): chip for path, chip in zip(host.paths("dev"), host.chips, strict=True)}
    given = [numbers.get(number) for _, number in sorted(view.nodes.items())]
    if not given or None in given or len(numbers) < len(host.chips):
        return unchecked(
            "which chips of the host they are cannot be determined (chips share a number, or are not in sysfs)"
        )
    seen = f"chips {', '.join(map(str, given))} of the host"
    run = list(range(given[0] or 0, (given[0] or 0) + len(given)))
    return ok(seen) if given == run else differs(seen, "they are not consecutive and ascending")
