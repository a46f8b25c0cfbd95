"""Makes from the tables in the code what follows from them: pages, a list in the chart, deploy/, stubs.

    scripts/generate                 everything
    scripts/generate NAME ...        of these names only (--list)
    scripts/generate --check         changes nothing; status 1, and a diff, if something is not as it would be made

What cannot be made here is said, with the reason, and left as it is: deploy/ needs helm ($HELM, else one on the PATH;
`scripts/cluster build --helm` builds one), the stubs need a package from the registry of Python's packages.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from deployfiles.main import DEPLOY, generated, helm_program, present

from dra_driver.driver import deviceclasses
from dra_driver.driver.resourceslices import attributes
from dra_driver.neuron import opaque_config
from dra_driver.neuron.names import API_VERSIONS, UID_PATTERN
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.operations.verification.assumptions import TABLE
from generating import assumptions, chartsettings, definitions, faults, features, instancetypes, memory, reference
from tests.builders import metrics_page

ROOT: Final = Path(__file__).resolve().parents[2]
WIDTH: Final = 118


class Skipped(Exception):  # noqa: N818 # no error: something is missing on this machine
    """Why something cannot be made here."""


class Target(NamedTuple):
    """What is made from one table: ``make`` gives texts by path below the root, and None for a file that goes."""

    table: str
    make: Callable[[], Mapping[str, str | None]]


def one(path: str, make: Callable[[], str]) -> Callable[[], Mapping[str, str]]:
    """A whole file."""
    return lambda: {path: make()}


def part(path: str, make: Callable[[str], str]) -> Callable[[], Mapping[str, str]]:
    """A file of which a part is made, from the whole text."""
    return lambda: {path: make((ROOT / path).read_text())}


def families() -> list[list[str]]:
    """The instance types of AWS, those of one family together, in the order of the table."""
    return [list(names) for _, names in groupby(INSTANCE_TYPES, key=lambda name: name[:4])]


def in_chart(text: str) -> str:
    """The templates of the chart with the instance types."""
    lines = []
    for names in families():
        listed = " ".join(f'"{name}"' for name in names)
        lines += textwrap.wrap(
            listed, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    return replaced(text, r"(\{\{- \$types := list\n)(.*?)(\n-\}\})", "\n".join(lines))


def in_policy(text: str) -> str:
    """The chart's policy with what opaque parameters may be."""
    known = opaque_config.rules()
    variables = {
        "versions": API_VERSIONS,
        # Lists, since a map of CEL has no order.
        "kinds": list(known),
        "fields": {kind: list(fields) for kind, fields in known.items()},
        "legal": {kind: {name: rule.legal for name, rule in fields.items()} for kind, fields in known.items()},
        "required": {kind: [name for name, rule in fields.items() if rule.required] for kind, fields in known.items()},
        "uid": UID_PATTERN,
    }
    lines = []
    for name, value in variables.items():
        lines += [f"  - name: {name}", "    expression: >-"]
        lines += textwrap.wrap(
            json.dumps(value).replace('"', "'"), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6,
            break_on_hyphens=False,
        )  # fmt: skip
    return replaced(text, r"(  # Made by [^\n]*\n)(.*?)(\n  # End of)", "\n".join(lines))


def replaced(text: str, pattern: str, made: str) -> str:
    """The text with another middle group; there has to be one."""
    new, count = re.subn(pattern, lambda found: found[1] + made + found[3], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} places for {pattern}")
    return new


def pages(make: Callable[[str], str], *paths: str) -> Callable[[], Mapping[str, str]]:
    """Files that show one block."""
    return lambda: {path: make((ROOT / path).read_text()) for path in paths}


PICTURE_WIDTH: Final = 420
"""Of the picture in the README, in pixels: a screen has to have room for some lines of text, too."""


def picture() -> str:
    """What ``dra-driver simulate -o svg`` draws of the first example, smaller."""
    command = ["simulate", "examples/specs/1x4-connected-devices.yaml", "--instance-type", "trn2.48xlarge", "-o", "svg"]
    program = "from dra_driver.cli.main import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    width, height = (float(re.search(rf'<svg [^>]*?{name}="(\d+)"', done.stdout)[1]) for name in ("width", "height"))  # type: ignore[index]
    size = f'width="{PICTURE_WIDTH}" height="{height * PICTURE_WIDTH / width:.0f}"'
    return re.sub(r'width="\d+" height="\d+"', size, done.stdout, count=1)


def deploy() -> Mapping[str, str | None]:
    """The files in deploy/."""
    helm = helm_program()
    if helm is None:
        raise Skipped("there is no helm here, or $HELM names none")
    made: dict[str, str | None] = dict.fromkeys(present(), None)
    prefix = DEPLOY.relative_to(ROOT)
    return {f"{prefix}/{path}": text for path, text in (made | generated(helm)).items()}


