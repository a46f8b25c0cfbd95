"""What Kubernetes would do with a claim, without a cluster, and what the driver would then do with it.

``manifests`` reads the objects and ``cel`` the selectors, ``allocator`` and ``scoring`` decide as kube-scheduler would,
``explain`` says why not; slices and plans are the driver's own. Values in, values out: no network, and no file but the
cache of the grammar of CEL.
"""
