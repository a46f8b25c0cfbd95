"""Golden files: what people read stands in text files here, so that better English is a change of these files alone.

``golden(text)`` compares a text with the entry of the running test, in the file named like the test's module.
``scripts/test golden [PATHS]`` (``pytest --renew-golden``) writes the entries anew; ``git diff`` shows what people will
read instead.

A text without an entry fails. So does an entry that its test no longer asks for, or whose test is gone, which is known
where the module was collected whole.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict

import pytest

# Below the root of the tests.
DIRECTORY = Path("tests/golden")

# An entry: its heading, and its text indented, so that no text looks like a heading.
_HEADING = "--- "
_INDENT = "    "
# Between the name of the test and that of the entry.
_BAR = " | "

# What differs from run to run, and what stands for it in golden files.
_VARYING: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Temporary directories: pytest's for a test, then others.
    (re.compile(r"/[^\s'\"=:]*/pytest-of-[^/\s]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\":,;)\]]+"), "TMP"),
    (re.compile(rf"(?:{re.escape(tempfile.gettempdir())}|/tmp)/[\w.+-]+"), "TMP"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b|(?<='127\.0\.0\.1', )\d{4,5}\b|(?<=localhost:)\d{4,5}\b"), "PORT"),
    (re.compile(r"(?<=under operation )[0-9a-f]{8}\b|(?<=\[op )[0-9a-f]{8}\b"), "OPERATION"),
    (re.compile(r"\b0x[0-9a-f]{9,}\b"), "ADDRESS"),
    # How long something took or a random pause is, and the lengths of files and paths with any of these.
    (re.compile(r"\b\d+(?:\.\d+)?(?= ms\b)|(?<=next try in )[\d.]+|(?<=made no progress for )[\d.]+"), "N"),
    (re.compile(r"(?<=\()\d+(?= bytes\))|(?<= has )\d+(?= bytes)"), "N"),
    # Only the present: times that a test gives are a part of what it shows.
    (
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00)?"),
        lambda found: "NOW" if _is_present(found[0]) else found[0],
    ),
)
# A random UID; several are told apart by their order.
_UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def golden(text: str | Iterable[str], name: str = "") -> None:
    """Compare a text, or lines, with the running test's entry; ``name`` tells several of one test apart."""
    assert _files is not None, "golden() outside a test"
    _files.compare(normalized(text if isinstance(text, str) else "\n".join(text)), name)


@contextmanager
def golden_error(kind: type[BaseException] | tuple[type[BaseException], ...], name: str = "") -> Iterator[None]:
    """Expect an exception whose text is the running test's entry."""
    with pytest.raises(kind) as caught:
        yield
    golden(str(caught.value), name)


def lines(log: str, part: str) -> list[str]:
    """Give the lines of a program's log that have a part: what else it logs, and how often, differs from run to run."""
    return list(dict.fromkeys(line for line in normalized(log).splitlines() if part in line))


def logged(log: pytest.LogCaptureFixture, *parts: str) -> list[str]:
    """Give the messages of this process's log with any of the parts, each once."""
    return list(dict.fromkeys(text for text in log.messages if any(part in text for part in parts)))


def normalized(text: str) -> str:
    """Give a text as golden files have it: the same in each run, and readable."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    uids = {uid: f"UID{number}" for number, uid in enumerate(dict.fromkeys(_UID.findall(text)), start=1)}
    text = _UID.sub(lambda found: uids[found[0]], text)
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text).strip("\n")


def _is_present(text: str) -> bool:
    moment = datetime.fromisoformat(text.replace(",", "."))
    return abs(datetime.now(UTC) - moment.replace(tzinfo=moment.tzinfo or UTC)) < timedelta(hours=1)


def read(path: Path) -> dict[str, str]:
    """Give a file's texts by heading."""
    texts: dict[str, list[str]] = {}
    text: list[str] = []
    for line in path.read_text().split("\n") if path.exists() else ():
        if line.startswith(_HEADING):
            text = texts[line.removeprefix(_HEADING)] = []
        else:
            text.append(line.removeprefix(_INDENT))
    return {heading: "\n".join(text).strip("\n") for heading, text in texts.items()}


