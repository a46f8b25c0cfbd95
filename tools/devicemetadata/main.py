"""The command `scripts/record-device-metadata`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import command
from lab.build import Builder
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

FILE = REPOSITORY / "tests" / "data" / "device-metadata.json"
KUBERNETES = "1.37.1"
SOURCE = Path(__file__).resolve().parent / "checker"
_DIFFERS = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 if there is a difference or an error."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/record-device-metadata",
        description="Have Kubernetes' own library read the files that containers of some claims see, strictly and with "
        f"its validation, and record the files and its answers in {FILE.relative_to(REPOSITORY)}; the unit tests hold "
        f"the driver against them. Builds a small Go program against Kubernetes {KUBERNETES}.",
        epilog="Example: scripts/record-device-metadata --check",
    )
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when an answer is not as recorded")
    return command.run(lambda: _run(parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    from tests.builders.device_metadata import documents

    settings, progress = Settings.from_environment(os.environ), Progress()
    found = documents()
    with tempfile.TemporaryDirectory(prefix="device-metadata-") as scratch:
        with progress.step(f"building the checker against Kubernetes {KUBERNETES}"):
            program = Path(scratch) / "checker"
            Builder(settings, progress).against_kubernetes(KUBERNETES, SOURCE, program)
        answers = _asked(program, list(found.values()))
    rows: list[dict[str, Any]] = [
        {"case": case, "file": text, "answer": said} for (case, text), said in zip(found.items(), answers, strict=True)
    ]
    for row in rows:
        if row["answer"]["refused"]:
            progress.say(f"refused: {row['case']}: {row['answer']['refused']}")
    text = json.dumps({"kubernetes": KUBERNETES, "files": rows}, indent=1) + "\n"
    if options.check:
        return 0 if FILE.read_text() == text else _DIFFERS
    FILE.write_text(text)
    progress.say(f"{len(rows)} files")
    return 0


def _asked(program: Path, contents: Sequence[str]) -> list[Mapping[str, Any]]:
    questions = "".join(json.dumps(content) + "\n" for content in contents)
    done = subprocess.run([str(program)], input=questions, check=False, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(contents):
        raise LabError(f"the checker failed at question {len(answers) + 1}:\n{done.stderr}")
    return answers


if __name__ == "__main__":
    sys.exit(main())
