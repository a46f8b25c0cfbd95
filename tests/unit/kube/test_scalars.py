"""Scalars of YAML are what kubectl takes them for; recorded from kubectl 1.34, and compared with one that is here."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.documents import documents
from dra_driver.kube.scalars import Dumper
from tests.manifests.support import KUBECTL, needs_kubectl

BY_KUBECTL = {
    **dict.fromkeys(["n", "N", "no", "No", "off", "FALSE"], False),
    **dict.fromkeys(["y", "Y", "yes", "YES", "on", "True"], True),
    **dict.fromkeys(["~", "null", "Null"], None),
    **dict.fromkeys(["1e3", "1E3", "1e+3", "1.e3", "10_00", "1000.0"], 1000),
    **dict.fromkeys(["08", "8.", "010", "0o10", "0O10", "0b1000", "0x8", "0X8", "+8", "0_10", "8_"], 8),
    "-0b11": -3,
    "0_b1": 1,
    "-0_x_1f": -31,
    "-_1": -1,
    ".5": 0.5,
    "+.5": 0.5,
    ".5e3": 500,
    ".1_5": 0.15,
    "08e1": 80,
    "08.5": 8.5,
    "99999999999999999999": 100000000000000000000,
    **{
        text: text
        for text in (
            *("_1", "._5", "-.", "1e", "1f", "0x", "0xg", "0b2", "0o8", "0.0.1", "1e1000", "0x1p4", ".5p1"),
            *("tRUE", "nO", "NaN", "inf", "Infinity", "=", "<<", "1:30", "2026-01-01", "2026-01-01T00:00:00Z"),
        )
    },
}
ALPHABET = "0011278abfoxeE_+-.inyNt"
LIKE_NUMBERS = st.text(ALPHABET, min_size=1, max_size=6)


def read(text: str) -> object:
    ((_, value),) = documents("file", f"key: {text}\n")
    return value["key"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("start", ["1e", "-", "1", "0x", ".1"])
def test_a_long_text_is_told_from_a_number_in_time(start: str) -> None:
    text = f"{start}{'_' * 200_000}z"
    assert read(text) == text


def kubectl_reads(directory: Path, text: str) -> str:
    """A file with ConfigMap data, as JSON."""
    assert KUBECTL is not None
    file = directory / "file.yaml"
    file.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{text}")
    command = [KUBECTL, "label", "--local", f"--filename={file}", "a=b", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("text", BY_KUBECTL)
def test_a_scalar_is_what_kubectl_takes_it_for(text: str) -> None:
    value = read(text)
    assert (value, type(value) is bool) == (BY_KUBECTL[text], type(BY_KUBECTL[text]) is bool)


def test_keys_are_texts() -> None:
    ((_, value),) = documents("file", "y: 1\n8: 2\n1.5: 3\noff: 4\ntext: 5\n")
    assert value == {"true": 1, "8": 2, "1.5": 3, "false": 4, "text": 5}


@given(text=st.one_of(LIKE_NUMBERS, st.sampled_from(sorted(BY_KUBECTL)), st.text(max_size=8)))
def test_what_is_written_is_read_as_the_same(text: str) -> None:
    written = yaml.dump({"key": text, text: [1, True, None, 0.5]}, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    ((_, value),) = documents("file", written)
    assert value == {"key": text, text: [1, True, None, 0.5]}


@needs_kubectl
def test_random_texts_like_numbers_are_what_kubectl_takes_them_for(tmp_path: Path) -> None:
    made = {"".join(random.choices(ALPHABET, k=random.randint(1, 6))) for _ in range(3000)}
    texts = sorted(text for text in made if text != "-" and not re.search(r"\.(inf|nan)$", text, re.IGNORECASE))
    lines = "".join(f"  k{place}: {text}\n" for place, text in enumerate(texts))
    ((_, ours),) = documents("file", f"data:\n{lines}")
    named = {f"k{place}": text for place, text in enumerate(texts)}
    theirs = json.loads(kubectl_reads(tmp_path, lines))["data"]
    assert {
        text: (ours["data"][key], theirs[key]) for key, text in named.items() if ours["data"][key] != theirs[key]
    } == {}
