"""CDI specs and the directory they live in. A library: knows nothing of Neuron."""
