"""The kubelet side of any DRA driver: registration, gRPC services, sockets. A library: knows nothing of Neuron."""
