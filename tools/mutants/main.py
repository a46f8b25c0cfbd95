"""Mutants: breaks one line of the driver at a time, in a copy, and says which test notices.

`mutants.toml` beside this file is the list. Each mutant meets the tests of its own room, then, while it lives, the rest
of tier 0, and with `--until "tier 1"` the modules of real clusters that the list names for its room (as root, with what
`scripts/cluster build` makes). A test has killed a mutant only if it fails again by itself, and passes by itself
without the mutant: else it is an accident, and left out of the next try. A mutant that hangs is killed too. Answers are
kept, so a run goes on where the last one was stopped; names of mutants ask about these again.

    .venv/bin/python tools/mutants/main.py --until room     # each mutant's own room, seconds each
    .venv/bin/python tools/mutants/main.py                  # and tier 0 for what lives
    .venv/bin/python tools/mutants/main.py lease-lost       # this one again, after a test was written

Exits with 1 if a mutant lives that the list does not argue to be equivalent.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("room", "tier 0", "tier 1")
TIER_0 = ("tests/unit", "tests/plugin", "tests/manifests")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")


class MutantsError(Exception):
    """The list is wrong, or the tests say nothing about a mutant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A row of the list."""

    name: str
    room: str
    file: str
    """Below the repository's root."""
    find: str
    """What stands once in the file."""
    replace: str
    breaks: str
    """What users lose, in plain words."""
    equivalent: str = ""
    """Why no test can tell it from the driver, if that is so."""
    clusters: tuple[str, ...] = ()
    """Modules of `tests/cluster` instead of the room's."""

    def key(self, text: str) -> str:
        """Stands for the mutant and the file that it is made from."""
        changed = json.dumps([self.file, self.find, self.replace, text])
        return hashlib.sha256(changed.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Room:
    """Tests of a room, by path, and modules of `tests/cluster` about it."""

    tests: tuple[str, ...]
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mutants:
    """The list. `limits` are seconds by stage, after which a mutant counts as hanging."""

    limits: Mapping[str, float]
    rooms: Mapping[str, Room]
    rows: tuple[Mutant, ...]


def load(path: Path, root: Path) -> Mutants:
    """Read the list. MutantsError names each row that does not apply to the tree at ``root``."""
    data = tomllib.loads(path.read_text())
    rooms = {name: Room(**{key: tuple(value) for key, value in room.items()}) for name, room in data["rooms"].items()}
    rows = tuple(Mutant(**row | {"clusters": tuple(row.get("clusters", ()))}) for row in data["mutant"])
    names = [row.name for row in rows]
    problems = [f"{name}: the name stands twice" for name in sorted({name for name in names if names.count(name) > 1})]
    problems += [f"{row.name}: {problem}" for row in rows if (problem := _problem(row, rooms, root))]
    paths = [test for room in rooms.values() for test in room.tests]
    clusters = [name for room in rooms.values() for name in room.clusters] + [
        name for row in rows for name in row.clusters
    ]
    paths += [f"tests/cluster/test_{name}.py" for name in clusters]
    problems += [f"{test}: there is no such test" for test in dict.fromkeys(paths) if not (root / test).exists()]
    if problems:
        raise MutantsError("\n".join([f"{path.name} does not fit the tree:", *problems]))
    return Mutants(data["limits"], rooms, rows)


def _problem(row: Mutant, rooms: Mapping[str, Room], root: Path) -> str:
    if row.room not in rooms:
        return f"there is no room {row.room}"
    if not (root / row.file).is_file():
        return f"there is no file {row.file}"
    text = (root / row.file).read_text()
    if (found := text.count(row.find)) != 1:
        return f"what it replaces stands {found} times in {row.file}, not once"
    if not row.file.endswith(".py"):
        return ""
    try:
        compile(text.replace(row.find, row.replace), row.file, "exec")
    except SyntaxError as error:
        return f"what it makes of {row.file} is no Python: {error}"
    return ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stage has said of a mutant."""

    key: str
    name: str
    stage: str
    killed_by: str
    """A test, or what else showed it; "" if it lived."""


class Answers:
    """What is known, in a file to which each answer is appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {(answer.key, answer.stage): answer for line in lines for answer in [Answer(**json.loads(line))]}

    def get(self, key: str, stage: str) -> Answer | None:
        """The last answer, or None."""
        return self._known.get((key, stage))

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        with self._lock, self._path.open("a") as file:
            self._known[answer.key, answer.stage] = answer
            file.write(json.dumps(asdict(answer)) + "\n")


_MOMENTS = itertools.count(int(time.time()))


class Copy:
    """A copy of the tree, for one mutant at a time. What tests leave in it goes with the mutant."""

    def __init__(self, root: Path, at: Path) -> None:
        self._tree, self._scratch = at / "tree", at / "t"  # short: sockets have names of 107 bytes
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).exists():
                (self._tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self._tree / name, follow_symlinks=False)
        for words in (["init", "-q"], ["add", "-A"]):  # tests ask which files there are
            subprocess.run(["git", *words], cwd=self._tree, check=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """With the mutant in it, then as before."""
        path = self._tree / mutant.file
        text = path.read_text()
        self._write(path, text.replace(mutant.find, mutant.replace))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        moment = next(_MOMENTS)  # byte code is taken for current by the second and the size
        os.utime(path, (moment, moment))

    def run(self, command: Sequence[str], limit: float) -> str:
        """Run pytest: the first failing test, what else went wrong, or "" when all passed."""
        for left in (self._scratch, self._tree / ".hypothesis"):
            shutil.rmtree(left, ignore_errors=True)
        self._scratch.mkdir()
        output = self._scratch / "output"
        # The tree's own modules, also in programs that tests start elsewhere; else the checkout's, which .venv names.
        environment = os.environ | {"PYTHONPATH": str(self._tree), "TMPDIR": str(self._scratch), "COLUMNS": "400"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=self._tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self._ended:
            self._kill()
        try:
            status = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"hangs: not done after {limit:.0f} s"
        if self._ended:
            raise MutantsError("stopped")
        return _first_failure(status, output.read_text(errors="replace"))

    def end(self) -> None:
        """End what runs; it says nothing about a mutant any more."""
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _first_failure(status: int, output: str) -> str:
    if status == 0:
        return ""
    # Of pytest's summary; lines of a captured log begin with more blanks.
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    # 1 is a failure (or Python without pytest), 2 an error in collection; the others are pytest's own trouble.
    if status not in (1, 2) or not found:
        raise MutantsError(f"pytest ended with {status}, and names no test that failed:\n{output[-3000:]}")
    return found[1]


class Trial:
    """Asks the tests about mutants."""

    def __init__(self, mutants: Mutants, answers: Answers, stages: Sequence[str], workers: int, version: str) -> None:
        self._mutants = mutants
        self._answers = answers
        self._stages = stages
        self._workers = workers
        self._version = version

    def ask(self, mutant: Mutant, key: str, copy: Copy, *, again: bool) -> None:
        """Let the mutant meet each stage until one kills it."""
        for stage in self._stages:
            answer = None if again else self._answers.get(key, stage)
            if answer is None:
                command = self._command(stage, mutant)
                killed_by = self._killer(mutant, copy, command, self._mutants.limits[stage]) if command else ""
                answer = Answer(key, mutant.name, stage, killed_by)
                self._answers.add(answer)
                print(f"{mutant.name}: {'killed by' if killed_by else 'lives through'} {stage} {killed_by}", flush=True)
            if answer.killed_by:
                return

    def _command(self, stage: str, mutant: Mutant) -> list[str]:
        room = self._mutants.rooms[mutant.room]
        if stage == "room":
            return [*PYTEST, *room.tests]
        if stage == "tier 0":
            met = [f"--ignore={test}" for test in room.tests]
            return [*PYTEST, "-n", str(self._workers), "-m", "not slow and not nightly", *TIER_0, *met]
        modules = [f"tests/cluster/test_{name}.py" for name in mutant.clusters or room.clusters]
        return [*PYTEST, "-m", "not nightly", "--kubernetes", self._version, *modules] if modules else []

    def _killer(self, mutant: Mutant, copy: Copy, command: list[str], limit: float) -> str:
        versions = [word for word in command if word in ("--kubernetes", self._version)]
        while True:
            with copy.mutated(mutant):
                killer = copy.run(command, limit)
                if "::" not in killer and not killer.endswith(".py"):
                    return killer
                alone = [*PYTEST, *versions, killer]
                again = copy.run(alone, limit)
            if again and not copy.run(alone, limit):
                return killer
            print(f"{mutant.name}: not counted: {killer} {'fails without it' if again else 'passes alone'}", flush=True)
            if f"--deselect={killer}" in command:
                raise MutantsError(f"{killer} fails without a mutant, and cannot be left out")
            command = [*command, f"--deselect={killer}"]


def report(mutants: Mutants, answers: Answers, keys: Mapping[str, str]) -> int:
    """Print how many of each room's mutants each stage killed, and those that live; how many of these nobody argued."""
    columns = (*STAGES, "alive", "argued", "not asked")
    counts = {room: dict.fromkeys(columns, 0) for room in mutants.rooms}
    alive = []
    for row in mutants.rows:
        said = [answer for stage in STAGES if (answer := answers.get(keys[row.name], stage)) is not None]
        end = next((answer.stage for answer in said if answer.killed_by), None)
        if end is None:
            end = "not asked" if not said else "argued" if row.equivalent else "alive"
            if end == "alive":
                alive.append(f"alive after {said[-1].stage}: {row.name} ({row.room}): {row.breaks}")
        elif row.equivalent:
            print(f"{row.name} is argued to be equivalent, and was killed all the same")
        counts[row.room][end] += 1
    total = {column: sum(row[column] for row in counts.values()) for column in columns}
    print(f"\n{'':16}" + "".join(f"{column:>10}" for column in columns))
    for name, row_counts in (*counts.items(), ("all", total)):
        print(f"{name:16}" + "".join(f"{row_counts[column]:>10}" for column in columns))
    print("", *alive, sep="\n")
    return len(alive)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT, path: Path | None = None) -> int:
    """Run the command. Returns its exit status."""
    options = _options(arguments)
    try:
        mutants = load(path or Path(__file__).with_name("mutants.toml"), root)
        if unknown := set(options.names) - {row.name for row in mutants.rows}:
            raise MutantsError(f"there is no mutant {', '.join(sorted(unknown))}")
        answers = Answers(options.results or root / "out" / "mutants.jsonl")
        keys = {row.name: row.key((root / row.file).read_text()) for row in mutants.rows}
        stages = STAGES[: STAGES.index(options.until) + 1]
        trial = Trial(mutants, answers, stages, options.workers, options.kubernetes)
        rows = [row for row in mutants.rows if not options.names or row.name in options.names]
        with tempfile.TemporaryDirectory(prefix="mut", ignore_cleanup_errors=True) as directory:
            copies = [Copy(root, Path(directory, str(number))) for number in range(options.jobs)]
            _side_by_side(trial, rows, keys, copies, again=bool(options.names))
    except MutantsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if report(mutants, answers, keys) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to ask about, again (default: all, once)")
    parser.add_argument("--until", choices=STAGES, default="tier 0", help="the last stage (default: tier 0)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants side by side (default: 2)")
    parser.add_argument("--workers", type=int, default=2, help="workers of pytest for tier 0 (default: 2)")
    parser.add_argument("--kubernetes", default="1.37.1", metavar="VERSION", help="of tier 1 (default: 1.37.1)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="answers (default: out/mutants.jsonl)")
    return parser.parse_args(arguments)


def _side_by_side(
    trial: Trial, rows: Sequence[Mutant], keys: Mapping[str, str], copies: Sequence[Copy], *, again: bool
) -> None:
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def ask(row: Mutant) -> None:
        copy = free.get()
        try:
            trial.ask(row, keys[row.name], copy, again=again)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        asked: list[Any] = [pool.submit(ask, row) for row in rows]
        try:
            for future in asked:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.end()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what it leaves behind with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