TARGETS: Final[Mapping[str, Target]] = {
    "attributes": Target(
        "dra_driver/driver/resourceslices/attributes.py", one("docs/reference/attributes.md", attributes.markdown)
    ),
    "classes": Target("dra_driver/driver/deviceclasses.py", one("deploy/deviceclasses.yaml", deviceclasses.manifest)),
    "commands": Target("dra_driver/cli", one("docs/reference/commands.md", lambda: reference.page("commands"))),
    "settings": Target("dra_driver/cli", one("docs/reference/settings.md", lambda: reference.page("settings"))),
    "metrics": Target(
        "the samples of the driver",
        one("docs/reference/metrics.md", lambda: metrics_page.page(metrics_page.families())),
    ),
    "faults": Target(
        "dra_driver/**/health/faults.py, dra_driver/**/findings.py", part("docs/reference/faults.md", faults.page)
    ),
    "assumptions": Target(
        "dra_driver/operations/verification/assumptions.py", part("docs/reference/hardware.md", assumptions.page)
    ),
    "features": Target(
        "tools/generating/features.py",
        pages(features.page, "README.md", "docs/use/first-pod.md", "docs/reference/compatibility.md"),
    ),
    "memory": Target("tests/data/memory.json", part("docs/develop/measurements.md", memory.page)),
    "picture": Target("examples/specs/1x4-connected-devices.yaml", one("docs/use/connected-chips.svg", picture)),
    "compatibility": Target(
        "dra_driver/neuron/topology/instance_types.py", part("docs/reference/compatibility.md", instancetypes.page)
    ),
    "chart-types": Target(
        "dra_driver/neuron/topology/instance_types.py",
        part("charts/neuron-helm-chart/templates/_helpers.tpl", in_chart),
    ),
    "chart-parameters": Target(
        "dra_driver/neuron/opaque_config.py",
        part("charts/neuron-helm-chart/templates/parameters-policy.yaml", in_policy),
    ),
    "chart-settings": Target(
        "dra_driver/**/settings.py, dra_driver/cli", one(chartsettings.PATH, chartsettings.template)
    ),
    "definitions": Target("dra_driver/ultraserver/definitions.py", one(definitions.PATH, definitions.manifest)),
    "deploy": Target("charts/neuron-helm-chart", deploy),
}
"""By name. What is made of what others make comes after them."""
STUBS: Final = "stubs"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="scripts/generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to make (default: everything)")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--list", action="store_true", help="print the names, and the tables that they are made from")
    options = parser.parse_args()
    names = options.names or [*TARGETS, STUBS]
    if options.list:
        for name, target in TARGETS.items():
            print(f"{name:16}{target.table}")
        print(f"{STUBS:16}proto/")
        print(f"\n{concluded()}")
        return 0
    if unknown := [name for name in names if name not in TARGETS and name != STUBS]:
        parser.error(f"nothing is made under the name {unknown[0]}; --list prints the names")
    return max(run(name, check=options.check) for name in names)


def concluded() -> str:
    """How many rows have a value that no document, report or record says."""
    types = [row for row in INSTANCE_TYPES.values() if row.inferred]
    rows = [row for row in TABLE if row.source.basis == "inferred"]
    return (
        f"inferred, and not read anywhere: a field of {len(types)} of {len(INSTANCE_TYPES)} instance types, "
        f"and {len(rows)} of {len(TABLE)} assumptions about hosts"
    )


def run(name: str, *, check: bool) -> int:
    """Make one target, and say what came of it; 1 if it is not as it should be."""
    if name == STUBS:
        done = subprocess.run([ROOT / "scripts/generate-stubs", *(["--check"] if check else [])], check=False)
        return min(done.returncode, 1)
    try:
        made = TARGETS[name].make()
    except Skipped as skipped:
        print(f"-- {name}: left as it is, since {skipped}")
        return 0
    changed = {path: text for path, text in made.items() if text != _present(path)}
    if not changed:
        print(f"-- {name}: as it should be")
        return 0
    if check:
        for path, text in changed.items():
            sys.stdout.writelines(_difference(path, text))
        print(f"-- {name}: not as {TARGETS[name].table} says; scripts/generate {name}")
        return 1
    for path, text in changed.items():
        _write(ROOT / path, text)
    print(f"-- {name}: wrote {', '.join(changed)}")
    return 0


def _present(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.is_file() else None


def _difference(path: str, text: str | None) -> Iterable[str]:
    before, after = ((item or "").splitlines(keepends=True) for item in (_present(path), text))
    return difflib.unified_diff(before, after, path, f"{path}, made anew")


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
