"""The command `scripts/build-image`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from lab import command, machine
from lab.errors import LabError
from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

_TAG = re.compile(r"[a-z0-9][a-z0-9._/:-]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as `lab.command.run` says."""
    parser = argparse.ArgumentParser(
        prog="scripts/build-image",
        description="Build the driver's image from the Dockerfile without a container registry or engine. The first "
        "time this makes a base image with debootstrap; an image of which nothing has changed is not built again. "
        "Where there is a registry, `docker build .` does as well.",
        epilog="Example: scripts/build-image out/driver.tar && scripts/cluster load out/driver.tar",
    )
    parser.add_argument("output", metavar="OUT.tar", help="the docker archive to write")
    parser.add_argument("--tag", default="neuron-dra-driver:dev", help="the image's name (default: %(default)s)")
    parser.add_argument("--base", metavar="IMAGE", help="a base image that buildah can pull, instead of an own one")
    options = parser.parse_args(arguments)
    return command.run(lambda: _build(options))


def _build(options: argparse.Namespace) -> int:
    machine.require_root("building an image makes a file tree with devices and owners of its own")
    if not _TAG.fullmatch(options.tag):
        raise LabError(f"{options.tag!r} is not an image's name such as neuron-dra-driver:dev. Nothing was done.")
    machine.bootstrap("image")
    builder = ImageBuilder(Settings.from_environment(os.environ), Progress())
    output = Path(options.output).absolute()
    builder.build(options.tag, output, options.base)
    print(f"{options.tag} is in {output} ({output.stat().st_size >> 20} MiB). Next: scripts/cluster load {output}")
    return 0
