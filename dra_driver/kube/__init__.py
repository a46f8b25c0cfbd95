"""Access to the Kubernetes API. A library: knows nothing of Neuron."""
