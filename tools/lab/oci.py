"""Container images as the OCI describes them: layers, configurations, manifests, and layouts of all of these.

Everything here is bytes in, bytes out; equal input gives equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lab import basepython, files, filetree
from lab.errors import LabError
from lab.filetree import Entry, Tree

_BUSYBOX = Path("/bin/busybox")
_BASH = Path("/bin/bash-static")
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZ = f"{TAR}+gzip"
# EM_X86_64 and EM_AARCH64 of elf.h.
_ELF_MACHINES: Mapping[str | None, int] = {"amd64": 62, "arm64": 183}
# The same thing by the name that Docker gave it.
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
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


Descriptor = dict[str, object]
"""What names a blob: its media type, digest and size."""


@dataclass(frozen=True)
class Layer:
    """A layer of an image.

    Attributes:
        blob: The layer as it is in registries.
        diff_id: The digest of its tar archive, uncompressed.
        media_type: How it is packed.
        history: What it is, in a line.
    """

    blob: bytes
    diff_id: str
    media_type: str = TAR_GZ
    history: str = ""


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


class Layout:
    """The blobs of images, and what names them."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def add(self, media_type: str, blob: bytes) -> Descriptor:
        """Add a blob and return its descriptor."""
        self._blobs[digest(blob)] = blob
        return {"mediaType": media_type, "digest": digest(blob), "size": len(blob)}

    def add_document(self, media_type: str, document: Mapping[str, object]) -> Descriptor:
        """Add a JSON document and return its descriptor."""
        return self.add(media_type, _json(document))

    def add_image(
        self, architecture: str, layers: Sequence[Layer], settings: Mapping[str, object], epoch: int | None = None
    ) -> Descriptor:
        """Add an image and return the descriptor of its manifest, which names its platform.

        Args:
            architecture: Its name, such as `amd64`.
            layers: From the lowest to the highest.
            settings: Its variables, command, labels and so on, by the names of the OCI.
            epoch: When it was made, in seconds; None for an image that does not tell it.
        """
        platform = {"architecture": architecture, "os": "linux"}
        config: dict[str, object] = {
            **platform,
            "config": dict(settings),
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
        if epoch is not None:
            created = timestamp(epoch)
            config["created"] = created
            config["history"] = [{"created": created, "created_by": layer.history} for layer in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_document(CONFIG, config),
            "layers": [self.add(layer.media_type, layer.blob) for layer in layers],
        }
        return {**self.add_document(MANIFEST, manifest), "platform": platform}

    def add_index(self, manifests: Sequence[Descriptor], annotations: Mapping[str, str]) -> Descriptor:
        """Add an image index, which has an image for each platform, and return its descriptor."""
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": list(manifests),
            "annotations": dict(annotations),
        }
        return self.add_document(INDEX, index)

    def write_directory(self, directory: Path, descriptor: Descriptor) -> str:
        """Write the layout to a new directory; its only entry is the one that is given, whose digest is returned."""
        for path, content in self._contents([descriptor]).items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return str(descriptor["digest"])

    def write_archive(self, output: Path, manifest: Descriptor, names: Sequence[str]) -> None:
        """Write an image as an archive that containerd imports under all of `names`, and that Docker loads too."""
        named = [{**manifest, "annotations": {"io.containerd.image.name": full_name(name)}} for name in names]
        image = json.loads(self._blobs[str(manifest["digest"])])
        docker = {
            "Config": _path(image["config"]["digest"]),
            "RepoTags": list(names),
            "Layers": [_path(layer["digest"]) for layer in image["layers"]],
        }
        contents = {**self._contents(named), "manifest.json": _json([docker])}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.mode, member.size = 0o644, len(content)
                archive.addfile(member, io.BytesIO(content))
        files.write(output, buffer.getvalue(), mode=0o644)

    def _contents(self, entries: Sequence[Descriptor]) -> dict[str, bytes]:
        return {
            "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
            "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)}),
            **{_path(name): blob for name, blob in sorted(self._blobs.items())},
        }


def write_archive(image: Image, names: Sequence[str], output: Path) -> None:
    """Write the image as an archive with all of `names`."""
    archive = filetree.pack(_tree(image), 0)
    layout = Layout()
    manifest = layout.add_image(
        basepython.native_architecture(),
        [Layer(archive, digest(archive), TAR)],
        {"Env": list(image.environment), "Cmd": list(image.command)},
    )
    layout.write_archive(output, manifest, names)


def pack_layer(tree: Tree, architecture: str | None, epoch: int, history: str) -> Layer:
    """Return a tree as a layer whose files bear one date.

    Args:
        tree: The files.
        architecture: For which the programs among them are; None for a layer of all images, which has none.
        epoch: The date, in seconds.
        history: What it is, in a line.

    Raises:
        LabError: A program or library is for another architecture.
    """
    foreign = filetree.foreign_programs(tree, _ELF_MACHINES.get(architecture))
    if foreign:
        raise LabError(
            f"/{foreign[0]} and {len(foreign) - 1} more programs or libraries are not for "
            f"{architecture or 'all architectures'}; no image was built. Look which of the pinned packages has them."
        )
    archive = filetree.pack(tree, epoch)
    return Layer(_gzip(archive), digest(archive), TAR_GZ, history)


def read_blob(directory: Path, descriptor: Mapping[str, object]) -> bytes:
    """Return a blob of a layout in a directory.

    Raises:
        LabError: It is not the one that its descriptor names.
    """
    name = str(descriptor["digest"])
    blob = (directory / _path(name)).read_bytes()
    if digest(blob) != name:
        raise LabError(f"The blob {name} in {directory} is another one; no image was built. Delete the directory.")
    return blob


def layer_type(media_type: str) -> str:
    """Return the name that the OCI gives to a layer's media type.

    Raises:
        LabError: It is packed in a way that is not known here.
    """
    name = TAR_GZ if media_type == _DOCKER_LAYER else media_type
    if name not in {TAR, TAR_GZ}:
        raise LabError(
            f"The base has a layer of type {media_type}; no image was built. Choose one with layers in gzip."
        )
    return name


def full_name(name: str) -> str:
    """Return containerd's full name for an image that a pod calls `name`: with registry and tag."""
    first, slash, _ = name.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    full = name if has_registry else f"docker.io/{name if slash else f'library/{name}'}"
    return full if ":" in full.rpartition("/")[2] or "@" in full else f"{full}:latest"


def timestamp(epoch: int) -> str:
    """Return a date as images bear it."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest(blob: bytes) -> str:
    """Return the digest that names a blob."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tree(image: Image) -> Tree:
    directories = {path: filetree.directory() for path in ("dev", "etc", "proc", "root", "sys", "var")}
    programs = {path: Entry(mode=0o755, content=source.read_bytes()) for path, source in image.programs.items()}
    links = {path: filetree.link(target) for path, target in image.links.items()}
    return {**directories, "tmp": filetree.directory(0o1777), **programs, **links}


def _gzip(content: bytes) -> bytes:
    """Compressed with a header of our own, since those of Python's versions differ; zlib itself has to be the same."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    return _GZIP_HEADER + packed + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def _path(name: str) -> str:
    return f"blobs/{name.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
