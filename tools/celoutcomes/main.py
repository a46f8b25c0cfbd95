"""The command `scripts/record-cel-outcomes`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from lab import command
from lab.build import Builder
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

from celoutcomes import comparison, recorder, table
from celoutcomes.recorder import Recorder
from celoutcomes.table import Outcome, Table

FILE = REPOSITORY / "tests" / "data" / "cel-outcomes.json"
VERSIONS = ("1.36.3", "1.37.1")
_DIFFERS = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 if there is a difference or an error."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/record-cel-outcomes",
        description="Ask Kubernetes' own code what it does with CEL device selectors: whether the API server admits "
        "each, and what the scheduler then finds for each device; and what it reads in quantities such as 96Gi. The "
        "answers of the expressions, devices and quantities in "
        f"{FILE.relative_to(REPOSITORY)} are recorded anew in it; the unit tests hold the simulator against them. "
        f"Builds a small Go program against Kubernetes {' and '.join(VERSIONS)}, a minute or two the first "
        "time; asking takes two minutes more, for Kubernetes' parser is slow on what nests deeply.",
        epilog="Example: echo 'device.driver.size() > 3' | scripts/record-cel-outcomes --add -",
    )
    parser.add_argument("--add", metavar="FILE", help="also record the expressions in this file, one a line; -: stdin")
    parser.add_argument(
        "--add-quantities", metavar="FILE", help="also record the quantities in this file, one a line; -: stdin"
    )
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when an answer is not as recorded")
    parser.add_argument(
        "--random",
        type=int,
        metavar="N",
        help="change nothing; compare Kubernetes with the simulator on N random expressions and quantities, and 1 when "
        "they differ",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is random (default: %(default)s)")
    options = parser.parse_args(arguments)
    return command.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    known = table.read(FILE)
    settings, progress = Settings.from_environment(os.environ), Progress()
    with tempfile.TemporaryDirectory(prefix="cel-outcomes-") as scratch:
        with progress.step(f"building the recorders of Kubernetes {' and '.join(VERSIONS)}"):
            builder = Builder(settings, progress)
            recorders = [recorder.build(version, builder, Path(scratch)) for version in VERSIONS]
        if options.random is not None:
            return _compare(recorders, known, options.random, Random(options.seed))  # noqa: S311 # test data
        recorded = record(recorders, known, _added(options.add), _added(options.add_quantities))
    text = table.text(recorded, VERSIONS)
    if options.check:
        return _check(known, recorded)
    FILE.write_text(text)
    progress.say(
        f"{len(recorded.outcomes)} expressions on {len(recorded.devices)} devices, {len(recorded.quantities)} "
        "quantities"
    )
    return 0


def record(recorders: Sequence[Recorder], known: Table, added: Sequence[str], added_quantities: Sequence[str]) -> Table:
    """The table with its own and the added expressions and quantities, with the recorders' current results."""
    expressions = tuple(dict.fromkeys((*known.outcomes, *added)))
    quantities = tuple(dict.fromkeys((*known.quantities, *added_quantities)))
    devices = tuple(known.devices.values())
    return Table(
        known.devices,
        _by_version(recorders, expressions, lambda recorder: recorder.ask(expressions, devices)),
        _by_version(recorders, quantities, lambda recorder: recorder.ask_quantities(quantities)),
    )


def _by_version(
    recorders: Sequence[Recorder], asked: Sequence[str], ask: Callable[[Recorder], Sequence[Outcome]]
) -> dict[str, dict[str, Outcome]]:
    answers = {table.minor(item.kubernetes): ask(item) for item in recorders}
    return {
        text: {version: outcomes[place] for version, outcomes in answers.items()} for place, text in enumerate(asked)
    }


def _added(name: str | None) -> list[str]:
    if name is None:
        return []
    try:
        lines = (sys.stdin.read() if name == "-" else Path(name).read_text()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{name} cannot be read, so nothing was recorded: {error}") from None
    return [line for line in lines if line.strip()]


def _check(known: Table, recorded: Table) -> int:
    before, now = {**known.outcomes, **known.quantities}, {**recorded.outcomes, **recorded.quantities}
    changed = [item for item in before if before[item] != now[item]]
    for item in changed:
        print(f"{item}\n  recorded: {before[item]}\n  now:      {now[item]}")
    print(f"{len(known.outcomes)} expressions, {len(known.quantities)} quantities, {len(changed)} not as recorded")
    return _DIFFERS if changed else 0


def _compare(recorders: Sequence[Recorder], known: Table, count: int, random: Random) -> int:
    expressions, quantities = comparison.expressions(random, count), comparison.quantities(random, count)
    found = 0
    for item in recorders:
        for difference in (
            *comparison.differences(item, expressions, known.devices),
            *comparison.quantity_differences(item, quantities),
        ):
            print(difference)
            found += 1
    print(
        f"{count} expressions on {len(known.devices)} devices, {count} quantities, and {len(recorders)} versions, "
        f"{found} differences"
    )
    return _DIFFERS if found else 0


if __name__ == "__main__":
    sys.exit(main())
