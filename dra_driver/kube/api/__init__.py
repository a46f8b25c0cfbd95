"""The Kubernetes API: client, objects, lists and watches, leader election, evictions, and what is written to a Node."""
