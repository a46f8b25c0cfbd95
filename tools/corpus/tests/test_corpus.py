"""The questions of the corpus are answered, and alike each time: else a comparison of two trees says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import pytest

from corpus.main import QUESTIONS, ROOT, compare, record


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_the_same_answer_each_time(name: str) -> None:
    answer, questions = QUESTIONS[name]
    asked = questions()
    for question in (asked[0], asked[len(asked) // 2], asked[-1]):
        assert answer(question) == answer(question) != ""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_the_same_answer_in_each_process(name: str) -> None:
    question = QUESTIONS[name][1]()[0]
    command = [sys.executable, str(ROOT / "tools/corpus/main.py"), "show", name, *question.split()]
    answers = {
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in "16"  # of these, a set of two names has another order
    }
    assert len(answers) == 1


def test_what_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory, said in ((one, "a"), (other, "b")):
        answers = {"toy": (lambda question, said=said: said + question, lambda: ["1", "2"])}
        monkeypatch.setattr("corpus.main.QUESTIONS", answers)
        monkeypatch.setattr("corpus.main.ProcessPoolExecutor", _Here)
        record(directory, ["toy"], 1)
    assert compare(one, one) == 0
    assert compare(one, other) == 4
    assert "toy.txt: - 1: " in capsys.readouterr().out


class _Here:
    """In place of other processes, which do not know the toy."""

    def __init__(self, _: int, initializer: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(
        self, of: Callable[[tuple[str, str]], str], items: Iterable[tuple[str, str]], chunksize: int
    ) -> Iterator[str]:
        return map(of, items)
