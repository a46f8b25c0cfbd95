"""The command `scripts/build-image`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from lab import command, machine, oci
from lab.errors import LabError
from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

_TAG = re.compile(r"[a-z0-9][a-z0-9._/:-]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/build-image",
        description="Build the driver's image from the Dockerfile without a container registry or engine. The first "
        "run creates a base image with debootstrap. An image is built again only if its inputs have changed. If you "
        "have access to a registry, `docker build .` works as well.",
        epilog="Example: scripts/build-image out/driver.tar && scripts/cluster load out/driver.tar",
    )
    parser.add_argument("output", metavar="OUT.tar", help="docker archive to write")
    parser.add_argument("--tag", default="neuron-dra-driver:dev", help="name of the image (default: %(default)s)")
    parser.add_argument(
        "--base", metavar="IMAGE", help="base image that buildah can pull, instead of one made with debootstrap"
    )
    parser.add_argument(
        "--example",
        metavar="NAME",
        help="instead of the driver's image, write an image of 4 MB with bash and common tools under this name, to "
        "replace a public image that cannot be pulled here",
    )
    options = parser.parse_args(arguments)
    return command.run(lambda: _build(options))


def _build(options: argparse.Namespace) -> int:
    name, output = options.example or options.tag, Path(options.output).absolute()
    if not _TAG.fullmatch(name):
        raise LabError(f"{name!r} is not an image's name such as neuron-dra-driver:dev. Nothing was done.")
    machine.require_root("an image holds files that belong to root")
    if options.example:
        machine.bootstrap("lab")
        oci.write_archive(oci.tools(), (name,), output)
    else:
        ImageBuilder(Settings.from_environment(os.environ), Progress()).build(name, output, options.base)
    print(f"{name} is in {output} ({output.stat().st_size >> 20} MiB). Next: scripts/cluster load {output}")
    return 0
