"""Writes the file tree of a host with Neuron devices."""
