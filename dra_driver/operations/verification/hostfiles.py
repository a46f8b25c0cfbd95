"""The files of a host that a report may hold, one row each: where they are, what they say, and what of it is kept.

The rows are used three times: to collect a report, to check one that somebody sent in (a path that no row describes is
refused, so no report leads out of the directory it is written to), and to judge whether a file says what is expected.

Nothing that names an instance, a chip, a server or a user is kept: serial numbers and server ids are replaced by
invented ones that are equal where the real ones are. A text of the expected form is kept otherwise; of another one,
digits and hexadecimal runs that could name something are blotted out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.emulation.tree import SERIAL_BASE
from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS
from dra_driver.neuron.host import signals
from dra_driver.neuron.host.devices import (
    DEVICE_DIRECTORIES,
    PCI_DEVICES,
    PROC_DEVICES,
    parse_connected,
    parse_core_count,
    parse_numbers,
    parse_pcie_root,
)
from dra_driver.neuron.host.discover import BOOT_ID, LNC_DEFAULT, LNC_KEY, MODULE_VERSION, PRODUCT_NAME, ec2_name
from dra_driver.util.text import printable

Keep = Literal["text", "serial", "server", "boot"]
Kind = Literal["file", "device", "directory", "socket", "link"]
Parse = Callable[[str], object]
"""None for a text that is not of the expected form."""

DEVICES, CLASS = DEVICE_DIRECTORIES
BUSY: Final = "busy"
MAX_TEXT: Final = 512
"""Characters of one file in a report."""
PLACES: Final = {
    "<chip>": (r"neuron(?:0|[1-9][0-9]{0,2})", 64),
    "<core>": (r"neuron_core(?:0|[1-9][0-9]?)", 16),
    "<pci>": (r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", 1024),
}
"""What may stand for a part of a row's path, and how many of them are looked at in one directory."""


class HostFile(NamedTuple):
    """A row."""

    key: str
    path: str
    """Below the host's root."""
    parse: Parse = str
    """The driver's own parser, where it reads the file. It decides what is kept as it is; by default, everything."""
    keep: Keep = "text"
    kind: Kind = "file"


def _form(pattern: str) -> Parse:
    return re.compile(pattern, re.ASCII).fullmatch


VERSION: Final = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,5}){1,3}(?![0-9]))([-+~_][0-9A-Za-z.+~_-]{1,40})?", re.ASCII)
"""Numbers, which are published and never an address, and what somebody's build adds to them."""
_NODE_ID = _form(r"-1|[0-9]{1,3}")
_SERVER_ID = _form(r"[0-9a-f]{16}")
_DEVICE = f"{DEVICES}/<chip>"
_ARCHITECTURE = f"{_DEVICE}/info/architecture"
_PCI = f"{PCI_DEVICES}/<pci>"
_KUBELET = "var/lib/kubelet"

