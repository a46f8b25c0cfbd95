"""The command `scripts/build-image`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from lab import command, debian, debianpins, hostsettings, machine, oci
from lab.errors import LabError
from lab.images import ARCHITECTURES, ImageBuilder
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

_TAG = re.compile(r"[a-z0-9][a-z0-9._/:-]*")
_BASE = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/build-image",
        description="Build the driver's image without a container registry or engine, for this machine's "
        "architecture, from packages of Debian and of Python by their pins. An image is built again only if its inputs "
        "have changed. If you have access to a registry, `docker build .` works as well.",
        epilog="Example: scripts/build-image out/driver.tar && scripts/cluster load out/driver.tar. Where mirrors have "
        "not got a pinned package any more, the newest ones are taken, and it is said. Debian's packages come from the "
        "mirror of this machine's apt, or from DEBIAN_MIRROR; DEBIAN_SNAPSHOTS is the address of Debian's archive of "
        "all versions.",
    )
    parser.add_argument("output", metavar="OUT.tar", nargs="?", help="archive to write, for containerd and Docker")
    parser.add_argument("--tag", default="neuron-dra-driver:dev", help="name of the image (default: %(default)s)")
    parser.add_argument(
        "--base",
        metavar="IMAGE@DIGEST",
        help="a base of a registry by the digest of its index, instead of packages of Debian; it is pulled with skopeo",
    )
    parser.add_argument(
        "--renew-base",
        action="store_true",
        help="build nothing: pin the newest packages of Debian for the base of each architecture",
    )
    parser.add_argument(
        "--example",
        metavar="NAME",
        help="instead of the driver's image, write an image of 4 MB with bash and common tools under this name, to "
        "replace a public image that cannot be pulled here",
    )
    options = parser.parse_args(arguments)
    if options.renew_base:
        return command.run(_renew_base)
    if options.output is None:
        parser.error("the following arguments are required: OUT.tar")
    return command.run(lambda: _build(options))


def _renew_base() -> int:
    machine.bootstrap("pins")
    now = datetime.now(UTC).strftime(debian.SNAPSHOT_FORMAT)
    for path in debianpins.renew(REPOSITORY, ARCHITECTURES, hostsettings.debian_mirrors(), now):
        print(f"{path.relative_to(REPOSITORY)} has the newest packages. Next: git diff, and try the image.")
    return 0


def _build(options: argparse.Namespace) -> int:
    name, output = options.example or options.tag, Path(options.output).absolute()
    if not _TAG.fullmatch(name):
        raise LabError(f"{name!r} is not an image's name such as neuron-dra-driver:dev. Nothing was done.")
    if options.base and not _BASE.fullmatch(options.base):
        raise LabError(
            f"--base is {options.base!r}; name it by digest, as IMAGE@sha256:..., since a tag can change. Nothing was "
            "done."
        )
    if options.example:
        machine.bootstrap("lab")
        oci.write_archive(oci.tools(), (name,), output)
    else:
        builder = ImageBuilder(Settings.from_environment(os.environ), Progress())
        builder.build(name, output, options.base, or_newest=True)
    print(f"{name} is in {output} ({output.stat().st_size >> 20} MiB). Next: scripts/cluster load {output}")
    return 0
