"""What commands say of claims for which they would have to search too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.cli.main import main
from dra_driver.cli.searchtime import deadline
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
    monkeypatch.setattr("dra_driver.cli.searchtime.deadline", lambda: lambda: False)
    (file := tmp_path / "claim.yaml").write_text(CLAIM)
    assert main([command, str(file), "--instance-type", "trn2.48xlarge=3"]) == 1
    golden(capsys.readouterr().out)


def test_there_is_time_until_it_is_over() -> None:
    assert deadline(3600)()
    assert not deadline(0)()
