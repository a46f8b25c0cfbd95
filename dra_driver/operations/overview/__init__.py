"""Who has which chips of a cluster, and their health: what ``dra-driver top`` and ``health`` show.

``reading`` lists and watches. ``objects`` is what is kept of the API server's objects (little: the largest clusters
have 150,000 pods); ``deviceplugin`` reads what device plugins write. ``serving`` and ``pods`` find what the cluster
says of nodes and of pods, with the reasons and remedies of ``findings``. ``uses`` says who has which chips, and
``view`` makes ``rows`` of all that. But for ``reading``: values in, values out.
"""
