"""A Kubernetes Dynamic Resource Allocation driver for AWS Trainium and Inferentia.

``docs/architecture.md`` describes the packages, what each may import, and how data flows through them.
"""
