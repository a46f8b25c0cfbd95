"""Small container images written by hand, as OCI archives that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab import files

_BUSYBOX = Path("/bin/busybox")
_BASH = Path("/bin/bash-static")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_APPLETS = (
    "[",
    "arch",
    "awk",
    "base64",
    "basename",
    "cat",
    "chmod",
    "chown",
    "cmp",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "free",
    "grep",
    "head",
    "hostname",
    "id",
    "ip",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "more",
    "mount",
    "mv",
    "nc",
    "netstat",
    "nslookup",
    "od",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "strings",
    "stty",
    "sync",
    "tail",
    "tar",
    "tee",
    "test",
    "time",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tty",
    "umount",
    "uname",
    "uniq",
    "uptime",
    "vi",
    "watch",
    "wc",
    "which",
    "whoami",
    "xargs",
    "yes",
)


@dataclass(frozen=True)
class Image:
    """A container image of one layer.

    Attributes:
        programs: Files that are copied in, mode 0755: path in the image to source path.
        links: Symbolic links: path in the image to target.
        command: Default command.
        environment: Variables as `NAME=value`.
    """

    programs: Mapping[str, Path]
    links: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ("/bin/sh",)
    environment: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)


def pause(busybox: Path = _BUSYBOX) -> Image:
    """Return the image that holds a pod's namespaces: one process that sleeps forever."""
    command = ("/bin/sleep", "2147483647")
    return Image(programs={"bin/busybox": busybox}, links={"bin/sleep": "busybox"}, command=command)


def tools(busybox: Path = _BUSYBOX, bash: Path = _BASH) -> Image:
    """Return an image with bash and busybox's tools, about 4 MB, for test pods and for the examples' pods."""
    links = {f"bin/{applet}": "busybox" for applet in (*_APPLETS, "sh")}
    links |= {f"usr/bin/{applet}": "../../bin/busybox" for applet in ("env", "printenv", "stat")}
    links["usr/bin/bash"] = "../../bin/bash"
    return Image(programs={"bin/busybox": busybox, "bin/bash": bash}, links=links, command=("/bin/bash",))


def write_archive(image: Image, names: Sequence[str], output: Path) -> None:
    """Write the image as an OCI archive with all of `names`; the same input gives the same bytes."""
    layer = _layer(image)
    layer_digest = _digest(layer)
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": list(image.environment), "Cmd": list(image.command)},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named = [{**entry, "annotations": {"io.containerd.image.name": full_name(name)}} for name in names]
    contents = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": named}),
        **{f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (layer, config, manifest)},
    }
    files.write(output, _tar(contents), mode=0o644)


def full_name(name: str) -> str:
    """Return containerd's full name for an image that a pod calls `name`: with registry and tag."""
    first, slash, _ = name.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    full = name if has_registry else f"docker.io/{name if slash else f'library/{name}'}"
    return full if ":" in full.rpartition("/")[2] or "@" in full else f"{full}:latest"


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        paths = [*image.programs, *image.links, "tmp/x", "etc/x", "dev/x", "proc/x", "sys/x", "var/x", "root/x"]
        for directory in sorted({str(parent) for path in paths for parent in Path(path).parents} - {"."}):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        for path, source in sorted(image.programs.items()):
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = 0o755, source.stat().st_size
            archive.addfile(entry, io.BytesIO(source.read_bytes()))
        for path, target in sorted(image.links.items()):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def _tar(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o644, len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
