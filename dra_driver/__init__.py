"""A Kubernetes Dynamic Resource Allocation driver for AWS Trainium and Inferentia.

Each folder is one room; ``docs/architecture.md`` says what each may touch and how data flows through them.
"""