ROWS: Final = (
    HostFile("product-name", PRODUCT_NAME, ec2_name),
    HostFile("module-version", MODULE_VERSION, VERSION.fullmatch),
    HostFile("proc-devices", PROC_DEVICES, _form(r"(?:[0-9]{1,4} neuron\n?)*")),
    HostFile("boot-id", BOOT_ID, _form(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "boot"),
    HostFile("class-entry", f"{CLASS}/<chip>", kind="directory"),
    HostFile("node", "dev/<chip>", kind="device"),
    HostFile("dev", f"{_DEVICE}/dev", parse_numbers),
    HostFile("core_count", f"{_DEVICE}/core_count", parse_core_count),
    HostFile("connected_devices", f"{_DEVICE}/{signals.CONNECTED}", parse_connected),
    HostFile("reset", f"{_DEVICE}/{signals.RESET}", _form("[012]")),
    HostFile("serial_number", f"{_DEVICE}/info/serial_number", _form("(?:[0-9a-fA-F]{16})?"), "serial"),
    HostFile("device_name", f"{_ARCHITECTURE}/device_name", _form("[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")),
    HostFile("arch_type", f"{_ARCHITECTURE}/arch_type", _form("NDv[0-9]{1,2}")),
    HostFile("family", f"{_ARCHITECTURE}/instance_type", _form("[A-Za-z0-9]{1,16}")),
    HostFile("core-arch", f"{_DEVICE}/<core>/info/architecture/arch_type", _form("NCv[0-9]{1,2}")),
    *(HostFile(name, f"{_DEVICE}/{signals.HARDWARE}/{name}", signals.count) for name in HARDWARE_COUNTERS),
    HostFile("unhealthy_components", f"{_DEVICE}/{signals.COMPONENTS}", signals.components),
    HostFile("healthcheck_heartbeat", f"{_DEVICE}/{signals.HEARTBEAT}", signals.count),
    HostFile("hw_error_event", f"{_DEVICE}/{signals.ERROR_EVENT}", signals.count),
    *(HostFile(name, f"{_DEVICE}/<core>/stats/status/{name}/total", signals.count) for name in CORE_COUNTERS),
    HostFile("ultraserver_mode", f"{CLASS}/ultraserver_mode", _form(r"(?:[0-9]{1,3}(?:\s*,\s*[0-9]{1,3}){0,15})?")),
    HostFile("node_id_2", f"{CLASS}/node_id_2", _NODE_ID),
    HostFile("node_id_4", f"{CLASS}/node_id_4", _NODE_ID),
    HostFile("server_id_2", f"{CLASS}/server_id_2", _SERVER_ID, "server"),
    HostFile("server_id_4", f"{CLASS}/server_id_4", _SERVER_ID, "server"),
    HostFile("node_id", f"{CLASS}/node_id", _NODE_ID),
    HostFile("node_cnt", f"{CLASS}/node_cnt", _form("[0-9]{1,3}")),
    HostFile("reservation_id", f"{CLASS}/reservation_id", _SERVER_ID, "server"),
    HostFile("logical_nc_config", LNC_DEFAULT),
    HostFile("pci-link", _PCI, lambda text: parse_pcie_root(text, text.rpartition("/")[2]), kind="link"),
    HostFile("pci-vendor", f"{_PCI}/vendor", _form("0x[0-9a-f]{4}")),
    HostFile("pci-device", f"{_PCI}/device", _form("0x[0-9a-f]{4}")),
    HostFile("pci-numa", f"{_PCI}/numa_node", _form("-1|[0-9]{1,3}")),
    HostFile("plugins", f"{_KUBELET}/plugins", kind="directory"),
    HostFile("plugins_registry", f"{_KUBELET}/plugins_registry", kind="directory"),
    HostFile("device-plugin-socket", f"{_KUBELET}/device-plugins/kubelet.sock", kind="socket"),
    HostFile("pod-resources-socket", f"{_KUBELET}/pod-resources/kubelet.sock", kind="socket"),
)
"""In the order in which a report lists them."""

FILES: Final[Mapping[str, HostFile]] = {row.key: row for row in ROWS}


@cache
def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split("(<[a-z]+>)", path)
    return re.compile("".join(PLACES[part][0] if part in PLACES else re.escape(part) for part in parts), re.ASCII)


@lru_cache(1 << 14)
def row_of(path: str) -> HostFile | None:
    """The row that describes a path; None: a report cannot hold it."""
    return next((row for row in ROWS if _pattern(row.path).fullmatch(path)), None)


_NAMING: Final = re.compile(
    r"\b(?:i|r|vol|eni|vpc|subnet|cr|snap|ami)-[0-9a-f]{8,17}\b"  # an instance, or what belongs to it
    r"|\bip-[0-9]+(?:-[0-9]+)+(?:\.[a-z0-9.-]*)?"  # a host
    r"|\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b"  # an address
    r"|[0-9a-fA-F]{9,}"  # an account, a serial number
)


def scrubbed(text: str) -> str:
    """A text that is not of the expected form, without what could name an instance, a host, an address or a number."""
    return _NAMING.sub("redacted", printable(text[:MAX_TEXT]))[:MAX_TEXT].strip()


def kept(row: HostFile, text: str) -> str:
    """What of a text goes into a report; serial numbers and server ids are replaced afterwards (``anonymous``)."""
    if row.path == PROC_DEVICES:
        return "\n".join([line for line in map(str.strip, text.splitlines()) if _NEURON_MAJOR.fullmatch(line)][:8])
    if row.path == LNC_DEFAULT:
        lines = [line.strip() for line in text.splitlines() if LNC_KEY in line]
        return "\n".join(map(scrubbed, lines[:4]))[:MAX_TEXT].strip() or scrubbed(text)
    if row.path == MODULE_VERSION and (version := VERSION.match(text)):
        return (version[1] + scrubbed(text[version.end(1) :]))[:MAX_TEXT]
    if text == BUSY or (len(text) <= MAX_TEXT and row.parse(text) is not None):
        return text
    return scrubbed(text)


_NEURON_MAJOR = re.compile(r"[0-9]{1,4} neuron", re.ASCII)
NO_SERVER: Final = "0" * 16
_FIRST_SERVER: Final = 0x1000000000000000
_NO_BOOT: Final = "00000000-0000-0000-0000-000000000000"


def anonymous(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by path with invented serial numbers, server ids and boot id; equal ones stay equal, zeros stay zeros.

    Done twice it changes nothing more, so what is made of a report gives the same report. A chip's number becomes the
    one of the emulated chip; server ids keep their order.
    """
    found = dict(texts)
    serials: dict[str, str] = {}
    server_ids = sorted({text for path, text in texts.items() if _names(path, "server", text) and text != NO_SERVER})
    for path, text in sorted(texts.items(), key=lambda item: (len(item[0]), item[0])):
        if _names(path, "serial", text) and text.strip("0"):
            chip = re.search(r"/neuron([0-9]+)/", path)
            found[path] = serials.setdefault(text, f"{SERIAL_BASE + int(chip[1] if chip else 0):016x}")
        elif _names(path, "server", text) and text != NO_SERVER:
            found[path] = f"{_FIRST_SERVER + server_ids.index(text):016x}"
        elif _names(path, "boot", text):
            found[path] = _NO_BOOT
    return found


def _names(path: str, keep: Keep, text: str) -> bool:
    row = row_of(path)
    return row is not None and row.keep == keep and row.parse(text) is not None
