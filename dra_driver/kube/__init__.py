"""Access to the Kubernetes API. A library: contains nothing specific to Neuron."""
