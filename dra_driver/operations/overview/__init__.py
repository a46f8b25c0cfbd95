"""Who has which chips of a cluster, and their health: what ``dra-driver top`` and ``health`` show.

``objects`` is what is kept of the API server's objects (little: the largest clusters have 150,000 pods), ``view``
decides what is shown of them (values in, values out), ``following`` lists and watches.
"""
