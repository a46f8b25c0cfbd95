"""The archive: what is taken out of texts, names that are replaced, and equal bytes for equal input."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.health.assess import Hint
from dra_driver.neuron.health.hints import file_name
from dra_driver.operations.report.archive import Collected, File, Names, archive, scrubbed
from dra_driver.operations.report.cluster import newest
from tests.golden import golden
from tests.operations import operations


@pytest.mark.parametrize(
    "text",
    [
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "Authorization: Bearer abcdefgh12345678",
        'password: "hunter2 with spaces"',
        "HF_TOKEN=hunter2",
        "https://user:hunter2@registry.example/x",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
        "hf_abcdefghijklmnopqrstuvwxyz",
    ],
)
def test_what_looks_like_a_credential_is_removed(text: str) -> None:
    found = scrubbed(f"before {text} after")
    assert found.startswith("before ")
    assert found.endswith(" after")
    assert "(removed)" in found
    for part in ("hunter2", "AKIAABC", "c2lnbmF0", "abcdefgh", "MIIabc"):
        assert part not in found


def test_serial_numbers_in_the_log_of_the_detector_are_removed() -> None:
    serial = "19fcda00f5ff6eb9"
    file = file_name(Hint("boot", "hbm-uncorrectable", 1, 3, serial))
    line = (
        f"hbm of device 3, serial number {serial}; written to /run/neuron-health/{file}\nserial-num={serial} action=x"
    )
    assert serial in file
    assert scrubbed(line) == line.replace(serial, "(removed)")


@pytest.mark.parametrize(
    "text", ["token" * 40_000, 'token="' * 30_000, "eyJ-" * 50_000, "a" * 200_000, "://a:" * 40_000]
)
def test_a_hostile_log_does_not_take_long(text: str) -> None:
    started = time.process_time()
    assert scrubbed(text)
    assert time.process_time() - started < 10


WORDS = st.sampled_from(["web", "db", "web-0", "web-0-1", "db.example", "a-web", "ml"])


@given(st.sets(WORDS), st.sets(WORDS))
def test_redacted_names_are_gone_from_any_text_around_them(nodes: set[str], pods: set[str]) -> None:
    every = sorted(nodes | pods)
    text = " ".join(f"({name}) x/{name}:y {name}.local {name}-abc zz-{name}-abc" for name in every)
    redacted = Names({"node": nodes, "pod": pods}).redacted(text)
    for name in every:
        assert name not in redacted
    assert len(redacted.split()) == len(text.split())


def test_names_stay_apart_and_the_same_everywhere() -> None:
    names = Names({"pod": {"web", "web-0"}, "node": {"n1"}, "namespace": {"default", "own"}}, ["own"])
    golden(names.redacted("web web-0 web-0-neurons web-1 n1.ec2 cobweb default own"))


def test_names_inside_of_longer_ones_are_replaced_but_not_those_of_devices() -> None:
    names = Names({"node": {"node-1"}, "namespace": {"neuron", "device"}})
    assert names.redacted("00000-neuron.aws.com-node-1-nl56p neuron-device-3 neuron/web") == (
        "00000-neuron.aws.com-node-x1-nl56p neuron-device-3 namespace-x2/web"
    )


@pytest.mark.parametrize("word", ["a", "b"])
def test_a_name_of_many_words_makes_other_texts_no_dearer(word: str) -> None:
    others = [f"p{place}" for place in range(100)]
    plain, hostile = Names({"pod": others}), Names({"pod": [*others, "-".join(["a"] * 127)]})
    text = "-".join([word] * 126)
    assert hostile.redacted(text) == text
    assert operations(lambda: hostile.redacted(text)) <= 2 * operations(lambda: plain.redacted(text))


def test_the_longest_name_is_replaced_wherever_it_begins() -> None:
    names = Names({"pod": ["a", "a-b", "a-b-c-d", "x.y", "q/r"], "node": ["b-c"]})
    assert names.redacted("a-b-c a-b-c-d z-a-b-q b-c-a x.y.a q/r") == (
        f"{names.redacted('a-b')}-c {names.redacted('a-b-c-d')} z-{names.redacted('a-b')}-q "
        f"{names.redacted('b-c')}-{names.redacted('a')} {names.redacted('x.y')}.{names.redacted('a')} q/r"
    )
    assert len({names.redacted(name) for name in ("a", "a-b", "a-b-c-d", "x.y", "b-c")}) == 5


def test_equal_input_gives_equal_bytes() -> None:
    files = [File("b.json", "b", {"z": 1, "a": [1]}), File("a.txt", "a", "text")]
    one, other = Collected(files, [("x", "y")]), Collected(files[::-1], [("x", "y"), ("x", "y")])
    assert archive(one, at=1.5) == archive(other, at=1.5)


@given(st.text(max_size=300), st.integers(1, 80))
def test_a_log_keeps_its_end(log: str, most: int) -> None:
    found = newest(log, most)
    kept = found if len(log) <= most else found.partition("\n")[2]
    assert log.endswith(kept)
    assert len(kept) <= most
