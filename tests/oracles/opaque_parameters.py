"""Opaque parameters with what has to become of them, written by hand: the driver and the admission policy agree on it.

Texts, since some differ in JSON alone.
"""

from __future__ import annotations

from typing import Final

V1: Final = '"apiVersion": "neuron.aws.com/v1"'
NEURON: Final = f'{V1}, "kind": "NeuronConfig"'
ULTRA: Final = f'{V1}, "kind": "UltraServerConfig"'

UID: Final = "b2b1e5a0-0000-4000-8000-00000000000a"

LEGAL: Final = (
    f"{{{NEURON}}}",
    f'{{{NEURON}, "logicalNeuronCore": 1}}',
    f'{{{NEURON}, "logicalNeuronCore": 2}}',
    f'{{"logicalNeuronCore": 2, {NEURON}}}',
    f'{{{NEURON}, "logicalNeuronCore": 3, "logicalNeuronCore": 2}}',
    '{"apiVersion": "neuron.aws.com/v1alphav1", "kind": "NeuronConfig", "logicalNeuronCore": 1}',
    '{"apiVersion": "resource.neuron.aws.com/v1alphav1", "kind": "NeuronConfig"}',
    '{"apiVersion": "resource.neuron.aws.com/v1alphav1", "kind": "UltraServerConfig", "ultraserverMode": 4}',
    f'{{{ULTRA}, "ultraserverMode": 1}}',
    f'{{{ULTRA}, "ultraserverMode": 2}}',
    f'{{{ULTRA}, "ultraserverMode": 4}}',
    f'{{{NEURON}, "workload": "{UID}"}}',
    f'{{{NEURON}, "workload": "{UID}", "logicalNeuronCore": 1}}',
    f'{{{ULTRA}, "ultraserverMode": 4, "workload": "{UID}"}}',
)

_VERSION: Final = "parameters.apiVersion: expected neuron.aws.com/v1"
_KIND: Final = "parameters.kind: expected NeuronConfig or UltraServerConfig, "
_SIZE: Final = "parameters.logicalNeuronCore: expected 1 or 2, got "
_MODE: Final = "parameters.ultraserverMode: expected 1"
_WORKLOAD: Final = "parameters.workload: expected the UID of a NeuronUltraServerWorkload, got "
_FIELD: Final = "parameters"

ILLEGAL: Final = {
    "{}": _VERSION,
    '{"kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": null, "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": "neuron.aws.com/v2", "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": "v1", "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": "neuron.aws.com/v1 ", "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": "resource.neuron.aws.com/v1", "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": ["neuron.aws.com/v1"], "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": {"a": 1}, "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": 1, "kind": "NeuronConfig"}': _VERSION,
    '{"apiVersion": "a\\nb", "kind": "NeuronConfig"}': _VERSION,
    f"{{{V1}}}": _KIND,
    f'{{{V1}, "kind": null}}': _KIND,
    f'{{{V1}, "kind": ""}}': _KIND,
    f'{{{V1}, "kind": "neuronconfig"}}': _KIND,
    f'{{{V1}, "kind": "GpuConfig", "logicalNeuronCore": 9}}': _KIND,
    f'{{{V1}, "kind": ["NeuronConfig"]}}': _KIND,
    f'{{{V1}, "kind": {{"NeuronConfig": 1}}}}': _KIND,
    f'{{{V1}, "kind": true}}': _KIND,
    f'{{{NEURON}, "logicalNeuronCores": 1}}': _FIELD,
    f'{{{NEURON}, "logical_neuron_core": 1}}': _FIELD,
    f'{{{NEURON}, "ultraserverMode": 1}}': _FIELD,
    f'{{{NEURON}, "": 1}}': _FIELD,
    f'{{{NEURON}, "\\u001b[31mred": 1}}': _FIELD,
    f'{{{ULTRA}, "ultraserverMode": 1, "logicalNeuronCore": 1}}': _FIELD,
    f'{{{NEURON}, "logicalNeuronCore": 0}}': f"{_SIZE}0",
    f'{{{NEURON}, "logicalNeuronCore": 3}}': f"{_SIZE}3",
    f'{{{NEURON}, "logicalNeuronCore": -1}}': f"{_SIZE}-1",
    f'{{{NEURON}, "logicalNeuronCore": 1.0}}': f"{_SIZE}1",
    f'{{{NEURON}, "logicalNeuronCore": 1e0}}': f"{_SIZE}1",
    f'{{{NEURON}, "logicalNeuronCore": "1"}}': f'{_SIZE}"1"',
    f'{{{NEURON}, "logicalNeuronCore": true}}': f"{_SIZE}true",
    f'{{{NEURON}, "logicalNeuronCore": null}}': _SIZE,
    f'{{{NEURON}, "logicalNeuronCore": [1]}}': f"{_SIZE}a list",
    f'{{{NEURON}, "logicalNeuronCore": {{"value": 1}}}}': f"{_SIZE}an object",
    f'{{{NEURON}, "logicalNeuronCore": 1{"0" * 60}}}': _SIZE,
    f'{{{NEURON}, "logicalNeuronCore": 1, "logicalNeuronCore": 3}}': f"{_SIZE}3",
    f"{{{ULTRA}}}": _MODE,
    f'{{{ULTRA}, "ultraserverMode": null}}': _MODE,
    f'{{{ULTRA}, "ultraserverMode": 3}}': _MODE,
    f'{{{ULTRA}, "ultraserverMode": "4"}}': _MODE,
    f'{{{ULTRA}, "ultraserverMode": 2.0}}': _MODE,
    f'{{{ULTRA}, "workload": "{UID}"}}': _MODE,
    f'{{{NEURON}, "workload": ""}}': f'{_WORKLOAD}""',
    f'{{{NEURON}, "workload": "train"}}': f'{_WORKLOAD}"train"',
    f'{{{NEURON}, "workload": "{UID.upper()}"}}': f'{_WORKLOAD}"{UID.upper()}"',
    f'{{{NEURON}, "workload": "{UID}\\n"}}': _WORKLOAD,
    f'{{{NEURON}, "workload": " {UID}"}}': f'{_WORKLOAD}" {UID}"',
    f'{{{NEURON}, "workload": null}}': _WORKLOAD,
    f'{{{NEURON}, "workload": 1}}': f"{_WORKLOAD}1",
    f'{{{ULTRA}, "ultraserverMode": 4, "workload": ["{UID}"]}}': f"{_WORKLOAD}a list",
    "{" + NEURON + "".join(f', "field{number}": 1' for number in range(7)) + "}": _FIELD,
}
"""Parameters to what both say of them."""
