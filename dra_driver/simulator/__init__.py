"""What Kubernetes would do with a claim, without a cluster. Pure functions: no files, no network.

``manifests`` reads the objects and ``cel`` the selectors, ``allocator`` and ``scoring`` decide as kube-scheduler would,
``explain`` says why not.
"""
