"""What kube-scheduler would do, without a cluster: values in, values out."""
