"""The Kubernetes API: client, objects, lists and watches, leader election, what a program writes to its own Node."""
