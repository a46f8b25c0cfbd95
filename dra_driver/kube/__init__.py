"""What speaks Kubernetes and knows nothing about Neuron: a library for any DRA driver.

``api`` asks the API server, ``kubelet`` serves kubelet, ``cdi`` writes what container runtimes read. ``documents`` and
``decoding`` read people's YAML as Kubernetes reads it; ``quantity`` and ``formats`` know its numbers and names,
``matching`` its tolerations and selectors, ``node_affinity`` what keeps a pod off a node.
"""
