"""What the launcher of kubectl neuron starts, with -I and -S: the packages beside this file, and nothing else."""

from __future__ import annotations

import os
import sys

LIBRARY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib")  # noqa: PTH118, PTH120 - pathlib takes 5 ms


def main() -> int:
    """Run the command; a package that cannot be loaded is told in one line."""
    sys.path.append(LIBRARY)
    from dra_driver.cli.main import EXIT_REFUSED, kubectl_main

    try:
        return kubectl_main()
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "dra_driver"):
            raise
        reason = str(error).partition("\n")[0]
        version = "{}.{} on {} {}".format(*sys.version_info[:2], sys.platform, os.uname().machine)
        sys.stderr.write(
            f"error: this command needs the package {package}, which Python {version} cannot load ({reason}); "
            "set PYTHON to another CPython of 3.11 to 3.14\n"
        )
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main())
