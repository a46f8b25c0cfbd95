"""What commands say of claims for which they would have to search too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cli.main import main
from dra_driver.cli.searchtime import NAMESPACE_SECONDS, UNCOUNTED_SECONDS, SearchTime, deadline
from tests.golden import golden

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, namespace: default}
spec:
  devices:
    requests:
    - {name: r, exactly: {deviceClassName: neuron.aws.com, count: 1}}
"""


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_claim_is_given_up_when_its_time_is_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SearchTime, "begin", lambda *_: lambda: False)
    (file := tmp_path / "claim.yaml").write_text(CLAIM)
    assert main([command, str(file), "--instance-type", "trn2.48xlarge=3"]) == 1
    golden(capsys.readouterr().out)


def test_there_is_time_until_it_is_over() -> None:
    assert deadline(3600)()
    assert not deadline(0)()


class Clock:
    """A clock that goes only while there is a search."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def search(self, times: SearchTime, namespace: str, seconds: float) -> bool:
        """A search that would take so long, and often asks whether it may go on; whether it comes to its end."""
        has_time = times.begin(namespace)
        steps = max(round(seconds / 0.01), 1)
        for _ in range(steps):
            self.now += seconds / steps
            if not has_time():
                return False
        return True


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 30.0)), max_size=40), st.floats(0.0, 9.9))
def test_no_namespace_takes_the_time_of_another(searches: list[tuple[str, float]], last: float) -> None:
    clock = Clock()
    times = SearchTime(clock=clock)
    took = dict.fromkeys("ab", 0.0)
    for namespace, seconds in searches:
        before = clock.now
        ended = clock.search(times, namespace, seconds)
        took[namespace] += clock.now - before
        assert ended or seconds > UNCOUNTED_SECONDS - 0.01, "a short search is always made"
    assert clock.search(times, "c", last), "as if nobody had searched before"
    for namespace, seconds in took.items():
        number = sum(1 for item in searches if item[0] == namespace)
        assert seconds <= NAMESPACE_SECONDS + number * (UNCOUNTED_SECONDS + 0.02)


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_what_is_placed_of_one_namespace_does_not_depend_on_how_long_another_one_takes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(_: SearchTime, namespace: str) -> Callable[[], bool]:
        return lambda: namespace != "evil"

    monkeypatch.setattr(SearchTime, "begin", begin)
    claims = (CLAIM.replace("namespace: default", f"namespace: {name}") for name in ("evil", "good"))
    (file := tmp_path / "claims.yaml").write_text("---".join(claims))
    assert main([command, str(file), "--instance-type", "trn2.48xlarge=3"]) == 1
    golden(capsys.readouterr().out)
