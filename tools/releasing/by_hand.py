"""The steps of the release workflow, done by hand: ``python3 tools/releasing/by_hand.py --help``.

What the hosting site's runners do with ``.github/workflows/release.yaml`` is done here, in a new clone with an empty
home: the ``run:`` lines of the job that publishes, with the variables that stand above them. So a release can be tried
against a registry of one's own, and made where there are no runners.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ".github/workflows/release.yaml"
JOB = "publish"

_EXPRESSION = re.compile(r"\$\{\{ *([a-z]+)\.(\w+) *\}\}")
_CONDITION = re.compile(r"([a-z]+)\.(\w+) (==|!=) ''")


class StepError(ValueError):
    """A step has an expression that only the hosting site can evaluate."""


@dataclass(frozen=True)
class Step:
    """A command of the workflow, and the environment that it has beside the caller's."""

    command: str
    environment: Mapping[str, str]


def steps(workflow: Mapping[str, Any], variables: Mapping[str, str]) -> list[Step]:
    """The commands of the job that publishes, for repository variables and secrets of these values.

    Raises:
        StepError: An expression is none of a variable, a secret or the token.
    """
    job = workflow["jobs"][JOB]
    return [
        Step(step["run"], {key: _value(text, variables) for key, text in {**job["env"], **step.get("env", {})}.items()})
        for step in job["steps"]
        if "run" in step and _holds(step.get("if", ""), variables)
    ]


def _value(text: str, variables: Mapping[str, str]) -> str:
    value = _EXPRESSION.sub(lambda match: _looked_up(match[1], match[2], variables), str(text))
    if "${{" in value:
        raise StepError(f"{WORKFLOW} has the expression {value!r}, which only the hosting site can evaluate")
    return value


def _holds(condition: str, variables: Mapping[str, str]) -> bool:
    if not condition:
        return True
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise StepError(f"{WORKFLOW} has the condition {condition!r}, which only the hosting site can evaluate")
    return (_looked_up(match[1], match[2], variables) == "") == (match[3] == "==")


def _looked_up(context: str, name: str, variables: Mapping[str, str]) -> str:
    if context not in {"vars", "secrets"} and (context, name) != ("github", "token"):
        raise StepError(f"{WORKFLOW} asks for {context}.{name}, which only the hosting site has")
    return variables.get(name, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the steps; returns the status of the one that failed, or 0."""
    parser = argparse.ArgumentParser(prog="tools/releasing/by_hand.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("tag", metavar="TAG", help="tag of the repository, such as v0.1.0")
    parser.add_argument("--repository", metavar="OWNER/NAME", required=True, help="the name on the hosting site")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="repository variable or secret, or token=VALUE"
    )
    parser.add_argument("--skip-login", action="store_true", help="for a registry that asks for no login")
    parser.add_argument("--directory", metavar="DIR", type=Path, help="clone and home go here, and stay")
    options = parser.parse_args(arguments)
    for item in options.set:
        if "=" not in item:
            parser.error(f"--set is {item!r}; give NAME=VALUE, such as REGISTRY=registry.example/team")
    variables = dict(item.split("=", 1) for item in options.set)
    if options.directory:
        if options.directory.exists() and (not options.directory.is_dir() or any(options.directory.iterdir())):
            parser.error(f"--directory is {options.directory}, which holds something; give one that does not exist")
        status = _walk(options, variables, options.directory.absolute())
        if not status:
            print(f"-- clone and files stay: {options.directory.absolute() / 'clone'}")
        return status
    with tempfile.TemporaryDirectory(prefix="release-by-hand-") as temporary:
        status = _walk(options, variables, Path(temporary))
    print("-- clone and files are removed again, what is in the registry stays; --directory DIR keeps them")
    return status


def _walk(options: argparse.Namespace, variables: Mapping[str, str], directory: Path) -> int:
    clone, home = directory / "clone", directory / "home"
    home.mkdir(parents=True)
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", options.tag, f"file://{ROOT}", str(clone)]
    made = subprocess.run([*command[:2], "--config", "advice.detachedHead=false", *command[2:]], check=False)
    if made.returncode:
        print(f"error: {ROOT} has no tag {options.tag}, or cannot be cloned; see git's message above", file=sys.stderr)
        return 2
    owner = options.repository.partition("/")[0]
    site = {
        "HOME": str(home),
        "GITHUB_ACTOR": owner,
        "GITHUB_REF_NAME": options.tag,
        "GITHUB_REPOSITORY": options.repository,
        "GITHUB_REPOSITORY_OWNER": owner,
        "GITHUB_SERVER_URL": "https://github.com",
    }
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    for step in steps(yaml.safe_load((clone / WORKFLOW).read_text()), variables):
        if options.skip_login and step.command.startswith("docker login"):
            continue
        if "gh release " in step.command and shutil.which("gh") is None:
            print("-- left out, as there is no gh here: to take the signatures that the site has of an earlier run")
            continue
        print(f"$ {step.command.strip()}", flush=True)
        shell = ["bash", "-e", "-o", "pipefail", "-c", step.command]
        done = subprocess.run(shell, cwd=clone, env={**kept, **site, **step.environment}, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
