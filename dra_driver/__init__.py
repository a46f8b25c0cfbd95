"""A Kubernetes Dynamic Resource Allocation driver for AWS Trainium and Inferentia.

``driver`` is what a node runs; it stands on ``neuron`` (the hardware), ``kube`` (Kubernetes) and ``util``. Around it
are ``ultraserver``, ``simulator``, ``legacy`` and ``operations``; ``cli`` has the commands.
``docs/develop/architecture.md`` describes the rooms, what each may import, and how data flows through them.
"""
