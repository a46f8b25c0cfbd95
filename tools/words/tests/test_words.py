"""What counts as a word that names nothing, and when a room has too many."""

from __future__ import annotations

from collections import Counter

from words.main import overdrawn, text_of, words

MODULE = '''"""It is told, and was asked."""

def made(known):
    found = known.found
    for _found in known:
        told: int = 1
    return found  # nobody is said to
'''


def test_names_count_where_they_are_bound_and_phrases_wherever_they_stand() -> None:
    assert Counter(words(MODULE)) == {"made": 1, "known": 1, "found": 2, "told": 1, "is told": 3}


def test_a_room_may_have_so_many_and_no_more() -> None:
    budget = {"driver": {"found": 2}}
    assert list(overdrawn({"driver": {"found": 2}}, budget)) == []
    (line,) = overdrawn({"driver": {"found": 3}}, budget)
    assert "dra_driver/driver: 3 times 'found', 2 allowed" in line
    assert list(overdrawn({"other": {"told": 1}}, budget))


def test_the_budget_is_toml() -> None:
    assert text_of({"a": {"is told": 1}}).endswith('[a]\n"is told" = 1\n')
