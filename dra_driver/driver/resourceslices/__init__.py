"""What the node offers, published as ResourceSlices."""
