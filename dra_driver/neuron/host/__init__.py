"""What this node has, read from files below one host root."""
