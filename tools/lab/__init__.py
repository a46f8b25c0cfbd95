"""The cluster lab: a real Kubernetes on one machine, without a container registry or a container engine.

Standard library only, so that it runs with the system's Python before any virtual environment exists. Pure modules
compute (`layout`, `spec`, `components`, `controlplane`, `nodeconfig`, `oci`); the others act on the machine.
"""
