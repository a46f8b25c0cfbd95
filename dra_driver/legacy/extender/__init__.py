"""The scheduler extender: which nodes a pod with Neuron limits may go to, and which devices it gets there."""
