"""The files of a host that a report may hold, one row each: where they are, what they say, and what of it is kept.

The rows are used three times: to collect a report, to check one that somebody sent in (a path that no row describes is
refused, so no report leads out of the directory it is written to), and to judge whether a file has the expected form.

Nothing that names an instance, a chip, a server or a user is kept: serial numbers and server ids are replaced by
invented ones that are equal where the real ones are. A text of the expected form is kept otherwise; of another one,
digits and hexadecimal runs that could name something are blotted out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.emulation.tree import CLASS, CORE_ERRORS, DEVICES, HEALTH_STATUS, PCI_DEVICES, SERIAL_BASE

Keep = Literal["text", "serial", "server", "boot"]
Kind = Literal["file", "device", "directory", "socket"]

MAX_TEXT: Final = 512
"""Characters of one file in a report."""
MAX_NAMES: Final = {"chip": 64, "core": 16, "pci": 1024}
"""How many entries of a directory are looked at."""

PLACES: Final = {
    "chip": r"neuron(?:0|[1-9][0-9]{0,2})",
    "core": r"neuron_core(?:0|[1-9][0-9]?)",
    "pci": r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]",
}
"""What stands for ``<chip>``, ``<core>`` and ``<pci>`` in the path of a row."""


class HostFile(NamedTuple):
    """A row."""

    key: str
    path: str
    """Below the host's root."""
    form: str = r".*"
    """Regular expression of the whole text, without surrounding white space."""
    keep: Keep = "text"
    kind: Kind = "file"


_COUNT = r"[0-9]{1,20}"
_NODE_ID = r"-1|[0-9]{1,3}"
_SERVER_ID = r"[0-9a-f]{16}"
_DEVICE = f"{DEVICES}/<chip>"
_KUBELET = "var/lib/kubelet"

ROWS: Final = (
    HostFile(
        "product-name", "sys/devices/virtual/dmi/id/product_name", r"(?:ml\.)?[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{1,30}"
    ),
    HostFile("module-version", "sys/module/neuron/version", r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}"),
    HostFile("proc-devices", "proc/devices", r"(?s).*"),
    HostFile("boot-id", "proc/sys/kernel/random/boot_id", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "boot"),
    HostFile("class-entry", f"{CLASS}/<chip>", kind="directory"),
    HostFile("node", "dev/<chip>", kind="device"),
    HostFile("dev", f"{_DEVICE}/dev", r"[1-9][0-9]{0,3}:[0-9]{1,7}"),
    HostFile("core_count", f"{_DEVICE}/core_count", r"[1-9][0-9]?"),
    HostFile("connected_devices", f"{_DEVICE}/connected_devices", r"(?:[0-9]{1,3}(?:\s*,\s*[0-9]{1,3}){0,31})?"),
    HostFile("reset", f"{_DEVICE}/reset", r"[012]"),
    HostFile("serial_number", f"{_DEVICE}/info/serial_number", r"(?:[0-9a-fA-F]{16})?", "serial"),
    HostFile("device_name", f"{_DEVICE}/info/architecture/device_name", r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}"),
    HostFile("arch_type", f"{_DEVICE}/info/architecture/arch_type", r"NDv[0-9]{1,2}"),
    HostFile("family", f"{_DEVICE}/info/architecture/instance_type", r"[A-Za-z0-9]{1,16}"),
    HostFile("core-arch", f"{_DEVICE}/<core>/info/architecture/arch_type", r"NCv[0-9]{1,2}"),
    *(
        HostFile(name, f"{_DEVICE}/stats/hardware/{name}", _COUNT)
        for name in (
            "sram_ecc_uncorrected",
            "mem_ecc_uncorrected",
            "mem_ecc_repairable_uncorrected",
            "sram_ecc_corrected",
            "mem_ecc_corrected",
        )
    ),
    HostFile(
        "unhealthy_components",
        f"{_DEVICE}/{HEALTH_STATUS}/unhealthy_components",
        r"(?:[a-z][a-z0-9_]{0,39}(?:\s*,\s*[a-z][a-z0-9_]{0,39}){0,31})?",
    ),
    HostFile("healthcheck_heartbeat", f"{_DEVICE}/{HEALTH_STATUS}/healthcheck_heartbeat", _COUNT),
    HostFile("hw_error_event", f"{_DEVICE}/{HEALTH_STATUS}/hw_error_event", _COUNT),
    *(HostFile(name, f"{_DEVICE}/<core>/stats/status/{name}/total", _COUNT) for name in CORE_ERRORS),
    HostFile("ultraserver_mode", f"{CLASS}/ultraserver_mode", r"(?:[0-9]{1,3}(?:\s*,\s*[0-9]{1,3}){0,15})?"),
    HostFile("node_id_2", f"{CLASS}/node_id_2", _NODE_ID),
    HostFile("node_id_4", f"{CLASS}/node_id_4", _NODE_ID),
    HostFile("server_id_2", f"{CLASS}/server_id_2", _SERVER_ID, "server"),
    HostFile("server_id_4", f"{CLASS}/server_id_4", _SERVER_ID, "server"),
    HostFile("node_id", f"{CLASS}/node_id", _NODE_ID),
    HostFile("node_cnt", f"{CLASS}/node_cnt", r"[0-9]{1,3}"),
    HostFile("reservation_id", f"{CLASS}/reservation_id", _SERVER_ID, "server"),
    HostFile("logical_nc_config", "opt/aws/neuron/logical_nc_config", r"(?s).*"),
    HostFile("pci-vendor", f"{PCI_DEVICES}/<pci>/vendor", r"0x[0-9a-f]{4}"),
    HostFile("pci-device", f"{PCI_DEVICES}/<pci>/device", r"0x[0-9a-f]{4}"),
    HostFile("pci-numa", f"{PCI_DEVICES}/<pci>/numa_node", r"-1|[0-9]{1,3}"),
    HostFile("plugins", f"{_KUBELET}/plugins", kind="directory"),
    HostFile("plugins_registry", f"{_KUBELET}/plugins_registry", kind="directory"),
    HostFile("device-plugin-socket", f"{_KUBELET}/device-plugins/kubelet.sock", kind="socket"),
    HostFile("pod-resources-socket", f"{_KUBELET}/pod-resources/kubelet.sock", kind="socket"),
)
"""In the order in which a report lists them."""

