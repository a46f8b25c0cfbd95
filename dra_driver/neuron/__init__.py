"""What Neuron hardware is, and who on the node and in the cluster hears of it.

``topology`` knows the instance types, ``host`` reads a host and ``emulation`` writes one, ``health`` finds the faults
of its chips. ``opaque_config`` and ``names`` are the names and parameters shared with users and other programs, and
``exclusion`` keeps a driver and a device plugin from offering the same chips.
"""
