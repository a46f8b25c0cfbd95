"""A host with Neuron devices that is not there: its file tree, or its inventory in memory."""