FILES: Final[Mapping[str, HostFile]] = {row.key: row for row in ROWS}

_PLACE = re.compile(r"<(chip|core|pci)>")


@cache
def path_pattern(row: HostFile) -> re.Pattern[str]:
    """Matches the paths of a row; the groups are named as its places."""
    parts = _PLACE.split(row.path)
    text = "".join(re.escape(part) if not i % 2 else f"(?P<{part}>{PLACES[part]})" for i, part in enumerate(parts))
    return re.compile(text, re.ASCII)


@cache
def form_of(row: HostFile) -> re.Pattern[str]:
    """Matches the texts that the code understands."""
    return re.compile(row.form, re.ASCII)


@lru_cache(1 << 14)
def row_of(path: str) -> HostFile | None:
    """The row that describes a path; None: a report cannot hold it."""
    return next((row for row in ROWS if path_pattern(row).fullmatch(path)), None)


def segments(row: HostFile) -> Iterator[tuple[str, str]]:
    """The path of a row in steps: (literal path, "") or ("", name of a place)."""
    for part in row.path.split("/"):
        place = _PLACE.fullmatch(part)
        yield ("", place[1]) if place else (part, "")


_INSTANCE = re.compile(r"\b(?:i|r|vol|eni|vpc|subnet|cr|snap|ami)-[0-9a-f]{8,17}\b")
_HOST_NAME = re.compile(r"\bip-[0-9]+(?:-[0-9]+)+(?:\.[a-z0-9.-]*)?")
_LONG = re.compile(r"[0-9a-fA-F]{9,}")
_ADDRESS = re.compile(r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b")
_BLOTTED = "redacted"


def scrubbed(text: str) -> str:
    """A text that is not of the expected form, without what could name an instance, a host, an address or a number."""
    text = "".join(character if character.isprintable() else "?" for character in text[:MAX_TEXT])
    for pattern in (_INSTANCE, _HOST_NAME, _ADDRESS, _LONG):
        text = pattern.sub(_BLOTTED, text)
    return text[:MAX_TEXT].strip()


def kept(row: HostFile, text: str) -> str:
    """What of a text goes into a report; serial numbers and server ids are replaced afterwards (``anonymous``)."""
    if row.key == "proc-devices":
        majors = [line.strip() for line in text.splitlines() if _NEURON_MAJOR.fullmatch(line.strip())]
        return "\n".join(majors[:8])
    if row.key == "logical_nc_config":
        lines = [line.strip() for line in text.splitlines() if "NEURON_LOGICAL_NC_CONFIG" in line]
        return "\n".join(map(scrubbed, lines[:4]))[:MAX_TEXT].strip() or scrubbed(text)
    if text == "busy" or (len(text) <= MAX_TEXT and form_of(row).fullmatch(text)):
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
        if _names(path, "serial", text) and text and text.strip("0"):
            chip = re.search(r"/neuron([0-9]+)/", path)
            found[path] = serials.setdefault(text, f"{SERIAL_BASE + int(chip[1] if chip else 0):016x}")
        elif _names(path, "server", text) and text != NO_SERVER:
            found[path] = f"{_FIRST_SERVER + server_ids.index(text):016x}"
        elif _names(path, "boot", text):
            found[path] = _NO_BOOT
    return found


def _names(path: str, keep: Keep, text: str) -> bool:
    row = row_of(path)
    return row is not None and row.keep == keep and form_of(row).fullmatch(text) is not None
