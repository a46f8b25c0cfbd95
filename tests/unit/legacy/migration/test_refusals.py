"""What ``dra-driver migrate`` refuses, and what it says of pods that it can migrate in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from tests.golden import golden

NEURON, CORE, EFA = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "vpc.amazonaws.com/efa"
Object = dict[str, Any]


def container(name: str = "main", *, requests: Object | None = None, **limits: Any) -> Object:
    given = {{"neuron": NEURON, "core": CORE, "efa": EFA}[key]: value for key, value in limits.items()}
    resources: Object = {"limits": given} | ({"requests": requests} if requests else {})
    return {"name": name, "image": "example", "resources": resources}


def pod(*containers: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": list(containers), **spec},
    }


TYPE = "--instance-type=trn2.48xlarge"
ULTRA = "--instance-type=trn2u.48xlarge"
INF2 = "--instance-type=inf2.48xlarge"
TYPES = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "node.kubernetes.io/instance-type",
                            "operator": "In",
                            "values": ["trn1.32xlarge", "trn2.48xlarge"],
                        }
                    ]
                }
            ]
        }
    }
}
CASES: dict[str, tuple[Object, tuple[str, ...]]] = {
    "two resources": (pod(container(neuron=1, core=1)), ()),
    "a request that is not the limit": (pod(container(neuron=2, requests={NEURON: 1})), ()),
    "a request without a limit": (pod(container(requests={NEURON: 1})), ()),
    "far too many": (pod(container(neuron=10**9)), ()),
    "too many containers": (pod(*(container(f"c{number}", neuron=1) for number in range(200))), (TYPE,)),
    "cores without a type": (pod(container(core=64)), ()),
    "connected devices without a type": (pod(container(neuron=3)), ()),
    "a node by name": (pod(container(neuron=1), nodeName="node-1"), (TYPE,)),
    "two types that differ": (pod(container(core=16), affinity=TYPES), ()),
    "an UltraServer node": (pod(container(neuron=1)), (ULTRA,)),
    "more runs than alternatives": (pod(container(neuron=5)), ("--instance-type=inf1.24xlarge",)),
    "aligned runs": (pod(container(neuron=2)), (INF2,)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_or_said_beside_the_claims(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, options = CASES[case]
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(found))
    status = main(["migrate", str(path), *options])
    golden(f"exit status {status}\n{capsys.readouterr().err}")