def write(path: Path, texts: dict[str, str]) -> None:
    """Write a file in the order of headings, so that differences are small; without texts there is none."""
    if not texts:
        path.unlink(missing_ok=True)
        return
    entries = (
        _HEADING + heading + "\n" + "\n".join(_INDENT + line if line else "" for line in text.split("\n")) + "\n"
        for heading, text in sorted(texts.items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(entries))


def file_of(module: str) -> Path:
    """Give the file of a module, which is named as in test ids: ``tests/unit/cli/test_top.py``."""
    return (DIRECTORY / module.removeprefix("tests/")).with_suffix(".txt")


def files_without_module(root: Path) -> list[Path]:
    """Give the files of modules that are gone."""
    directory = root / DIRECTORY
    return [
        file
        for file in sorted(directory.rglob("*.txt"))
        if not (directory.parent / file.relative_to(directory)).with_suffix(".py").exists()
    ]


class _Run(TypedDict):
    """What a run, or a worker's part of it, gives the files: plain values, which workers can send."""

    # Module: test that asked: heading: text.
    asked: dict[str, dict[str, dict[str, str]]]
    # Tests whose other entries go: they passed. Names with the module.
    passed: list[str]
    # Module that was collected whole: its tests. Entries of others go.
    whole: dict[str, list[str]]


class GoldenFiles:
    """The part of pytest that knows which test is running; in each worker, and in the one that starts them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = config.rootpath
        self._renew: bool = config.getoption("renew_golden")
        self._run: _Run = {"asked": {}, "passed": [], "whole": {}}
        self._of_workers: list[_Run] = []
        self._chosen: set[str] = set()
        # By the first test of the module, which fails for them.
        self._gone: dict[str, list[str]] = {}
        self._kept: dict[str, dict[str, str]] = {}
        self._module = self._test = ""
        global _files
        _files = self

    def compare(self, text: str, name: str) -> None:
        """Compare a text with its entry, or take it as the new one."""
        asked = self._run["asked"].setdefault(self._module, {}).setdefault(self._test, {})
        heading = self._test + (_BAR + name if name else "")
        for number in range(2, 10_000):
            if heading not in asked:
                break
            heading = self._test + _BAR + (f"{name} {number}" if name else str(number))
        asked[heading] = text
        if self._renew:
            return
        entry = self._entries().get(heading)
        if entry is None:
            self._fail(f"no entry '{heading}' for this text:\n{text}")
        elif entry != text:
            differences = difflib.unified_diff(entry.split("\n"), text.split("\n"), "golden", "now", lineterm="")
            self._fail(f"not what the entry '{heading}' says:\n" + "\n".join(differences))

    def _entries(self) -> dict[str, str]:
        if self._module not in self._kept:
            self._kept[self._module] = read(self._root / file_of(self._module))
        return self._kept[self._module]

    def _fail(self, what: str) -> None:
        remedy = f"If this is right: scripts/test golden {self._module}, and read git diff"
        pytest.fail(f"{file_of(self._module)}: {what}\n{remedy}", pytrace=False)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note what is not run whole."""
        self._chosen.update(_module_and_test(item)[0] for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """See which entries have no test any more."""
        self._chosen.update(argument.partition("::")[0] for argument in self._config.args if "::" in argument)
        tests: dict[str, list[str]] = {}
        for item in session.items:
            module, test = _module_and_test(item)
            tests.setdefault(module, []).append(test)
        whole = {module: names for module, names in tests.items() if not self._is_chosen(module)}
        self._run["whole"] = whole
        for module, names in whole.items():
            gone = _of_others(read(self._root / file_of(module)), names)
            if gone:
                self._gone[f"{module}::{min(names)}"] = gone

    def _is_chosen(self, module: str) -> bool:
        return any(Path(chosen).name == Path(module).name for chosen in self._chosen)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Know which test runs."""
        self._module, _, self._test = nodeid.partition("::")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """Fail for the entries that no test asks for."""
        yield
        self._run["passed"].append(f"{self._module}::{self._test}")
        if self._renew:
            return
        asked = self._run["asked"].get(self._module, {}).get(self._test, {})
        unasked = [
            heading for heading in self._entries() if _is_of(heading, {self._test}) and heading not in asked
        ] + self._gone.pop(f"{self._module}::{self._test}", [])
        if unasked:
            self._fail("no test asks for " + ", ".join(f"'{heading}'" for heading in unasked))

    def pytest_sessionfinish(self) -> None:
        """Send what this worker found, or write the files."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["golden"] = self._run
        elif self._renew:
            _renew([self._run, *self._of_workers], self._root)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a worker of pytest-xdist found."""
        found = getattr(node, "workeroutput", {}).get("golden")
        if found is not None:
            self._of_workers.append(found)


_files: GoldenFiles | None = None


def _module_and_test(item: pytest.Item) -> tuple[str, str]:
    module, _, test = item.nodeid.partition("::")
    return module, test


def _is_of(heading: str, tests: set[str]) -> bool:
    return heading in tests or heading.rpartition(_BAR)[0] in tests


def _of_others(entries: Iterable[str], tests: Iterable[str]) -> list[str]:
    names = set(tests)
    return [heading for heading in entries if not _is_of(heading, names)]


def _renew(runs: list[_Run], root: Path) -> None:
    passed = {test for run in runs for test in run["passed"]}
    whole = {module: tests for run in runs for module, tests in run["whole"].items()}
    asked: dict[str, dict[str, str]] = {}
    for run in runs:
        for module, tests in run["asked"].items():
            for texts in tests.values():
                asked.setdefault(module, {}).update(texts)
    for module in {*asked, *whole, *(test.partition("::")[0] for test in passed)}:
        entries = read(root / file_of(module))
        gone = _of_others(entries, whole[module]) if module in whole else []
        over = {test.partition("::")[2] for test in passed if test.startswith(f"{module}::")}
        kept = {heading: text for heading, text in entries.items() if heading not in gone and not _is_of(heading, over)}
        write(root / file_of(module), kept | asked.get(module, {}))
    for path in files_without_module(root):
        path.unlink()
