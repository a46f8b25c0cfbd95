"""Builds the recorder against a Kubernetes version and queries it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.build import Builder
from lab.errors import LabError

SOURCE = Path(__file__).resolve().parent / "recorder"
_FIRST_ERROR = re.compile(r"(?:compilation failed: )?ERROR: <input>:(-?\d+):(\d+): ([^\n]*)")
_ERROR_LINES = 15


@dataclass(frozen=True)
class Recorder:
    """A recorder of one Kubernetes version."""

    kubernetes: str
    program: Path

    def ask(self, expressions: Sequence[str], devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """How Kubernetes evaluates each expression, in the format of `outcome`.

        Raises:
            LabError: The recorder ended before it had answered all; the message names the expression that it was
                processing.
        """
        asked = [{"expression": expression, "devices": devices} for expression in expressions]
        return [outcome(answer) for answer in self._answers(asked)]

    def ask_quantities(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """How Kubernetes parses each text (``read``), and how it is read once it is ``stored`` as ``text``.

        None stands for a refusal. Raises as `ask` does.
        """
        return self._answers([{"quantity": text} for text in texts])

    def _answers(self, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        questions = "".join(json.dumps(question) + "\n" for question in asked)
        done = subprocess.run([str(self.program)], input=questions, check=False, capture_output=True, text=True)
        answers = done.stdout.splitlines()
        if len(answers) != len(asked):
            last = "\n".join(done.stderr.splitlines()[-_ERROR_LINES:])
            raise LabError(f"the recorder of {self.kubernetes} failed at {asked[len(answers)]!r}:\n{last}")
        return [json.loads(answer) for answer in answers]


def build(kubernetes: str, builder: Builder, directory: Path) -> Recorder:
    """Build the recorder of a Kubernetes version for which the lab has a Go module.

    Raises:
        LabError: There is no such module, no Go, or the build failed.
    """
    program = directory / f"recorder-{kubernetes}"
    builder.against_kubernetes(kubernetes, SOURCE, program)
    return Recorder(kubernetes, program)


def outcome(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A result in the format in which it is stored.

    Either ``refused`` (the reason) with ``position`` (line and column from 1, if there is one), or ``cost`` (the
    estimate) with ``results``: for each device a bool, or the text of the error.
    """
    if "refused" in answer:
        found = _FIRST_ERROR.match(answer["refused"])
        if found is None:
            return {"refused": answer["refused"].removeprefix("compilation failed: ")}
        line, column = int(found[1]), int(found[2])
        reason = found[3].removesuffix(" (in container '')")
        # The parser's list of all tokens that it expected is not worth keeping.
        reason = re.sub(r" expecting \{.*", "", reason)
        return {"refused": reason, **({"position": [line, column]} if line > 0 else {})}
    return {"cost": answer["cost"], "results": answer["results"]}
